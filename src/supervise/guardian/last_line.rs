//! The last line of defence: ends COMMAND in time if lockrun and its guardian are stopped, or hang.
//!
//! A stopped process cannot act, but the kernel can act on it:
//!
//! * A POSIX timer on the boot clock sends KILL to the guardian, shortly after the moment at which the guardian kills COMMAND. The
//!   guardian's main thread moves the timer when it reads of a renewal. So a guardian whose main thread hangs is killed, too, although
//!   its renewer still renews the lease. The parent-death signal then ends COMMAND.
//! * When the guardian dies, the kernel sends CONT to lockrun: the guardian has the only writing end of a pipe, and lockrun has the
//!   reading end, in which `O_ASYNC` is set. So lockrun takes over and kills all that COMMAND had started, even if it was stopped.
//!
//! A lockrun that is not stopped needs neither: it takes over at the moment at which the timer fires, and does not wait until the
//! guardian's threads have got a processor to end on. A guardian that has sent KILL puts that moment off, so that a COMMAND that takes
//! a while to die is not taken for a guardian that hangs; but not to H: it may be stopped before KILL has reached all.
//!
//! The timer and the pipe are set before COMMAND starts and unset when it has ended. So a lockrun that was stopped stays stopped when
//! its guardian has done its work. A lease that does not end COMMAND (`--on-lost warn`, `--ttl none`) has no timer.
//!
//! This does not cover a lockrun that cannot be continued, because a debugger holds it or because it was stopped again: then COMMAND
//! itself is dead in time, but not the processes that it had started.

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
use crate::sys::clock::Moment;

/// Missing from the bindings. The same number on x86-64 and arm64.
const F_SETSIG: c_int = 10;

/// Returns when the timer kills a guardian that has not killed COMMAND by the `deadline`: soon after, since those that kill COMMAND instead
/// need the rest of the time until H.
pub fn fires_at(deadline: Deadline) -> Moment {
    deadline.kill_at + deadline.horizon.since(deadline.kill_at) / 5
}

/// The pipe between lockrun and its guardian. Nothing is ever written to it.
pub(super) struct Wake {
    reading: OwnedFd,
    _writing: OwnedFd,
}

impl Wake {
    /// Creates the pipe, before the guardian is forked. Fails if no descriptor is left.
    pub(super) fn new() -> nix::Result<Self> {
        let (reading, writing) = pipe2(OFlag::O_CLOEXEC)?;
        set(&reading, F_SETSIG, libc::SIGCONT)?;
        set(&reading, libc::F_SETFL, libc::O_ASYNC)?;
        Ok(Wake { reading, _writing: writing })
    }

    /// Returns the end that lockrun keeps open, and closes the other one.
    pub(super) fn into_reading(self) -> OwnedFd {
        self.reading
    }

    /// Sets which process is continued when all writing ends are closed; 0: none.
    fn set_process(&self, process: pid_t) {
        // Fails only if that process has ended.
        let _ = set(&self.reading, libc::F_SETOWN, process);
    }
}

/// The guardian's timer and its end of the pipe. Unset when dropped.
pub(super) struct LastLine {
    wake: Arc<Wake>,
    timer: Timer,
}

impl LastLine {
    /// Creates the timer, in the guardian. Fails with `EAGAIN` if the limit of pending signals, which includes timers, is
    /// reached, and with another error where the system offers no such timer or a sandbox forbids it.
    pub(super) fn prepare(wake: Arc<Wake>) -> nix::Result<Self> {
        let kill = SigevNotify::SigevSignal { signal: Signal::SIGKILL, si_value: 0 };
        Ok(LastLine { wake, timer: Timer::new(ClockId::CLOCK_BOOTTIME, SigEvent::new(kill))? })
    }

    /// Sets it for a COMMAND that is about to start and must be dead by the `deadline`, if there is one.
    pub(super) fn set(&mut self, lockrun: pid_t, deadline: Option<Deadline>) -> nix::Result<()> {
        self.wake.set_process(lockrun);
        deadline.map_or(Ok(()), |deadline| self.renewed(deadline))
    }

    /// Moves the timer to the `deadline` of a renewed lease.
    pub(super) fn renewed(&mut self, deadline: Deadline) -> nix::Result<()> {
        let at = fires_at(deadline).since_boot().max(Duration::from_nanos(1));
        self.timer.set(Expiration::OneShot(TimeSpec::from(at)), TimerSetTimeFlags::TFD_TIMER_ABSTIME)
    }
}

impl Drop for LastLine {
    fn drop(&mut self) {
        // Dropping the timer deletes it.
        self.wake.set_process(0);
    }
}

/// Sets a property of a descriptor that is a number.
fn set(fd: &OwnedFd, property: c_int, to: c_int) -> nix::Result<()> {
    // SAFETY: a plain system call on an open descriptor; none of these commands takes a pointer.
    Errno::result(unsafe { libc::fcntl(fd.as_raw_fd(), property, to) }).map(drop)
}
