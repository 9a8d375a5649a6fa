//! COMMAND at the start line: what it takes to start it is there before the lock is asked for.
//!
//! When the turn of a waiter comes, others wait for it; and a run that lacks a descriptor or a thread finds that out before it
//! holds a lock.

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Error;

use super::renewer::Renewer;
use crate::config::plan::Plan;
use crate::lock::lease::Deadline;
use crate::store::Grant;
use crate::supervise::guardian::{Guardian, Prepared};
use crate::supervise::{self, Descendants, Granted, Launch, Ready, Running, StartFailure, VALUE};
use crate::sys::clock::Moment;
use crate::sys::signals::Signals;

/// COMMAND, before it has begun.
pub struct Start<'a> {
    plan: &'a Plan,
    launch: &'a Launch,
    means: Means<'a>,
}

/// What COMMAND is started with.
enum Means<'a> {
    /// It becomes a child of lockrun's own.
    Direct(Ready),
    /// It becomes the guardian's.
    Guarded {
        prepared: Prepared<'a>,
        /// The thread that will renew the lease, where it has to be renewed.
        renewer: Option<Renewer>,
    },
}

/// COMMAND, which has begun.
pub struct Begun {
    /// It itself.
    pub running: Running,
    /// What is to renew its lease, if that has to be renewed.
    pub renewer: Option<Renewer>,
}

/// Why COMMAND has not begun.
pub enum NotBegun {
    /// It could not be started.
    Failed(StartFailure),
    /// There is nothing to renew its lease with.
    Unprovided(Error),
}

impl From<StartFailure> for NotBegun {
    fn from(failure: StartFailure) -> Self {
        NotBegun::Failed(failure)
    }
}

impl<'a> Start<'a> {
    /// Gets ready to start what `launch` says, under a lock as in `plan`: in this process, or as the `guardian`. Fails if a
    /// descriptor or a thread cannot be had.
    pub fn new(
        plan: &'a Plan,
        launch: &'a Launch,
        signals: &Signals,
        guardian: Option<&'a Guardian>,
    ) -> Result<Self, NotBegun> {
        let ready = Ready::new(launch, signals);
        let means = match guardian {
            Some(guardian) => Means::Guarded {
                prepared: Prepared::new(guardian, ready)?,
                renewer: plan.expires.then(Renewer::prepare).transpose().map_err(NotBegun::Unprovided)?,
            },
            None => Means::Direct(ready),
        };
        Ok(Start { plan, launch, means })
    }

    /// COMMAND finds this value of a sequence, which is reserved for it.
    pub fn set_value(&mut self, value: &str) {
        let ready = match &mut self.means {
            Means::Direct(ready) => ready,
            Means::Guarded { prepared, .. } => prepared.ready(),
        };
        ready.set(VALUE, value);
    }

    /// Starts COMMAND under the lock, which is ours.
    pub fn begin(self, grant: &Grant) -> Result<Begun, NotBegun> {
        let Start { plan, launch, means } = self;
        let granted = Granted { fence: grant.fence, slot: (plan.slots > 1).then_some(grant.slot) };
        match means {
            Means::Direct(ready) => Ok(Begun { running: Running::direct(ready, launch, granted)?, renewer: None }),
            Means::Guarded { prepared, renewer } => {
                let guarded = prepared.start(deadline(plan, grant.lease_from), plan.kill_on_lost, granted, launch)?;
                Ok(Begun { running: Running::Guarded(guarded), renewer })
            }
        }
    }
}

/// When COMMAND is ended under a lock that is kept so; `None`: never for the lock's sake.
fn deadline(plan: &Plan, lease_from: Option<Moment>) -> Option<Deadline> {
    lease_from.filter(|_| plan.expires).map(|from| plan.terms.deadline(from))
}

/// Fails if the run needs a /proc that it does not have: to find COMMAND's processes, so as to end them in time or to wait for them, or
/// to keep a lock in files beyond the run. A plain run on files needs nothing of the kind: the kernel's lock passes to COMMAND.
pub(super) fn check_proc(plan: &Plan) -> anyhow::Result<()> {
    if !plan.store.has_leases() && (plan.keep || !plan.min_hold.is_zero()) {
        anyhow::ensure!(
            Path::new(BOOT_ID).exists(),
            "cannot keep the lock after the command: {BOOT_ID} is missing, so this boot cannot be told from others; mount \
             /proc (mount -t proc proc /proc)"
        );
    }
    let reason = if plan.store.has_leases() {
        "under a lease"
    } else if plan.max_runtime.is_some() {
        "with --max-runtime"
    } else if plan.descendants != Descendants::Leave {
        "with --descendants"
    } else {
        return Ok(());
    };
    anyhow::ensure!(
        supervise::processes_are_visible(),
        "cannot run the command {reason}: /proc is not mounted, or is that of another PID namespace, so the command's \
         processes cannot be found; mount it (mount -t proc proc /proc, or unshare --mount-proc)"
    );
    Ok(())
}

/// The kernel's name for this boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// How often the guardian looks whether lockrun, which is stopped, goes on.
const STOPPED: Duration = Duration::from_millis(50);

/// Waits while lockrun is stopped: nothing begins in its name. Returns a signal that came and terminates it.
pub(super) fn await_lockrun(guardian: Option<&Guardian>, signals: &Signals) -> Option<i32> {
    loop {
        let signal = signals.obey();
        if signal.is_some() || !guardian.is_some_and(Guardian::is_stopped) {
            return signal;
        }
        thread::sleep(STOPPED);
    }
}
