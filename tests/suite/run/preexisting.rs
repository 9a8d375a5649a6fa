//! Processes from before lockrun: a shell executes lockrun in its place, which inherits the shell's children.

use std::fs;
use std::path::Path;

use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::support::deadline::eventually_some;
use crate::support::holder::is_free;
use crate::support::processes::{children, is_alive, send};
use crate::support::store::{on_every_lease_store, on_files_and_redis};
use crate::support::{Holder, LONG, Lockrun, Running, Store, eventually};

/// Executes this call in a shell that already has a child; returns the child's id, too.
fn with_a_child(call: &Lockrun, directory: &Path) -> (Running, i32) {
    let id = directory.join("id");
    let run = call.in_shell(&format!("sleep 600 & echo $! >{}; exec \"$@\"", id.display())).spawn_alone();
    let mut pid = None;
    eventually(LONG, "the shell has written the id", || {
        let text = fs::read_to_string(&id).unwrap_or_default();
        pid = text.strip_suffix('\n').and_then(|text| text.parse().ok());
        pid.is_some()
    });
    (run, pid.expect("just found"))
}

/// Asserts that the run ends with this status while the shell's child lives on.
#[track_caller]
fn spares(call: &Lockrun, status: i32) {
    let directory = TempDir::new().expect("a temporary directory");
    let (mut run, child) = with_a_child(call, directory.path());
    eventually(LONG, "the run has ended", || run.has_ended());
    assert!(is_alive(child), "a process was ended that is none of lockrun's");
    run.wait().exited(status);
}

// "`--max-runtime DURATION`: then TERM, KILL, exit 124": for COMMAND and all that it started, and no other process.
on_files_and_redis!(a_limit_spares_them, |store| {
    let call = Lockrun::new(store).key("before").args(["--max-runtime", "0.5", "--kill-after", "1s"]);
    spares(&call.clone().command(["sleep", "600"]), 124);
    assert!(is_free(store, "before"));
    // The command's descendants are ended all the same.
    let call = call.sh("trap '' TERM; sleep 600 & while :; do sleep 0.05; done");
    spares(&call, 124);
    assert!(is_free(store, "before"));
});

// "`--descendants wait`: hold the lock until the last has gone": the last that COMMAND left behind.
on_files_and_redis!(they_are_not_waited_for, |store| {
    let call = Lockrun::new(store).key("before").args(["--descendants", "wait"]);
    spares(&call.clone().sh("exit 3"), 3);
    spares(&call.clone().sh("(sleep 0.5; exec true) & exit 3"), 3);
    assert!(is_free(store, "before"));
});

// "`--descendants kill`: end them first": processes that COMMAND left behind.
on_files_and_redis!(they_are_not_killed, |store| {
    let call = Lockrun::new(store).key("before").args(["--descendants", "kill", "--kill-after", "1s"]);
    spares(&call.clone().sh("exit 3"), 3);
    let elsewhere = "{ setsid sh -c 'echo there; exec sleep 600 >/dev/null' & } | read there";
    spares(&call.clone().sh(&format!("sleep 600 & {elsewhere}; exit 3")), 3);
    assert!(is_free(store, "before"));
});

/// Returns the guardian of a run that also has other children, when it is there.
#[track_caller]
fn guardian_of(run: &Running) -> i32 {
    let is_guardian =
        |pid: &i32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "guardian\n");
    eventually_some(LONG, "it has a guardian", || children(run.pid()).into_iter().find(is_guardian))
}

/// A shell with a child that, once it may, starts a process and ends: that process becomes the child of lockrun, which
/// the shell has executed by then.
const LATE: &str = "{ until [ -e \"$BEGIN\" ]; do sleep 0.01; done; sleep 600 & echo $! >\"$ID\"; } & exec \"$@\"";

/// Executes this call in such a shell. The command, a shell script, begins when all that has happened. Also returns the
/// id of the process that was left to lockrun.
fn with_a_late_child(call: &Lockrun, script: &str, directory: &Path) -> (Running, i32) {
    let at = |name: &str| directory.join(name);
    let call = call.clone().env("BEGIN", at("begin")).env("ID", at("id")).env("GO", at("go"));
    let script = format!(": >\"$BEGIN\"; until [ -e \"$GO\" ]; do sleep 0.01; done; {script}");
    let run = call.sh(&script).in_shell(LATE).spawn_alone();
    let late = eventually_some(LONG, "a process was left to lockrun", || {
        let text = fs::read_to_string(at("id")).unwrap_or_default();
        let pid = text.strip_suffix('\n').and_then(|text| text.parse().ok())?;
        children(run.pid()).contains(&pid).then_some(pid)
    });
    fs::write(at("go"), "").expect("our own directory");
    (run, late)
}

/// Asserts that the run ends with this status while the process that was left to it lives on.
#[track_caller]
fn spares_a_late_child(call: &Lockrun, script: &str, status: i32) {
    let directory = TempDir::new().expect("a temporary directory");
    let (mut run, late) = with_a_late_child(call, script, directory.path());
    eventually(LONG, "the run has ended", || run.has_ended());
    assert!(is_alive(late), "a process was ended that is none of lockrun's");
    run.wait().exited(status);
}

// "COMMAND and all that it started, and nobody else": processes that the shell's children have started since, and left
// behind, are not COMMAND's.
on_files_and_redis!(what_they_leave_behind_is_spared, |store| {
    let call = Lockrun::new(store).key("before").args(["--kill-after", "1s"]);
    let daemon = "{ setsid sh -c 'echo there; exec sleep 600 >/dev/null' & } | read there";
    spares_a_late_child(&call.clone().args(["--max-runtime", "2s"]), &format!("{daemon}; exec sleep 600"), 124);
    spares_a_late_child(&call.clone().args(["--descendants", "wait"]), "(sleep 0.5; exec true) & exit 3", 3);
    spares_a_late_child(&call.args(["--descendants", "kill"]), &format!("{daemon}; exit 3"), 3);
    assert!(is_free(store, "before"));
});

// "If the guardian is killed, lockrun kills the command's processes": only those, and none that others have left to it.
on_every_lease_store!(what_they_leave_behind_outlives_the_guardian, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let id = directory.path().join("daemon");
    let script = format!("setsid sh -c 'echo $$ >{}; exec sleep 600' & exec sleep 600", id.display());
    let (mut run, late) = with_a_late_child(&Lockrun::new(store).key("before"), &script, directory.path());
    let daemon = eventually_some(LONG, "the command has left a daemon", || {
        fs::read_to_string(&id).ok()?.strip_suffix('\n')?.parse().ok()
    });
    send(guardian_of(&run), Signal::SIGKILL);
    eventually(LONG, "the run has ended", || run.has_ended());
    assert!(is_alive(late), "a process was ended that is none of lockrun's");
    assert!(!is_alive(daemon), "the command's daemon was left");
    run.wait().exited(125);
});

/// Continues a traced process until this event stops it.
#[track_caller]
fn trace_to(pid: Pid, event: i32) {
    while !matches!(waitpid(pid, None), Ok(WaitStatus::PtraceEvent(_, _, now)) if now == event) {
        ptrace::cont(pid, None).expect("it goes on");
    }
}

// "COMMAND is dead before the lock can pass", also if the guardian, until COMMAND has started, is in the same process
// group as the shell's children: it stands still there until lockrun kills it, and then takes a long time to die.
#[test]
fn the_command_of_a_dying_guardian_is_not_overlooked() {
    let store = Store::redis();
    let holder = Holder::new(&store, "before");
    let directory = TempDir::new().expect("a temporary directory");
    let call = Lockrun::new(&store).key("before").args(["--ttl", "3s", "--wait"]).command(["sleep", "600"]);
    let (mut run, child) = with_a_child(&call, directory.path());
    let guardian = Pid::from_raw(guardian_of(&run));
    eventually(LONG, "it waits", || store.server().waiting("before").len() == 1);
    let stops = Options::PTRACE_O_TRACEVFORKDONE | Options::PTRACE_O_TRACEEXIT;
    ptrace::seize(guardian, stops).expect("it can be traced");
    holder.end();
    trace_to(guardian, libc::PTRACE_EVENT_VFORK_DONE);
    let [command] = children(guardian.as_raw())[..] else { panic!("the command is its only child") };
    // lockrun looks, and learns of the lease.
    run.signal(Signal::SIGWINCH);
    // Kept from dying: nothing but lockrun can end the command now.
    trace_to(guardian, libc::PTRACE_EVENT_EXIT);
    eventually(LONG, "the command is dead", || !is_alive(command));
    assert!(!run.has_ended());
    ptrace::cont(guardian, None).expect("it goes on");
    waitpid(guardian, None).expect("it is dead");
    eventually(LONG, "the run has ended", || run.has_ended());
    assert!(is_alive(child), "a process was ended that is none of lockrun's");
    run.wait().exited(79);
}
