//! The one clock that lockrun measures by: `CLOCK_BOOTTIME`.
//!
//! It never steps, and it runs through suspend: a laptop that slept past its lease must know that it did.

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
    /// The present moment.
    pub fn now() -> Self {
        // The clock exists since Linux 2.6.39; a kernel without it cannot run this program at all.
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("the kernel has a boot clock");
        Moment(now.into())
    }

    /// The moment that lies `since_boot` after the machine booted.
    pub const fn from_boot(since_boot: Duration) -> Self {
        Moment(since_boot)
    }

    /// How long after the machine booted this moment lies.
    pub const fn since_boot(self) -> Duration {
        self.0
    }

    /// How long after `earlier` this moment lies; zero if it does not.
    pub fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment that lies `span` before this one, or boot if that is later.
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

/// A descriptor that becomes readable at a set moment of the boot clock, for use with poll(2), whose own time-outs
/// stand still while the machine sleeps.
#[derive(Debug)]
pub struct Alarm {
    timer: TimerFd,
    set_for: Option<Moment>,
}

impl Alarm {
    /// An alarm that is not set. Fails when the process has no descriptor left.
    pub fn new() -> nix::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(TimerClock::CLOCK_BOOTTIME, flags)?;
        Ok(Alarm { timer, set_for: None })
    }

    /// Sets the alarm for `at`, or turns it off. A moment that has passed makes it readable at once.
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
