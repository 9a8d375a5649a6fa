//! The only clock that lockrun uses to measure time: `CLOCK_BOOTTIME`.
//!
//! It never steps, and it keeps running during suspend: a laptop must notice that it slept past its lease.

use std::ops::Add;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId as TimerClock, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A moment on the boot clock, as the time since the machine booted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
pub struct Alarm(TimerFd);

impl Alarm {
    /// Returns an alarm that is not set. Fails if the process has no descriptor left, or may not set it.
    pub fn new() -> nix::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(TimerClock::CLOCK_BOOTTIME, flags)?;
        // It is off already. A sandbox that forbids to set it must show here, not when COMMAND has to be ended.
        timer.unset()?;
        Ok(Alarm(timer))
    }

    /// Sets the alarm to `at`, or turns it off if that is `None`. A past moment makes it readable at once.
    pub fn set(&self, at: Option<Moment>) -> nix::Result<()> {
        match at {
            // A zero expiration would turn the timer off, so the earliest is one nanosecond after boot.
            Some(at) => self.0.set(
                Expiration::OneShot(TimeSpec::from(at.0.max(Duration::from_nanos(1)))),
                TimerSetTimeFlags::TFD_TIMER_ABSTIME,
            ),
            None => self.0.unset(),
        }
    }

    /// Returns whether it is set for a moment that has not come yet.
    pub fn is_set(&self) -> bool {
        self.0.get().is_ok_and(|left| left.is_some())
    }

    /// Returns whether the moment for which it is set has come. Never waits.
    pub fn has_rung(&self) -> bool {
        poll(&mut [PollFd::new(self.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(1)
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_is_set_until_it_rings() {
        let alarm = Alarm::new().expect("a descriptor");
        let is_now = |set, rung| (alarm.is_set(), alarm.has_rung()) == (set, rung);
        assert!(is_now(false, false));
        alarm.set(Some(Moment::from_boot(Duration::ZERO))).expect("it can be set");
        assert!(is_now(false, true), "the moment is past");
        alarm.set(Some(Moment::now() + Duration::from_mins(10))).expect("it can be set");
        assert!(is_now(true, false), "it has moved");
        alarm.set(None).expect("it can be set");
        assert!(is_now(false, false));
    }
}
