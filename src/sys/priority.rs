//! Scheduling priority.

#![allow(unsafe_code)]

/// Lets the calling thread run as soon as it has something to do, ahead of all threads that have no real-time priority, if it may: root may,
/// and a user whose `RLIMIT_RTPRIO` is not 0. Otherwise nothing changes.
///
/// For threads that sleep nearly all the time, and whose delay would let a lease pass while its command still runs: where others
/// keep all processors busy, a thread that wakes up may wait for one for seconds. Children and threads that are created later
/// inherit the priority, which is the lowest of the real-time ones (`SCHED_RR`, see sched(7)).
pub fn raise() {
    // All that the kernel reads of a `sched_param`. musl's function for this always fails.
    let lowest: libc::c_int = 1;
    // SAFETY: a plain system call on the calling thread, which reads one number.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_RR, &raw const lowest) };
}
