//! Lock files whose turnstile does not turn: another program has locked the file, or the next waiter is stopped.

use std::fs;
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::support::calm::{held_in_time, in_time, judge};
use crate::support::hand::until_waiting;
use crate::support::processes::state;
use crate::support::steps::call;
use crate::support::{Holder, LONG, Lockrun, Running, Store, eventually};

/// Starts flock(1) on the file of this key. Returns it when it has the lock.
fn flock(store: &Store, key: &str) -> Running {
    let path = store.locks().join(key).display().to_string();
    let script = "echo ready; exec sleep 600";
    let mut flock = Lockrun::bare().command(["flock", "--no-fork", &path, "sh", "-c", script]).spawn_alone();
    flock.wait_for_line("ready");
    flock
}

/// Starts a waiter. Returns it when it is in the kernel's queue, or at the turnstile if it is the first.
fn wait_for(store: &Store, key: &str) -> Running {
    let waiter = Lockrun::new(store).key(key).arg("--wait").command(["echo", "my turn"]).spawn();
    until_waiting(store, key, 1);
    waiter
}

/// Pauses a run as a debugger does, until `ptrace::detach`.
fn pause(run: &Running) -> Pid {
    let pid = Pid::from_raw(run.pid());
    ptrace::seize(pid, ptrace::Options::empty()).expect("our own child can be traced");
    ptrace::interrupt(pid).expect("it is stopped");
    assert!(matches!(waitpid(pid, None), Ok(WaitStatus::PtraceEvent(..))), "it has stopped");
    pid
}

// "While another program has a lock file locked with flock(2), a run that does not wait fails (status 69), and one that
// waits goes on waiting."
#[test]
fn another_program_has_locked_the_file() {
    let store = Store::file();
    Lockrun::new(&store).key("foreign").command(["true"]).run().exited(0);
    let other = flock(&store, "foreign");
    let name = format!("pid {} ", other.pid());
    let waiter = wait_for(&store, "foreign");
    let run = Lockrun::new(&store).key("foreign").command(["echo", "ran"]);
    let tries = [run.clone(), run.clone().arg("--skip"), Lockrun::other("acquire", &store).key("foreign")];
    for run in tries.map(|call| call.spawn()) {
        run.wait().exited(69).printed("").said(&name).said("sleep 600").said("flock(1)");
    }
    other.signal(Signal::SIGKILL);
    waiter.wait().exited(0).printed("my turn\n").silent();
}

// "Give up after DURATION": not only after the time that a run that does not wait lets another one pass.
#[test]
fn a_short_wait_behind_another_program_is_short() {
    let store = Store::file();
    Lockrun::new(&store).key("short").command(["true"]).run().exited(0);
    let other = flock(&store, "short");
    let run = Lockrun::new(&store).key("short").command(["echo", "ran"]);
    let mut patient = run.spawn();
    let short = run.clone().args(["--wait", "100ms"]).run();
    assert!(!patient.has_ended(), "a run that does not wait was quicker");
    short.exited(75).printed("").said(&format!("pid {} ", other.pid()));
    // Nor is a signal left unread meanwhile.
    let waiter = wait_for(&store, "short");
    waiter.signal(Signal::SIGTERM);
    waiter.wait().died_of(Signal::SIGTERM).printed("").silent();
    assert!(!patient.has_ended(), "a run that does not wait was quicker");
    patient.wait().exited(69);
}

// The same where another run holds the lock, but leaves room for one more; without room, the lock is held.
#[test]
fn another_program_has_locked_the_file_of_a_lock_with_room() {
    let store = Store::file();
    let cases: [(&str, &[&str]); 2] = [("slots", &["--slots", "2"]), ("shared", &["--shared"])];
    for (key, options) in cases {
        let run = Lockrun::new(&store).key(key).args(options);
        let _first = Holder::with(&run, &[]);
        let other = flock(&store, key);
        let name = format!("pid {} ", other.pid());
        let run = run.command(["echo", "ran"]);
        let exclusive = Lockrun::new(&store).key(key).command(["echo", "ran"]).spawn();
        for run in [run.clone(), run.arg("--skip")].map(|call| call.spawn()) {
            run.wait().exited(69).printed("").said(&name).said("flock(1)");
        }
        exclusive.wait().exited(75).printed("");
    }
}

// "A lock that ... is busy all the time ... is named on standard error; the others are pruned, and the status is 69."
#[test]
fn a_lock_that_cannot_be_pruned_is_named() {
    let store = Store::file();
    for key in ["busy", "idle"] {
        Lockrun::new(&store).key(key).command(["true"]).run().exited(0);
    }
    let other = flock(&store, "busy");
    let name = format!("pid {} ", other.pid());
    let prune = Lockrun::other("prune", &store);
    let one = prune.clone().key("busy").spawn();
    let all = prune.args(["--older-than", "0"]).run();
    all.exited(69).printed("idle\n").said("locks/busy").said(&name).said("flock(1)");
    one.wait().exited(69).printed("").said("locks/busy").said(&name);
}

// "The first waiter gives up its turn when Ctrl-Z stops it or when it is killed, but not when a STOP signal stops it":
// runs that do not wait then fail, and say what is in the way.
#[test]
fn the_next_waiter_is_stopped_at_a_free_lock() {
    let store = Store::file();
    let holder = Holder::new(&store, "stopped");
    let waiter = wait_for(&store, "stopped");
    waiter.signal(Signal::SIGSTOP);
    eventually(LONG, "the waiter is stopped", || state(waiter.pid()) == Some('T'));
    let run = Lockrun::new(&store).key("stopped").command(["echo", "ran"]);
    run.run().exited(75).printed("").said(&format!("pid {} ", holder.pid()));
    holder.end();
    let name = format!("pid {} ", waiter.pid());
    for run in [run.clone(), run.arg("--skip")] {
        run.run().exited(69).printed("").said(&name).said("kill -CONT");
    }
    waiter.signal(Signal::SIGCONT);
    waiter.wait().exited(0).printed("my turn\n").silent();
}

// The same for a waiter that does not run for another reason, such as a debugger or a frozen cgroup, which its state
// does not show.
#[test]
fn the_next_waiter_is_paused_at_a_free_lock() {
    let store = Store::file();
    let holder = Holder::new(&store, "paused");
    let waiter = wait_for(&store, "paused");
    let pid = pause(&waiter);
    holder.end();
    let name = format!("pid {pid} ");
    let run = Lockrun::new(&store).key("paused").command(["echo", "ran"]);
    let by_hand = Lockrun::other("acquire", &store).key("paused");
    for run in [run.clone(), run.clone().arg("--skip"), by_hand].map(|call| call.spawn()) {
        run.wait().exited(69).printed("").said(&name).said("is next, but has not taken the free lock");
    }
    // A signal ends such a run at once, as any other.
    let run = run.arg("--skip").spawn();
    eventually(LONG, "it looks again", || call(run.pid()) == libc::SYS_clock_nanosleep);
    run.signal(Signal::SIGINT);
    run.wait().died_of(Signal::SIGINT).printed("").silent();
    ptrace::detach(pid, None).expect("it goes on");
    waiter.wait().exited(0).printed("my turn\n").silent();
}

// "When held: say who holds it, exit 75": a run that comes while the lock is handed off waits for that, and then finds
// it held.
#[test]
fn a_run_that_comes_during_a_hand_off() {
    judge(|| {
        let store = Store::file();
        let holder = Holder::new(&store, "slow");
        let mut waiter = Lockrun::new(&store).key("slow").arg("--wait").sh("echo ready; exec sleep 600").spawn();
        until_waiting(&store, "slow", 1);
        let pid = pause(&waiter);
        holder.end();
        let run = Lockrun::new(&store).key("slow").command(["echo", "ran"]).spawn();
        eventually(LONG, "it looks again", || call(run.pid()) == libc::SYS_clock_nanosleep);
        ptrace::detach(pid, None).expect("it goes on");
        waiter.wait_for_line("ready");
        let output = run.wait().printed("").said(&format!("pid {pid} "));
        held_in_time(output.status == Some(75), &format!("the hand-off took little time: {output}"));
    });
}

// The same if the next run takes a share of the lock, and the one after it needs all of it: the lock is held, although
// a share is left.
#[test]
fn a_share_is_left_after_a_hand_off() {
    judge(|| {
        let store = Store::file();
        let holder = Holder::new(&store, "shared");
        let sharing = Lockrun::new(&store).key("shared").arg("--shared");
        let mut next = sharing.clone().arg("--wait").sh("echo ready; exec sleep 600").spawn();
        until_waiting(&store, "shared", 1);
        let _writer = Lockrun::new(&store).key("shared").arg("--wait").command(["true"]).spawn();
        until_waiting(&store, "shared", 2);
        let pid = pause(&next);
        holder.end();
        let run = sharing.clone().arg("--skip").command(["echo", "ran"]).spawn();
        eventually(LONG, "it looks again", || call(run.pid()) == libc::SYS_clock_nanosleep);
        let began = Instant::now();
        ptrace::detach(pid, None).expect("it goes on");
        next.wait_for_line("ready");
        let output = run.wait();
        in_time(began.elapsed(), Duration::from_secs(4), "the run that does not wait");
        // The kernel wakes the writer when the reader leaves the turnstile. A writer that gets no processor then can be
        // overtaken.
        held_in_time(output.stdout().is_empty(), &format!("the writer was first at the turnstile: {output}"));
        held_in_time(output.status == Some(0), &format!("the hand-off took little time: {output}"));
    });
}

// A shared lock whose record was lost is held, also where a run waits for all of it.
#[test]
fn a_share_without_a_record_is_not_a_free_lock() {
    let store = Store::file();
    let sharing = Lockrun::new(&store).key("emptied").arg("--shared");
    let mut holder = sharing.clone().sh("echo ready; exec sleep 600").spawn();
    holder.wait_for_line("ready");
    let _writer = wait_for(&store, "emptied");
    fs::write(store.locks().join("emptied"), "").expect("it is emptied");
    let run = sharing.command(["echo", "ran"]);
    run.clone().arg("--skip").run().exited(0).printed("").silent();
    run.run().exited(75).printed("").said("is held by");
}
