//! Scheduling priority.

#![allow(unsafe_code)]

use libc::c_int;

/// The policy of a thread, with its flag, and its real-time priority.
#[derive(Clone, Copy, Debug)]
pub struct Scheduling {
    policy: c_int,
    priority: c_int,
}

/// Gives the calling thread a real-time priority, so that it runs ahead of all threads without one: the lowest
/// (`SCHED_RR`, see sched(7)), or, if it has one below 99 already, the next higher one, so that it also runs ahead of
/// the COMMAND that has inherited that. Root may do this, and a user whose `RLIMIT_RTPRIO` allows it; for others
/// nothing changes.
///
/// For threads that sleep nearly all the time, but whose delay could let a lease expire while its command still runs:
/// where all processors are busy, a thread that wakes up may wait for one for seconds. Children and threads created
/// later inherit the priority. Returns the scheduling from before, for [`set`].
pub fn raise() -> Scheduling {
    let before = present();
    // Only root may clear this flag, with which children do not inherit the priority.
    let flag = before.policy & libc::SCHED_RESET_ON_FORK;
    let policy = match before.policy & !flag {
        // Unknown; or it runs ahead of all others already.
        ..=-1 | libc::SCHED_DEADLINE => return before,
        real_time @ (libc::SCHED_RR | libc::SCHED_FIFO) => real_time | flag,
        _ => libc::SCHED_RR | flag,
    };
    set(Scheduling { policy, priority: before.priority + 1 });
    before
}

/// Sets the policy and the priority that the calling thread has already. A sandbox that kills a process for [`raise`]
/// does so for this, too.
pub fn keep() {
    set(present());
}

/// Returns the scheduling of the calling thread; the policy is -1 if it is unknown, or has a priority that is.
fn present() -> Scheduling {
    // The kernel's `sched_param` is this one number. Direct system calls, because musl's functions always fail.
    let mut priority: c_int = 0;
    // SAFETY: plain system calls on the calling thread; the first one writes one number.
    let (got, policy) = unsafe {
        (libc::syscall(libc::SYS_sched_getparam, 0, &raw mut priority), libc::syscall(libc::SYS_sched_getscheduler, 0))
    };
    let policy = c_int::try_from(policy).unwrap_or(-1);
    let has_priority = matches!(policy & !libc::SCHED_RESET_ON_FORK, libc::SCHED_RR | libc::SCHED_FIFO);
    Scheduling { policy: if has_priority && got != 0 { -1 } else { policy }, priority }
}

/// Gives the calling thread this policy and priority, if that is permitted.
pub fn set(Scheduling { policy, priority }: Scheduling) {
    // SAFETY: a plain system call on the calling thread that reads one number.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) };
}
