//! Preparing COMMAND before the lock is requested, and starting it under the lock.
//!
//! Preparations come first, because others wait while a run holds the lock, and because a run that cannot get a
//! descriptor or a thread must fail before it holds one.

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;

use super::Run;
use super::outcome::Outcome;
use super::renewer::Renewer;
use crate::config::plan::Plan;
use crate::lock::lease::{Deadline, Terms};
use crate::report::event::Event;
use crate::store::Grant;
use crate::supervise::guardian::Guardian;
use crate::supervise::{self, Descendants, FENCE, Launch, Prepared, Running, SLOT, StartFailure};
use crate::sys::signals::Signals;

/// Why COMMAND was not started under the lock.
#[derive(Clone, Copy, Debug)]
pub(super) enum NotStarted {
    /// A signal with this number came, which terminates lockrun.
    Interrupted(i32),
    /// Starting it failed.
    Failed(StartFailure),
}

impl Run<'_> {
    /// Prepares to start `launch`, and the renewer if the lease has to be renewed. Reports a failure.
    pub(super) fn prepare<'l>(
        &self,
        launch: &'l Launch,
        signals: &Signals,
        guardian: Option<&Guardian>,
    ) -> Result<(Prepared<'l>, Option<Renewer>), Outcome> {
        let prepared = Prepared::new(launch, signals, guardian).map_err(|failure| self.report_failure(failure))?;
        let renews = guardian.is_some() && self.plan.expires;
        let renewer = renews.then(Renewer::prepare).transpose().map_err(|error| {
            self.reporter.fail(&error);
            Outcome::Failed
        })?;
        Ok((prepared, renewer))
    }

    /// Starts COMMAND under the lock, unless a signal has come that terminates lockrun. Does not report a failure: the
    /// caller must first release the lock, because a message may have to wait.
    pub(super) fn start(
        &self,
        mut prepared: Prepared<'_>,
        grant: &Grant,
        signals: &Signals,
        guardian: Option<&Guardian>,
    ) -> Result<Running, NotStarted> {
        if let Some(signal) = await_lockrun(guardian, signals) {
            return Err(NotStarted::Interrupted(signal));
        }
        prepared.set(FENCE, &grant.fence.to_string());
        if self.plan.mode.several_slots().is_some() {
            prepared.set(SLOT, &grant.slot.to_string());
        }
        let started = prepared.start(self.deadline(grant));
        let running = started.map_err(NotStarted::Failed)?;
        self.reporter.report(Event::Started { program: &self.program() });
        Ok(running)
    }

    /// Returns the deadline of the lease; `None` if there is none, or if it does not expire.
    fn deadline(&self, grant: &Grant) -> Option<Deadline> {
        grant.lease_from.filter(|_| self.plan.expires).map(|from| self.first_terms(grant).deadline(from))
    }

    /// Returns the terms of the lease until its first renewal.
    pub(super) fn first_terms(&self, grant: &Grant) -> Terms {
        grant.first_terms(self.plan.terms, &self.claim)
    }
}

/// Fails if the run needs /proc and does not have it: to find COMMAND's processes in order to end them in time or wait
/// for them, or to keep a lock or a value of the file store after the run. A plain run on the file store does not need
/// it: COMMAND inherits the kernel's lock.
pub(super) fn check_proc(plan: &Plan) -> anyhow::Result<()> {
    let may_stay_held = match &plan.sequence {
        Some(sequence) => sequence.keep_on_failure,
        None => plan.keep || !plan.min_hold.is_zero(),
    };
    if !plan.store.has_leases() && may_stay_held {
        let what = if plan.sequence.is_some() { "the value of a failed command" } else { "the lock after the command" };
        anyhow::ensure!(
            Path::new(BOOT_ID).exists(),
            "cannot keep {what}: {BOOT_ID} is missing, so this boot cannot be told from others; mount /proc (mount -t proc \
             proc /proc)"
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
    let are_visible = supervise::processes_are_visible()
        .with_context(|| format!("cannot run the command {reason}: cannot read /proc"))?;
    anyhow::ensure!(
        are_visible,
        "cannot run the command {reason}: /proc is not mounted, or is that of another PID namespace, so the command's \
         processes cannot be found; mount it (mount -t proc proc /proc, or unshare --mount-proc)"
    );
    Ok(())
}

/// The kernel's name for this boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// How often the guardian checks whether a stopped lockrun was continued.
const CONTINUED_CHECK: Duration = Duration::from_millis(50);

/// Waits while lockrun is stopped, because nothing must be started for it then. Returns the signal that terminates it,
/// if one has come.
fn await_lockrun(guardian: Option<&Guardian>, signals: &Signals) -> Option<i32> {
    loop {
        let signal = signals.obey();
        if signal.is_some() || !guardian.is_some_and(Guardian::is_stopped) {
            return signal;
        }
        thread::sleep(CONTINUED_CHECK);
    }
}
