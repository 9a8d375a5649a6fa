//! COMMAND at the start line: what it takes to begin is there before the lock is ours.
//!
//! When the turn of a waiter comes, others wait for what it does. So it makes COMMAND's process while the store is still being
//! asked whether the lock is ours; that process goes no further before the answer.

use std::time::Duration;

use anyhow::Error;

use crate::clock::Moment;
use crate::keeper::Provisions;
use crate::lease::Deadline;
use crate::plan::Plan;
use crate::store::{Custody, Grant};
use crate::supervise::guardian::{Guardian, Prepared, Started};
use crate::supervise::signals::{self, Signals};
use crate::supervise::{Granted, Launch, Ready, Running, SLOT, StartFailure};

/// For how long COMMAND's process waits for the answer. Until then the guardian, whose memory it shares, stands still.
const PATIENCE: Duration = Duration::from_millis(50);

/// COMMAND, before it has begun.
pub struct Start<'a> {
    plan: &'a Plan,
    launch: &'a Launch,
    guardian: Option<&'a Guardian>,
    means: Means<'a>,
    /// What has come of starting it while the store was asked.
    early: Option<Result<Started, StartFailure>>,
}

/// What COMMAND is started with.
enum Means<'a> {
    /// It becomes a child of lockrun's own.
    Direct(Ready),
    /// It becomes the guardian's.
    Guarded {
        prepared: Prepared<'a>,
        /// What the keeper of the lease will need, where it has to be renewed.
        provisions: Option<Provisions>,
    },
}

/// COMMAND, which has begun.
pub struct Begun {
    /// It itself.
    pub running: Running,
    /// What the keeper of its lease needs, if that has to be renewed.
    pub provisions: Option<Provisions>,
}

/// Why COMMAND has not begun.
pub enum NotBegun {
    /// It could not be started.
    Failed(StartFailure),
    /// There is nothing to keep its lease with.
    Unprovided(Error),
}

impl From<StartFailure> for NotBegun {
    fn from(failure: StartFailure) -> Self {
        NotBegun::Failed(failure)
    }
}

impl<'a> Start<'a> {
    /// Gets ready to start what `launch` says, under a lock as in `plan`: in this process, or as the `guardian`. Fails if no
    /// descriptor is left.
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
                provisions: plan.expires.then(Provisions::new).transpose().map_err(NotBegun::Unprovided)?,
            },
            None => Means::Direct(ready),
        };
        Ok(Start { plan, launch, guardian, means, early: None })
    }

    /// The guardian that this process is, if it is one.
    pub fn guardian(&self) -> Option<&'a Guardian> {
        self.guardian
    }

    /// COMMAND finds this value of a sequence, which is reserved for it.
    pub fn set_value(&mut self, value: &str) {
        let ready = match &mut self.means {
            Means::Direct(ready) => ready,
            Means::Guarded { prepared, .. } => prepared.ready(),
        };
        ready.set(SLOT, value);
    }

    /// The lock is held, and it will be waited for: what takes time is done now.
    pub fn wait_begins(&mut self) {
        if let Means::Guarded { prepared, .. } = &mut self.means {
            prepared.get_ready_to_ask();
        }
    }

    /// Starts COMMAND while the store is asked for the lock, in a request that left at `sent_at`. `answer` waits for what
    /// the store says, at most until the moment that it is given, and gives the grant if it is one: then COMMAND begins. It
    /// is called in a process that shares our memory, while we stand still.
    ///
    /// If nothing comes of it, it is as if it had not been tried. So it is if a signal has come to us, which is to be seen
    /// to first, or to that process from a terminal: one that stopped there would hold us up, and nobody would hear of it.
    pub fn while_asking(&mut self, sent_at: Moment, answer: &mut dyn FnMut(Moment) -> Option<Grant>) {
        let Means::Guarded { prepared, .. } = &mut self.means else { return };
        if signals::has_come() {
            return;
        }
        let (plan, mut is_ours) = (self.plan, false);
        let started = prepared.start_if(deadline(plan, Custody::Lease(sent_at)), plan.kill_on_lost, &mut || {
            let grant = answer(sent_at + PATIENCE).filter(|_| !signals::has_come())?;
            is_ours = true;
            Some(granted(plan, &grant))
        });
        self.early = is_ours.then_some(started);
    }

    /// Whether [`Start::while_asking`] has come to a result.
    pub fn is_decided(&self) -> bool {
        self.early.is_some()
    }

    /// Starts COMMAND under the lock, which is ours, unless it has begun already.
    pub fn begin(self, grant: &Grant) -> Result<Begun, NotBegun> {
        let (plan, granted) = (self.plan, granted(self.plan, grant));
        match self.means {
            Means::Direct(ready) => {
                Ok(Begun { running: Running::direct(ready, self.launch, granted)?, provisions: None })
            }
            Means::Guarded { mut prepared, provisions } => {
                let now = || prepared.start(deadline(plan, grant.custody), plan.kill_on_lost, granted);
                let started = self.early.unwrap_or_else(now)?;
                Ok(Begun { running: Running::Guarded(prepared.take_charge(started, self.launch)), provisions })
            }
        }
    }
}

/// When COMMAND is ended under a lock that is kept so; `None`: never for the lock's sake.
fn deadline(plan: &Plan, custody: Custody) -> Option<Deadline> {
    match custody {
        Custody::Lease(sent_at) if plan.expires => Some(plan.terms.deadline(sent_at)),
        Custody::Lease(_) | Custody::Kernel => None,
    }
}

/// What COMMAND is told of `grant`.
fn granted(plan: &Plan, grant: &Grant) -> Granted {
    Granted { fence: grant.fence, slot: (plan.slots > 1).then_some(grant.slot) }
}
