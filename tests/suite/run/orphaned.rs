//! Job control where no shell is left to continue what a terminal stops: the kernel then calls the process group
//! orphaned. It does not stop such a group for the terminal, and it ends a suspended one.

use std::process::Command;

use tempfile::TempDir;

use crate::support::holder::is_free;
use crate::support::lockrun::PROGRAM;
use crate::support::namespace::as_first_process;
use crate::support::processes::{find_program, is_alive};
use crate::support::pty::Terminal;
use crate::support::shell::{PROMPT, enter, written};
use crate::support::store::on_files_and_redis;
use crate::support::{LONG, Lockrun, Store, eventually};

/// Runs a shell script on a terminal, in the process group that leads the session. It starts lockrun as `"$@"`.
fn lead(store: &Store, script: &str, command: &[&str]) -> Terminal {
    let call = Lockrun::new(store).key("orphaned").args(["--ttl", "60s"]).command(command);
    let mut shell = Command::new(find_program("sh"));
    shell.args(["-c", script, "sh"]).args(call.words());
    Terminal::start(shell, &[])
}

/// Presses Ctrl-Z, and checks that the run goes on as if nothing had happened.
fn ctrl_z_stops_nothing(store: &Store, script: &str) {
    let mut terminal = lead(store, script, &["sh", "-c", "echo ready; read word; echo got $word; exit 3"]);
    terminal.wait_for("ready");
    terminal.type_keys("\x1a");
    terminal.wait_for("^Z");
    enter(&mut terminal, "enough");
    terminal.wait_for("got enough");
    assert_eq!(terminal.wait().code(), Some(3));
    assert!(is_free(store, "orphaned"));
}

// "The terminal and job control reach COMMAND as they were": Ctrl-Z under `ssh -t HOST lockrun …` or in a window of its
// own.
on_files_and_redis!(ctrl_z_does_not_stop_a_leader, |store| {
    ctrl_z_stops_nothing(store, "exec \"$@\"");
});

// The same in a script that leads the session, which shares its group with lockrun.
on_files_and_redis!(ctrl_z_does_not_stop_a_leaders_child, |store| {
    ctrl_z_stops_nothing(store, "\"$@\"; exit $?");
});

// The same in a container's terminal: nothing stops the first process of a PID namespace, so lockrun could not stop
// with the command.
on_files_and_redis!(ctrl_z_does_not_stop_a_container, |store| {
    ctrl_z_stops_nothing(store, &as_first_process());
});

// "The terminal and job control reach COMMAND as they were": a suspended run does not outlive its shell, whether the
// shell exits or its window closes. (Some shells send HUP themselves, but not this one.)
on_files_and_redis!(a_suspended_run_ends_with_its_shell, |store| {
    for closes in [false, true] {
        let directory = TempDir::new().expect("a temporary directory");
        let id = directory.path().join("id");
        let mut shell = Command::new(find_program("sh"));
        shell.arg("-i");
        let mut terminal = Terminal::start(shell, &[("PS1", PROMPT), ("LOCKRUN_STORE", &store.url())]);
        terminal.wait_for(PROMPT);
        let script = format!("echo $$ >{}; exec sleep 600", id.display());
        enter(&mut terminal, &format!("{PROGRAM} -k orphaned --ttl none sh -c '{script}'"));
        let command = written(&id);
        terminal.type_keys("\x1a");
        terminal.wait_for("Stopped");
        terminal.wait_for(PROMPT);
        assert!(!is_free(store, "orphaned"), "it is only suspended");
        if closes {
            terminal.hang_up();
        } else {
            enter(&mut terminal, "exit");
            terminal.wait_for(PROMPT);
            enter(&mut terminal, "exit");
        }
        terminal.wait();
        eventually(LONG, "the command has ended", || !is_alive(command));
        eventually(LONG, "the lock is free", || is_free(store, "orphaned"));
    }
});

// The same for a background job whose shell has exited: reading the terminal fails, instead of stopping the job for
// ever.
on_files_and_redis!(a_read_in_the_background_fails, |store| {
    let job = "while kill -0 $$ 2>/dev/null; do sleep 0.01; done; \"$@\"; echo status $?";
    let script = format!("sh -mc '({job}) & :' sh \"$@\"; read word");
    let mut terminal = lead(store, &script, &["cat"]);
    terminal.wait_for("status 1");
    assert!(is_free(store, "orphaned"));
});
