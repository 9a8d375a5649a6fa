//! Filters of system calls that kill lockrun for a call, as systemd's `SystemCallFilter=` does by default, or refuse
//! it.

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::Signal;

use crate::support::birth::Birth;
use crate::support::holder::is_free;
use crate::support::store::on_every_store;
use crate::support::{LONG, Lockrun, Store, eventually};

/// systemd's group `@resources`: what `SystemCallFilter=~@resources` forbids.
const RESOURCES: [i64; 11] = [
    libc::SYS_ioprio_set,
    libc::SYS_mbind,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler,
    libc::SYS_set_mempolicy,
    libc::SYS_setpriority,
    libc::SYS_setrlimit,
];

/// The part of its group `@timer` that a shell does without.
const TIMERS: [i64; 10] = [
    libc::SYS_getitimer,
    libc::SYS_setitimer,
    libc::SYS_timer_create,
    libc::SYS_timer_delete,
    libc::SYS_timer_getoverrun,
    libc::SYS_timer_gettime,
    libc::SYS_timer_settime,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
];

/// The same of its group `@ipc`. (A shell needs its pipes only for pipelines.)
const IPC: [i64; 6] = [
    libc::SYS_memfd_create,
    libc::SYS_pipe2,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_shmget,
    libc::SYS_semget,
];

/// Calls that lockrun needs for the end of its command, and a shell does without: some of the groups `@process`,
/// `@default` and `@system-service`.
const LATE: [i64; 14] = [
    libc::SYS_getpgid,
    libc::SYS_getsid,
    libc::SYS_madvise,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_prctl,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_yield,
    libc::SYS_setpgid,
    libc::SYS_timer_delete,
    libc::SYS_timer_settime,
    libc::SYS_timerfd_settime,
    libc::SYS_waitid,
];

/// Those of them that serve only to end a command, or to renew a lease.
const FOR_KILLING: [i64; 9] = [
    libc::SYS_madvise,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_yield,
    libc::SYS_timer_delete,
    libc::SYS_timer_settime,
    libc::SYS_timerfd_settime,
];

/// How a command ends: the run's options, the script, and the status or the signal.
const ENDINGS: [(&[&str], &str, Result<i32, Signal>); 4] = [
    (&[], "echo ran; exit 3", Ok(3)),
    (&[], "echo ran; kill -KILL $$", Err(Signal::SIGKILL)),
    (
        &["--max-runtime", "400ms", "--kill-after", "100ms"],
        "trap '' TERM; setsid sleep 600 & echo ran; while :; do sleep 0.05; done",
        Ok(124),
    ),
    (
        &["--descendants", "kill", "--kill-after", "100ms"],
        "setsid sh -c 'trap \"\" TERM; while :; do sleep 0.05; done' & echo ran; exit 3",
        Ok(3),
    ),
];

/// Checks that a run under this filter either does nothing at all, or works to the end. Returns whether it works.
#[track_caller]
fn works_or_does_nothing(store: &Store, birth: &Birth, ending: &(&[&str], &str, Result<i32, Signal>)) -> bool {
    let (options, script, expected) = *ending;
    let call = Lockrun::new(store).key("sandboxed").args(["--ttl", "60s"]).args(options).sh(script);
    let mut run = call.birth(birth.clone()).spawn();
    eventually(LONG, "the run has ended", || run.has_ended());
    assert_eq!(run.processes(), Vec::<i32>::new(), "left behind by {script}");
    let output = run.wait();
    if !is_free(store, "sandboxed") {
        output.fail("the lock is left");
    }
    if output.stdout().is_empty() {
        let died = output.signal == Some(libc::SIGSYS);
        if !(died || output.status == Some(125) && output.stderr().starts_with("lockrun: ")) {
            output.fail("it neither works nor does nothing");
        }
        return false;
    }
    match expected {
        Ok(status) => output.exited(status),
        Err(signal) => output.died_of(signal),
    };
    true
}

fn killing(calls: &[i64]) -> Birth {
    Birth { fatal: calls.to_vec(), ..Birth::default() }
}

fn refusing(calls: &[i64]) -> Birth {
    Birth { refused: calls.iter().map(|&call| (call, Errno::EPERM)).collect(), ..Birth::default() }
}

// "No other run holds the same key until COMMAND and all that lockrun must stop is dead": a sandbox that kills lockrun
// for a system call does so before there is a lock, not when the command runs, which nothing would end then.
on_every_store!(a_filter_of_resources_leaves_nothing_running, |store| {
    for ending in &ENDINGS {
        let works = works_or_does_nothing(store, &killing(&RESOURCES), ending);
        assert!(works || store.has_leases(), "without a lease no such call is needed");
        assert!(works_or_does_nothing(store, &refusing(&RESOURCES), ending), "real-time priority is not needed");
    }
});

// The same for any other call that lockrun makes late.
on_every_store!(a_filter_of_any_late_call_leaves_nothing_running, |store| {
    for ending in [&ENDINGS[1], &ENDINGS[2]] {
        for calls in [&TIMERS[..], &IPC[..]] {
            works_or_does_nothing(store, &killing(calls), ending);
            works_or_does_nothing(store, &refusing(calls), ending);
        }
        for call in LATE {
            let works = works_or_does_nothing(store, &killing(&[call]), ending);
            // Nothing has to be ended then, and the kernel's lock passes to the command.
            let is_plain = ending.0.is_empty() && !store.has_leases();
            assert!(
                works || !is_plain || !FOR_KILLING.contains(&call),
                "a plain run on files does without call {call}"
            );
        }
    }
});

// "125: lockrun itself failed": the message says what killed it, for somebody who reads it in a mail.
crate::support::store::on_every_lease_store!(the_message_names_the_filter, |store| {
    let call = Lockrun::new(store).key("sandboxed").birth(killing(&RESOURCES)).command(["echo", "ran"]);
    call.run().exited(125).printed("").said("lockrun: a filter of system calls").said("the command was not started");
});
