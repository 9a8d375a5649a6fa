//! A standard error that no one reads, or that hangs: it must hold up neither the lock nor the command.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use crate::support::calm::{held_in_time, judge};
use crate::support::events::Events;
use crate::support::hand::{acquire, is_held, status, until_waiting};
use crate::support::pty::Terminal;
use crate::support::store::{on_every_lease_store, on_files_and_redis};
use crate::support::{Holder, LONG, Lockrun, Running, Store, eventually};

/// Fills the pipe on standard output, and otherwise leaves it as it was.
const FILL: &str = "
import os
os.set_blocking(1, False)
try:
    while True:
        os.write(1, b'x' * 4096)
except BlockingIOError:
    os.set_blocking(1, True)
";

/// Starts this call with its output in a pipe that is full and that nobody reads. What it writes to descriptor 3 can be
/// read, and so can the line `ended` with its status.
fn into_a_full_pipe(call: &Lockrun) -> Running {
    let script = "exec 3>&1; { python3 -c \"$FILL\"; \"$@\" 2>&1; echo \"ended $?\" >&3; } | exec sleep 600";
    call.in_shell(script).env("FILL", FILL).spawn_alone()
}

/// Returns a call without a lease that would end what hangs.
fn without_lease(store: &Store) -> Lockrun {
    Lockrun::new(store).key("stalled").args(["--ttl", "none"])
}

// "Then TERM, KILL, exit 124": also if lockrun cannot say so.
on_files_and_redis!(a_reader_that_stalls_keeps_no_lock, |store| {
    let call = without_lease(store).args(["--max-runtime", "500ms"]).command(["sleep", "600"]);
    into_a_full_pipe(&call).wait_for_line("ended 124");
    assert!(!is_held(store, "stalled"));
});

// The same with a message at each step of the run.
on_files_and_redis!(a_reader_that_stalls_keeps_no_command, |store| {
    let call = without_lease(store).args(["-v", "--max-runtime", "500ms"]).command(["sleep", "600"]);
    into_a_full_pipe(&call).wait_for_line("ended 124");
    assert!(!is_held(store, "stalled"));
});

// "The lease was lost while COMMAND ran, and COMMAND was stopped": nothing waits in vain for the thread that reports
// it.
on_every_lease_store!(a_reader_that_stalls_is_not_told_of_a_loss, |store| {
    let call = Lockrun::new(store).key("stalled").args(["--ttl", "2s"]);
    let mut run = into_a_full_pipe(&call.sh("echo ready >&3; exec sleep 600"));
    run.wait_for_line("ready");
    store.server().forget_everything();
    run.wait_for_line("ended 79");
});

// A late reader still gets every message.
#[test]
fn a_slow_reader_gets_all() {
    judge(|| {
        let store = Store::file();
        let call = without_lease(&store).arg("-v").command(["true"]);
        // The reader comes while lockrun waits for it, or before.
        let script = "{ python3 -c \"$FILL\"; \"$@\" 2>&1; } | { sleep 0.5; tr -d x; }";
        let output = call.in_shell(script).env("FILL", FILL).spawn_alone().wait().exited(0);
        let said = output.stdout();
        let steps = ["acquired", "started", "finished", "released"];
        held_in_time(said.lines().count() == steps.len(), &format!("all is read: {output}"));
        assert!(said.lines().zip(steps).all(|(line, step)| line.contains(step)), "{output}");
    });
}

// The same for a terminal that Ctrl-S has stopped.
#[test]
fn a_stopped_terminal_keeps_no_lock() {
    let store = Store::file();
    let words = without_lease(&store).arg("-v").sh("echo ready; read line").words();
    let mut lockrun = Command::new(&words[0]);
    lockrun.args(&words[1..]);
    let mut terminal = Terminal::start(lockrun, &[]);
    terminal.wait_for("ready");
    terminal.type_keys("\x13\n");
    eventually(LONG, "the lock is free", || !is_held(&store, "stalled"));
}

// "If a message cannot be written for two seconds, ... it is dropped": also one of `acquire`, which waits for its turn
// meanwhile.
on_files_and_redis!(a_stopped_terminal_keeps_no_turn, |store| {
    let holder = Holder::new(store, "stalled");
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo ready; read line; exec \"$@\"", "sh"]);
    shell.args(acquire(store, "stalled", &["--wait"]).words());
    let mut terminal = Terminal::start(shell, &[]);
    terminal.wait_for("ready");
    terminal.type_keys("\x13\n");
    until_waiting(store, "stalled", 1);
    holder.end();
    eventually(LONG, "it is its turn", || status(store, "stalled")["holders"][0]["held_as"] == "by-hand");
});

/// Delays what the call writes to the file `$LOG`, its standard error, by ten minutes.
const DELAYED: &str = "exec strace -f -qq -o /dev/null -P \"$LOG\" -e inject=write:delay_enter=600000000 \
    sh -c 'exec \"$@\" 2>\"$LOG\"' sh \"$@\"";

// "The lock is released" before any message: a message may go to a file on a server that does not answer.
on_files_and_redis!(the_lock_is_released_before_it_is_said, |store| {
    let call = without_lease(store).args(["--max-runtime", "500ms"]).command(["sleep", "600"]);
    is_free_before_a_word(store, &call, "finished");
});

// "126, 127: COMMAND cannot be executed, is not found; the lock is released": the same if COMMAND never started.
on_files_and_redis!(the_lock_is_released_before_a_missing_command_is_reported, |store| {
    for program in ["/nonexistent", "/etc/passwd"] {
        is_free_before_a_word(store, &without_lease(store).command([program]), "acquired");
    }
});

/// Asserts that the lock is free some time after this `event`, although lockrun cannot write a word.
fn is_free_before_a_word(store: &Store, call: &Lockrun, event: &str) {
    let events = Events::new();
    let directory = TempDir::new().expect("a temporary directory");
    let log = directory.path().join("log");
    let _run = events.of(call.clone()).in_shell(DELAYED).env("LOG", &log).spawn_alone();
    events.hear(event, 1);
    eventually(LONG, "the lock is free", || !is_held(store, "stalled"));
    assert_eq!(fs::read_to_string(&log).expect("lockrun has it open"), "");
}
