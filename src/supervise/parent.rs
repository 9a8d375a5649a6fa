//! lockrun in front of its guardian, for locks that are leases: it is what the caller waits for and sends signals to.
//!
//! ```text
//! lockrun (signals, the caller) ── link ── guardian (lock, lease, renewer's thread) ── COMMAND ── …
//! ```
//!
//! The guardian is a child that does the work, from the first request for the lock to its release: so no process has to wait
//! for another one when a lock is handed over. It is COMMAND's parent and a child subreaper, so everything that COMMAND
//! starts stays below it. When lockrun dies, it kills COMMAND at once; while lockrun is stopped, it does not renew the lease,
//! and ends COMMAND in time.
//!
//! If the guardian itself is killed, the kernel kills COMMAND (its parent-death signal), and what COMMAND started comes to
//! lockrun, which is a subreaper too and kills it. If the guardian is stopped or hangs, a timer kills it before the lease is over; if
//! lockrun is stopped then, the kernel continues it: see [`super::last_line`].

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use libc::pid_t;
use nix::errno::Errno;
use nix::poll::{PollTimeout, poll};
use nix::sys::prctl;

use super::backchannel::{GuardianMessage, Link};
use super::direct::watch;
use super::guardian::Guardian;
use super::job::JobControl;
use super::last_line::{self, Wake};
use super::preexisting::Preexisting;
use super::process::{self, Process};
use super::supervisor::{Finished, Supervisor, Why};
use super::terminal;
use super::tree::{Child, Tree};
use crate::lock::ending::Ending;
use crate::lock::lease::Deadline;
use crate::sys::clock::Moment;
use crate::sys::signals::{self, Signals};
use crate::sys::wait::readable;

/// Which of the two processes this is, after the fork.
pub enum ForkSide {
    /// The guardian: it does the work.
    Guardian(Guardian),
    /// lockrun itself.
    Parent(Parent),
}

/// lockrun, as long as its guardian works.
pub struct Parent {
    link: Link,
    /// Kept open: through it the kernel continues us when the guardian dies.
    _wake: OwnedFd,
    guardian: Child,
    has_terminal: bool,
    before: Preexisting,
    stage: Stage,
    /// By when COMMAND must be dead.
    deadline: Option<Deadline>,
}

/// How far the guardian has come, as it has told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It waits for the lock, or releases it before COMMAND has begun.
    Waiting,
    /// The lock is ours, and COMMAND may have begun.
    Granted,
    /// COMMAND runs, as this process.
    Running(pid_t),
    /// COMMAND has ended.
    Finished(Finished),
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The guardian has done all its work, and lockrun is to end so.
    Guarded(Ending),
    /// The guardian was killed before the lock was ours.
    Gone,
    /// The guardian was killed while COMMAND may have been running. What it had started is dead now.
    TakenOver(Finished),
    /// The guardian was killed after it had told how COMMAND ended, and before the lock was released for sure.
    Unreleased(Finished),
}

/// Forks the guardian. Must be called while the process has one thread.
pub fn fork() -> nix::Result<ForkSide> {
    let (ours, theirs) = Link::pair()?;
    let wake = Wake::new()?;
    let has_terminal = terminal::is_controlling();
    let before = Preexisting::note(!has_terminal);
    prctl::set_child_subreaper(true)?;
    // SAFETY: cannot fail.
    let lockrun = unsafe { libc::getpid() };
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
        before,
        stage: Stage::Waiting,
        deadline: None,
    }))
}

impl Parent {
    /// Passes signals on and waits until all is over. Takes over if the guardian dies.
    pub fn until_the_end(mut self, signals: &Signals) -> nix::Result<End> {
        let mut stops = JobControl::new(self.has_terminal);
        loop {
            for signal in stops.take_in(signals) {
                self.guardian.signal(signal);
                // A guardian that stands still would not see that it is to go.
                if self.stage == Stage::Waiting && signals::is_fatal(signal) {
                    self.guardian.signal(libc::SIGCONT);
                }
            }
            // Looked at before the news are read, which are complete then. The link alone is not enough: a process that was stopped
            // before it became COMMAND keeps it open.
            let ended = self.guardian.has_ended();
            loop {
                match self.link.next_message() {
                    Ok(None) if !ended => break,
                    Ok(Some(GuardianMessage::Granted)) => self.stage = Stage::Granted,
                    Ok(Some(GuardianMessage::Allowed(deadline))) => {
                        self.deadline = Some(deadline);
                        if self.stage == Stage::Waiting {
                            self.stage = Stage::Granted;
                        }
                    }
                    Ok(Some(GuardianMessage::Started(command))) => self.stage = Stage::Running(command),
                    Ok(Some(GuardianMessage::NotStarted)) => {
                        self.stage = Stage::Waiting;
                        self.deadline = None;
                    }
                    Ok(Some(GuardianMessage::Moved(motion))) => stops.moved(motion),
                    Ok(Some(GuardianMessage::Finished(finished))) => {
                        self.stage = Stage::Finished(finished);
                        self.deadline = None;
                    }
                    // Nothing is left for it to do, whether it comes to its end by itself or not.
                    Ok(Some(GuardianMessage::Over(ending))) => return Ok(End::Guarded(ending)),
                    Ok(None) | Err(_) => {
                        return match self.stage {
                            Stage::Waiting => Ok(End::Gone),
                            Stage::Finished(finished) => Ok(End::Unreleased(finished)),
                            Stage::Granted | Stage::Running(_) => self.take_over(signals),
                        };
                    }
                }
            }
            // While the guardian waits for the lock, there is no COMMAND that could stop.
            if stops.follows(Moment::now(), || self.command_is_stopped())
                || self.stage == Stage::Waiting && stops.stops_alone()
            {
                signals::stop_self();
                continue;
            }
            match poll(&mut [readable(signals), readable(&self.link)], PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Whether COMMAND is stopped. The guardian says so, but it may have been continued meanwhile.
    fn command_is_stopped(&self) -> bool {
        let Stage::Running(command) = self.stage else { return false };
        process::read(command).is_some_and(Process::is_stopped)
    }

    /// Makes sure that the guardian is dead, which brings its descendants here, and kills them.
    fn take_over(self, signals: &Signals) -> nix::Result<End> {
        drop(self.guardian);
        let now = Moment::now();
        let is_late = self.deadline.is_some_and(|deadline| now >= last_line::fires_at(deadline));
        let why = if is_late { Why::Lost } else { Why::Unguarded };
        let command = if let Stage::Running(command) = self.stage { command } else { 0 };
        let tree = Tree::adopt(command, !self.has_terminal, self.before);
        let mut supervisor = Supervisor::ending(tree, now);
        let finished = watch(&mut supervisor, false, signals)?;
        Ok(End::TakenOver(Finished { why: Some(why), ..finished }))
    }
}

impl Child {
    fn signal(&self, signal: libc::c_int) {
        // SAFETY: plain system call. The child is not reaped, so the id is not another's.
        unsafe { libc::kill(self.0, signal) };
    }

    /// Whether it has ended. Does not reap it.
    fn has_ended(&self) -> bool {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        let (id, options) = (self.0.cast_unsigned(), libc::WEXITED | libc::WNOHANG | libc::WNOWAIT);
        // SAFETY: plain system call on a child of ours; it writes to `info`, all bits of which may be zero, or leaves it as it is.
        unsafe { libc::waitid(libc::P_PID, id, info.as_mut_ptr(), options) == 0 && info.assume_init().si_pid() != 0 }
    }
}
