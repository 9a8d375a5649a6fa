//! Waiting, interruptible: by a deadline, and by the signals that would end lockrun.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};
use std::os::raw::c_int;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
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
pub trait WaitObserver: Send {
    /// Returns how often to call [`WaitObserver::tick`]; `None`: never.
    fn tick_every(&self) -> Option<Duration>;

    /// Called regularly during the wait, on this thread or on another.
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

/// The first signal that came during a call and would terminate lockrun; 0 if none did. One thread at a time waits in a call: the main one.
static CAME: AtomicI32 = AtomicI32::new(0);

/// Records a signal that would terminate lockrun, unless lockrun caused it itself. Its arrival makes the blocking call return.
extern "C" fn note(signal: c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid record to a handler with SA_SIGINFO. Where the signal has no sender, the number says nothing.
    let (code, sender) = unsafe { ((*info).si_code, (*info).si_pid()) };
    if !signals::is_own(signal, code, sender.cast_unsigned()) {
        let _ = CAME.compare_exchange(0, signal, Ordering::Relaxed, Ordering::Relaxed);
    }
    interrupt(signal);
}

/// Does nothing while no signal is recorded: the arrival of an alarm makes the blocking call return.
///
/// A signal that was recorded may have come just before the call blocked, so an alarm follows, and another one until the wait is over.
/// That replaces an alarm from before lockrun was executed, which is COMMAND's: but COMMAND will not be started.
extern "C" fn interrupt(_signal: c_int) {
    if CAME.load(Ordering::Relaxed) != 0 {
        // SAFETY: async-signal-safe, and cannot fail.
        unsafe { libc::alarm(1) };
    }
}

/// Returns whether a signal is caught during a call. Those of a fault are not: a handler that returns would meet the same fault for ever.
fn is_caught(signal: c_int) -> bool {
    let is_fault =
        matches!(signal, libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP | libc::SIGSYS);
    signals::is_fatal(signal) && !is_fault
}

/// What makes a blocking call return: signals that would terminate lockrun, and the alarm of a deadline.
///
/// The signals have a handler, because their default action is nothing for the first process of a PID namespace, and the inherited mask may
/// block them. A thread that waits for them beside the call would need no handlers, but it would cost each waiter a stack.
struct Interruptions {
    blocked: libc::sigset_t,
    deadline: Option<Timer>,
    before: Vec<(c_int, libc::sigaction)>,
}

/// The alarm of a deadline repeats at this interval: a single one could come just before the call blocks.
const ALARM_AGAIN: Duration = Duration::from_millis(20);

impl Interruptions {
    /// Sets the alarm to `until`, if that is given, and the handlers of the signals.
    fn start(until: Option<Moment>, signals: &Signals) -> nix::Result<Self> {
        let deadline = until.map(alarm).transpose()?;
        CAME.store(0, Ordering::Relaxed);
        let mut action = plain_action();
        let mut mask = signals.inherited_mask();
        let mut before = Vec::new();
        for signal in (1..=signals::LAST).filter(|signal| is_caught(*signal)) {
            if signals.is_taken(signal) {
                action.sa_sigaction = note as *const () as libc::sighandler_t;
                action.sa_flags = libc::SA_SIGINFO;
            } else if signal == libc::SIGALRM {
                // Ours come all the same.
                action.sa_sigaction = interrupt as *const () as libc::sighandler_t;
                action.sa_flags = 0;
            } else {
                continue;
            }
            // The C library keeps a few for itself, and nobody catches KILL.
            if let Ok(old) = swap_action(signal, &action) {
                before.push((signal, old));
                // SAFETY: a valid set and signal number.
                unsafe { libc::sigdelset(&raw mut mask, signal) };
            }
        }
        Ok(Interruptions { blocked: signals::set_mask(&mask)?, deadline, before })
    }

    /// Returns the signal that came, if one did that would terminate lockrun.
    fn signal() -> Option<c_int> {
        Some(CAME.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
    }

    fn end(self) -> nix::Result<()> {
        signals::set_mask(&self.blocked)?;
        drop(self.deadline);
        if Self::signal().is_some() {
            // SAFETY: cannot fail.
            unsafe { libc::alarm(0) };
        }
        self.before.iter().try_for_each(|(signal, before)| swap_action(*signal, before).map(drop))
    }
}

/// Returns a timer that sends SIGALRM from the moment `first` on, again and again.
fn alarm(first: Moment) -> nix::Result<Timer> {
    let event = SigEvent::new(SigevNotify::SigevSignal { signal: Signal::SIGALRM, si_value: 0 });
    let mut timer = Timer::new(ClockId::CLOCK_BOOTTIME, event)?;
    let first = TimeSpec::from(first.since_boot().max(Duration::from_nanos(1)));
    timer.set(Expiration::IntervalDelayed(first, TimeSpec::from(ALARM_AGAIN)), TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
    Ok(timer)
}

/// Returns an action with no flags and an empty mask: without `SA_RESTART`, so that the call is interrupted.
fn plain_action() -> libc::sigaction {
    // SAFETY: all bits zero is a valid action: SIG_DFL, no flags, empty mask, no restorer.
    unsafe { std::mem::zeroed() }
}

/// Sets the action for `signal`, and returns the previous one.
fn swap_action(signal: c_int, action: &libc::sigaction) -> nix::Result<libc::sigaction> {
    let mut before = plain_action();
    // SAFETY: both point to actions; the handler, if any, only does what is async-signal-safe.
    Errno::result(unsafe { libc::sigaction(signal, action, &raw mut before) })?;
    Ok(before)
}

/// Returns the entry that polls `source` for data to read.
pub fn readable(source: &impl AsFd) -> PollFd<'_> {
    PollFd::new(source.as_fd(), PollFlags::POLLIN)
}

/// Returns the time-out of a poll(2) that lasts until `at`, or for as long as poll(2) allows if that is less. Unlike an [`Alarm`], it does
/// not count while the machine sleeps.
pub fn time_until(at: Option<Moment>) -> PollTimeout {
    let span = at.map(|at| at.since(Moment::now()) + Duration::from_millis(1));
    span.map_or(PollTimeout::NONE, |span| PollTimeout::try_from(span).unwrap_or(PollTimeout::MAX))
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// There is something to read, or the call has succeeded.
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

    /// Runs `call`, a system call that may wait, until it succeeds ([`WakeReason::Ready`]), fails, `until` has passed, or a signal comes that
    /// would terminate lockrun. The call may have succeeded just then.
    ///
    /// Meanwhile Ctrl-Z stops lockrun as it stops any process. So this is only for a wait that leaves nothing behind when lockrun is
    /// stopped in its middle.
    pub fn wait_in_call(
        &self,
        until: Option<Moment>,
        observer: &mut dyn WaitObserver,
        call: impl FnMut() -> nix::Result<()>,
    ) -> nix::Result<WakeReason> {
        let Some(every) = observer.tick_every() else { return self.call(until, call) };
        // In a thread, which gets none of the signals: a call that is interrupted for a tick would lose its place in the kernel's queue.
        thread::scope(|scope| {
            let (over, is_over) = mpsc::channel::<()>();
            let ticks = move || {
                while is_over.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                    observer.tick();
                }
            };
            // Without a thread there are no ticks.
            let _ = thread::Builder::new().spawn_scoped(scope, ticks);
            let result = self.call(until, call);
            drop(over);
            result
        })
    }

    fn call(&self, until: Option<Moment>, mut call: impl FnMut() -> nix::Result<()>) -> nix::Result<WakeReason> {
        let interruptions = Interruptions::start(until, self.signals)?;
        let result = loop {
            if let Some(signal) = Interruptions::signal() {
                break Ok(WakeReason::Signal(signal));
            }
            match call() {
                Err(Errno::EINTR) if until.is_some_and(|until| Moment::now() >= until) => break Ok(WakeReason::Time),
                Err(Errno::EINTR) => {}
                Err(errno) => break Err(errno),
                Ok(()) => break Ok(WakeReason::Ready),
            }
        };
        interruptions.end()?;
        // One that came last counts, too: nobody else will hear of it.
        Ok(Interruptions::signal().map_or(result?, WakeReason::Signal))
    }
}
