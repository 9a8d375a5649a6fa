//! The children of this process, as wait(2) shows them.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;

use libc::pid_t;
use nix::errno::Errno;

/// Returns whether there is a child, dead or alive.
pub fn are_there() -> bool {
    ended_one_of(libc::P_ALL, 0, 0).is_ok()
}

/// Returns whether a child, dead or alive, is in the process group `group`.
pub fn are_in(group: pid_t) -> bool {
    ended_one_of(libc::P_PGID, group, 0).is_ok()
}

/// Returns whether the child `pid` belongs to another thread than the calling one, which alone waits for it. (All
/// orphans that this process inherits belong to its main thread.) Always `false` before Linux 4.7, which cannot tell.
pub fn is_another_threads(pid: pid_t) -> bool {
    ended_one_of(libc::P_PID, pid, libc::__WNOTHREAD | libc::__WALL) == Err(Errno::ECHILD)
}

/// Returns whether the child `pid` has ended. Does not reap it.
pub fn has_ended(pid: pid_t) -> bool {
    ended_one_of(libc::P_PID, pid, 0).is_ok_and(|ended| ended.is_some())
}

/// Returns whether the child `pid` was killed for a forbidden system call. Waits for its end, but does not reap it.
pub fn was_killed_by_filter(pid: pid_t) -> bool {
    let ended = ended_of(libc::P_PID, pid, 0);
    let is_killed = |info: libc::siginfo_t| {
        // SAFETY: the record is that of an ended child, or zeros.
        let status = unsafe { info.si_status() };
        matches!(info.si_code, libc::CLD_KILLED | libc::CLD_DUMPED) && status == libc::SIGSYS
    };
    ended.is_ok_and(is_killed)
}

/// Returns a child that has ended, if there is one. Does not reap it.
pub fn ended_one() -> Option<pid_t> {
    ended_one_of(libc::P_ALL, 0, 0).ok().flatten()
}

/// Reaps the child `pid`, which has ended. Its status is lost.
pub fn reap(pid: pid_t) {
    // SAFETY: plain system call; no status is requested. It does not wait.
    unsafe { libc::waitpid(pid, ptr::null_mut(), libc::WNOHANG) };
}

/// Returns one of the selected children that has ended, if there is one. Fails with `ECHILD` if there is no such child.
fn ended_one_of(kind: libc::idtype_t, id: pid_t, option: libc::c_int) -> nix::Result<Option<pid_t>> {
    let info = ended_of(kind, id, option | libc::WNOHANG)?;
    // SAFETY: a valid record, or zeros, which are valid, too: they stand for no child.
    let pid = unsafe { info.si_pid() };
    Ok((pid != 0).then_some(pid))
}

/// Returns the record of such a child; with `WNOHANG`, zeros if none has ended.
fn ended_of(kind: libc::idtype_t, id: pid_t, option: libc::c_int) -> nix::Result<libc::siginfo_t> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOWAIT | option;
    // SAFETY: plain system call that writes to `info` or leaves it as it is.
    Errno::result(unsafe { libc::waitid(kind, id.cast_unsigned(), info.as_mut_ptr(), options) })?;
    // SAFETY: a valid record, or still zeros, which are valid, too.
    Ok(unsafe { info.assume_init() })
}

/// The kernel reaps each child of this process that ends while this value exists.
///
/// For a wait in which lockrun has no children of its own, but may inherit some: as the first process of a container it
/// inherits what others leave behind there. Unlike reaping them, this does not interrupt the wait.
pub struct ReapedByKernel(libc::sigaction);

impl ReapedByKernel {
    /// Begins, also with the children that have already ended.
    pub fn begin() -> nix::Result<Self> {
        // SAFETY: all bits zero is a valid action: SIG_DFL, no flags, empty mask, no restorer.
        let (mut action, mut before) = unsafe { (std::mem::zeroed::<libc::sigaction>(), std::mem::zeroed()) };
        action.sa_flags = libc::SA_NOCLDWAIT;
        // SAFETY: both pointers are to actions, and no handler is installed.
        Errno::result(unsafe { libc::sigaction(libc::SIGCHLD, &raw const action, &raw mut before) })?;
        while let Some(pid) = ended_one() {
            reap(pid);
        }
        Ok(ReapedByKernel(before))
    }
}

impl Drop for ReapedByKernel {
    fn drop(&mut self) {
        // SAFETY: this was the action before.
        unsafe { libc::sigaction(libc::SIGCHLD, &raw const self.0, ptr::null_mut()) };
    }
}
