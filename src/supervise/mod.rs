//! COMMAND's processes: starting, signalling, watching, ending and reaping them. The unsafe code is here and in `sys`.
//!
//! One process is COMMAND's parent. It alone signals and reaps COMMAND's processes, so that no process id is used after
//! it was freed. On a store whose lock the kernel holds (files) the parent is lockrun itself. On a store with leases it
//! is the [`guardian`], a child that lockrun watches ([`guardian::parent`]): each ends COMMAND in time if the other
//! cannot.

pub mod entry;
pub mod guardian;

mod child;
mod direct;
mod exit;
mod inherited_children;
mod interpreter;
mod job;
mod killing;
mod proc_access;
mod process;
mod rehearsal;
mod spawn;
mod supervisor;
mod terminal;
mod tree;

use std::ffi::OsString;
use std::time::Duration;

pub use exit::{end_as, end_now};
pub use interpreter::why_not_executed;
pub use process::{are_visible as processes_are_visible, parent_of, started};
pub use rehearsal::call_what_ends_a_command;
pub use spawn::{FENCE, Failure as StartFailure, SLOT, VALUE};
pub use supervisor::{Finished, StopReason};
#[cfg(test)]
pub use supervisor::{Processes, Supervisor};

use crate::lock::ending::Ending;
use crate::lock::lease::Deadline;
use crate::sys::clock::Alarm;
use crate::sys::signals::Signals;
use guardian::{Guard, Guardian};
use proc_access::ProcAccess;
use spawn::Exec;
#[cfg(not(test))]
use supervisor::Supervisor;

/// What to do with processes that COMMAND leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descendants {
    /// Release the lock and leave them alone.
    Leave,
    /// Hold the lock until the last of them has ended.
    Wait,
    /// End them, then release the lock.
    Kill,
}

/// Returns whether COMMAND's parent may have to end COMMAND's processes or wait for them, even without a lease.
pub fn watches_processes(max_runtime: Option<Duration>, descendants: Descendants) -> bool {
    max_runtime.is_some() || descendants != Descendants::Leave
}

/// How to run COMMAND.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The program and its arguments; the program is searched for in `PATH` as execvp(3) does.
    pub argv: Vec<OsString>,
    /// Variables to set in addition to lockrun's own environment.
    pub env: Vec<(&'static str, String)>,
    /// The time between TERM and KILL.
    pub kill_after: Duration,
    /// The longest time that it may run; `None`: no limit.
    pub max_runtime: Option<Duration>,
    /// What to do with processes that it leaves behind.
    pub descendants: Descendants,
    /// Whether it is ended in time before the lock's lease ends, if there is a lease.
    pub ends_with_lease: bool,
}

/// Everything needed to start COMMAND that can be obtained before the lock is granted.
pub struct Prepared<'a> {
    launch: &'a Launch,
    exec: Exec,
    access: ProcAccess,
    /// Wakes lockrun when COMMAND has to be ended; `None` if that is never due, or if no timer could be created. (The
    /// guardian has its own.)
    alarm: Option<Alarm>,
    /// What the guardian needs; `None` if COMMAND becomes a child of lockrun itself.
    guard: Option<Guard>,
}

impl<'a> Prepared<'a> {
    /// Prepares to start `launch` from this process, which is the `guardian` if there is one. Fails if the system has
    /// no descriptor or no timer left.
    pub fn new(launch: &'a Launch, signals: &Signals, guardian: Option<&Guardian>) -> Result<Self, StartFailure> {
        let exec = Exec::new(launch, signals);
        let guard = guardian.map(|guardian| Guard::new(guardian, launch)).transpose()?;
        let watches = watches_processes(launch.max_runtime, launch.descendants);
        let access = ProcAccess::open(watches || guard.is_some()).map_err(StartFailure::Preparing)?;
        let alarm = if watches && guard.is_none() { Alarm::new().ok() } else { None };
        Ok(Prepared { launch, exec, access, alarm, guard })
    }

    /// Sets the variable `name` in COMMAND's environment.
    pub fn set(&mut self, name: &str, value: &str) {
        self.exec.set(name, value);
    }

    /// Starts COMMAND under a granted lock, whose lease, if there is one, has this `deadline`. COMMAND does not start
    /// after the deadline.
    pub fn start(self, deadline: Option<Deadline>) -> Result<Running, StartFailure> {
        match self.guard {
            Some(guard) => guard.start(self.exec, self.launch, deadline, self.access),
            None => direct::start(self.exec, self.launch, self.access, self.alarm),
        }
    }
}

/// COMMAND, running.
pub struct Running {
    supervisor: Supervisor,
    has_terminal: bool,
    /// See [`Prepared`].
    alarm: Option<Alarm>,
    /// Present under a lease. Without a lease, the kernel holds the lock, and COMMAND inherits it.
    guard: Option<Guard>,
}

impl Running {
    /// Forwards signals to COMMAND, stops and continues with it, and returns how it ended. Must be called exactly once.
    ///
    /// If some of COMMAND's processes cannot be killed, calls `report_stuck` once with their ids, and waits for them
    /// while the lock is held.
    pub fn until_the_end(&mut self, signals: &Signals, report_stuck: &dyn Fn(&[libc::pid_t])) -> nix::Result<Finished> {
        if let Some(guard) = &mut self.guard {
            return Ok(guard.watch(&mut self.supervisor, signals, report_stuck));
        }
        direct::watch(&mut self.supervisor, self.has_terminal, signals, report_stuck, self.alarm.take())
    }

    /// Returns the handle through which the renewer reports, if there is a lease.
    pub fn control(&self) -> Option<guardian::Control> {
        self.guard.as_ref().map(Guard::control)
    }
}

/// Returns the ending that a wait status stands for, if any.
fn ending(status: i32) -> Option<Ending> {
    if libc::WIFEXITED(status) {
        Some(Ending::Exited(u8::try_from(libc::WEXITSTATUS(status)).unwrap_or(u8::MAX)))
    } else if libc::WIFSIGNALED(status) {
        Some(Ending::Signaled(libc::WTERMSIG(status)))
    } else {
        None
    }
}
