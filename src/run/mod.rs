//! A run from beginning to end: acquire the lock, run COMMAND, release the lock, end as COMMAND ended.

pub mod acquire;
pub mod enclosing;
pub mod next_value;
pub mod outcome;
pub mod renewal;
pub mod sequence;
pub mod wait;

mod ancestry;
mod command_not_found;
mod progress;
mod release;
mod renewer;
mod report_end;
mod start;
mod takeover;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};

use crate::config::plan::Plan;
use crate::config::settings::UsageError;
use crate::lock::holder::Holder;
use crate::lock::lease::{LocalLease, Terms, Ttl};
use crate::lock::milestones::{Acquisition, Milestones};
use crate::lock::token::Token;
use crate::report;
use crate::report::event::Event;
use crate::report::reporter::Reporter;
use crate::store::{Backend, Claim, Grant};
use crate::supervise::guardian::Guardian;
use crate::supervise::guardian::parent::{self, ForkSide};
use crate::supervise::{self, Launch, Prepared, Running, VALUE};
use crate::sys::clock::Moment;
use crate::sys::signals::Signals;
use crate::sys::stderr;
use acquire::HeldPolicy;
use enclosing::EnclosingLocks;
use outcome::Outcome;
use release::Loss;
use renewer::{Renewer, SharedStore};
use report_end::why_no_process;

/// Carries out `plan`. Fails if lockrun itself fails.
pub fn run(plan: &Plan, signals: &Signals) -> Result<Outcome> {
    let store = match plan.store.open(plan.terms.store_timeout) {
        Ok(store) => store,
        Err(why) => {
            report::say(&why);
            return Ok(Outcome::BadUsage);
        }
    };
    start::check_proc(plan)?;
    // Before the fork: the holder that others see is lockrun itself, not its guardian.
    let claim = claim(plan);
    if !plan.store.has_leases() {
        if supervise::watches_processes(plan.max_runtime, plan.descendants) {
            supervise::call_what_ends_a_command();
        }
        return Run::new(plan, claim)?.carry_out(store, signals, None);
    }
    // The guardian does not get what is pending now, and on a busy machine could have run COMMAND before lockrun relays
    // it.
    if let Some(signal) = signals.obey() {
        Run::new(plan, claim)?.reporter.report(Event::Interrupted(signal));
        return Ok(Outcome::terminated_by(signal));
    }
    let forked = parent::fork();
    match forked.map_err(|errno| anyhow!("cannot start lockrun's guardian process: {}", why_no_process(errno)))? {
        ForkSide::Guardian(guardian) => {
            // Again, because the guardian may be in a PID namespace that was created for lockrun's children (unshare
            // --pid without --fork).
            let checked = start::check_proc(plan);
            let run = checked.and_then(|()| Ok(Run::new(plan, claim)?));
            let done = run.and_then(|run| run.carry_out(store, signals, Some(&guardian)));
            let outcome = done.unwrap_or_else(|error| {
                report::error(&error);
                if error.is::<UsageError>() { Outcome::BadUsage } else { Outcome::Failed }
            });
            guardian.end(outcome.ending())
        }
        ForkSide::Parent(parent) => {
            let end = parent.until_the_end(signals).context("cannot wait for the guardian")?;
            Ok(takeover::complete(end, plan, claim, store))
        }
    }
}

/// Returns the run's claim to the lock.
fn claim(plan: &Plan) -> Claim {
    Claim {
        key: plan.key.clone(),
        token: Token::random(),
        ttl: if plan.expires { Ttl::Lasts(plan.terms.ttl) } else { Ttl::None },
        holder: Holder::this_run(&plan.argv, plan.label.clone()),
        mode: plan.mode,
        once_per: plan.once_per,
        by_hand: false,
        request: None,
    }
}

/// A plan that is being carried out.
struct Run<'a> {
    plan: &'a Plan,
    claim: Claim,
    enclosing: EnclosingLocks,
    reporter: Arc<Reporter>,
}

impl<'a> Run<'a> {
    /// Opens the event log, which starts a thread: must be called after the fork, in the process that reports. Fails if
    /// the event log cannot be trusted.
    fn new(plan: &'a Plan, claim: Claim) -> Result<Self, UsageError> {
        let run = Self::reporting(plan, claim);
        run.reporter.check_event_log()?;
        Ok(run)
    }

    fn reporting(plan: &'a Plan, claim: Claim) -> Self {
        let reporter = Reporter::new(plan.key.clone(), &plan.store, plan.verbosity);
        let reporter = Arc::new(reporter.with_event_log(plan.events.as_ref(), &claim.holder));
        Run { plan, claim, enclosing: EnclosingLocks::of_this_process(), reporter }
    }

    /// As [`Run::new`], for a run that the guardian has reported until now. Does not wait for the event log, which can
    /// only make a run fail at its beginning.
    fn resumed(plan: &'a Plan, claim: Claim, milestones: Milestones) -> Self {
        let run = Self::reporting(plan, claim);
        run.reporter.resume(milestones);
        run
    }

    /// Acquires the lock, runs COMMAND and releases the lock. On a store with leases the guardian does this.
    fn carry_out(self, mut store: Box<dyn Backend>, signals: &Signals, guardian: Option<&Guardian>) -> Result<Outcome> {
        let launch = self.launch();
        let (mut prepared, renewer) = match self.prepare(&launch, signals, guardian) {
            Ok(prepared) => prepared,
            Err(outcome) => return Ok(outcome),
        };
        stderr::limit_blocking();
        let grant = match self.acquire(&mut *store, signals, &mut prepared, guardian) {
            Ok(grant) => grant,
            Err(outcome) => return Ok(outcome),
        };
        let granted_at = Moment::now();
        // Events and `--min-hold` need it if lockrun has to finish the run.
        if let Some(guardian) = guardian.filter(|_| self.plan.events.is_some() || !self.plan.min_hold.is_zero()) {
            let slot = self.plan.mode.several_slots().map(|_| grant.slot);
            guardian.acquired(Acquisition { at: granted_at, fence: grant.fence, slot });
        }
        let mut running = match self.start(prepared, &grant, signals, guardian) {
            Ok(running) => running,
            Err(why) => return Ok(self.finish_unstarted(&mut *store, why)),
        };
        let store = SharedStore::new(store);
        let renewer = self.renew(&store, &grant, &running, renewer);
        let finished =
            running.until_the_end(signals, &|pids| self.report_stuck(pids)).context("cannot wait for the command")?;
        let ended_at = Moment::now();
        if let Some(renewer) = &renewer {
            renewer.stop();
        }
        let (mut store, lease) = store.take_back();
        let was_reported = renewer.is_some() && lease.is_none();
        let unreported = lease.and_then(|lease| self.unreported_loss(&lease, finished, ended_at));
        let loss = match &unreported {
            Some(why) => Loss::Unreported(why),
            None if was_reported => Loss::Reported,
            None => Loss::None,
        };
        self.finish(&mut *store, finished, self.release_after(finished, granted_at), loss);
        // Only after the release, so that no waiter waits for the thread to end.
        renewer.map_or(Ok(()), Renewer::finish)?;
        Ok(Outcome::of(finished))
    }

    /// Returns how to run COMMAND.
    fn launch(&self) -> Launch {
        let (key, token) = (self.plan.key.as_str().to_owned(), self.claim.token.as_str().to_owned());
        let mut env = vec![("LOCKRUN_KEY", key), (enclosing::TOKEN, token)];
        env.extend(self.enclosing.for_command().map(|tokens| (enclosing::OUTER, tokens)));
        Launch {
            argv: self.plan.argv.clone(),
            env,
            kill_after: self.plan.terms.kill_after,
            max_runtime: self.plan.max_runtime,
            descendants: self.plan.descendants,
            ends_with_lease: self.plan.expires && self.plan.kill_on_lost,
        }
    }

    /// Acquires the lock, or reserves the next value of a sequence and sets COMMAND's variable to it.
    fn acquire(
        &self,
        store: &mut dyn Backend,
        signals: &Signals,
        prepared: &mut Prepared<'_>,
        guardian: Option<&Guardian>,
    ) -> Result<Grant, Outcome> {
        if let Some(sequence) = &self.plan.sequence {
            let (grant, value) = sequence::reserve(
                store,
                &self.claim,
                sequence,
                self.plan.store_retry,
                &self.reporter,
                signals,
                guardian,
            )?;
            prepared.set(VALUE, &value);
            return Ok(grant);
        }
        let terms = Some(self.plan.terms).filter(|_| self.plan.expires);
        let Plan { on_held, held_status, store_retry, .. } = *self.plan;
        let held_policy = HeldPolicy { on_held, held_status, store_retry, terms };
        acquire::acquire(store, &self.claim, held_policy, &self.enclosing, &self.reporter, signals, guardian)
    }

    /// Starts to renew the lease, if there is one that has to be renewed.
    fn renew(
        &self,
        store: &SharedStore,
        grant: &Grant,
        running: &Running,
        renewer: Option<Renewer>,
    ) -> Option<Renewer> {
        let (Some(sent_at), Some(renewer)) = (grant.lease_from, renewer) else { return None };
        let control = running.control().filter(|_| self.plan.kill_on_lost);
        // A loss that stops nothing needs no time to stop it: the lease is renewed until just before it ends.
        let terms =
            if control.is_some() { self.plan.terms } else { Terms { kill_after: Duration::ZERO, ..self.plan.terms } };
        let lease = LocalLease::granted(terms, grant.first_terms(terms, &self.claim), sent_at);
        renewer.start(store, self.claim.clone(), lease, control, Arc::clone(&self.reporter));
        Some(renewer)
    }
}
