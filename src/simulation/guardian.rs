//! The guardian of a run: it acquires, starts, watches and releases in the product's order, and makes the product's own
//! decisions.
//!
//! The decisions are those of [`wait::acquire`], [`Renewal`], [`Supervisor`] and the server's rules. Only the sequence
//! around them is repeated here, from [`crate::run::run`] and [`crate::supervise::guardian`].

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::actors::Port;
use super::command::SimulatedTree;
use super::store::SimulatedStore;
use super::world::{Plan, RunId, Side};
use crate::config::plan::OnHeld;
use crate::lock::ending::Ending;
use crate::lock::lease::{Deadline, LocalLease};
use crate::run::outcome::Outcome;
use crate::run::renewal::{Next, Renewal};
use crate::run::wait::{self, Queue, Wait, Watcher};
use crate::store::{Acquired, Grant, Held, Release, Retain, Store as _, StoreError};
use crate::supervise::guardian::{GuardianMessage, Report};
use crate::supervise::{Finished, Launch, StopReason, Supervisor};
use crate::sys::clock::Moment;
use crate::sys::signals::Signals;
use crate::sys::wait::WaitObserver;

/// How often a guardian with a grant checks whether a stopped lockrun was continued.
const CONTINUED_CHECK: Duration = Duration::from_millis(50);

/// The process id of the command, as the guardian reports it to lockrun.
const COMMAND: i32 = 7;

/// The guardian's main thread.
pub fn live(run: RunId) {
    let port = Port::current();
    let plan = port.world().runs[run].plan.clone();
    let mut store = SimulatedStore::open(&mut port.world(), run, Side::Guardian, &port);
    if let Some(grant) = acquire(run, &mut store, &plan) {
        port.step();
        under_lock(run, store, &plan, grant);
    }
    port.step();
    let mut world = port.world();
    world.send_to_lockrun(run, GuardianMessage::Over(Ending::Exited(0)));
    world.exit(run, Side::Guardian, port.me());
}

/// Tries to acquire the lock.
fn acquire(run: RunId, store: &mut SimulatedStore, plan: &Plan) -> Option<Grant> {
    let (port, claim) = (Port::current(), &plan.claim);
    let queue = match plan.on_held {
        OnHeld::Wait { span, max_waiting } => Some(Queue { until: span.map(|span| Moment::now() + span), max_waiting }),
        OnHeld::Fail | OnHeld::Skip { .. } => None,
    };
    port.world().runs[run].is_waiting = queue.is_some();
    let (store_retry, terms) = (plan.store_retry, Some(plan.terms));
    let wait = Wait { queue, store_retry, terms, signals: signals(), watcher: &mut Onlooker { run } };
    let acquired = match wait::acquire(store, claim, wait) {
        Ok(Acquired::Mine(grant)) => Ok(grant),
        Ok(_) => Err("gets no lock".to_owned()),
        Err(error) => Err(format!("gives up: {error:#}")),
    };
    let mut world = port.world();
    world.runs[run].is_waiting = false;
    match acquired {
        Ok(grant) => {
            world.runs[run].fence = Some(grant.fence);
            world.say(run, "has the lock");
            Some(grant)
        }
        Err(why) => {
            world.say(run, &why);
            None
        }
    }
}

/// Runs the command under the lock, and releases the lock.
fn under_lock(run: RunId, mut store: SimulatedStore, plan: &Plan, grant: Grant) {
    let port = Port::current();
    let sent_at = grant.lease_from.expect("is a lease");
    let first = grant.first_terms(plan.terms, &plan.claim);
    let lease = LocalLease::granted(plan.terms, first, sent_at);
    let Some(mut supervisor) = start(run, plan, first.deadline(sent_at)) else {
        port.world().say(run, "does not start its command");
        release(&mut store, run, plan, Release::at_once(Outcome::Failed.ending()));
        return;
    };
    let shared = Arc::new(Mutex::new(Some(store)));
    let (its_store, its_plan) = (Arc::clone(&shared), plan.clone());
    port.world().begin(run, Side::Guardian, move |run| renew(run, &its_store, &its_plan, lease));
    let finished = watch(run, &mut supervisor);
    let mut store = take_back(run, &shared);
    port.step();
    finish(&mut store, run, plan, finished, release_after(plan, finished));
}

/// Starts the command, if there is time for it and lockrun is alive.
fn start(run: RunId, plan: &Plan, deadline: Deadline) -> Option<Supervisor<SimulatedTree>> {
    let port = Port::current();
    loop {
        let mut world = port.world();
        if world.take_signal(port.me()).is_some() {
            return None;
        }
        let is_stopped = world.runs[run].lockrun.is_stopped;
        drop(world);
        if !is_stopped {
            break;
        }
        port.wait(Some(Moment::now() + CONTINUED_CHECK));
    }
    if !port.world().runs[run].lockrun.is_alive || Moment::now() >= deadline.term_at {
        return None;
    }
    let mut world = port.world();
    world.runs[run].is_wake_set = true;
    world.set_watchdog(run, deadline);
    drop(world);
    port.step();
    port.world().runs[run].link.push_back(GuardianMessage::Granted);
    port.step();
    // The process that becomes the command checks the clock again.
    if Moment::now() >= deadline.term_at {
        port.world().send_to_lockrun(run, GuardianMessage::NotStarted);
        port.step();
        port.world().unset_watchdog(run);
        return None;
    }
    port.world().start_command(run);
    port.step();
    let at = Moment::now();
    port.world().send_to_lockrun(run, GuardianMessage::Started { command: COMMAND, at });
    let launch = Launch {
        argv: Vec::new(),
        env: Vec::new(),
        kill_after: plan.terms.kill_after,
        max_runtime: plan.max_runtime,
        descendants: plan.descendants,
        ends_with_lease: true,
    };
    Some(Supervisor::new(SimulatedTree { run, side: Side::Guardian }, &launch, Some(deadline), Moment::now()))
}

/// Watches the command until it is over.
fn watch(run: RunId, supervisor: &mut Supervisor<SimulatedTree>) -> Finished {
    let port = Port::current();
    let allow_until = |deadline: Deadline| port.world().set_watchdog(run, deadline);
    let mut orphaned = false;
    let finished = loop {
        if std::mem::take(&mut port.world().runs[run].guardian.has_term) {
            port.world().terminate_command(run);
        }
        let report = port.world().runs[run].report.take();
        match report {
            Some(Report::Renewed(deadline)) => {
                supervisor.renewed(deadline);
                allow_until(deadline);
            }
            Some(Report::Lost) => supervisor.end(StopReason::Lost, Moment::now()),
            None => {}
        }
        if !orphaned && !port.world().runs[run].lockrun.is_alive {
            orphaned = true;
            supervisor.end(StopReason::Orphaned, Moment::now());
        }
        if let Some(finished) = supervisor.proceed(Moment::now()) {
            break finished;
        }
        if let Some(deadline) = supervisor.take_unreported_kill() {
            allow_until(deadline.after_kill());
        }
        port.wait(supervisor.wakes_at());
    };
    let mut world = port.world();
    world.command_is_over(run, finished);
    world.runs[run].link.push_back(GuardianMessage::Finished(finished));
    drop(world);
    port.step();
    port.world().unset_watchdog(run);
    finished
}

/// The renewer's thread.
fn renew(run: RunId, shared: &Mutex<Option<SimulatedStore>>, plan: &Plan, lease: LocalLease) {
    let port = Port::current();
    let mut renewal = Renewal::new(lease);
    loop {
        match renewal.next(Moment::now()) {
            Next::Sleep(until) => port.wait(Some(until)),
            Next::Renew if port.world().runs[run].lockrun.is_stopped => {
                port.world().say(run, "does not renew for a lockrun that is stopped");
                renewal.skip(Moment::now());
            }
            Next::Renew => {
                lock_store(run);
                let mut store = shared.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(store) = &mut *store else { return unlock_store(run) };
                let sent_at = Moment::now();
                let answer = store.renew_run(&plan.claim.key, &plan.claim.token, plan.claim.ttl);
                unlock_store(run);
                if let Some(deadline) = renewal.answered(sent_at, answer, Moment::now()) {
                    report(run, Report::Renewed(deadline));
                }
            }
            Next::GiveUp(why) => {
                port.world().say(run, &format!("has lost its lease: {why}"));
                return report(run, Report::Lost);
            }
        }
    }
}

fn report(run: RunId, report: Report) {
    let port = Port::current();
    port.world().runs[run].report = Some(report);
    port.world().notify_process(run, Side::Guardian);
}

/// Waits until no other thread uses the shared store, and claims it.
fn lock_store(run: RunId) {
    let port = Port::current();
    loop {
        let mut world = port.world();
        let user = &mut world.runs[run].store_user;
        if user.is_none() {
            *user = Some(port.me());
            return;
        }
        drop(world);
        port.wait(None);
    }
}

fn unlock_store(run: RunId) {
    let port = Port::current();
    port.world().runs[run].store_user = None;
    port.world().notify_process(run, Side::Guardian);
}

fn take_back(run: RunId, shared: &Mutex<Option<SimulatedStore>>) -> SimulatedStore {
    lock_store(run);
    let store = shared.lock().unwrap_or_else(PoisonError::into_inner).take();
    unlock_store(run);
    store.expect("is taken back once")
}

/// Releases the lock of a command that has ended, as its end requires.
pub fn finish(store: &mut SimulatedStore, run: RunId, plan: &Plan, finished: Finished, how: Release) {
    if finished.stuck {
        Port::current().world().say(run, "does not release the lock: something cannot be killed");
    } else {
        release(store, run, plan, how);
    }
}

/// Returns how to release the lock after a command that has `finished` like this.
pub fn release_after(plan: &Plan, finished: Finished) -> Release {
    let succeeded = finished.why.is_none() && finished.command == Some(Ending::Exited(0));
    let retain = if plan.min_hold.is_zero() { Retain::Not } else { Retain::AtLeast(plan.min_hold) };
    Release::Run { ending: Outcome::of(finished).ending(), succeeded, retain }
}

pub fn release(store: &mut SimulatedStore, run: RunId, plan: &Plan, how: Release) {
    let released = store.release(&plan.claim.key, &plan.claim.token, how);
    Port::current().world().say(run, &format!("has released: {released:?}"));
}

/// Observes the guardian's wait.
struct Onlooker {
    run: RunId,
}

impl WaitObserver for Onlooker {
    fn tick_every(&self) -> Option<Duration> {
        None
    }

    fn tick(&mut self) {}

    fn pause(&mut self) {}
}

impl Watcher for Onlooker {
    fn is_stopped(&self) -> bool {
        Port::current().world().runs[self.run].lockrun.is_stopped
    }

    fn waiting(&mut self, _: &Held) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn store_away(&mut self, why: &StoreError, _: Duration) {
        Port::current().world().say(self.run, &format!("finds the store away: {why:#}"));
    }

    fn store_back(&mut self) {
        Port::current().world().say(self.run, "finds the store back");
    }

    fn left_behind(&mut self, what: &str) {
        Port::current().world().say(self.run, what);
    }
}

/// Signals that never arrive: simulated ones are taken from the world.
fn signals() -> &'static Signals {
    static SIGNALS: OnceLock<Signals> = OnceLock::new();
    // On a thread of its own, so that no other thread's mask changes.
    SIGNALS.get_or_init(|| std::thread::spawn(|| Signals::take_over().expect("a descriptor")).join().expect("it ends"))
}
