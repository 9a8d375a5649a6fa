//! The descendants of this process that are not COMMAND's.
//!
//! After a shell's `exec lockrun`, the shell's children are lockrun's children. lockrun neither ends them nor waits for
//! them. When such a child ends, its own children become children of lockrun, which is a subreaper, and /proc does not
//! show where they came from. A process that may be COMMAND's counts as COMMAND's, because COMMAND must not outlive the
//! lock. So lockrun spares such an orphan only in two cases: it was seen before COMMAND started; or it is in the
//! process group that lockrun was started in, while COMMAND leads its own. (COMMAND's processes inherit COMMAND's group
//! or create new ones, and no program joins the group of its grandparent.) Neither session, environment nor start time
//! distinguishes a late orphan from a daemon that COMMAND started.
//!
//! The remaining gap: an orphan that started after COMMAND counts as COMMAND's if it left lockrun's group, or if
//! COMMAND shares that group, as it does on a terminal. The guardian has no such gap, because it is forked without
//! children: on a store with leases the gap concerns only a lockrun that takes over from a killed guardian.

#![allow(unsafe_code)]

use libc::pid_t;

use super::proc_access::ProcAccess;
use super::process::{self, Found, Process, own_pid};
use crate::sys::children;

/// The descendants that this process had before COMMAND started. Usually none.
#[derive(Debug)]
pub(super) struct InheritedChildren {
    processes: Vec<Known>,
    /// A process group that is certainly not COMMAND's, if there is one: lockrun's, whose id is not reused while
    /// lockrun lives.
    group: Option<pid_t>,
}

/// What identifies a process uniquely.
#[derive(Debug)]
struct Known {
    pid: pid_t,
    started: Option<u64>,
}

impl InheritedChildren {
    /// Records the present descendants. Must be called before COMMAND starts; `own_group` says whether COMMAND will
    /// lead its own group.
    pub(super) fn note(own_group: bool, access: &ProcAccess) -> Self {
        let look = || process::descendants(own_pid(), || false, |_| false);
        let found = if children::are_there() { access.with_spare(look) } else { Found::default() };
        let known = |Process { pid, .. }| Known { pid, started: process::started(pid) };
        let processes = found.processes.into_iter().map(known).collect();
        InheritedChildren { processes, group: own_group.then(own_group_id) }
    }

    /// Returns whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// Returns whether the process `pid` is certainly not COMMAND's.
    pub(super) fn includes(&self, pid: pid_t) -> bool {
        // Reading the start time may take long, so the ids are compared first.
        let is_known =
            |known: &Known| known.pid == pid && known.started.is_some() && known.started == process::started(known.pid);
        let was_seen = || self.processes.iter().any(is_known);
        !self.is_empty() && (Some(process::group(pid)) == self.group || was_seen())
    }
}

pub(super) fn own_group_id() -> pid_t {
    // SAFETY: cannot fail.
    unsafe { libc::getpgrp() }
}
