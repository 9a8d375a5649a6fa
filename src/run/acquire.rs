//! Acquires a lock, waiting as long as the user wants, and reports the result.

use std::time::Duration;

use super::enclosing::EnclosingLocks;
use super::outcome::Outcome;
use super::progress::Progress;
use super::wait::{self, Acquired, Wait};
use crate::config::plan::OnHeld;
use crate::lock::ending::Ending;
use crate::report::event::Event;
use crate::report::reporter::Reporter;
use crate::store::{Claim, Grant, Held, Holding, Store, StoreError, Tried};
use crate::supervise::guardian::Guardian;
use crate::sys::clock::Moment;
use crate::sys::signals::Signals;
use crate::text::escape::escaped;

/// What to do when a lock is held.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Whether to wait.
    pub on_held: OnHeld,
    /// The exit status if it stays held.
    pub held_status: u8,
}

/// Takes the lock that `claim` names, as the `guardian` if this process is one. Without a grant, the reason has been reported, and the
/// error is the outcome of the run.
pub fn acquire(
    store: &mut dyn Store,
    claim: &Claim,
    patience: Patience,
    outer: &EnclosingLocks,
    reporter: &Reporter,
    signals: &Signals,
    guardian: Option<&Guardian>,
) -> Result<Grant, Outcome> {
    let Patience { on_held, held_status } = patience;
    let began = Moment::now();
    let answer = match on_held {
        OnHeld::Fail | OnHeld::Skip => wait::try_once(store, claim).map(Answer::of),
        OnHeld::Wait(span) => {
            let until = span.map(|span| began + span);
            acquire_or_wait(store, claim, until, outer, reporter, signals, guardian)
        }
    };
    match answer {
        Ok(Answer::Mine(grant)) => {
            let slot = (claim.slots > 1).then_some(grant.slot);
            reporter.tell(Event::Acquired {
                fence: grant.fence,
                slot,
                value: None,
                waited: Moment::now().since(began),
            });
            Ok(grant)
        }
        Ok(Answer::Interrupted(signal)) => {
            reporter.tell(Event::Interrupted(signal));
            Err(Outcome::Ended(Ending::Signaled(signal)))
        }
        Ok(Answer::Held(held)) if on_held == OnHeld::Skip => {
            reporter.tell(Event::Skipped(&held));
            Err(Outcome::Skipped)
        }
        Ok(Answer::SelfDeadlock(held)) => {
            reporter.tell(Event::SelfDeadlock { held: &held, slots: claim.slots });
            Err(Outcome::Held(held_status))
        }
        Ok(Answer::Held(held)) => {
            reporter.tell(Event::Held(&held));
            Err(Outcome::Held(held_status))
        }
        Err(error) => {
            let key = escaped(claim.key.as_str());
            reporter.fail(&error.context(format!("cannot acquire the lock \"{key}\"")));
            Err(Outcome::StoreFailed)
        }
    }
}

/// What has come of asking for a lock.
enum Answer {
    /// It is ours.
    Mine(Grant),
    /// Another holds it.
    Held(Held),
    /// It is held by the runs that this one is part of: it cannot come free before we end.
    SelfDeadlock(Held),
    /// A signal of this number ended the wait.
    Interrupted(i32),
}

impl Answer {
    fn of(tried: Tried) -> Self {
        match tried {
            Tried::Mine(grant) => Answer::Mine(grant),
            Tried::Held(held) => Answer::Held(held),
        }
    }
}

/// Takes the lock; if it is held, waits for it until `until`, unless that would be to wait for ourselves.
fn acquire_or_wait(
    store: &mut dyn Store,
    claim: &Claim,
    until: Option<Moment>,
    outer: &EnclosingLocks,
    reporter: &Reporter,
    signals: &Signals,
    guardian: Option<&Guardian>,
) -> Result<Answer, StoreError> {
    // With several slots another one may come free.
    let waits_for_itself = |held: &Held| claim.slots == 1 && outer.has(held.token.as_ref());
    if !outer.is_empty() {
        match wait::try_once(store, claim)? {
            Tried::Mine(grant) => return Ok(Answer::Mine(grant)),
            Tried::Held(held) if waits_for_itself(&held) => return Ok(Answer::SelfDeadlock(held)),
            Tried::Held(_) => {
                if let Some(held) = self_deadlock(store, claim, outer) {
                    return Ok(Answer::SelfDeadlock(held));
                }
            }
        }
    }
    let watcher = &mut Progress::new(reporter, &waits_for_itself, guardian);
    Ok(match wait::in_turn(store, claim, Wait { until, signals, watcher })? {
        Acquired::Mine(grant) => Answer::Mine(grant),
        Acquired::Held(held) if waits_for_itself(&held) => Answer::SelfDeadlock(held),
        Acquired::Held(held) => Answer::Held(held),
        Acquired::Interrupted(signal) => Answer::Interrupted(signal),
    })
}

/// Returns the last of the holders that we run under, if they hold all the slots that the claim could
/// get. What the store does not tell is no reason not to wait.
fn self_deadlock(store: &mut dyn Store, claim: &Claim, outer: &EnclosingLocks) -> Option<Held> {
    let status = store.list(Some(&claim.key)).ok()?.found.pop()?;
    // One that was revoked can come free before its command has ended.
    let is_around = |holding: &&Holding| outer.has(holding.token.as_ref()) && !holding.revoked;
    let around: Vec<&Holding> = status.holders.iter().filter(is_around).collect();
    let last = around.last().filter(|_| around.len() >= claim.slots as usize)?;
    Some(Held {
        holder: Some(last.who.clone()),
        since: Some(Duration::from_millis(status.now_ms.saturating_sub(last.since_ms))),
        expires_in: last.expires_in,
        place: None,
        token: last.token.clone(),
    })
}
