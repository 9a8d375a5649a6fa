//! lockrun as the parent of its guardian, for locks that are leases: the caller waits for lockrun and sends it signals.
//!
//! ```text
//! lockrun (signals, exit status) ── backchannel ── guardian (lock, lease, renewer's thread) ── COMMAND ── …
//! ```
//!
//! The guardian, a child process, does the work from the first request for the lock to its release, so that a hand-off involves no
//! other process. It is COMMAND's parent and a child subreaper, so all processes that COMMAND starts stay below it. When lockrun
//! dies, the guardian kills COMMAND at once. While lockrun is stopped, it does not renew the lease, and ends COMMAND in time.
//!
//! If the guardian itself is killed, the kernel kills COMMAND (its parent-death signal), and the processes that COMMAND started become
//! children of lockrun, which is a subreaper too and kills them. If the guardian is stopped or hangs, lockrun kills it before the lease
//! ends; if lockrun is stopped as well, a timer does, and the kernel continues lockrun: see [`super::last_line`].

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::poll::poll;
use nix::sys::prctl;

use super::Guardian;
use super::backchannel::{GuardianMessage, Link};
use super::last_line::Wake;
use super::oversight::{Oversight, Stage};
use crate::lock::ending::Ending;
use crate::supervise::direct::watch;
use crate::supervise::job::JobControl;
use crate::supervise::preexisting::Preexisting;
use crate::supervise::process::{self, Process};
use crate::supervise::supervisor::{Finished, Supervisor, Why};
use crate::supervise::terminal;
use crate::supervise::tree::{Child, Tree};
use crate::sys::clock::Moment;
use crate::sys::priority;
use crate::sys::signals::{self, Missed, Signals};
use crate::sys::wait::{readable, time_until};

/// The side of the fork that this process is on.
pub enum ForkSide {
    /// The guardian, which does the work.
    Guardian(Guardian),
    /// lockrun itself, which waits for the guardian.
    Parent(Parent),
}

/// lockrun while its guardian works.
pub struct Parent {
    link: Link,
    /// Kept open: through it the kernel continues lockrun when the guardian dies.
    _wake: OwnedFd,
    guardian: Child,
    has_terminal: bool,
    /// The signals that had come before there was a guardian.
    missed: Missed,
    before: Preexisting,
    oversight: Oversight,
}

/// How the guardian ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It has done all its work, and lockrun must end in this way.
    Guarded(Ending),
    /// It was killed before the lock was acquired.
    Gone,
    /// It was killed while COMMAND may have been running. All of COMMAND's processes are dead now.
    TakenOver(Finished),
    /// It was killed after it had reported how COMMAND ended, and perhaps before it released the lock.
    Unreleased(Finished),
}

/// Forks the guardian. To be called while the process has one thread.
pub fn fork() -> nix::Result<ForkSide> {
    let (ours, theirs) = Link::pair()?;
    let wake = Wake::new()?;
    let has_terminal = terminal::is_controlling();
    let before = Preexisting::note(!has_terminal);
    prctl::set_child_subreaper(true)?;
    // SAFETY: cannot fail.
    let lockrun = unsafe { libc::getpid() };
    let missed = Missed::until_now();
    // SAFETY: the process has one thread, so the child may do whatever its parent could.
    let forked = Errno::result(unsafe { libc::fork() })?;
    if forked == 0 {
        drop(ours);
        return Ok(ForkSide::Guardian(Guardian::new(theirs, wake, lockrun, has_terminal)));
    }
    drop(theirs);
    Ok(ForkSide::Parent(Parent {
        link: ours,
        _wake: wake.into_reading(),
        guardian: Child(forked),
        has_terminal,
        missed,
        before,
        oversight: Oversight::new(),
    }))
}

impl Parent {
    /// Relays signals and waits until the run is over. Takes over if the guardian dies.
    pub fn until_the_end(mut self, signals: &Signals) -> nix::Result<End> {
        let mut stops = JobControl::new(self.has_terminal, self.missed);
        loop {
            for signal in stops.take_pending(signals) {
                self.guardian.signal(signal);
                // A stopped guardian would not see the signal. If there is a time to take over from it, that is waited for.
                if self.oversight.takes_over_at().is_none() && signals::is_fatal(signal) {
                    self.guardian.signal(libc::SIGCONT);
                }
            }
            // Both looked at before the messages are read, so that these are complete if it has ended, and tell of every renewal before
            // `now`. A closed link is not enough: a process that was stopped before it became COMMAND keeps the link open.
            let (ended, now) = (self.guardian.has_ended(), Moment::now());
            loop {
                match self.link.next_message() {
                    Ok(None) if !ended => break,
                    // It has nothing left to do, even if it is killed now.
                    Ok(Some(GuardianMessage::Over(ending))) => return Ok(End::Guarded(ending)),
                    Ok(Some(GuardianMessage::Moved(motion))) => stops.moved(motion),
                    Ok(Some(message)) => {
                        self.oversight.note(message);
                        if let GuardianMessage::Started(_) = message {
                            priority::raise();
                        }
                    }
                    Ok(None) | Err(_) => {
                        return match self.oversight.stage() {
                            Stage::Waiting => Ok(End::Gone),
                            Stage::Finished(finished) => Ok(End::Unreleased(finished)),
                            Stage::Granted | Stage::Running(_) => self.take_over(signals),
                        };
                    }
                }
            }
            // While the guardian waits for the lock, there is no COMMAND to stop first.
            if stops.follows(Moment::now(), || self.command_is_stopped())
                || self.oversight.stage() == Stage::Waiting && stops.stops_alone()
            {
                signals::stop_self();
                continue;
            }
            let takes_over_at = self.oversight.takes_over_at();
            if takes_over_at.is_some_and(|at| now >= at) {
                return self.take_over(signals);
            }
            match poll(&mut [readable(signals), readable(&self.link)], time_until(takes_over_at)) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Returns whether COMMAND is stopped at this moment: it may have been continued since the guardian's last report.
    fn command_is_stopped(&self) -> bool {
        let Stage::Running(command) = self.oversight.stage() else { return false };
        process::read(command).is_some_and(Process::is_stopped)
    }

    /// Kills the guardian with all its descendants, which become children of lockrun.
    fn take_over(self, signals: &Signals) -> nix::Result<End> {
        let now = Moment::now();
        let is_late = self.oversight.takes_over_at().is_some_and(|at| now >= at);
        self.guardian.signal(libc::SIGKILL);
        // It is reaped with the others. To wait for it first would let COMMAND's processes live until each of its threads has got a
        // processor to end on, which may take longer than the lease on a busy machine.
        std::mem::forget(self.guardian);
        let why = if is_late { Why::Lost } else { Why::Unguarded };
        let command = if let Stage::Running(command) = self.oversight.stage() { command } else { 0 };
        let tree = Tree::adopt(command, !self.has_terminal, self.before);
        let mut supervisor = Supervisor::ending(tree, now);
        // Those that it cannot kill it does not wait for: it renews nothing.
        let finished = watch(&mut supervisor, false, signals, &|_| ())?;
        Ok(End::TakenOver(Finished { why: Some(why), ..finished }))
    }
}

impl Child {
    fn signal(&self, signal: libc::c_int) {
        // SAFETY: plain system call. The child is not reaped, so the id is not another's.
        unsafe { libc::kill(self.0, signal) };
    }

    /// Returns whether it has ended. Does not reap it.
    fn has_ended(&self) -> bool {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        let (id, options) = (self.0.cast_unsigned(), libc::WEXITED | libc::WNOHANG | libc::WNOWAIT);
        // SAFETY: plain system call on a child of ours; it writes to `info`, all bits of which may be zero, or leaves it as it is.
        unsafe { libc::waitid(libc::P_PID, id, info.as_mut_ptr(), options) == 0 && info.assume_init().si_pid() != 0 }
    }
}
