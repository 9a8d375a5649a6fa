//! lockrun itself, beside its guardian: the sequence of [`crate::supervise::guardian::parent`] and of what follows
//! it, with the product's own decisions.

use super::actors::Port;
use super::command::SimulatedTree;
use super::guardian::{finish, release, release_after};
use super::store::SimulatedStore;
use super::world::{RunId, Side};
use crate::store::Store as _;
use crate::supervise::guardian::{GuardianMessage, GuardianState, Stage};
use crate::supervise::{Finished, StopReason, Supervisor};
use crate::sys::clock::Moment;

/// The process of lockrun.
pub fn live(run: RunId) {
    let port = Port::current();
    oversee(run);
    let mut world = port.world();
    world.say(run, "ends");
    world.exit(run, Side::Lockrun, port.me());
}

/// Waits for the guardian, and finishes its work if it dies or hangs.
fn oversee(run: RunId) {
    let port = Port::current();
    let mut state = GuardianState::new();
    loop {
        if std::mem::take(&mut port.world().runs[run].lockrun.has_term) {
            let mut world = port.world();
            world.runs[run].guardian.has_term = true;
            world.notify_process(run, Side::Guardian);
            if world.runs[run].takes_over_at.is_none_or(|at| world.local_now(port.me()) >= at) {
                world.continue_process(run, Side::Guardian);
            }
        }
        // In this order: if the guardian has ended or is late, all its messages from before are there.
        let has_ended = !port.world().runs[run].guardian.is_alive;
        let takes_over_at = port.world().runs[run].takes_over_at;
        let is_late = takes_over_at.is_some_and(|at| Moment::now() >= at);
        loop {
            let message = port.world().runs[run].link.pop_front();
            match message {
                Some(GuardianMessage::Over(_)) => return,
                Some(message) => state.note(message),
                None if !has_ended => break,
                None => return after(run, &state),
            }
        }
        if is_late && state.stage().command_may_live() {
            return take_over(run);
        }
        port.wait(takes_over_at.filter(|_| !is_late));
    }
}

/// Finishes the work of a dead guardian.
fn after(run: RunId, state: &GuardianState) {
    let port = Port::current();
    port.world().say(run, &format!("lockrun finds its guardian dead: {:?}", state.stage()));
    match state.stage() {
        Stage::Waiting => {
            let (mut store, plan) = open(run);
            store.cancel(&plan.claim, true);
        }
        Stage::Finished(finished) => {
            let (mut store, plan) = open(run);
            if !finished.stuck {
                release(&mut store, run, &plan, release_after(&plan, finished));
            }
        }
        Stage::Granted | Stage::Running(_) | Stage::AwaitingDescendants { .. } => take_over(run),
    }
}

/// Kills the guardian, if it is alive, and all of the command's processes.
fn take_over(run: RunId) {
    let (port, now) = (Port::current(), Moment::now());
    let is_late = port.world().runs[run].takes_over_at.is_some_and(|at| now >= at);
    port.world().say(run, "lockrun takes over");
    port.world().kill(run, Side::Guardian);
    let why = if is_late { StopReason::Lost } else { StopReason::Unguarded };
    let mut supervisor = Supervisor::ending(SimulatedTree { run, side: Side::Lockrun }, now);
    let finished = loop {
        if let Some(finished) = supervisor.proceed(Moment::now()) {
            break Finished { why: Some(why), ..finished };
        }
        port.wait(supervisor.wakes_at());
    };
    port.world().command_is_over(run, finished);
    let (mut store, plan) = open(run);
    finish(&mut store, run, &plan, finished, release_after(&plan, finished));
}

/// Opens the store after the guardian, whose requests may still be in flight.
fn open(run: RunId) -> (SimulatedStore, super::world::Plan) {
    let port = Port::current();
    let mut world = port.world();
    let mut store = SimulatedStore::open(&mut world, run, Side::Lockrun, &port);
    store.expect_late_requests();
    (store, world.runs[run].plan.clone())
}
