//! A /proc that is missing, or that of another PID namespace: COMMAND's processes cannot be found there.

use std::ffi::OsStr;
use std::fs::File;
use std::process::Command;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::holder::is_free;
use crate::support::namespace::{with_mounts, with_pids_of_its_own};
use crate::support::processes::{holds_lock_on, need_root, send};
use crate::support::pty::Terminal;
use crate::support::store::{on_every_lease_store, on_files_and_redis};
use crate::support::{Lockrun, Store};

/// Returns shell code that enters a place without a /proc, and one with the wrong /proc.
fn places() -> [String; 2] {
    [with_mounts("mount -t tmpfs none /proc"), with_pids_of_its_own()]
}

/// Starts lockrun in one PID namespace, with children in another.
const BETWEEN: &str = "exec unshare -p \"$@\"";

/// Asserts that the run is refused before anything has begun, with why and what to do.
#[track_caller]
fn is_refused(call: &Lockrun, places: &[String]) {
    let call = call.clone().command(["echo", "ran"]);
    for place in places {
        call.in_shell(place).alone().exited(125).printed("").said("/proc").said("mount");
    }
}

// "It needs a /proc of its own PID namespace on a lease store, and refuses to run where there is none."
on_every_lease_store!(a_run_under_a_lease_is_refused, |store| {
    let proxy = store.proxy();
    let asked = store.server().requests();
    let call = || Lockrun::at(&proxy.url()).key("proc");
    need_root("have a PID namespace for children alone");
    let [without, outside] = places();
    let places = [without, outside, BETWEEN.to_owned()];
    is_refused(&call(), &places);
    is_refused(&call().args(["--wait", "--ttl", "none"]), &places);
    let reserve = Lockrun::bare().args(["reserve", "--store", &proxy.url(), "--from", "1"]);
    is_refused(&reserve.key("proc"), &places);
    if !store.server().is_monitored() {
        assert_eq!(proxy.connections(), 0, "the store was asked");
    }
    assert_eq!(store.server().requests(), asked, "the store was asked");
    assert!(is_free(store, "proc"));
});

// "On the file store the kernel's lock passes to the command": nothing has to be found for that.
#[test]
fn a_run_on_files_needs_none() {
    let store = Store::file();
    for place in places() {
        let call = Lockrun::new(&store).key("proc");
        call.clone().sh("echo ran; exit 3").in_shell(&place).alone().exited(3).printed("ran\n").silent();
        assert!(is_free(&store, "proc"));
    }
}

// "`--max-runtime`" and "`--descendants wait|kill`" apply to all that COMMAND has started.
#[test]
fn what_cannot_be_kept_is_refused_on_files() {
    let store = Store::file();
    for options in [["--max-runtime", "60s"], ["--descendants", "wait"], ["--descendants", "kill"]] {
        is_refused(&Lockrun::new(&store).key("proc").args(options), &places());
    }
    // A record that outlasts the run has to name its boot; only a missing /proc prevents that.
    for options in [["--keep", "-v"], ["--min-hold", "60s"]] {
        is_refused(&Lockrun::new(&store).key("proc").args(options), &places()[..1]);
    }
    // So has the value of a command that fails, unless it is freed.
    let reserve = Lockrun::other("reserve", &store).key("proc").args(["--from", "1"]);
    is_refused(&reserve, &places()[..1]);
    let freed = reserve.args(["--on-failure", "free"]).sh("echo ran; exit 3").in_shell(&places()[0]);
    freed.alone().exited(3).printed("ran\n").silent();
    assert!(is_free(&store, "proc"));
}

// "Forwards signals": to COMMAND, if no other process can be found; also with a terminal, where COMMAND shares
// lockrun's group.
#[test]
fn a_signal_reaches_the_command() {
    let store = Store::file();
    let script = "trap 'echo asked; exit 9' TERM; echo ready; while :; do sleep 0.01; done";
    let call = Lockrun::new(&store).key("proc").sh(script).in_shell(&places()[0]);
    let mut run = call.spawn_alone();
    run.wait_for_line("ready");
    run.signal(Signal::SIGTERM);
    run.wait().exited(9).printed("ready\nasked\n");
    let words = Lockrun::new(&store).key("proc").sh(script).words();
    let mut command = Command::new("sh");
    command.args(["-c", &places()[0], "sh"]).args(words);
    let mut terminal = Terminal::start(command, &[]);
    terminal.wait_for("ready");
    send(terminal.pid(), Signal::SIGTERM);
    terminal.wait_for("asked");
    assert_eq!(terminal.wait().code(), Some(9));
}

// "Until COMMAND and all that lockrun must stop is dead": if /proc goes away while COMMAND runs, what can be reached
// without it is still ended: COMMAND's process group.
on_files_and_redis!(the_group_is_ended_all_the_same, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let lives = directory.path().join("lives");
    File::create(&lives).expect("our own directory");
    let script = "mount -t tmpfs none /proc || exit; flock \"$1\" sh -c 'trap \"\" TERM; echo ready; sleep 600' & exec sleep 600";
    let call = Lockrun::new(store).key("proc").args(["--max-runtime", "2s", "--kill-after", "100ms"]);
    let call =
        call.command([OsStr::new("sh"), OsStr::new("-c"), OsStr::new(script), OsStr::new("sh"), lives.as_os_str()]);
    call.in_shell(&with_mounts(":")).spawn_alone().wait_and_leave(|output| {
        output.exited(124).printed("ready\n");
        assert!(!holds_lock_on(&lives), "a process was left");
    });
    assert!(is_free(store, "proc"));
});

// `status` and `prune` do what they can without /proc, and say what is missing.
#[test]
fn the_directory_of_locks_is_there_all_the_same() {
    let store = Store::file();
    Lockrun::new(&store).key("proc").command(["true"]).run().exited(0);
    let without = &places()[0];
    let status = Lockrun::other("status", &store);
    for call in [status.clone(), status.key("proc")] {
        let output = call.in_shell(without).alone().exited(69).said("/proc/locks").said("mount");
        assert!(!output.stderr().contains("cannot list"), "{output}");
    }
    let prune = Lockrun::other("prune", &store).args(["--older-than", "0s", "--dry-run"]);
    prune.in_shell(without).alone().exited(0).printed("proc\n").silent();
}
