//! The guardian: the process between lockrun and COMMAND, for locks that are leases. See [`watched_by_lockrun`].

#![allow(unsafe_code)]

pub mod watched_by_lockrun;

mod backchannel;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod oversight;
mod watchdog;

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::pid_t;
use nix::poll::{PollTimeout, poll};
use nix::sys::prctl;

#[cfg(test)]
pub use oversight::{Oversight, Stage};
#[cfg(test)]
pub use watchdog::fires_at;

use super::entry;
use super::exit;
use super::proc_access::ProcAccess;
use super::process;
use super::spawn::{Exec, Failure, Setup};
use super::supervisor::{Finished, StopReason, Supervisor};
use super::tree::Tree;
use super::{Launch, Running};
use crate::lock::ending::Ending;
use crate::lock::lease::Deadline;
use crate::lock::milestones::Acquisition;
use crate::sys::clock::{Alarm, Moment};
use crate::sys::priority;
use crate::sys::signals::Signals;
use crate::sys::wait::readable;
pub use backchannel::GuardianMessage;
use backchannel::{Link, RenewerChannel, RenewerMessage};
use watchdog::{WakePipe, Watchdog};

/// The guardian's own state.
pub struct Guardian {
    lockrun: Lockrun,
    has_terminal: bool,
    wake: Arc<WakePipe>,
}

/// The guardian's view of lockrun.
#[derive(Clone)]
struct Lockrun {
    pid: pid_t,
    link: Link,
    /// Its stat file in /proc, kept open so that reading it takes little time while waiters wait.
    stat: Option<Arc<File>>,
}

impl Guardian {
    /// Makes this process, which lockrun (process id `pid`) has just forked, the guardian.
    fn new(link: Link, wake: WakePipe, pid: pid_t, has_terminal: bool) -> Self {
        // A name and a command line of its own, so that neither `killall -9 lockrun` nor `pkill -9 -f lockrun` kills both.
        let _ = prctl::set_name(c"guardian");
        entry::set_command_line(&format!("guardian of {pid}"));
        // The guardian ends with lockrun, whose death closes the link. A stopped guardian notices, too: the kernel continues it then. (Not
        // one that stops itself at that very moment.)
        let _ = prctl::set_pdeathsig(nix::sys::signal::Signal::SIGCONT);
        let stat = File::open(format!("/proc/{pid}/task/{pid}/stat")).ok().map(Arc::new);
        Guardian { lockrun: Lockrun { pid, link, stat }, has_terminal, wake: Arc::new(wake) }
    }

    /// Returns whether lockrun is stopped.
    pub fn is_stopped(&self) -> bool {
        self.lockrun.is_stopped()
    }

    /// Reports to lockrun that the lock was acquired.
    pub fn acquired(&self, acquisition: Acquisition) {
        self.lockrun.link.send(GuardianMessage::Acquired(acquisition));
    }

    /// Reports to lockrun how to end, and ends this process in the same way.
    pub fn end(self, ending: Ending) -> ! {
        self.lockrun.link.send_now(GuardianMessage::Over(ending));
        exit::end_now(ending)
    }
}

/// The means by which the guardian starts and supervises COMMAND.
pub(super) struct Guard {
    lockrun: Lockrun,
    has_terminal: bool,
    alarm: Alarm,
    /// The main thread's end of the renewer's channel, and the renewer's.
    renewer: (RenewerChannel, RenewerChannel),
    /// Present until COMMAND has ended.
    watchdog: Option<Watchdog>,
    /// Whether COMMAND is being ended.
    is_ending_command: Arc<AtomicBool>,
}

impl Guard {
    /// Obtains everything for `launch` before the lock is granted. Fails if the system has no descriptor or no timer left.
    pub(super) fn new(guardian: &Guardian, launch: &Launch) -> Result<Self, Failure> {
        let watchdog = Watchdog::prepare(Arc::clone(&guardian.wake), launch.ends_with_lease);
        Ok(Guard {
            lockrun: guardian.lockrun.clone(),
            has_terminal: guardian.has_terminal,
            alarm: Alarm::new().map_err(Failure::Preparing)?,
            renewer: RenewerChannel::pair().map_err(Failure::Preparing)?,
            watchdog: Some(watchdog.map_err(Failure::NoTimer)?),
            is_ending_command: Arc::default(),
        })
    }

    /// Starts COMMAND if lockrun is still alive and the `deadline`, if there is one, leaves time for it.
    pub(super) fn start(
        mut self,
        mut exec: Exec,
        launch: &Launch,
        deadline: Option<Deadline>,
        access: ProcAccess,
    ) -> Result<Running, Failure> {
        let lockrun = &self.lockrun;
        if lockrun.is_dead() {
            return Err(Failure::Orphaned);
        }
        if deadline.is_some_and(|deadline| Moment::now() >= deadline.term_at) {
            return Err(Failure::TooLate);
        }
        let ends_at = deadline.filter(|_| launch.ends_with_lease);
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.set(lockrun.pid, ends_at).map_err(Failure::Preparing)?;
        }
        // Sent before COMMAND can start: if this process dies from here on, lockrun must look for COMMAND's processes.
        lockrun.link.send(ends_at.map_or(GuardianMessage::Granted, GuardianMessage::LeasedUntil));
        let setup = Setup {
            own_group: !self.has_terminal,
            dies_with_parent: true,
            not_after: deadline.map(|deadline| deadline.term_at),
        };
        let started = Tree::start(&mut exec, setup, access);
        // Wakes lockrun, which may have deferred a request to stop meanwhile.
        let tree = started.inspect_err(|_| lockrun.link.send_now(GuardianMessage::NotStarted))?;
        leave_group(self.has_terminal);
        // COMMAND may be waiting for this processor: let it go first.
        // SAFETY: cannot fail.
        unsafe { libc::sched_yield() };
        lockrun.link.send_now(GuardianMessage::Started { command: tree.command(), at: Moment::now() });
        let supervisor = Supervisor::new(tree, launch, ends_at, Moment::now());
        Ok(Running { supervisor, has_terminal: self.has_terminal, alarm: None, guard: Some(self) })
    }

    /// Moves the moment at which the timer or lockrun kills this process.
    fn set_deadline(&mut self, deadline: Deadline) {
        // If the timer cannot be moved, it fires early, which is safe.
        let _ = self.watchdog.as_mut().map(|watchdog| watchdog.renewed(deadline));
        self.lockrun.link.send_now(GuardianMessage::LeasedUntil(deadline));
    }

    /// Returns the handle through which the renewer reports.
    pub(super) fn control(&self) -> Control {
        let is_ending_command = Arc::clone(&self.is_ending_command);
        Control { lockrun: self.lockrun.clone(), guardian: self.renewer.1.clone(), is_ending_command }
    }

    /// Waits for COMMAND, for reports of the renewer, for signals and for lockrun's death, until COMMAND counts as ended. If it has
    /// to wait for processes that cannot be killed, calls `report_stuck` once with their ids.
    pub(super) fn watch(
        &mut self,
        supervisor: &mut Supervisor,
        signals: &Signals,
        report_stuck: &dyn Fn(&[pid_t]),
    ) -> Finished {
        // Only now, so that COMMAND does not inherit the priority.
        priority::raise();
        let mut orphaned = false;
        let mut missed = supervisor.missed();
        let mut awaits_descendants = false;
        let finished = loop {
            // Signals that lockrun relays, and those that COMMAND sends to its parent, which it takes for lockrun. The terminal's own
            // signals, which reach this process only until COMMAND has started, are forwarded only if COMMAND has missed them.
            while let Some(caught) = signals.next() {
                if missed.take(caught.signal) || caught.sent {
                    supervisor.forward(caught.signal);
                }
            }
            while let Some(message) = self.renewer.0.next() {
                match message {
                    RenewerMessage::Renewed(deadline) => {
                        supervisor.renewed(deadline);
                        self.set_deadline(deadline);
                    }
                    RenewerMessage::Lost => supervisor.end(StopReason::Lost, Moment::now()),
                }
            }
            if !orphaned && self.lockrun.is_dead() {
                orphaned = true;
                supervisor.end(StopReason::Orphaned, Moment::now());
            }
            let reaped_after = Moment::now();
            if let Some(job_state) = supervisor.reap() {
                self.lockrun.link.send_job_state(job_state);
            }
            if let Some(finished) = supervisor.proceed(Moment::now()) {
                break finished;
            }
            if let Some(command) = supervisor.awaits_descendants().filter(|_| !awaits_descendants) {
                awaits_descendants = true;
                self.lockrun.link.send_now(GuardianMessage::AwaitingDescendants { command, ended_at: reaped_after });
            }
            if supervisor.is_newly_stuck() {
                report_stuck(&supervisor.living());
            }
            if let Some(deadline) = supervisor.take_unreported_kill() {
                self.set_deadline(deadline.after_kill());
            }
            self.is_ending_command.store(supervisor.is_ending_command(), Ordering::Relaxed);
            // If the alarm cannot be set, the watchdog ends COMMAND.
            let _ = self.alarm.set(supervisor.wakes_at());
            let (alarm, renewer) = (readable(&self.alarm), readable(&self.renewer.0));
            // A closed link would be readable for ever.
            let _ = if orphaned {
                poll(&mut [readable(signals), alarm, renewer], PollTimeout::NONE)
            } else {
                poll(&mut [readable(signals), alarm, renewer, readable(&self.lockrun)], PollTimeout::NONE)
            };
        };
        self.watchdog = None;
        self.lockrun.link.send(GuardianMessage::Finished(finished));
        finished
    }
}

/// Leaves lockrun's process group, out of reach of the terminal's signals and of `kill %1`. Must be called after COMMAND has inherited
/// the group.
///
/// On a terminal this process leaves the session, too. COMMAND shares lockrun's group there, and the kernel calls a group orphaned unless
/// the parent of a member is in another group of the same session. Usually that parent is a shell, which can continue the group. If the
/// guardian passed for one, Ctrl-Z would stop a COMMAND that nothing continues, and a suspended COMMAND would outlive its shell. Without
/// a terminal COMMAND leads a group of its own, which must not be orphaned: TSTP would not stop it.
fn leave_group(has_terminal: bool) {
    // SAFETY: plain system calls on ourselves. They cannot fail, because this process leads no group.
    unsafe { if has_terminal { libc::setsid() } else { libc::setpgid(0, 0) } };
}

/// The renewer's handle to the guardian's main thread.
#[derive(Clone)]
pub struct Control {
    lockrun: Lockrun,
    guardian: RenewerChannel,
    /// See [`Guard::is_ending_command`].
    is_ending_command: Arc<AtomicBool>,
}

impl Control {
    /// Reports that the lease was renewed, and its new deadline.
    pub fn renewed(&self, deadline: Deadline) {
        self.guardian.send(RenewerMessage::Renewed(deadline));
    }

    /// Reports that the lease is lost: COMMAND must be ended.
    pub fn lost(&self) {
        self.guardian.send(RenewerMessage::Lost);
    }

    /// Returns whether the lease must not be renewed because lockrun is stopped. Always `false` while COMMAND is being ended: processes
    /// that are still there may be stuck, and keep the lease.
    pub fn is_stopped(&self) -> bool {
        !self.is_ending_command.load(Ordering::Relaxed) && self.lockrun.is_stopped()
    }
}

/// Becomes readable when lockrun has died.
impl AsFd for Guardian {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.lockrun.as_fd()
    }
}

impl Lockrun {
    /// Returns whether it is stopped. Without /proc, assumes that it is not.
    fn is_stopped(&self) -> bool {
        let mut line = [0; 512];
        let read = self.stat.as_ref().and_then(|stat| stat.read_at(&mut line, 0).ok()).unwrap_or(0);
        process::state(&line[..read]) == Some(b'T')
    }

    /// Returns whether it has died, which closes the link.
    fn is_dead(&self) -> bool {
        self.link.is_closed()
    }
}

impl AsFd for Lockrun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}
