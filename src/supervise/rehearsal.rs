//! System calls that lockrun and its guardian make only when COMMAND runs, made once before the lock is requested.
//!
//! A sandbox may kill a process for a system call (systemd's `SystemCallFilter=` does so by default). If that happened while COMMAND
//! runs, nobody would end COMMAND's processes when the lease passes on. So it must happen here, where there is neither a lock nor a
//! COMMAND. A call that fails is left to the place where it is needed: there lockrun does without it.
//!
//! A filter is inherited by threads and children, so one process finds out for all of them.

#![allow(unsafe_code)]

use std::ptr;

use super::proc_access::ProcAccess;
use super::process::{self, own_pid};
use crate::sys::priority;

/// Makes these calls in a form that changes nothing. Calls that are made before the lock is requested anyway are not repeated here.
pub(super) fn call_what_is_called_later(access: &ProcAccess) {
    priority::keep();
    access.with_spare(process::rehearse);
    access.each_child(|_| ());
    // SAFETY: plain system calls that have no effect: this process is in its group already, it is no child of its own, signal 0 is none,
    // there is no such timer, and nothing is polled or advised.
    unsafe {
        libc::setpgid(0, libc::getpgid(0));
        libc::waitpid(own_pid(), ptr::null_mut(), libc::WNOHANG);
        libc::kill(own_pid(), 0);
        libc::sched_yield();
        libc::syscall(libc::SYS_timer_delete, -1);
        libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0);
        libc::madvise(ptr::null_mut(), 0, libc::MADV_NORMAL);
        libc::poll(ptr::null_mut(), 0, 0);
        libc::isatty(libc::STDERR_FILENO);
    }
}

/// Does the same for setsid(2), which the guardian calls on a terminal. Only the leader of a process group can do so without effect: lockrun
/// usually is one, and the guardian is not. Otherwise, if the guardian dies of it, lockrun takes over.
pub(super) fn call_setsid() {
    // SAFETY: plain system calls on ourselves; the last one fails for the leader of a group.
    unsafe {
        if libc::getpgrp() == own_pid() {
            libc::setsid();
        }
    }
}
