//! A terminal that goes away while lockrun leads its session, as under `ssh -t HOST lockrun …` or in a window of its
//! own.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::holder::is_free;
use crate::support::processes::{is_alive, send, state};
use crate::support::pty::Terminal;
use crate::support::shell::written;
use crate::support::store::{on_every_store, on_files_and_redis};
use crate::support::{Holder, LONG, Lockrun, Store, eventually, stays_true_for};

/// Runs a shell script under the lock, with a lockrun that leads a terminal's session.
fn lead(store: &Store, options: &[&str], script: &str) -> Terminal {
    let words = Lockrun::new(store).key("hang-up").args(options).sh(script).words();
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    Terminal::start(command, &[])
}

#[track_caller]
fn died_of_hup(status: ExitStatus) {
    assert_eq!(status.signal(), Some(Signal::SIGHUP as i32), "{status:?}");
}

// "HUP is for all of COMMAND's processes": the kernel sends a terminal's HUP only to the session's leader.
on_files_and_redis!(it_ends_the_command, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let (id, left) = (directory.path().join("id"), directory.path().join("left"));
    let script = format!("sleep 600 & echo $! >{}; echo $$ >{}; wait", left.display(), id.display());
    let mut terminal = lead(store, &["--ttl", "10m"], &script);
    let (command, left) = (written(&id), written(&left));
    terminal.hang_up();
    died_of_hup(terminal.wait());
    assert!(!is_alive(command), "the command lives on");
    eventually(LONG, "what it had started has ended", || !is_alive(left));
    assert!(is_free(store, "hang-up"));
});

// "Transparent": a command that handles it gets it once, and its own status counts.
on_files_and_redis!(the_command_hears_of_it_once, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let (id, heard) = (directory.path().join("id"), directory.path().join("heard"));
    let script = format!(
        "trap 'echo HUP >>{}' HUP; echo $$ >{}; while ! [ -s {0} ]; do sleep 0.01; done; sleep 0.2; exit 3",
        heard.display(),
        id.display()
    );
    let mut terminal = lead(store, &[], &script);
    written(&id);
    terminal.hang_up();
    assert_eq!(terminal.wait().code(), Some(3));
    assert_eq!(fs::read_to_string(heard).expect("it has heard of it"), "HUP\n");
    assert!(is_free(store, "hang-up"));
});

// "A signal that was ignored when lockrun started stays ignored": nohup(1) works as without lockrun.
on_files_and_redis!(a_command_that_ignores_it_goes_on, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let (id, go) = (directory.path().join("id"), directory.path().join("go"));
    let script =
        format!("trap '' HUP; echo $$ >{}; while ! [ -e {} ]; do sleep 0.01; done; exit 3", id.display(), go.display());
    let mut terminal = lead(store, &[], &script);
    let command = written(&id);
    terminal.hang_up();
    let goes_on = || is_alive(command) && !is_free(store, "hang-up");
    stays_true_for(Duration::from_millis(300), "it goes on, and has the lock", goes_on);
    fs::write(&go, "").expect("our own directory");
    assert_eq!(terminal.wait().code(), Some(3));
    assert!(is_free(store, "hang-up"));
});

// "HUP is for all of COMMAND's processes": also for stopped ones. The kernel sends CONT after it, and so does lockrun.
on_files_and_redis!(it_ends_a_stopped_command, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let id = directory.path().join("id");
    let mut terminal = lead(store, &["--ttl", "10m"], &format!("echo $$ >{}; exec sleep 600", id.display()));
    let command = written(&id);
    send(command, Signal::SIGSTOP);
    eventually(LONG, "the command is stopped", || state(command) == Some('T'));
    terminal.hang_up();
    died_of_hup(terminal.wait());
    assert!(!is_alive(command), "the command lives on");
    assert!(is_free(store, "hang-up"));
});

// "A wait that is cut short leaves the queue": a hang-up ends it, and the command never runs.
on_every_store!(it_ends_a_wait, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let trace = directory.path().join("trace");
    let holder = Holder::new(store, "hang-up");
    let mut terminal = lead(store, &["--wait", "-v"], &format!("touch {}", trace.display()));
    terminal.wait_for("waiting");
    terminal.wait_for(&format!("pid {}", holder.pid()));
    terminal.hang_up();
    died_of_hup(terminal.wait());
    let places = store.lease_server().map(|server| server.waiting("hang-up"));
    assert_eq!(places.unwrap_or_default(), Vec::<String>::new(), "it has left the queue");
    holder.end();
    assert!(is_free(store, "hang-up"));
    assert!(!trace.exists(), "the command was started");
});

// "Ctrl-Z stops both and returns the prompt": not if lockrun leads the session, since no one would continue it. A wait
// goes on, as in flock(1).
on_every_store!(ctrl_z_does_not_stop_a_leader_that_waits, |store| {
    let holder = Holder::new(store, "hang-up");
    let mut terminal = lead(store, &["--wait", "-v"], "exit 3");
    terminal.wait_for("waiting");
    terminal.wait_for(&format!("pid {}", holder.pid()));
    terminal.type_keys("\x1a");
    terminal.wait_for("^Z");
    holder.end();
    assert_eq!(terminal.wait().code(), Some(3));
    assert!(is_free(store, "hang-up"));
});
