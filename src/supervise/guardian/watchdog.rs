//! The watchdog, the last line of defence: COMMAND ends in time even if lockrun and its guardian are stopped or hang.
//!
//! That the guardian was killed is noticed in `parent.rs`. But a stopped process cannot act; the kernel can act on it:
//!
//! * A POSIX timer on the boot clock sends KILL to the guardian, shortly after the moment at which the guardian should
//!   kill COMMAND. The guardian's main thread postpones the timer when it learns of a renewal. So the timer also kills
//!   a guardian whose main thread hangs while its renewer still renews the lease. The parent-death signal then ends
//!   COMMAND.
//! * When the guardian dies, the kernel sends CONT to lockrun: the guardian has the only writing end of a pipe, and
//!   lockrun has the reading end, on which `O_ASYNC` is set. So even a stopped lockrun takes over and kills all
//!   processes that COMMAND had started.
//!
//! A lockrun that is not stopped needs neither: it takes over at the moment at which the timer fires, without waiting
//! until the guardian's threads have got a processor to end on. To know that moment it has a timer of its own, the
//! alarm: it was created before the fork, so both processes have it open, and the guardian sets it. However long
//! lockrun has not looked, the alarm rings when the present deadline passes, and at no other time. A guardian that has
//! sent KILL postpones that moment, so that a COMMAND that takes a while to die is not mistaken for a guardian that
//! hangs; but not as far as H, because the guardian may be stopped before KILL has reached every process.
//!
//! The timers and the pipe are armed before COMMAND starts and disarmed when it has ended. So a stopped lockrun stays
//! stopped when its guardian has done its work. A lease that does not end COMMAND (`--on-lost warn`, `--ttl none`) has
//! neither timer nor alarm.
//!
//! This does not cover a lockrun that cannot be continued, because a debugger holds it or because it was stopped again:
//! then COMMAND itself is dead in time, but the processes that it started are not.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use libc::{c_int, pid_t};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use nix::unistd::pipe2;

use crate::lock::lease::Deadline;
use crate::sys::clock::{Alarm, Moment};

/// Missing from the libc crate. The number is the same on x86-64 and arm64.
const F_SETSIG: c_int = 10;

/// Returns when the timer kills a guardian that has not killed COMMAND by the `deadline`: soon afterwards, because
/// killing COMMAND without the guardian needs the rest of the time until H.
pub fn fires_at(deadline: Deadline) -> Moment {
    deadline.kill_at + deadline.horizon.since(deadline.kill_at) / 5
}

/// The pipe between lockrun and its guardian. Nothing is ever written to it.
pub(super) struct WakePipe {
    reading: OwnedFd,
    _writing: OwnedFd,
}

impl WakePipe {
    /// Creates the pipe, before the guardian is forked. Fails if the process has no descriptor left.
    pub(super) fn new() -> nix::Result<Self> {
        let (reading, writing) = pipe2(OFlag::O_CLOEXEC)?;
        set(&reading, F_SETSIG, libc::SIGCONT)?;
        set(&reading, libc::F_SETFL, libc::O_ASYNC)?;
        Ok(WakePipe { reading, _writing: writing })
    }

    /// Returns the end that lockrun keeps open, and closes the other one.
    pub(super) fn into_reading(self) -> OwnedFd {
        self.reading
    }

    /// Sets which process the kernel continues when all writing ends are closed; 0: none.
    fn set_process(&self, process: pid_t) {
        // Fails only if that process has ended.
        let _ = set(&self.reading, libc::F_SETOWN, process);
    }
}

/// The guardian's timer, lockrun's alarm, and the guardian's end of the pipe. Dropping this disarms all.
pub(super) struct Watchdog {
    wake: Arc<WakePipe>,
    alarm: Arc<Alarm>,
    /// Present if the lease ends COMMAND.
    timer: Option<Timer>,
}

impl Watchdog {
    /// Creates the timer, in the guardian, if COMMAND `ends_with_lease`. Fails with `EAGAIN` if the limit on pending
    /// signals, which includes timers, is reached, and with another error where the system has no such timer or a
    /// sandbox forbids it.
    pub(super) fn prepare(wake: Arc<WakePipe>, alarm: Arc<Alarm>, ends_with_lease: bool) -> nix::Result<Self> {
        let kill = SigEvent::new(SigevNotify::SigevSignal { signal: Signal::SIGKILL, si_value: 0 });
        let mut timer = ends_with_lease.then(|| Timer::new(ClockId::CLOCK_BOOTTIME, kill)).transpose()?;
        if let Some(timer) = &mut timer {
            // Disarmed, as it is. A sandbox that forbids to set it must show before the lock is requested.
            let never = Expiration::OneShot(TimeSpec::from(Duration::ZERO));
            timer.set(never, TimerSetTimeFlags::empty())?;
        }
        Ok(Watchdog { wake, alarm, timer })
    }

    /// Arms the pipe, and the timers if there is a `deadline`, for a COMMAND that is about to start.
    pub(super) fn set(&mut self, lockrun: pid_t, deadline: Option<Deadline>) -> nix::Result<()> {
        self.wake.set_process(lockrun);
        deadline.map_or(Ok(()), |deadline| self.renewed(deadline))
    }

    /// Moves the timers, if there are any, to the `deadline` of a renewed lease.
    pub(super) fn renewed(&mut self, deadline: Deadline) -> nix::Result<()> {
        let Some(timer) = &mut self.timer else { return Ok(()) };
        let at = fires_at(deadline);
        let since_boot = at.since_boot().max(Duration::from_nanos(1));
        timer.set(Expiration::OneShot(TimeSpec::from(since_boot)), TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
        self.alarm.set(Some(at))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // Cannot fail. Dropping the timer deletes it.
        let _ = self.alarm.set(None);
        self.wake.set_process(0);
    }
}

/// Sets a numeric property of a descriptor.
fn set(fd: &OwnedFd, property: c_int, to: c_int) -> nix::Result<()> {
    // SAFETY: a plain system call on an open descriptor; none of these commands takes a pointer.
    Errno::result(unsafe { libc::fcntl(fd.as_raw_fd(), property, to) }).map(drop)
}
