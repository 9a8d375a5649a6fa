//! Descriptors of processes: unlike a process id, one always refers to the same process.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use libc::pid_t;

/// Opens the process `pid`. Returns `None` if there is no such process or no descriptor left, and where the kernel
/// (before Linux 5.3) or a sandbox does not allow it.
pub fn open(pid: pid_t) -> Option<OwnedFd> {
    // SAFETY: a plain system call; the new descriptor, if any, is ours alone.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        i32::try_from(fd).ok().filter(|fd| *fd >= 0).map(|fd| OwnedFd::from_raw_fd(fd))
    }
}

/// Sends `signal` to the process. Returns whether that worked.
pub fn send(pidfd: &OwnedFd, signal: libc::c_int) -> bool {
    let none = ptr::null::<libc::siginfo_t>();
    // SAFETY: a valid descriptor and no siginfo.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, none, 0) == 0 }
}
