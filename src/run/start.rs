//! COMMAND at the start line: what it takes to start it is there before the lock is asked for.
//!
//! When the turn of a waiter comes, others wait for it; and a run that lacks a descriptor or a thread finds that out before it
//! holds a lock.

use anyhow::Error;

use super::renewer::Renewer;
use crate::config::plan::Plan;
use crate::lock::lease::Deadline;
use crate::store::Grant;
use crate::supervise::guardian::{Guardian, Prepared};
use crate::supervise::{Granted, Launch, Ready, Running, SLOT, StartFailure};
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
        ready.set(SLOT, value);
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
