//! Waits that a deadline ends, or a signal that would terminate lockrun.

#![allow(unsafe_code)]

use std::io;
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
    /// Returns the interval at which to call [`WaitObserver::tick`]; `None`: never.
    fn tick_every(&self) -> Option<Duration>;

    /// Called regularly during the wait, on this thread or on another.
    fn tick(&mut self);

    /// Called before lockrun stops for a stop signal.
    fn pause(&mut self);

    /// Returns a descriptor on which poll(2) reports something once the wait has become pointless, even if it is only
    /// an error.
    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The first signal during a call that would terminate lockrun; 0 if there was none. Only the main thread waits in a
/// call.
static FIRST_SIGNAL: AtomicI32 = AtomicI32::new(0);

/// Records a signal that would terminate lockrun, unless lockrun caused it itself. Its arrival makes the blocking call
/// return.
extern "C" fn note(signal: c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid record to a handler with SA_SIGINFO. If the signal has no sender, the number is
    // meaningless.
    let (code, sender) = unsafe { ((*info).si_code, (*info).si_pid()) };
    if !signals::is_own(signal, code, sender.cast_unsigned()) {
        let _ = FIRST_SIGNAL.compare_exchange(0, signal, Ordering::Relaxed, Ordering::Relaxed);
    }
    interrupt(signal);
}

/// Handles an alarm, whose arrival makes the blocking call return. If a signal has been recorded, also sets the next
/// alarm.
///
/// A recorded signal may have come just before the call blocked, so it is followed by an alarm, and that by further
/// ones, until the wait is over. They replace an alarm that was set before lockrun was executed, which COMMAND would
/// inherit: but COMMAND will not be started.
extern "C" fn interrupt(_signal: c_int) {
    if FIRST_SIGNAL.load(Ordering::Relaxed) != 0 {
        // SAFETY: async-signal-safe, and cannot fail.
        unsafe { libc::alarm(1) };
    }
}

/// Returns whether to catch a signal during a call. Fault signals are not caught: a handler that returns would cause
/// the same fault for ever.
fn is_caught(signal: c_int) -> bool {
    let is_fault =
        matches!(signal, libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP | libc::SIGSYS);
    signals::is_fatal(signal) && !is_fault
}

/// What interrupts a blocking call: signals that would terminate lockrun, and the alarm of a deadline.
///
/// The signals have a handler, because their default action does nothing in the first process of a PID namespace; they
/// are unblocked during the call, even those that the inherited mask blocks. A second thread that waits for them would
/// need no handlers, but would cost each waiter a stack.
struct Interruptions {
    blocked: libc::sigset_t,
    deadline: Option<Timer>,
    before: Vec<(c_int, libc::sigaction)>,
}

/// The interval at which the alarm of a deadline repeats: a single alarm could come just before the call blocks.
const ALARM_AGAIN: Duration = Duration::from_millis(20);

impl Interruptions {
    /// Installs the signal handlers. The alarm of the deadline, if there is one, has been set.
    fn start(deadline: Option<Timer>, signals: &Signals) -> nix::Result<Self> {
        FIRST_SIGNAL.store(0, Ordering::Relaxed);
        let mut action = plain_action();
        let mut mask = signals.inherited_mask();
        let mut before = Vec::new();
        for signal in (1..=signals::LAST).filter(|signal| is_caught(*signal)) {
            if signals.is_taken(signal) {
                action.sa_sigaction = note as *const () as libc::sighandler_t;
                action.sa_flags = libc::SA_SIGINFO;
            } else if signal == libc::SIGALRM {
                // lockrun's own alarms must interrupt the call even if SIGALRM was ignored.
                action.sa_sigaction = interrupt as *const () as libc::sighandler_t;
                action.sa_flags = 0;
            } else {
                continue;
            }
            // Fails for KILL, and for the few signals that the C library keeps for itself.
            if let Ok(old) = swap_action(signal, &action) {
                before.push((signal, old));
                // SAFETY: a valid set and signal number.
                unsafe { libc::sigdelset(&raw mut mask, signal) };
            }
        }
        Ok(Interruptions { blocked: signals::set_mask(&mask)?, deadline, before })
    }

    /// Returns the recorded signal, if there is one.
    fn signal() -> Option<c_int> {
        Some(FIRST_SIGNAL.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
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

/// Returns a timer that sends SIGALRM at `first`, and then every [`ALARM_AGAIN`].
fn alarm(first: Moment) -> nix::Result<Timer> {
    let event = SigEvent::new(SigevNotify::SigevSignal { signal: Signal::SIGALRM, si_value: 0 });
    let mut timer = Timer::new(ClockId::CLOCK_BOOTTIME, event)?;
    let first = TimeSpec::from(first.since_boot().max(Duration::from_nanos(1)));
    timer.set(Expiration::IntervalDelayed(first, TimeSpec::from(ALARM_AGAIN)), TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
    Ok(timer)
}

/// Returns why no timer could be created, and what to do about it.
pub fn why_no_timer(errno: Errno) -> &'static str {
    match errno {
        Errno::EAGAIN => "too many signals are pending for this user; raise the limit (ulimit -i)",
        errno => errno.desc(),
    }
}

/// Returns an action with an empty mask and no flags, in particular without `SA_RESTART`, so that the call is
/// interrupted.
fn plain_action() -> libc::sigaction {
    // SAFETY: all bits zero is a valid action: SIG_DFL, no flags, empty mask, no restorer.
    unsafe { std::mem::zeroed() }
}

/// Sets the action for `signal`, and returns the previous one.
fn swap_action(signal: c_int, action: &libc::sigaction) -> nix::Result<libc::sigaction> {
    let mut before = plain_action();
    // SAFETY: both pointers are to actions; the handlers are async-signal-safe.
    Errno::result(unsafe { libc::sigaction(signal, action, &raw mut before) })?;
    Ok(before)
}

/// Returns a poll(2) entry that waits for `source` to become readable.
pub fn readable(source: &impl AsFd) -> PollFd<'_> {
    PollFd::new(source.as_fd(), PollFlags::POLLIN)
}

/// Returns a time-out for poll(2) that lasts until `at`, or as long as poll(2) allows if that is less. Unlike an
/// [`Alarm`], it does not count the time that the machine is suspended.
pub fn time_until(at: Option<Moment>) -> PollTimeout {
    let span = at.map(|at| at.since(Moment::now()) + Duration::from_millis(1));
    span.map_or(PollTimeout::NONE, |span| PollTimeout::try_from(span).unwrap_or(PollTimeout::MAX))
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// There is something to read, or the call succeeded.
    Ready,
    /// The time has passed.
    Time,
    /// A stop signal stopped lockrun, and it was continued.
    Resumed,
    /// A signal with this number came, which would terminate lockrun; or the observer's lifeline ended the wait.
    Signal(c_int),
}

/// Waits until there is something to read, a deadline passes, or a signal comes that would terminate lockrun. Can be
/// used repeatedly.
pub struct Waiter<'a> {
    signals: &'a Signals,
    /// Created when first needed.
    alarm: Option<Alarm>,
}

impl<'a> Waiter<'a> {
    /// Creates a waiter. Uses no descriptor before the first wait.
    pub fn new(signals: &'a Signals) -> Self {
        Waiter { signals, alarm: None }
    }

    /// Waits until there is something to read from `source`, until `until` if it is given, or until a signal comes that
    /// would terminate lockrun. A stop signal stops lockrun; when continued, this returns, and the caller must check
    /// what has changed meanwhile. Fails if the process has no descriptor left.
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

    /// Runs `call`, a system call that may block, until it succeeds ([`WakeReason::Ready`]), fails, `until` has passed,
    /// or a signal comes that would terminate lockrun. Even if a signal is returned, the call may have succeeded. Also
    /// fails if no timer can be created.
    ///
    /// Meanwhile Ctrl-Z stops lockrun like any process, so this is only for waits that leave nothing behind when
    /// lockrun is stopped.
    pub fn wait_in_call(
        &self,
        until: Option<Moment>,
        observer: &mut dyn WaitObserver,
        call: impl FnMut() -> nix::Result<()>,
    ) -> io::Result<WakeReason> {
        let Some(every) = observer.tick_every() else { return self.call(until, call) };
        // Ticks come from a thread, in which all signals are blocked: interrupting the call for each tick would lose
        // its place in the kernel's queue.
        thread::scope(|scope| {
            let (over, is_over) = mpsc::channel::<()>();
            let ticks = move || {
                while is_over.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                    observer.tick();
                }
            };
            // If no thread can be created, there are no ticks.
            let _ = thread::Builder::new().spawn_scoped(scope, ticks);
            let result = self.call(until, call);
            drop(over);
            result
        })
    }

    fn call(&self, until: Option<Moment>, mut call: impl FnMut() -> nix::Result<()>) -> io::Result<WakeReason> {
        let no_timer =
            |errno| io::Error::other(format!("cannot create the timer that ends the wait: {}", why_no_timer(errno)));
        let deadline = until.map(alarm).transpose().map_err(no_timer)?;
        let interruptions = Interruptions::start(deadline, self.signals)?;
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
        // A signal that came last counts, too: nothing else would report it.
        Ok(Interruptions::signal().map_or(result?, WakeReason::Signal))
    }
}
