//! System calls that lockrun and its guardian make only when COMMAND runs, made once before the lock is requested.
//!
//! A sandbox may kill a process for a system call (systemd's `SystemCallFilter=` does so by default). If that happened
//! while COMMAND runs, nobody would end COMMAND's processes when the lease passes on. So it must happen here, where
//! there is neither a lock nor a COMMAND. A call that fails is left to the place where it is needed: there lockrun does
//! without it.
//!
//! A filter is inherited by threads and children, so one process finds out for all of them.

#![allow(unsafe_code)]

use std::ptr;

use super::proc_access::ProcAccess;
use super::process::{self, own_pid};
use crate::sys::priority;

/// Makes the calls with which COMMAND's parent ends it or waits for what it leaves behind. Those that are made before
/// the lock is requested anyway are not repeated here. A run that never does either needs none of them.
///
/// Must be called while the process has one thread: some filters kill only the thread that makes the call, and the
/// others would live on.
pub fn call_what_ends_a_command() {
    let access = ProcAccess::open(true);
    process::rehearse();
    if let Ok(access) = access {
        access.children();
    }
    // SAFETY: plain system calls that have no effect: this process is no child of its own, signal 0 is none, and
    // nothing is polled or advised.
    unsafe {
        libc::waitpid(own_pid(), ptr::null_mut(), libc::WNOHANG);
        libc::kill(own_pid(), 0);
        libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0);
        libc::madvise(ptr::null_mut(), 0, libc::MADV_NORMAL);
        libc::poll(ptr::null_mut(), 0, 0);
        libc::isatty(libc::STDERR_FILENO);
    }
}

/// Makes all calls that a guardian makes late. Must be called while the guardian has one thread.
pub(super) fn call_what_a_guardian_calls() {
    call_what_ends_a_command();
    priority::keep();
    // Not setpgid(2): the process that becomes COMMAND makes that call first, and a filter that kills for it ends that
    // process. SAFETY: plain system calls that have no effect: there is no such timer.
    unsafe {
        libc::sched_yield();
        libc::syscall(libc::SYS_timer_delete, -1);
    }
}

/// Does the same for setsid(2), which the guardian calls on a terminal. Only the leader of a process group can do so
/// without effect: lockrun usually is one, and the guardian is not. Otherwise, if the guardian dies of it, lockrun
/// takes over.
pub(super) fn call_setsid() {
    // SAFETY: plain system calls on ourselves; the last one fails for the leader of a group.
    unsafe {
        if libc::getpgrp() == own_pid() {
            libc::setsid();
        }
    }
}
