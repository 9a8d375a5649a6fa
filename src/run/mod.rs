//! The story of a run: take the lock, run COMMAND, let go of the lock, end as COMMAND ended.

pub mod acquire;
pub mod enclosing;
pub mod next_value;
pub mod outcome;
pub mod sequence;

mod progress;
mod renewer;
mod start;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::config::plan::Plan;
use crate::lock::ending::Ending;
use crate::lock::holder::Holder;
use crate::lock::lease::{Lease, Ttl};
use crate::lock::token::Token;
use crate::report;
use crate::report::event::{Event, Reason};
use crate::report::reporter::Reporter;
use crate::store::{self, Claim, Grant, Release, Released, Retain, Store};
use crate::supervise::guardian::Guardian;
use crate::supervise::parent::{self, End, ForkSide};
use crate::supervise::{self, Descendants, Finished, Launch, Running, StartFailure, Why};
use crate::sys::clock::Moment;
use crate::sys::signals::Signals;
use crate::text::escape::escaped;
use acquire::Patience;
use enclosing::EnclosingLocks;
use outcome::Outcome;
use renewer::{Renewer, SharedStore};
use start::{Begun, NotBegun, Start};

/// How often the guardian looks whether lockrun, which is stopped, goes on.
const STOPPED: Duration = Duration::from_millis(50);

/// Runs `plan`, with the signals that were taken over. An error is one of lockrun's own.
pub fn run(plan: &Plan, signals: &Signals) -> Result<Outcome> {
    let mut store = match store::open(plan.store.clone(), plan.terms.store_timeout) {
        Ok(store) => store,
        Err(why) => {
            report::say(&why);
            return Ok(Outcome::BadUsage);
        }
    };
    check_proc(plan)?;
    // Of this process: it is lockrun's own for whoever looks.
    let claim = claim(plan);
    if !plan.store.has_leases() {
        return Run::new(plan, claim).carry_out(store, signals, None);
    }
    match parent::fork().context("cannot start the guardian, a process of lockrun's own")? {
        ForkSide::Guardian(guardian) => {
            // It is in another PID namespace than lockrun if one was made for lockrun's children, as by `unshare --pid` without --fork.
            let checked = check_proc(plan);
            let run = || Run::new(plan, claim).carry_out(store, signals, Some(&guardian));
            let outcome = checked.and_then(|()| run()).unwrap_or_else(|error| {
                report::error(&error);
                Outcome::Failed
            });
            guardian.end(outcome.ending())
        }
        ForkSide::Parent(parent) => match parent.until_the_end(signals).context("cannot wait for the guardian")? {
            End::Guarded(ending) => Ok(Outcome::Ended(ending)),
            End::Gone => {
                store.take_back(&claim);
                let why = "the guardian, a process of lockrun's own, was killed; the command was not started";
                Run::new(plan, claim).reporter.tell(Event::Failed { why });
                Ok(Outcome::Failed)
            }
            End::TakenOver(finished) => {
                let run = Run::new(plan, claim);
                if finished.why == Some(Why::Lost) {
                    let why = "the guardian, a process of lockrun's own, was stopped or hung";
                    run.reporter.tell(Event::Lost { why, stops: true });
                }
                run.let_go(&mut *store, finished, Release::at_once(finished.command));
                Ok(outcome(finished))
            }
            End::Unreleased(finished) => {
                let run = Run::new(plan, claim);
                // It may be done by now, and is not done twice then.
                if !finished.stuck {
                    run.release(&mut *store, run.how(finished, Moment::now()));
                }
                Ok(outcome(finished))
            }
        },
    }
}

/// Fails if COMMAND's processes have to be found, to end them in time or to wait for them, and cannot be. A run on files as such needs
/// nothing of the kind: the kernel's lock passes to them.
fn check_proc(plan: &Plan) -> Result<()> {
    let reason = if plan.store.has_leases() {
        "under a lease"
    } else if plan.max_runtime.is_some() {
        "with --max-runtime"
    } else if plan.descendants != Descendants::Leave {
        "with --descendants"
    } else {
        return Ok(());
    };
    ensure!(
        supervise::processes_are_visible(),
        "cannot run the command {reason}: /proc is not mounted, or is that of another PID namespace, so the command's \
         processes cannot be found; mount it (mount -t proc proc /proc, or unshare --mount-proc)"
    );
    Ok(())
}

/// What the run asks of the store.
fn claim(plan: &Plan) -> Claim {
    Claim {
        key: plan.key.clone(),
        token: Token::random(),
        ttl: if plan.expires { Ttl::Lasts(plan.terms.ttl) } else { Ttl::None },
        holder: Holder::this_run(&plan.argv),
        slots: plan.slots,
        by_hand: false,
        own_token: false,
    }
}

/// A plan that is being carried out.
struct Run<'a> {
    plan: &'a Plan,
    claim: Claim,
    outer: EnclosingLocks,
    reporter: Arc<Reporter>,
    launch: Launch,
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan, claim: Claim) -> Self {
        let outer = EnclosingLocks::of_this_process();
        let mut env =
            vec![("LOCKRUN_KEY", plan.key.as_str().to_owned()), (enclosing::TOKEN, claim.token.as_str().to_owned())];
        env.extend(outer.for_command().map(|tokens| (enclosing::OUTER, tokens)));
        let launch = Launch {
            argv: plan.argv.clone(),
            env,
            kill_after: plan.terms.kill_after,
            max_runtime: plan.max_runtime,
            descendants: plan.descendants,
        };
        let reporter =
            Reporter::new(plan.key.clone(), plan.verbosity).with_event_log(plan.events.as_deref(), &claim.holder);
        Run { plan, claim, outer, reporter: Arc::new(reporter), launch }
    }

    /// The whole of it: takes the lock, runs COMMAND, lets go of the lock. On a store of leases this is the guardian's work.
    fn carry_out(self, mut store: Box<dyn Store>, signals: &Signals, guardian: Option<&Guardian>) -> Result<Outcome> {
        let mut start = match Start::new(self.plan, &self.launch, signals, guardian) {
            Ok(start) => start,
            Err(why) => return Ok(self.tell_why_not_begun(why)),
        };
        let grant = match self.take(&mut *store, signals, &mut start, guardian) {
            Ok(grant) => grant,
            Err(outcome) => return Ok(outcome),
        };
        let granted_at = Moment::now();
        let begun = match await_lockrun(guardian, signals) {
            Some(signal) => {
                self.reporter.tell(Event::Interrupted(signal));
                Err(Outcome::Ended(Ending::Signaled(signal)))
            }
            None => start.begin(&grant).map_err(|why| self.tell_why_not_begun(why)),
        };
        let Begun { mut running, renewer } = match begun {
            Ok(begun) => begun,
            Err(outcome) => {
                self.release(&mut *store, Release::at_once(None));
                return Ok(outcome);
            }
        };
        self.reporter.tell(Event::Started { program: &self.program() });
        let store = SharedStore::new(store);
        let renewer = self.keep(&store, &grant, &running, renewer);
        let finished = running.until_the_end(signals).context("cannot wait for the command")?;
        let mut store = store.take_back();
        self.let_go(&mut *store, finished, self.how(finished, granted_at));
        // The lock is free: nobody had to wait for our own thread to end.
        renewer.map_or(Ok(()), Renewer::finish)?;
        Ok(outcome(finished))
    }

    /// Tells how COMMAND ended, and lets go of the lock.
    fn let_go(&self, store: &mut dyn Store, finished: Finished, how: Release) {
        self.tell_how_it_ended(finished);
        if finished.stuck {
            let why = "some of the command's processes cannot be killed; the lock is left to run out by itself";
            self.reporter.tell(Event::Failed { why });
        } else if finished.why == Some(Why::Lost) {
            // What may be left of it is taken back, but it is no news if that fails too.
            let _ = store.release(&self.claim.key, &self.claim.token, Release::at_once(finished.command));
        } else {
            self.release(store, how);
        }
    }

    /// Takes the lock, or the next value of a sequence, for the `start`.
    fn take(
        &self,
        store: &mut dyn Store,
        signals: &Signals,
        start: &mut Start<'_>,
        guardian: Option<&Guardian>,
    ) -> Result<Grant, Outcome> {
        if let Some(sequence) = &self.plan.sequence {
            let (grant, value) = sequence::reserve(store, &self.claim, sequence, &self.reporter, signals)?;
            start.set_value(&value);
            return Ok(grant);
        }
        let patience = Patience { on_held: self.plan.on_held, held_status: self.plan.held_status };
        acquire::acquire(store, &self.claim, patience, &self.outer, &self.reporter, signals, guardian)
    }

    /// Tells why COMMAND has not begun, and gives what that makes of the run.
    fn tell_why_not_begun(&self, why: NotBegun) -> Outcome {
        let program = self.program();
        let failure = match why {
            NotBegun::Failed(failure) => failure,
            NotBegun::Unprovided(error) => {
                self.reporter.fail(&error);
                return Outcome::Failed;
            }
        };
        let (why, outcome) = match failure {
            StartFailure::NotFound => (format!("cannot run {program}: there is no such program"), Outcome::NotFound),
            StartFailure::CannotExecute(errno) => {
                (format!("cannot run {program}: {}", errno.desc()), Outcome::CannotExecute)
            }
            StartFailure::TooLate => (
                format!("the lock \"{}\" came too late to be of use; the command was not started", self.key()),
                Outcome::StoreFailed,
            ),
            StartFailure::Orphaned => {
                ("lockrun itself was killed; the command was not started".to_owned(), Outcome::Failed)
            }
            StartFailure::Preparing(errno) => {
                (format!("cannot start a process for {program}: {}", errno.desc()), Outcome::Failed)
            }
        };
        self.reporter.tell(Event::Failed { why: &why });
        outcome
    }

    fn program(&self) -> String {
        escaped(&self.plan.argv[0].to_string_lossy())
    }

    /// Starts to renew the lock, if it is one that has to be renewed.
    fn keep(&self, store: &SharedStore, grant: &Grant, running: &Running, renewer: Option<Renewer>) -> Option<Renewer> {
        let (Some(sent_at), Some(renewer)) = (grant.lease_from, renewer) else { return None };
        let control = running.control().filter(|_| self.plan.kill_on_lost);
        let lease = Lease::granted(self.plan.terms, sent_at);
        renewer.start(store, self.claim.clone(), lease, control, Arc::clone(&self.reporter));
        Some(renewer)
    }

    /// How to let go of the lock, which was granted at that moment, after COMMAND has ended so. One that had to be stopped has
    /// failed, whatever its status.
    fn how(&self, finished: Finished, granted_at: Moment) -> Release {
        let succeeded = outcome(finished) == Outcome::Ended(Ending::Exited(0));
        let keep = match &self.plan.sequence {
            Some(sequence) => sequence.keep_on_failure && !succeeded,
            None => self.plan.keep && succeeded,
        };
        let retain = if keep {
            let least = self.plan.min_hold.saturating_sub(Moment::now().since(granted_at));
            Retain::Kept(self.claim.ttl.at_least(least))
        } else if self.plan.min_hold > Duration::ZERO {
            Retain::AtLeast(self.plan.min_hold)
        } else {
            Retain::Not
        };
        Release::Run { ending: finished.command, uses_value: succeeded, retain }
    }

    /// Lets go of the lock. If that fails, COMMAND's own status still counts.
    fn release(&self, store: &mut dyn Store, how: Release) {
        match store.release(&self.claim.key, &self.claim.token, how) {
            Ok(released) => self.tell_what_became_of_it(how, &released),
            Err(error) => {
                let lasts = if self.plan.expires { "until its lease runs out" } else { "until lockrun break frees it" };
                let failed = match &self.plan.sequence {
                    Some(_) => format!(
                        "cannot release the value of the sequence \"{}\": it stays reserved {lasts}, and may come up again",
                        self.key()
                    ),
                    None => format!("cannot release the lock \"{}\", which stays {lasts}", self.key()),
                };
                self.reporter.fail(&error.context(failed));
            }
        }
    }

    /// Tells whether the lock is free.
    fn tell_what_became_of_it(&self, how: Release, released: &Released) {
        if let Released::Unrecorded(why) = released {
            self.reporter.tell(Event::Failed { why: &format!("{}: {why}", self.what_is_lost(how)) });
        }
        let why = format!("the lock \"{}\" could not be kept: it is not ours any more", self.key());
        self.reporter.tell(match (how, released) {
            (_, Released::Unrecorded(_)) => Event::Released { min_hold: Duration::ZERO },
            (Release::Run { retain: Retain::Kept(_), .. }, Released::Retained) => Event::Kept,
            (Release::Run { retain: Retain::Kept(_), .. }, Released::NotMine(_)) => Event::Failed { why: &why },
            (Release::Run { retain: Retain::AtLeast(min_hold), .. }, _) => Event::Released { min_hold },
            _ => Event::Released { min_hold: Duration::ZERO },
        });
    }

    /// Returns what it means that the lock is free without a record of the run.
    fn what_is_lost(&self, how: Release) -> String {
        let what = match &self.plan.sequence {
            Some(_) => format!("the value of the sequence \"{}\"", self.key()),
            None => format!("the lock \"{}\"", self.key()),
        };
        match how {
            Release::Run { uses_value: true, .. } if self.plan.sequence.is_some() => {
                format!("{what} may come up again, although it was used")
            }
            Release::Run { retain: Retain::Kept(_) | Retain::AtLeast(_), .. } => {
                format!("{what} is free, although it was to be kept")
            }
            _ => format!("{what} is free, but how the run ended is not recorded"),
        }
    }

    /// Tells how COMMAND ended.
    fn tell_how_it_ended(&self, finished: Finished) {
        match finished.why {
            Some(Why::Lost) => self.reporter.tell(Event::Killed(Reason::Lost)),
            Some(Why::TimedOut) => {
                let span = self.plan.max_runtime.unwrap_or_default();
                self.reporter.tell(Event::Killed(Reason::TimedOut(span)));
            }
            Some(Why::Unguarded) => self.reporter.tell(Event::Killed(Reason::Unguarded)),
            Some(Why::Orphaned) => self.reporter.tell(Event::Killed(Reason::Orphaned)),
            Some(Why::LeftBehind) | None => {}
        }
        self.reporter.tell(Event::Finished(finished.command));
    }

    fn key(&self) -> String {
        escaped(self.plan.key.as_str())
    }
}

/// Waits while lockrun is stopped: nothing begins in its name. Gives a signal that came and would end it.
fn await_lockrun(guardian: Option<&Guardian>, signals: &Signals) -> Option<i32> {
    loop {
        let signal = signals.obey();
        if signal.is_some() || !guardian.is_some_and(Guardian::is_stopped) {
            return signal;
        }
        thread::sleep(STOPPED);
    }
}

/// What has come of a run that ended so.
fn outcome(finished: Finished) -> Outcome {
    match (finished.why, finished.command) {
        (Some(Why::Lost), _) => Outcome::Lost,
        (Some(Why::TimedOut), _) => Outcome::TimedOut,
        (Some(Why::LeftBehind) | None, Some(ending)) => Outcome::Ended(ending),
        (Some(Why::Unguarded | Why::Orphaned), _) | (Some(Why::LeftBehind) | None, None) => Outcome::Failed,
    }
}
