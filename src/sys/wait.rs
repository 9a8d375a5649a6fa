//! Waiting, interruptible: by a deadline, and by the signals that would end lockrun.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};
use std::os::raw::c_int;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;

use super::clock::{Alarm, Moment};
use super::signals::{self, Signals};

/// Observes a wait.
pub trait WaitObserver {
    /// Returns how often to call [`WaitObserver::tick`]; `None`: never.
    fn tick_every(&self) -> Option<Duration>;

    /// Called regularly during the wait.
    fn tick(&mut self);

    /// Called before lockrun stops for the terminal.
    fn pause(&mut self);

    /// Returns whether lockrun, for which this process waits, is stopped. Then it does not wait: no lock must be acquired for it.
    fn is_stopped(&self) -> bool {
        false
    }

    /// Returns a descriptor that becomes readable when the wait has become pointless.
    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Does nothing: the signal's arrival alone makes a blocking system call return.
extern "C" fn interrupt(_signal: c_int) {}

/// The inherited signal mask, and alarms that interrupt a blocking call.
struct Interruptions {
    blocked: libc::sigset_t,
    alarms: Vec<Timer>,
    before: libc::sigaction,
}

impl Interruptions {
    /// Sets alarms for `until` and, if there is one, after each `tick`.
    fn start(until: Option<Moment>, tick: Option<Duration>, signals: &Signals) -> nix::Result<Self> {
        // The alarm of the deadline repeats: a single one could come just before the call blocks.
        let deadline = until.map(|until| alarm(until, Duration::from_millis(20)));
        let ticks = tick.map(|tick| alarm(Moment::now() + tick, tick));
        let alarms = deadline.into_iter().chain(ticks).collect::<nix::Result<Vec<_>>>()?;
        let mut action = plain_action();
        action.sa_sigaction = interrupt as *const () as libc::sighandler_t;
        let before = swap_action(if alarms.is_empty() { None } else { Some(&action) })?;
        let mut mask = signals.inherited_mask();
        if !alarms.is_empty() {
            // SAFETY: a valid set and signal number.
            unsafe { libc::sigdelset(&raw mut mask, libc::SIGALRM) };
        }
        Ok(Interruptions { blocked: signals::set_mask(&mask)?, alarms, before })
    }

    fn end(self) -> nix::Result<()> {
        signals::set_mask(&self.blocked)?;
        drop(self.alarms);
        swap_action(Some(&self.before)).map(drop)
    }
}

/// Returns a timer that sends SIGALRM at `first`, and then at intervals of `again`.
fn alarm(first: Moment, again: Duration) -> nix::Result<Timer> {
    let event = SigEvent::new(SigevNotify::SigevSignal { signal: Signal::SIGALRM, si_value: 0 });
    let mut timer = Timer::new(ClockId::CLOCK_BOOTTIME, event)?;
    let first = TimeSpec::from(first.since_boot().max(Duration::from_nanos(1)));
    timer.set(Expiration::IntervalDelayed(first, TimeSpec::from(again)), TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
    Ok(timer)
}

/// Returns an action with no flags and an empty mask: without `SA_RESTART`, so that the call is interrupted.
fn plain_action() -> libc::sigaction {
    // SAFETY: all bits zero is a valid action: SIG_DFL, no flags, empty mask, no restorer.
    unsafe { std::mem::zeroed() }
}

/// Sets the action for SIGALRM, if one is given, and returns the previous one.
fn swap_action(action: Option<&libc::sigaction>) -> nix::Result<libc::sigaction> {
    let mut before = plain_action();
    let action = action.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: both are null or point to actions; the handler, if any, is async-signal-safe because it does nothing.
    Errno::result(unsafe { libc::sigaction(libc::SIGALRM, action, &raw mut before) })?;
    Ok(before)
}

/// Returns the entry that polls `source` for data to read.
pub fn readable(source: &impl AsFd) -> PollFd<'_> {
    PollFd::new(source.as_fd(), PollFlags::POLLIN)
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// There is something to read.
    Ready,
    /// The time has passed.
    Time,
    /// The terminal stopped lockrun, and it was continued.
    Resumed,
    /// This signal came, which would terminate lockrun.
    Signal(c_int),
}

/// Waits repeatedly: until there is something to read, a deadline passes, or a signal comes that would terminate lockrun.
pub struct Waiter<'a> {
    signals: &'a Signals,
    /// Created when it is first needed.
    alarm: Option<Alarm>,
}

impl<'a> Waiter<'a> {
    /// Creates a waiter. Takes nothing from the system before the first wait.
    pub fn new(signals: &'a Signals) -> Self {
        Waiter { signals, alarm: None }
    }

    /// Waits until there is something to read from `source`, until `until` if it is given, or until a signal comes that would terminate
    /// lockrun. A signal that would stop lockrun does so; the caller must then check what has changed meanwhile. Fails if the process has
    /// no descriptor left.
    pub fn wait_for(
        &mut self,
        source: Option<BorrowedFd<'_>>,
        until: Option<Moment>,
        observer: &mut dyn WaitObserver,
    ) -> nix::Result<WakeReason> {
        #[cfg(test)]
        if let Some(reason) = super::simulated::wait(until) {
            return Ok(reason);
        }
        let signals = self.signals;
        let alarm = match &mut self.alarm {
            Some(alarm) => alarm,
            none => none.insert(Alarm::new()?),
        };
        let mut next_tick = observer.tick_every().map(|span| Moment::now() + span);
        loop {
            while let Some(caught) = signals.next() {
                if signals::is_stop(caught.signal) {
                    observer.pause();
                    signals::stop_self();
                    observer.tick();
                    return Ok(WakeReason::Resumed);
                } else if signals::is_fatal(caught.signal) {
                    return Ok(WakeReason::Signal(caught.signal));
                }
            }
            let now = Moment::now();
            if until.is_some_and(|until| now >= until) {
                return Ok(WakeReason::Time);
            }
            if next_tick.is_some_and(|at| now >= at) {
                observer.tick();
                next_tick = observer.tick_every().map(|span| now + span);
            }
            alarm.set(next_tick.into_iter().chain(until).min())?;
            let mut fds = vec![readable(signals), readable(alarm)];
            let more = [source, observer.lifeline()].map(|fd| fd.map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
            fds.extend(more.into_iter().flatten());
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
            let is_ready = |at: usize| fds.get(at).and_then(PollFd::any).unwrap_or(false);
            let lifeline = 2 + usize::from(source.is_some());
            if is_ready(lifeline) {
                return Ok(WakeReason::Signal(libc::SIGTERM));
            }
            if source.is_some() && is_ready(2) {
                return Ok(WakeReason::Ready);
            }
        }
    }

    /// Runs `call`, a system call that may wait, until it succeeds, fails, or `until` has passed (`None`).
    ///
    /// While it waits, signals do to lockrun what they do to any process: INT and TERM end it, Ctrl-Z stops it. So this is
    /// only for a wait that leaves nothing behind when lockrun ends in its middle.
    pub fn wait_in_call(
        &mut self,
        until: Option<Moment>,
        observer: &mut dyn WaitObserver,
        mut call: impl FnMut() -> nix::Result<()>,
    ) -> nix::Result<Option<()>> {
        let interruptions = Interruptions::start(until, observer.tick_every(), self.signals)?;
        let result = loop {
            match call() {
                Err(Errno::EINTR) if until.is_some_and(|until| Moment::now() >= until) => break Ok(None),
                Err(Errno::EINTR) => observer.tick(),
                Err(errno) => break Err(errno),
                Ok(()) => break Ok(Some(())),
            }
        };
        interruptions.end()?;
        result
    }
}
