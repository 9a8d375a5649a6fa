//! What the renewer reports to the guardian's main thread. Only the latest report counts, so none is lost however late
//! it is read.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::LockrunState;
use crate::lock::lease::Deadline;

/// A report of the renewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// The lease was renewed, and has this deadline now.
    Renewed(Deadline),
    /// The lease is lost: end COMMAND. The last report.
    Lost,
}

/// The renewer's handle to the guardian's main thread.
#[derive(Clone)]
pub struct Control(Arc<Shared>);

/// What the two threads share.
struct Shared {
    /// The latest report, until it is read.
    latest: Mutex<Option<Report>>,
    /// Readable when there is a report.
    bell: EventFd,
    /// Whether COMMAND is being ended.
    is_ending_command: AtomicBool,
    lockrun: LockrunState,
}

impl Control {
    /// Returns the handle of a guardian whose lockrun has this state. Fails if the process has no descriptor left.
    pub(super) fn new(lockrun: LockrunState) -> nix::Result<Self> {
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let (latest, is_ending_command) = (Mutex::default(), AtomicBool::default());
        Ok(Control(Arc::new(Shared { latest, bell, is_ending_command, lockrun })))
    }

    /// Reports that the lease was renewed, and its new deadline.
    pub fn renewed(&self, deadline: Deadline) {
        self.report(Report::Renewed(deadline));
    }

    /// Reports that the lease is lost: COMMAND must be ended.
    pub fn lost(&self) {
        self.report(Report::Lost);
    }

    /// Returns whether the lease must not be renewed because lockrun is stopped. Always `false` while COMMAND is being
    /// ended: processes that are still there may be stuck, and keep the lease.
    pub fn is_stopped(&self) -> bool {
        !self.0.is_ending_command.load(Ordering::Relaxed) && self.0.lockrun.is_stopped()
    }

    /// Records whether COMMAND is being ended.
    pub(super) fn set_ending_command(&self, is_ending_command: bool) {
        self.0.is_ending_command.store(is_ending_command, Ordering::Relaxed);
    }

    /// Returns the latest report, if it has not been read yet. Does not wait.
    pub(super) fn take_report(&self) -> Option<Report> {
        // First the bell: a report that comes later rings it again.
        let _ = self.0.bell.read();
        self.latest().take()
    }

    fn report(&self, report: Report) {
        *self.latest() = Some(report);
        // Cannot fail: the counter is far from full.
        let _ = self.0.bell.write(1);
    }

    fn latest(&self) -> MutexGuard<'_, Option<Report>> {
        self.0.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Becomes readable when there is a report.
impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nix::poll::{PollTimeout, poll};

    use super::*;
    use crate::sys::clock::Moment;
    use crate::sys::wait::readable;

    #[test]
    fn the_latest_report_is_read_however_many_there_were() {
        let control = Control::new(LockrunState::default()).expect("a descriptor");
        let is_rung = || poll(&mut [readable(&control)], PollTimeout::ZERO) == Ok(1);
        let deadline = |seconds| {
            let at = Moment::from_boot(Duration::from_secs(seconds));
            Deadline { term_at: at, kill_at: at, horizon: at }
        };
        assert_eq!((is_rung(), control.take_report()), (false, None));
        (0..10_000).for_each(|seconds| control.renewed(deadline(seconds)));
        assert!(is_rung());
        assert_eq!(control.take_report(), Some(Report::Renewed(deadline(9_999))));
        assert_eq!((is_rung(), control.take_report()), (false, None));
        control.renewed(deadline(10_000));
        control.lost();
        assert_eq!((is_rung(), control.take_report()), (true, Some(Report::Lost)));
    }
}
