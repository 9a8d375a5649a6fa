//! A system call that waits, interruptible: by a deadline, and by the signals that would end lockrun.

#![allow(unsafe_code)]

use std::os::raw::c_int;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollTimeout, poll};
use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;

use super::direct::readable;
use super::signals::{self, Signals};
use crate::clock::{Alarm, Moment};

/// Does nothing: its arrival alone makes a waiting system call return.
extern "C" fn interrupt(_signal: c_int) {}

/// Runs `call`, a system call that may wait, until it succeeds, fails, or `until` has passed (`None`).
///
/// While it waits, signals do to lockrun what they do to any process: INT and TERM end it, Ctrl-Z stops it. So this is
/// only for a wait that leaves nothing behind when lockrun ends in its middle.
pub fn wait_in_call(
    until: Option<Moment>,
    signals: &Signals,
    mut call: impl FnMut() -> nix::Result<()>,
) -> nix::Result<Option<()>> {
    let mut mask = signals.inherited_mask();
    let mut before = None;
    let mut timer = None;
    if let Some(until) = until {
        let mut action = plain_action();
        action.sa_sigaction = interrupt as *const () as libc::sighandler_t;
        before = Some(swap_action(&action)?);
        // SAFETY: a valid set and signal number.
        unsafe { libc::sigdelset(&raw mut mask, libc::SIGALRM) };
        let event = SigEvent::new(SigevNotify::SigevSignal { signal: Signal::SIGALRM, si_value: 0 });
        let mut alarm = Timer::new(ClockId::CLOCK_BOOTTIME, event)?;
        // It goes on firing after the deadline: one alarm could come just before the call begins to wait.
        let first = until.since_boot().max(Duration::from_nanos(1));
        let again = Duration::from_millis(20);
        alarm.set(
            Expiration::IntervalDelayed(TimeSpec::from(first), TimeSpec::from(again)),
            TimerSetTimeFlags::TFD_TIMER_ABSTIME,
        )?;
        timer = Some(alarm);
    }
    let blocked = signals::set_mask(&mask)?;
    let result = loop {
        match call() {
            Err(Errno::EINTR) if until.is_some_and(|until| Moment::now() >= until) => break Ok(None),
            Err(Errno::EINTR) => {}
            Err(errno) => break Err(errno),
            Ok(()) => break Ok(Some(())),
        }
    };
    signals::set_mask(&blocked)?;
    drop(timer);
    if let Some(before) = before {
        swap_action(&before)?;
    }
    result
}

/// An action with no flags and an empty mask: without `SA_RESTART`, so that the call is interrupted.
fn plain_action() -> libc::sigaction {
    // SAFETY: all bits zero is a valid action: SIG_DFL, no flags, empty mask, no restorer.
    unsafe { std::mem::zeroed() }
}

/// Sets the action for SIGALRM, and gives the one before.
fn swap_action(action: &libc::sigaction) -> nix::Result<libc::sigaction> {
    let mut before = plain_action();
    // SAFETY: both point to actions; the handler, if any, is async-signal-safe because it does nothing.
    Errno::result(unsafe { libc::sigaction(libc::SIGALRM, action, &raw mut before) })?;
    Ok(before)
}

/// Sleeps until `until`, or until a signal comes that would end lockrun: gives its number. A signal that would stop
/// lockrun does, and the sleep goes on after it.
pub fn sleep(until: Moment, signals: &Signals) -> nix::Result<Option<c_int>> {
    let mut alarm = Alarm::new()?;
    alarm.set(Some(until))?;
    loop {
        while let Some(caught) = signals.next() {
            if signals::is_stop(caught.signal) {
                signals::stop_self();
            } else if signals::is_fatal(caught.signal) && caught.signal != libc::SIGPIPE {
                return Ok(Some(caught.signal));
            }
        }
        if Moment::now() >= until {
            return Ok(None);
        }
        match poll(&mut [readable(signals), readable(&alarm)], PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
