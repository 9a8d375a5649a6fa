//! The story of a run: take the lock, run COMMAND, let go of the lock, end as COMMAND ended.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::acquire::{self, Patience};
use crate::clock::Moment;
use crate::escape::escaped;
use crate::holder::Holder;
use crate::keeper::{Keeper, Lent, Provisions};
use crate::lease::Lease;
use crate::outcome::{Ending, Outcome};
use crate::outer::{self, Outer};
use crate::plan::Plan;
use crate::readiness::Readiness;
use crate::report::{self, Verbosity};
use crate::store::{self, Claim, Custody, Grant, Parting, Stays, Store};
use crate::supervise::guardian::{Preparations, Prepared};
use crate::supervise::signals::Signals;
use crate::supervise::{Finished, Granted, Launch, Running, StartFailure, Why};
use crate::token::Token;

/// Runs `plan`, with the signals that were taken over. An error is one of lockrun's own.
pub fn run(plan: &Plan, signals: &Signals) -> Result<Outcome> {
    let run = Run::new(plan);
    let mut store = match store::open(plan.store.clone(), plan.terms.store_timeout) {
        Ok(store) => store,
        Err(why) => {
            report::say(&why);
            return Ok(Outcome::BadUsage);
        }
    };
    let patience = Patience { on_held: plan.on_held, held_status: plan.held_status, verbosity: plan.verbosity };
    let mut readiness = Readiness::new(&run.launch, signals);
    let acquired = acquire::acquire(&mut *store, &run.claim, patience, &run.outer, signals, Some(&mut readiness));
    let guardian = readiness.guardian();
    let grant = match acquired {
        Ok(grant) => grant,
        Err(outcome) => return Ok(outcome),
    };
    let granted_at = Moment::now();
    let started = match signals.obey() {
        Some(signal) => Err(Outcome::Ended(Ending::Signaled(signal))),
        None => run.provide(&grant).and_then(|provisions| Ok((run.start(&grant, guardian, signals)?, provisions))),
    };
    let (running, provisions) = match started {
        Ok(started) => started,
        Err(outcome) => {
            run.release(&mut *store, Parting::at_once(None));
            return Ok(outcome);
        }
    };
    let store = Lent::new(store);
    let keeper = match run.keep(&store, &grant, &running, provisions) {
        Ok(keeper) => keeper,
        Err(error) => {
            running.abandon(signals);
            run.release(&mut *store.take_back(), Parting::at_once(None));
            return Err(error);
        }
    };
    let (finished, guardian) = running.until_the_end(signals).context("cannot wait for the command")?;
    run.tell_how_it_ended(finished);
    let mut store = store.take_back();
    if finished.stuck {
        report::say("some of the command's processes cannot be killed; the lock is left to run out by itself");
    } else if finished.why == Some(Why::Lost) {
        // What may be left of it is taken back, but it is no news if that fails too.
        let _ = store.release(&run.claim.key, &run.claim.token, Parting::at_once(finished.command));
    } else {
        run.release(&mut *store, run.parting(finished.command, granted_at));
    }
    // Others may go on now. What follows can wait, and does, if it would take up what they need to start.
    store.settle();
    drop(guardian);
    keeper.map_or(Ok(()), Keeper::finish)?;
    Ok(run.outcome(finished))
}

/// A plan that is being carried out.
struct Run<'a> {
    plan: &'a Plan,
    claim: Claim,
    outer: Outer,
    launch: Launch,
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan) -> Self {
        let claim = Claim {
            key: plan.key.clone(),
            token: Token::random(),
            ttl: plan.expires.then_some(plan.terms.ttl),
            holder: Holder::this_run(&plan.argv),
            slots: plan.slots,
            by_hand: false,
        };
        let outer = Outer::of_this_process();
        let mut env =
            vec![("LOCKRUN_KEY", plan.key.as_str().to_owned()), (outer::TOKEN, claim.token.as_str().to_owned())];
        env.extend(outer.for_command().map(|tokens| (outer::OUTER, tokens)));
        let launch = Launch {
            argv: plan.argv.clone(),
            env,
            kill_after: plan.terms.kill_after,
            max_runtime: plan.max_runtime,
            descendants: plan.descendants,
        };
        Run { plan, claim, outer, launch }
    }

    /// Gets what the keeper of a lease will need: before COMMAND starts, so that nothing is found missing later.
    fn provide(&self, grant: &Grant) -> Result<Option<Provisions>, Outcome> {
        if grant.custody == Custody::Kernel || !self.plan.expires {
            return Ok(None);
        }
        Provisions::new().map(Some).map_err(|error| {
            report::error(&error);
            Outcome::Failed
        })
    }

    /// Starts COMMAND under the lock.
    fn start(&self, grant: &Grant, guardian: Option<Prepared>, signals: &Signals) -> Result<Running, Outcome> {
        let granted = Granted { fence: grant.fence, slot: (self.plan.slots > 1).then_some(grant.slot) };
        let started = match grant.custody {
            Custody::Kernel => Running::direct(self.launch.clone(), granted, signals),
            Custody::Lease(sent_at) => {
                let deadline = self.plan.terms.deadline(sent_at);
                let ends_command = self.plan.expires && self.plan.kill_on_lost;
                guardian
                    .map_or_else(|| Prepared::new(Preparations::new()?, &self.launch, signals), Ok)
                    .and_then(|guardian| Running::guarded(guardian, granted, signals, ends_command.then_some(deadline)))
            }
        };
        let program = escaped(&self.plan.argv[0].to_string_lossy());
        started.inspect(|_| self.tell(&format!("{program} started"))).map_err(|failure| match failure {
            StartFailure::NotFound => {
                report::say(&format!("cannot run {program}: there is no such program"));
                Outcome::NotFound
            }
            StartFailure::CannotExecute(errno) => {
                report::say(&format!("cannot run {program}: {}", errno.desc()));
                Outcome::CannotExecute
            }
            StartFailure::TooLate => {
                report::say(&format!(
                    "the lock \"{}\" came too late to be of use; the command was not started",
                    self.key()
                ));
                Outcome::StoreFailed
            }
            StartFailure::Preparing(errno) => {
                report::say(&format!("cannot start a process for {program}: {}", errno.desc()));
                Outcome::Failed
            }
        })
    }

    /// Starts to renew the lock, if it is one that has to be renewed.
    fn keep(
        &self,
        store: &Lent,
        grant: &Grant,
        running: &Running,
        provisions: Option<Provisions>,
    ) -> Result<Option<Keeper>> {
        let (Custody::Lease(sent_at), Some(provisions)) = (grant.custody, provisions) else { return Ok(None) };
        let control = running.control().filter(|_| self.plan.kill_on_lost);
        let lease = Lease::granted(self.plan.terms, sent_at);
        Keeper::start(provisions, store, self.claim.clone(), lease, control).map(Some)
    }

    /// How to let go of the lock, which was granted at that moment, after COMMAND has ended so.
    fn parting(&self, ending: Option<Ending>, granted_at: Moment) -> Parting {
        let stays = if self.plan.keep && ending == Some(Ending::Exited(0)) {
            let least = self.plan.min_hold.saturating_sub(Moment::now().since(granted_at));
            Stays::Kept(self.claim.ttl.map(|ttl| ttl.max(least)))
        } else if self.plan.min_hold > Duration::ZERO {
            Stays::AtLeast(self.plan.min_hold)
        } else {
            Stays::Not
        };
        Parting::Run { ending, stays }
    }

    /// Lets go of the lock. If that fails, COMMAND's own status still counts.
    fn release(&self, store: &mut dyn Store, parting: Parting) {
        match store.release(&self.claim.key, &self.claim.token, parting) {
            Ok(_) => self.tell(&match parting {
                Parting::Run { stays: Stays::Kept(_), .. } => format!("lock \"{}\" kept", self.key()),
                _ => format!("lock \"{}\" released", self.key()),
            }),
            Err(error) => {
                let lasts = if self.plan.expires { "until its lease runs out" } else { "until it is removed" };
                let failed = format!("cannot release the lock \"{}\", which stays {lasts}", self.key());
                report::error(&error.context(failed));
            }
        }
    }

    /// Says how COMMAND ended, if it was asked for.
    fn tell_how_it_ended(&self, finished: Finished) {
        match finished.command {
            Some(Ending::Exited(status)) => self.tell(&format!("the command finished with status {status}")),
            Some(Ending::Signaled(signal)) => self.tell(&format!("the command was ended by signal {signal}")),
            None => {}
        }
    }

    /// What has come of it.
    fn outcome(&self, finished: Finished) -> Outcome {
        match (finished.why, finished.command) {
            (Some(Why::Lost), _) => Outcome::Lost,
            (Some(Why::TimedOut), _) => {
                let span = humantime::format_duration(self.plan.max_runtime.unwrap_or_default());
                report::say(&format!("the command was stopped: --max-runtime {span} has passed"));
                Outcome::TimedOut
            }
            (Some(Why::Unguarded | Why::Orphaned), _) => {
                report::say("the guardian process was killed, and the command with it");
                Outcome::Failed
            }
            (Some(Why::LeftBehind) | None, Some(ending)) => Outcome::Ended(ending),
            (Some(Why::LeftBehind) | None, None) => Outcome::Failed,
        }
    }

    /// Says what happens, if it was asked for.
    fn tell(&self, text: &str) {
        if self.plan.verbosity == Verbosity::Verbose {
            report::say(text);
        }
    }

    fn key(&self) -> String {
        escaped(self.plan.key.as_str())
    }
}
