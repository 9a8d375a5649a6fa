//! The processes below this one that are not COMMAND's.
//!
//! A shell's `exec lockrun` leaves lockrun with the shell's children, which it neither ends nor waits for. What such a child starts
//! is found below it, until the child ends: then it comes to lockrun, which is a subreaper, and /proc does not say from whom. What
//! may be COMMAND's counts as COMMAND's, because that must not outlive the lock; so such an orphan is spared only if there is
//! proof that it is not. There are two: it was seen before COMMAND began; or it is in the process group that lockrun was started
//! in, while COMMAND leads one of its own. COMMAND's processes inherit that group, or make new ones, and no program joins the
//! group of its grandparent. Neither its session, its environment nor its start tells a late orphan from a daemon of COMMAND's.
//!
//! So what remains: an orphan that began after COMMAND counts as COMMAND's if it left lockrun's group, or if COMMAND shares that
//! group, as it does with a terminal. The guardian was forked without any child, and has no such doubt: on a store with leases it
//! concerns lockrun alone, where it takes over from a guardian that was killed.

#![allow(unsafe_code)]

use libc::pid_t;

use super::process::{self, Process};

/// What was below this process before COMMAND. Empty for most.
#[derive(Debug)]
pub(super) struct Preexisting {
    processes: Vec<Process>,
    /// The process group that is not COMMAND's, if that is known. It is ours, so its id is not another's while we live.
    group: Option<pid_t>,
}

impl Preexisting {
    /// Takes note of what is there now, before COMMAND, which will lead a process group of its own or not.
    pub(super) fn note(own_group: bool) -> Self {
        let processes = if has_children() { process::descendants(own_pid(), |_| false) } else { None };
        Preexisting { processes: processes.unwrap_or_default(), group: own_group.then(own_group_id) }
    }

    /// Whether there is nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// Whether `process` is certainly none of COMMAND's.
    pub(super) fn includes(&self, process: Process) -> bool {
        let was_seen = || self.processes.iter().any(|known| known.is_the_same(process));
        !self.is_empty() && (Some(process.group) == self.group || was_seen())
    }
}

/// Whether this thread has a child. /proc need not be asked for that.
fn has_children() -> bool {
    has_children_among(libc::P_ALL, 0)
}

/// Whether a child of this thread, dead or alive, is in this process group.
pub(super) fn has_children_in(group: pid_t) -> bool {
    has_children_among(libc::P_PGID, group.cast_unsigned())
}

fn has_children_among(kind: libc::idtype_t, id: libc::id_t) -> bool {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::uninit();
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WNOTHREAD;
    // SAFETY: plain system call that may write to `info`, which is not read. It fails if there is no such child at all.
    unsafe { libc::waitid(kind, id, info.as_mut_ptr(), options) != -1 }
}

pub(super) fn own_pid() -> pid_t {
    // SAFETY: cannot fail.
    unsafe { libc::getpid() }
}

pub(super) fn own_group_id() -> pid_t {
    // SAFETY: cannot fail.
    unsafe { libc::getpgrp() }
}
