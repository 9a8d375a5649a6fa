//! COMMAND as processes: started, signalled, watched, ended, reaped. The only unsafe code is below here.
//!
//! One process is COMMAND's parent, and it alone signals and reaps what COMMAND started, so that a process id is never
//! used after it was given back. On a store whose lock the kernel holds (files) that is lockrun itself; on a store with
//! leases it is the [`guardian`], with lockrun, its [`parent`], in front of it: each ends COMMAND in time if the other cannot.

pub mod entry;
pub mod guardian;
pub mod parent;

mod backchannel;
mod cgroup;
mod direct;
mod exit;
mod job;
mod last_line;
mod preexisting;
mod process;
mod spawn;
mod supervisor;
pub mod terminal;
mod tree;

use std::ffi::OsString;
use std::time::Duration;

pub use exit::{end_as, end_now};
pub use process::are_visible as processes_are_visible;
pub use spawn::{Failure as StartFailure, Ready, VALUE};
pub use supervisor::{Finished, Why};

use crate::lock::ending::Ending;
use crate::sys::signals::Signals;
use guardian::Guarded;

/// What is done about processes that COMMAND left behind when it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descendants {
    /// Leave them alone, and release the lock.
    Leave,
    /// Hold the lock until the last of them has gone.
    Wait,
    /// End them, then release the lock.
    Kill,
}

/// How COMMAND is run.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The program and its arguments; the program is searched for in `PATH` as execvp(3) does.
    pub argv: Vec<OsString>,
    /// Variables that are set for it beside lockrun's own environment.
    pub env: Vec<(&'static str, String)>,
    /// The time that it has from TERM to KILL when it has to be ended.
    pub kill_after: Duration,
    /// How long it may run.
    pub max_runtime: Option<Duration>,
    /// What is done about what it leaves behind.
    pub descendants: Descendants,
}

/// The variables that describe the grant to COMMAND: known only when the lock is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The fencing token.
    pub fence: u64,
    /// The slot, if there are several.
    pub slot: Option<u32>,
}

/// COMMAND, running. Ends only by [`Running::until_the_end`].
pub enum Running {
    /// Under a lock that the kernel holds, and passes on to COMMAND.
    Direct(direct::Direct),
    /// Under a lease.
    Guarded(Guarded),
}

impl Running {
    /// Starts COMMAND as this process's own child, under a lock that the kernel holds and passes on to COMMAND.
    pub fn direct(ready: Ready, launch: &Launch, granted: Granted) -> Result<Self, StartFailure> {
        direct::Direct::start(ready, launch, granted).map(Running::Direct)
    }

    /// Forwards signals to COMMAND, stops and goes on with it, and gives back how it ended. Once.
    pub fn until_the_end(&mut self, signals: &Signals) -> nix::Result<Finished> {
        match self {
            Running::Direct(direct) => direct.until_the_end(signals),
            Running::Guarded(guarded) => Ok(guarded.until_the_end(signals)),
        }
    }

    /// Where the renewer of a lease reports to, if there is one.
    pub fn control(&self) -> Option<guardian::Control> {
        match self {
            Running::Direct(_) => None,
            Running::Guarded(guarded) => Some(guarded.control()),
        }
    }
}

/// The ending that a wait status stands for, if it stands for one.
fn ending(status: i32) -> Option<Ending> {
    if libc::WIFEXITED(status) {
        Some(Ending::Exited(u8::try_from(libc::WEXITSTATUS(status)).unwrap_or(u8::MAX)))
    } else if libc::WIFSIGNALED(status) {
        Some(Ending::Signaled(libc::WTERMSIG(status)))
    } else {
        None
    }
}
