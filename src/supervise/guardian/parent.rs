//! lockrun as the parent of its guardian, for locks that are leases: lockrun relays signals and the exit status.
//!
//! ```text
//! lockrun (signals, exit status) ── backchannel ── guardian (lock, lease, renewer's thread) ── COMMAND ── …
//! ```
//!
//! The guardian, a child process, does the work from the first request for the lock to its release, so that a hand-off
//! involves no other process. It is COMMAND's parent and a child subreaper, so all processes that COMMAND starts stay
//! its descendants. When lockrun dies, the guardian kills COMMAND at once. While lockrun is stopped, the guardian does
//! not renew the lease, and ends COMMAND in time.
//!
//! If the guardian itself is killed, the kernel kills COMMAND (its parent-death signal), and the processes that COMMAND
//! started become children of lockrun, which is a subreaper too and kills them. If the guardian is stopped or hangs,
//! lockrun kills it before the lease ends. If lockrun is stopped as well, a timer kills the guardian, and the kernel
//! continues lockrun: see [`super::watchdog`].

#![allow(unsafe_code)]

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::prctl;

use super::Guardian;
use super::backchannel::{self, GuardianMessage, Receiver};
use super::state::{GuardianState, Stage};
use super::watchdog::WakePipe;
use crate::lock::ending::Ending;
use crate::lock::milestones::Milestones;
use crate::supervise::child::Child;
use crate::supervise::direct::watch;
use crate::supervise::inherited_children::InheritedChildren;
use crate::supervise::job::JobControl;
use crate::supervise::proc_access::ProcAccess;
use crate::supervise::process::{self, Process};
use crate::supervise::rehearsal;
use crate::supervise::supervisor::{Finished, StopReason, Supervisor};
use crate::supervise::terminal;
use crate::supervise::tree::Tree;
use crate::sys::children;
use crate::sys::clock::{Alarm, Moment};
use crate::sys::priority::{self, Scheduling};
use crate::sys::signals::{self, Missed, Signals};
use crate::sys::wait::{readable, time_until};

/// More than the time in which a process stops that was sent SIGSTOP: it does so when it next gets a processor.
const STOPPING_MAX: Duration = Duration::from_secs(10);

/// How often lockrun looks, for so long after it has relayed a fatal signal, whether its guardian is stopped.
const STOPPED_CHECK: Duration = Duration::from_millis(50);

/// How many children are reaped before lockrun looks at its signals and its guardian again.
const REAPED_AT_ONCE: usize = 128;

/// Which side of the fork this process is.
pub enum ForkSide {
    /// The guardian, which does the work.
    Guardian(Guardian),
    /// lockrun itself, which waits for the guardian.
    Parent(Parent),
}

/// lockrun while its guardian works.
pub struct Parent {
    receiver: Receiver,
    /// Kept open, so that the kernel continues lockrun when the guardian dies.
    _wake: OwnedFd,
    /// Rings when to take over from a guardian that has not ended COMMAND by then, because it is stopped or hangs.
    takeover: Arc<Alarm>,
    guardian: Child,
    has_terminal: bool,
    /// The signals that arrived before the guardian was forked.
    missed: Missed,
    inherited: InheritedChildren,
    access: ProcAccess,
    state: GuardianState,
    /// The scheduling that lockrun had before it raised its priority; `None` until it has.
    before_raise: Option<Scheduling>,
}

/// How the guardian ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardianEnd {
    /// It has done all its work, and lockrun must end in this way.
    Completed(Ending),
    /// It was killed before COMMAND could start, or after COMMAND could not be started.
    NotStarted {
        /// How far the run has come.
        milestones: Milestones,
        /// Whether a filter of system calls killed it.
        by_filter: bool,
    },
    /// It was killed, perhaps by lockrun, while COMMAND may have been running. COMMAND's processes are dead now, except
    /// stuck ones.
    TakenOver(Finished, Milestones),
    /// It was killed after it reported how COMMAND ended, and perhaps before it released the lock.
    Unreleased(Finished, Milestones),
}

/// Forks the guardian. Must be called while the process has one thread.
pub fn fork() -> nix::Result<ForkSide> {
    let (sender, receiver) = backchannel::pair()?;
    let wake = WakePipe::new()?;
    let takeover = Arc::new(Alarm::new()?);
    let has_terminal = terminal::is_controlling();
    if has_terminal {
        rehearsal::call_setsid();
    }
    // Before the lock is requested: when lockrun has to take over, no descriptor may be left.
    let access = ProcAccess::open(true)?;
    let inherited = InheritedChildren::note(!has_terminal, &access);
    prctl::set_child_subreaper(true)?;
    // SAFETY: cannot fail.
    let lockrun = unsafe { libc::getpid() };
    let missed = Missed::until_now();
    // SAFETY: the process has one thread, so no lock is left held in the child, which may do whatever its parent could.
    let forked = Errno::result(unsafe { libc::fork() })?;
    if forked == 0 {
        drop(receiver);
        return Ok(ForkSide::Guardian(Guardian::new(sender, wake, takeover, lockrun, has_terminal)));
    }
    drop(sender);
    Ok(ForkSide::Parent(Parent {
        receiver,
        _wake: wake.into_reading(),
        takeover,
        guardian: Child::new(forked),
        has_terminal,
        missed,
        inherited,
        access,
        state: GuardianState::new(),
        before_raise: None,
    }))
}

impl Parent {
    /// Relays signals and waits until the run is over. Takes over if the guardian dies, is stopped or hangs.
    pub fn until_the_end(mut self, signals: &Signals) -> nix::Result<GuardianEnd> {
        let mut job = JobControl::new(self.has_terminal, self.missed);
        let mut relayed_at = None;
        loop {
            for signal in job.take_pending(signals) {
                self.guardian.signal(signal);
                if signals::is_fatal(signal) {
                    relayed_at = Some(Moment::now());
                }
            }
            let continues = self.continues_guardian(relayed_at);
            if continues && self.guardian.is_stopped() {
                self.guardian.signal(libc::SIGCONT);
            }
            // Read before the messages, so that these are complete if the guardian has ended or is late. The pipe alone
            // does not show every end: a child that was stopped before it executed COMMAND keeps it open.
            let ended = self.guardian.has_ended() || self.receiver.is_closed();
            let is_late = self.takeover.has_rung();
            if let Some(job_state) = self.receiver.job_state() {
                job.state_changed(job_state);
            }
            for message in self.receiver.messages() {
                self.state.note(message);
                match message {
                    GuardianMessage::Started { .. } => self.before_raise = Some(priority::raise()),
                    GuardianMessage::AwaitingDescendants { ended_at, .. } => job.awaits_descendants(ended_at),
                    // The guardian has nothing left to do, so killing it now does no harm.
                    GuardianMessage::Over(ending) => {
                        self.restore_priority();
                        return Ok(GuardianEnd::Completed(ending));
                    }
                    _ => {}
                }
            }
            if ended {
                let milestones = self.state.milestones();
                return match self.state.stage() {
                    Stage::Waiting => {
                        // It may only have closed the pipe, as it dies.
                        self.guardian.signal(libc::SIGKILL);
                        let by_filter = children::was_killed_by_filter(self.guardian.pid());
                        Ok(GuardianEnd::NotStarted { milestones, by_filter })
                    }
                    Stage::Finished(finished) => Ok(GuardianEnd::Unreleased(finished, milestones)),
                    Stage::Granted | Stage::Running(_) | Stage::AwaitingDescendants { .. } => self.take_over(signals),
                };
            }
            let must_stop = match self.state.stage() {
                Stage::Waiting | Stage::AwaitingDescendants { .. } => job.must_stop_without_command(Moment::now()),
                Stage::Granted | Stage::Running(_) | Stage::Finished(_) => {
                    job.must_stop(Moment::now(), || self.command_is_stopped())
                }
            };
            if must_stop {
                signals::stop_self();
                continue;
            }
            if is_late && self.state.stage().command_may_live() {
                return self.take_over(signals);
            }
            let is_behind = self.reap_others();
            let look_in = if is_behind { Some(Duration::ZERO) } else { continues.then_some(STOPPED_CHECK) };
            let look_at = look_in.map(|span| Moment::now() + span);
            let [bell, end] = self.receiver.waited_for();
            // An alarm that has rung for nothing would end every wait.
            let alarm = if is_late { PollFlags::empty() } else { PollFlags::POLLIN };
            let alarm = PollFd::new(self.takeover.as_fd(), alarm);
            match poll(&mut [readable(signals), bell, end, alarm], time_until(look_at)) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Restores the scheduling from before [`priority::raise`], once nothing is left to be killed or released. The kernel
    /// reaps a process in a busy loop while a preempted process still closes one of the files in /proc of the reaped
    /// one. At real-time priority, on Linux 6.18, that loop kept a processor from all others for a second.
    fn restore_priority(&self) {
        if let Some(before) = self.before_raise {
            priority::set(before);
        }
    }

    /// Returns whether a guardian that is stopped is to be continued, to handle a fatal signal that was relayed to it
    /// at this time. (One that runs would pass the CONT on to COMMAND.) If there is a time for taking over from it,
    /// lockrun waits for that instead.
    fn continues_guardian(&self, relayed_at: Option<Moment>) -> bool {
        let is_recent = relayed_at.is_some_and(|at| Moment::now().since(at) < STOPPING_MAX);
        is_recent && !self.takeover.is_set()
    }

    /// Reaps the children that have ended, except the guardian: as the first process of a container, lockrun inherits
    /// what others leave behind there. If the guardian has ended, COMMAND's processes are among the children, and are
    /// left to [`Parent::take_over`]. Returns whether more may be left: others may end as fast as they are reaped.
    fn reap_others(&self) -> bool {
        for _ in 0..REAPED_AT_ONCE {
            match children::ended_one() {
                Some(pid) if !self.guardian.has_ended() => children::reap(pid),
                _ => return false,
            }
        }
        true
    }

    /// Returns whether COMMAND is stopped at this moment. (It may have been continued since the guardian's last
    /// report.)
    fn command_is_stopped(&self) -> bool {
        let Stage::Running(command) = self.state.stage() else { return false };
        process::read(command).is_some_and(Process::is_stopped)
    }

    /// Kills the guardian and all its descendants, which become children of lockrun.
    fn take_over(self, signals: &Signals) -> nix::Result<GuardianEnd> {
        let now = Moment::now();
        let is_late = self.takeover.has_rung();
        self.guardian.signal(libc::SIGKILL);
        // The guardian is reaped with the others. Waiting for it first would let COMMAND's processes live until each of
        // the guardian's threads has got a processor to end on, which on a busy machine may take longer than the lease.
        let guardian = self.guardian.leave();
        let why = if is_late { StopReason::Lost } else { StopReason::Unguarded };
        let (command, ended) = match self.state.stage() {
            Stage::Running(command) => (command, None),
            Stage::AwaitingDescendants { command, ended } => (command, Some(ended)),
            _ => (0, None),
        };
        let tree = Tree::adopt(guardian, command, ended, !self.has_terminal, self.inherited, self.access);
        let mut supervisor = Supervisor::ending(tree, now);
        // Does not wait for processes that it cannot kill: the lease is not renewed, so waiting would not keep the
        // lock.
        let finished = watch(&mut supervisor, false, signals, &|_| (), None)?;
        Ok(GuardianEnd::TakenOver(Finished { why: Some(why), ..finished }, self.state.milestones()))
    }
}
