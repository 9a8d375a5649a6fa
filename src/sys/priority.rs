//! Scheduling priority.

#![allow(unsafe_code)]

/// Gives the calling thread the lowest real-time priority (`SCHED_RR`, see sched(7)), so that it runs ahead of all threads without
/// one. Root may do this, and a user whose `RLIMIT_RTPRIO` is not 0; for others nothing changes.
///
/// For threads that sleep nearly all the time, but whose delay could let a lease expire while its command still runs: where all
/// processors are busy, a thread that wakes up may wait for one for seconds. Children and threads created later inherit the priority.
pub fn raise() {
    // The kernel's `sched_param` is this one number. A direct system call, because musl's function always fails.
    let lowest: libc::c_int = 1;
    // SAFETY: a plain system call on the calling thread that reads one number.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_RR, &raw const lowest) };
}
