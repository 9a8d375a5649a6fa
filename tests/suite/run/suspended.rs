//! Ctrl-Z with programs that stop themselves, and runs on a terminal all of whose own processes are stopped.

use std::fs::{self, File};
use std::io::Write;

use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::TempDir;

use crate::support::catcher::Catcher;
use crate::support::holder::is_free;
use crate::support::processes::{children, find_program, is_pending, send, state};
use crate::support::shell::{OldAndNext, PROMPT, enter, shell, written};
use crate::support::store::{on_every_lease_store, on_every_store, on_files_and_redis};
use crate::support::{LONG, Lockrun, eventually};

// "Ctrl-Z stops both and returns the prompt": also with a program that catches TSTP and stops itself by SIGSTOP some
// time later, as sudo and top do.
on_files_and_redis!(a_program_that_stops_itself, |store| {
    let mut terminal = shell(store);
    let catcher = Catcher::new();
    enter(&mut terminal, &format!("lockrun -k tty --ttl 60s {}", catcher.that_stops_itself(&["SIGTSTP"])));
    terminal.wait_for("ready");
    for word in ["first", "second", "last"] {
        terminal.type_keys("\x1a");
        terminal.wait_for("Stopped");
        terminal.wait_for(PROMPT);
        assert!(!is_free(store, "tty"), "suspended, but within the lease");
        enter(&mut terminal, "fg");
        terminal.wait_for("lockrun");
        enter(&mut terminal, word);
        terminal.wait_for(&format!("got {word}"));
    }
    terminal.wait_for(PROMPT);
    enter(&mut terminal, "echo status $?");
    terminal.wait_for("status 3");
    assert!(is_free(store, "tty"));
});

// The same if the command is stopped before Ctrl-Z is pressed: it will not stop again.
on_files_and_redis!(a_command_that_is_stopped_already, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let (id, go) = (directory.path().join("id"), directory.path().join("go"));
    let mut terminal = shell(store);
    let script = format!("echo $$ >{}; while ! [ -e {} ]; do sleep 0.01; done; exit 3", id.display(), go.display());
    enter(&mut terminal, &format!("lockrun -k tty --ttl 60s sh -c '{script}'"));
    let command = written(&id);
    send(command, Signal::SIGSTOP);
    eventually(LONG, "the command is stopped", || state(command) == Some('T'));
    terminal.type_keys("\x1a");
    terminal.wait_for("Stopped");
    terminal.wait_for(PROMPT);
    fs::write(&go, "").expect("our own directory");
    enter(&mut terminal, "fg; echo status $?");
    terminal.wait_for("status 3");
    terminal.wait_for(PROMPT);
    assert!(is_free(store, "tty"));
});

// The same if the command has ended, and only a process that it left behind is waited for.
on_every_store!(what_is_waited_for_can_be_suspended, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let (id, go) = (directory.path().join("id"), directory.path().join("go"));
    let mut terminal = shell(store);
    let left = format!("while ! [ -e {} ]; do sleep 0.01; done", go.display());
    let script = format!("({left}) & echo $$ >{}; exit 3", id.display());
    enter(&mut terminal, &format!("lockrun -k tty --ttl 60s --descendants wait sh -c '{script}'"));
    let command = written(&id);
    eventually(LONG, "the command has been reaped", || state(command).is_none());
    let lockrun = terminal.foreground();
    for _ in 0..2 {
        terminal.type_keys("\x1a");
        terminal.wait_for("Stopped");
        terminal.wait_for(PROMPT);
        assert!(!is_free(store, "tty"), "suspended, but within the lease");
        enter(&mut terminal, "fg; echo status $?");
        // The shell names the job before it continues it.
        let is_resumed = || terminal.foreground() == lockrun && state(lockrun.as_raw()) != Some('T');
        eventually(LONG, "it is in the foreground again", is_resumed);
    }
    fs::write(&go, "").expect("our own directory");
    terminal.wait_for("status 3");
    terminal.wait_for(PROMPT);
    assert!(is_free(store, "tty"));
});

/// Reports TSTP until a file is there, and is outlived by a child that ignores TSTP until it can read a line.
const OUTLIVED: &str = "
import os, signal, sys, time
pid_file, go, end = sys.argv[1:]
signal.signal(signal.SIGTSTP, signal.SIG_IGN)
if os.fork() == 0:
    with open(go) as file:
        file.readline()
    os._exit(0)
signal.signal(signal.SIGTSTP, lambda number, frame: os.write(1, b'caught\\n'))
with open(pid_file, 'w') as file:
    print(os.getpid(), file=file)
while not os.path.exists(end):
    time.sleep(0.01)
sys.exit(3)
";

// A Ctrl-Z that the command ignored is over when the command has ended: it does not stop lockrun while a process that
// was left behind is waited for, and that has ignored it, too.
on_every_store!(a_ctrl_z_from_before_the_wait, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let [script, id, go, end] = ["script", "id", "go", "end"].map(|name| directory.path().join(name));
    mkfifo(&go, Mode::S_IRUSR | Mode::S_IWUSR).expect("a FIFO");
    let mut go_on = File::options().read(true).write(true).open(&go).expect("our own FIFO");
    let mut terminal = shell(store);
    fs::write(&script, OUTLIVED).expect("our own directory");
    let words = [find_program("python3"), script, id.clone(), go, end.clone()].map(|word| word.display().to_string());
    let run = format!("lockrun -k tty --ttl 60s --descendants wait {}", words.join(" "));
    enter(&mut terminal, &format!("{run}; echo status $?"));
    let command = written(&id);
    let lockrun = terminal.foreground().as_raw();
    terminal.type_keys("\x1a");
    terminal.wait_for("caught");
    eventually(LONG, "lockrun has noticed it", || !is_pending(lockrun, Signal::SIGTSTP));
    fs::write(&end, "").expect("our own directory");
    eventually(LONG, "the command has been reaped", || state(command).is_none());
    // After a few other runs, lockrun has noticed that, too.
    for _ in 0..3 {
        Lockrun::new(store).key("another").command(["true"]).run().exited(0);
    }
    go_on.write_all(b"\n").expect("our own FIFO");
    let seen = terminal.wait_for("status");
    assert!(!seen.contains("Stopped"), "{seen:?}");
    terminal.wait_for(" 3");
    terminal.wait_for(PROMPT);
    assert!(is_free(store, "tty"));
});

// "With a terminal, a stop by SIGSTOP of COMMAND alone does not stop lockrun": also if COMMAND was stopped and
// continued before Ctrl-Z is pressed, which it ignores.
on_files_and_redis!(a_stop_that_is_over, |store| {
    let mut terminal = shell(store);
    let catcher = Catcher::new();
    enter(&mut terminal, &format!("lockrun -k tty --ttl 60s {}; echo status $?", catcher.of(&["SIGTSTP"])));
    let command = written(&catcher.pid_file());
    send(command, Signal::SIGSTOP);
    eventually(LONG, "the command is stopped", || state(command) == Some('T'));
    send(command, Signal::SIGCONT);
    eventually(LONG, "the command goes on", || state(command) != Some('T'));
    // After a few other runs, lockrun has noticed both.
    for _ in 0..3 {
        Lockrun::new(store).key("another").command(["true"]).run().exited(0);
    }
    terminal.type_keys("\x1a");
    terminal.wait_for("caught");
    enter(&mut terminal, "last");
    let seen = terminal.wait_for("status");
    assert!(seen.contains("got last") && !seen.contains("Stopped"), "{seen:?}");
    terminal.wait_for(" 3");
    terminal.wait_for(PROMPT);
    assert!(is_free(store, "tty"));
});

// "It holds under STOP of lockrun", also on a terminal, where the command shares lockrun's process group: with lockrun
// and its guardian stopped, the command and all that it has started are dead before the next run begins.
on_every_lease_store!(lockrun_and_its_guardian_are_stopped, |store| {
    let mut scene = OldAndNext::new(store, &["fork", "setsid"]);
    let lockrun = scene.terminal.foreground().as_raw();
    for pid in [children(lockrun)[0], lockrun] {
        send(pid, Signal::SIGSTOP);
        eventually(LONG, "it stands still", || state(pid) == Some('T'));
    }
    scene.next.wait_for_line("ready");
    scene.the_old_one_was_dead(3);
    enter(&mut scene.terminal, "fg; echo status $?");
    scene.terminal.wait_for("status");
});
