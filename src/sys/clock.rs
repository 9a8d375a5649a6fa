//! The only clock that lockrun uses to measure time: `CLOCK_BOOTTIME`.
//!
//! It never steps, and it keeps running during suspend: a laptop must notice that it slept past its lease.

use std::ops::Add;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId as TimerClock, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::{ClockId, clock_gettime};

/// A moment on the boot clock, as the time since the machine booted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    /// Returns the present moment.
    pub fn now() -> Self {
        #[cfg(test)]
        if let Some(now) = super::simulated::now() {
            return now;
        }
        // The clock exists since Linux 2.6.39; a kernel without it cannot run this program at all.
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("the kernel has a boot clock");
        Moment(now.into())
    }

    /// Returns the moment `since_boot` after the machine booted.
    pub const fn from_boot(since_boot: Duration) -> Self {
        Moment(since_boot)
    }

    /// Returns how long after boot this moment is.
    pub const fn since_boot(self) -> Duration {
        self.0
    }

    /// Returns the time from `earlier` to this moment; zero if `earlier` is later.
    pub fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the moment `span` before this one, but not before boot.
    pub fn before(self, span: Duration) -> Moment {
        Moment(self.0.saturating_sub(span))
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, span: Duration) -> Moment {
        Moment(self.0.saturating_add(span))
    }
}

/// A descriptor that becomes readable at a given moment of the boot clock, for use with poll(2), whose own time-outs
/// do not count the time that the machine is suspended.
#[derive(Debug)]
pub struct Alarm {
    timer: TimerFd,
    set_for: Option<Moment>,
}

impl Alarm {
    /// Returns an alarm that is not set. Fails if the process has no descriptor left, or may not set it.
    pub fn new() -> nix::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(TimerClock::CLOCK_BOOTTIME, flags)?;
        // It is off already. A sandbox that forbids to set it must show here, not when COMMAND has to be ended.
        timer.unset()?;
        Ok(Alarm { timer, set_for: None })
    }

    /// Sets the alarm to `at`, or turns it off if that is `None`. A past moment makes it readable at once.
    pub fn set(&mut self, at: Option<Moment>) -> nix::Result<()> {
        if at == self.set_for {
            return Ok(());
        }
        match at {
            // A zero expiration would turn the timer off, so the earliest is one nanosecond after boot.
            Some(at) => self.timer.set(
                Expiration::OneShot(TimeSpec::from(at.0.max(Duration::from_nanos(1)))),
                TimerSetTimeFlags::TFD_TIMER_ABSTIME,
            )?,
            None => self.timer.unset()?,
        }
        self.set_for = at;
        Ok(())
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}
