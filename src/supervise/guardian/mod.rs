//! The guardian: the process between lockrun and COMMAND, for locks that are leases. See [`parent`].

#![allow(unsafe_code)]

pub mod parent;

mod backchannel;
mod control;
mod state;
mod watchdog;

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use libc::pid_t;
use nix::poll::{PollTimeout, poll};
use nix::sys::prctl;

#[cfg(test)]
pub use state::{GuardianState, Stage};
#[cfg(test)]
pub use watchdog::fires_at;

use super::entry;
use super::exit;
use super::proc_access::ProcAccess;
use super::process;
use super::rehearsal;
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
use backchannel::Sender;
pub use control::{Control, Report};
use watchdog::{WakePipe, Watchdog};

/// The guardian's own state.
pub struct Guardian {
    lockrun: Lockrun,
    has_terminal: bool,
    wake: Arc<WakePipe>,
    takeover: Arc<Alarm>,
}

/// The guardian's view of lockrun.
#[derive(Clone)]
struct Lockrun {
    pid: pid_t,
    sender: Sender,
    state: LockrunState,
}

/// Shows whether lockrun is stopped: its stat file in /proc, kept open so that reading it takes little time while
/// waiters wait.
#[derive(Clone, Default)]
struct LockrunState(Option<Arc<File>>);

impl Guardian {
    /// Makes this process, which lockrun (process id `pid`) has just forked, the guardian.
    fn new(sender: Sender, wake: WakePipe, takeover: Arc<Alarm>, pid: pid_t, has_terminal: bool) -> Self {
        // A name and a command line of its own, so that neither `killall -9 lockrun` nor `pkill -9 -f lockrun` kills
        // both.
        let _ = prctl::set_name(c"guardian");
        entry::set_command_line(&format!("guardian of {pid}"));
        // The guardian ends with lockrun, whose death closes the pipe. A stopped guardian notices, too: the kernel
        // continues it then. (Not one that stops itself at that very moment.)
        let _ = prctl::set_pdeathsig(nix::sys::signal::Signal::SIGCONT);
        rehearsal::call_what_a_guardian_calls();
        let state = LockrunState(File::open(format!("/proc/{pid}/task/{pid}/stat")).ok().map(Arc::new));
        Guardian { lockrun: Lockrun { pid, sender, state }, has_terminal, wake: Arc::new(wake), takeover }
    }

    /// Returns whether lockrun is stopped.
    pub fn is_stopped(&self) -> bool {
        self.lockrun.state.is_stopped()
    }

    /// Reports to lockrun that the lock was acquired.
    pub fn acquired(&self, acquisition: Acquisition) {
        self.lockrun.sender.send(GuardianMessage::Acquired(acquisition));
    }

    /// Reports to lockrun how to end, and ends this process in the same way.
    pub fn end(self, ending: Ending) -> ! {
        self.lockrun.sender.send_now(GuardianMessage::Over(ending));
        exit::end_now(ending)
    }
}

/// The means by which the guardian starts and supervises COMMAND.
pub(super) struct Guard {
    lockrun: Lockrun,
    has_terminal: bool,
    alarm: Alarm,
    /// Where the renewer reports.
    control: Control,
    /// Present until COMMAND has ended.
    watchdog: Option<Watchdog>,
}

impl Guard {
    /// Obtains everything for `launch` before the lock is granted. Fails if the system has no descriptor or no timer
    /// left.
    pub(super) fn new(guardian: &Guardian, launch: &Launch) -> Result<Self, Failure> {
        let (wake, takeover) = (Arc::clone(&guardian.wake), Arc::clone(&guardian.takeover));
        let watchdog = Watchdog::prepare(wake, takeover, launch.ends_with_lease);
        Ok(Guard {
            lockrun: guardian.lockrun.clone(),
            has_terminal: guardian.has_terminal,
            alarm: Alarm::new().map_err(Failure::Preparing)?,
            control: Control::new(guardian.lockrun.state.clone()).map_err(Failure::Preparing)?,
            watchdog: Some(watchdog.map_err(Failure::NoTimer)?),
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
        lockrun.sender.send(GuardianMessage::Granted);
        let setup = Setup {
            own_group: !self.has_terminal,
            dies_with_parent: true,
            not_after: deadline.map(|deadline| deadline.term_at),
        };
        let started = Tree::start(&mut exec, setup, access);
        // Wakes lockrun, which may have deferred a request to stop meanwhile.
        let tree = started.inspect_err(|_| lockrun.sender.send_now(GuardianMessage::NotStarted))?;
        leave_group(self.has_terminal);
        // COMMAND may be waiting for this processor: let it go first.
        // SAFETY: cannot fail.
        unsafe { libc::sched_yield() };
        lockrun.sender.send_now(GuardianMessage::Started { command: tree.command(), at: Moment::now() });
        let supervisor = Supervisor::new(tree, launch, ends_at, Moment::now());
        Ok(Running { supervisor, has_terminal: self.has_terminal, alarm: None, guard: Some(self) })
    }

    /// Moves the moment at which the timer or lockrun kills this process.
    fn set_deadline(&mut self, deadline: Deadline) {
        // If a timer cannot be moved, it fires early, which is safe.
        let _ = self.watchdog.as_mut().map(|watchdog| watchdog.renewed(deadline));
    }

    /// Returns the handle through which the renewer reports.
    pub(super) fn control(&self) -> Control {
        self.control.clone()
    }

    /// Waits for COMMAND, for reports of the renewer, for signals and for lockrun's death, until COMMAND counts as
    /// ended. If it has to wait for processes that cannot be killed, calls `report_stuck` once with their ids.
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
            // Signals that lockrun relays, and those that COMMAND sends to its parent, which it takes for lockrun. The
            // terminal's own signals, which reach this process only until COMMAND has started, are forwarded only if
            // COMMAND has missed them.
            while let Some(caught) = signals.next() {
                if missed.take(caught.signal) || caught.sent {
                    supervisor.forward(caught.signal);
                }
            }
            match self.control.take_report() {
                Some(Report::Renewed(deadline)) => {
                    supervisor.renewed(deadline);
                    self.set_deadline(deadline);
                }
                Some(Report::Lost) => supervisor.end(StopReason::Lost, Moment::now()),
                None => {}
            }
            if !orphaned && self.lockrun.is_dead() {
                orphaned = true;
                supervisor.end(StopReason::Orphaned, Moment::now());
            }
            let reaped_after = Moment::now();
            if let Some(job_state) = supervisor.reap() {
                self.lockrun.sender.send_job_state(job_state);
            }
            if let Some(finished) = supervisor.proceed(Moment::now()) {
                break finished;
            }
            if let Some(command) = supervisor.awaits_descendants().filter(|_| !awaits_descendants) {
                awaits_descendants = true;
                self.lockrun.sender.send_now(GuardianMessage::AwaitingDescendants { command, ended_at: reaped_after });
            }
            if supervisor.is_newly_stuck() {
                report_stuck(&supervisor.living());
            }
            if let Some(deadline) = supervisor.take_unreported_kill() {
                self.set_deadline(deadline.after_kill());
            }
            self.control.set_ending_command(supervisor.is_ending_command());
            // If the alarm cannot be set, the watchdog ends COMMAND.
            let _ = self.alarm.set(supervisor.wakes_at());
            let (alarm, renewer) = (readable(&self.alarm), readable(&self.control));
            // A closed pipe would end every wait.
            let _ = if orphaned {
                poll(&mut [readable(signals), alarm, renewer], PollTimeout::NONE)
            } else {
                poll(&mut [readable(signals), alarm, renewer, readable(&self.lockrun)], PollTimeout::NONE)
            };
        };
        // Before the timers are disarmed: if this process stands still here, it is killed in time, and lockrun knows
        // how COMMAND ended.
        self.lockrun.sender.send(GuardianMessage::Finished(finished));
        self.watchdog = None;
        finished
    }
}

/// Leaves lockrun's process group, out of reach of the terminal's signals and of `kill %1`. Must be called after
/// COMMAND has inherited the group.
///
/// On a terminal this process leaves the session, too. COMMAND shares lockrun's group there, and the kernel calls a
/// group orphaned unless the parent of a member is in another group of the same session. Usually that parent is a
/// shell, which can continue the group. If the guardian passed for one, Ctrl-Z would stop a COMMAND that nothing
/// continues, and a suspended COMMAND would outlive its shell. Without a terminal COMMAND leads a group of its own,
/// which must not be orphaned: TSTP would not stop it.
fn leave_group(has_terminal: bool) {
    // SAFETY: plain system calls on ourselves. They cannot fail, because this process leads no group.
    unsafe { if has_terminal { libc::setsid() } else { libc::setpgid(0, 0) } };
}

/// poll(2) reports an error once lockrun has died, and nothing else.
impl AsFd for Guardian {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.lockrun.as_fd()
    }
}

impl Lockrun {
    /// Returns whether it has died, which closes the pipe.
    fn is_dead(&self) -> bool {
        self.sender.is_closed()
    }
}

impl AsFd for Lockrun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sender.as_fd()
    }
}

impl LockrunState {
    /// Returns whether lockrun is stopped. Without /proc, assumes that it is not. A lockrun that a debugger holds is
    /// not: its guardian does its work as ever, and lockrun learns of it when it runs again.
    fn is_stopped(&self) -> bool {
        let mut line = [0; 512];
        let read = self.0.as_ref().and_then(|stat| stat.read_at(&mut line, 0).ok()).unwrap_or(0);
        process::state(&line[..read]) == Some(b'T')
    }
}
