//! A child process that lockrun forked, and that nothing else reaps.

#![allow(unsafe_code)]

use std::mem;
use std::ptr;

use libc::{c_int, pid_t};
use nix::errno::Errno;

use super::process::{self, Process};
use crate::sys::children;

/// A child of this process. Dropping this kills and reaps it.
#[derive(Debug)]
pub(super) struct Child(pid_t);

impl Child {
    /// Takes the child `pid`, which nothing else may reap.
    pub(super) fn new(pid: pid_t) -> Self {
        Child(pid)
    }

    /// Returns its process id.
    pub(super) fn pid(&self) -> pid_t {
        self.0
    }

    /// Sends it `signal`.
    pub(super) fn signal(&self, signal: c_int) {
        // SAFETY: plain system call. The child has not been reaped, so its id is not reused.
        unsafe { libc::kill(self.0, signal) };
    }

    /// Returns whether it is stopped.
    pub(super) fn is_stopped(&self) -> bool {
        process::read(self.0).is_some_and(Process::is_stopped)
    }

    /// Returns whether it has ended. Does not reap it.
    pub(super) fn has_ended(&self) -> bool {
        children::has_ended(self.0)
    }

    /// Leaves it to the caller to reap it. Returns its process id.
    pub(super) fn leave(self) -> pid_t {
        let pid = self.0;
        mem::forget(self);
        pid
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        // SAFETY: plain system call; the status is not requested.
        while unsafe { libc::waitpid(self.0, ptr::null_mut(), 0) } == -1 && Errno::last() == Errno::EINTR {}
    }
}
