//! Acquires a lock, waiting for as long as the user wants, and reports the result.

use std::time::Duration;

use super::enclosing::EnclosingLocks;
use super::outcome::Outcome;
use super::progress::Progress;
use super::wait::{self, Queue, Wait};
use crate::config::plan::OnHeld;
use crate::lock::ending::Ending;
use crate::lock::holder::Holder;
use crate::lock::lease::Terms;
use crate::report::event::{Event, Limit};
use crate::report::reporter::Reporter;
use crate::store::{Acquired, Claim, Grant, Held, HolderStatus, KeyStatus, Mode, RecentSuccess, Store};
use crate::supervise::guardian::Guardian;
use crate::sys::clock::Moment;
use crate::sys::signals::Signals;
use crate::text::escape::escaped;

/// What to do if the lock is held.
#[derive(Clone, Copy, Debug)]
pub struct HeldPolicy {
    /// Whether to wait.
    pub on_held: OnHeld,
    /// The exit status if it stays held.
    pub held_status: u8,
    /// For how long to go on trying a store that is away.
    pub store_retry: Duration,
    /// The terms of the lease under which a command starts; `None` if the lease is not renewed from here: then it must
    /// last for its whole ttl.
    pub terms: Option<Terms>,
}

/// Acquires the lock that `claim` names; `guardian` is set if this process is one. If the lock is not granted, reports
/// why, and returns the outcome of the run as the error.
pub fn acquire(
    store: &mut dyn Store,
    claim: &Claim,
    held_policy: HeldPolicy,
    outer: &EnclosingLocks,
    reporter: &Reporter,
    signals: &Signals,
    guardian: Option<&Guardian>,
) -> Result<Grant, Outcome> {
    let HeldPolicy { on_held, held_status, store_retry, terms } = held_policy;
    let began = Moment::now();
    let waits = matches!(on_held, OnHeld::Wait { .. });
    // Waiting for an enclosing run would be a deadlock. Checked first, and again for each holder that the store names.
    if waits && let Some((held, slots)) = self_deadlock(store, claim, outer) {
        reporter.report(Event::SelfDeadlock { held: &held, slots });
        return Err(Outcome::Held(held_status));
    }
    let is_hopeless: &(dyn Fn(&Held) -> bool + Sync) =
        &|held| claim.mode.several_slots().is_none() && outer.include(held, claim);
    let queue = match on_held {
        OnHeld::Fail | OnHeld::Skip { .. } => None,
        OnHeld::Wait { span, max_waiting } => Some(Queue { until: span.map(|span| began + span), max_waiting }),
    };
    let answer = {
        // Erased before anything else is printed.
        let watcher = &mut Progress::new(reporter, is_hopeless, guardian);
        wait::acquire(store, claim, Wait { queue, store_retry, terms, signals, watcher })
    };
    let answer = match answer {
        // The signal may have cut the request short.
        Ok(Acquired::Held(held)) if !waits => Ok(signals.obey().map_or(Acquired::Held(held), Acquired::Interrupted)),
        answer => answer,
    };
    // Any one of several holders may be the one that hangs, not only the one that the store has named.
    let answer = match answer {
        Ok(Acquired::Held(held)) if matches!(on_held, OnHeld::Skip { held_less_than: Some(_) }) => {
            Ok(Acquired::Held(longest_holder(store, claim, held)))
        }
        answer => answer,
    };
    if let Ok(Acquired::Held(held)) = &answer
        && waits
        && is_hopeless(held)
    {
        reporter.report(Event::SelfDeadlock { held, slots: None });
        return Err(Outcome::Held(held_status));
    }
    if let Ok(Acquired::Held(_) | Acquired::NotQueued(_)) = answer
        && let Some((held, shares)) = held_by_its_token(store, claim)
    {
        reporter.report(Event::HeldByToken { held: &held, shares, waits });
        return Err(Outcome::Held(held_status));
    }
    match answer {
        Ok(Acquired::Mine(grant)) => {
            let slot = claim.mode.several_slots().map(|_| grant.slot);
            reporter.report(Event::Acquired {
                fence: grant.fence,
                slot,
                value: None,
                waited: Moment::now().since(began),
            });
            Ok(grant)
        }
        Ok(Acquired::Interrupted(signal)) => {
            reporter.report(Event::Interrupted(signal));
            Err(Outcome::terminated_by(signal))
        }
        Ok(Acquired::NotNeeded(done)) => {
            let by = if reporter.reports_everything() { done_by(store, claim, done) } else { None };
            reporter.report(Event::Done { began: between(done.began_ms, done.now_ms), by: by.as_ref() });
            Err(Outcome::Skipped)
        }
        Ok(Acquired::Held(held)) if is_skipped(on_held, &held) => {
            reporter.report(Event::Skipped(&held));
            Err(Outcome::Skipped)
        }
        Ok(Acquired::NotQueued(held)) => {
            let limit = queue.and_then(|queue| queue.max_waiting).map(Limit::Waiting);
            reporter.report(Event::Held { held: &held, limit });
            Err(Outcome::Held(held_status))
        }
        Ok(Acquired::Held(held)) => {
            let limit = match on_held {
                OnHeld::Wait { span, .. } => span.map(Limit::Wait),
                OnHeld::Skip { held_less_than } => held_less_than.filter(|_| held.since.is_some()).map(Limit::Skip),
                OnHeld::Fail => None,
            };
            reporter.report(Event::Held { held: &held, limit });
            Err(Outcome::Held(held_status))
        }
        Err(error) => {
            let key = escaped(claim.key.as_str());
            reporter.fail(&error.context(format!("cannot acquire the lock \"{key}\"")));
            Err(Outcome::StoreFailed)
        }
    }
}

/// Returns whether the run is to be skipped because of this holder. A holder that has held the lock for an unknown time
/// counts as one that has held it for too long.
fn is_skipped(on_held: OnHeld, held: &Held) -> bool {
    let OnHeld::Skip { held_less_than } = on_held else { return false };
    held_less_than.is_none_or(|span| held.since.is_some_and(|since| since < span))
}

/// Returns the last of the enclosing runs that hold the lock, if they keep the claim from being granted, and how many
/// slots there are, if there are several: the enclosing runs hold all of them. If the store cannot be read, assumes
/// that they do not keep it.
fn self_deadlock(store: &mut dyn Store, claim: &Claim, outer: &EnclosingLocks) -> Option<(Held, Option<u32>)> {
    if outer.is_empty() {
        return None;
    }
    let status = store.list(Some(&claim.key)).ok()?.found.pop()?;
    // A revoked lock can become free before its command has ended.
    let is_around = |holding: &&HolderStatus| outer.has(holding.token.as_ref()) && !holding.revoked;
    let around: Vec<&HolderStatus> = status.holders.iter().filter(is_around).collect();
    let last = around.last()?;
    let is_hopeless = match claim.mode {
        Mode::Slots(slots) => last.is_shared || around.len() >= slots as usize,
        // Shared holders leave room, unless an exclusive waiter may be ahead in the queue: that one waits for the
        // enclosing run.
        Mode::Shared => !last.is_shared || !status.waiters.is_empty(),
    };
    let slots = claim.mode.several_slots().filter(|_| !last.is_shared);
    is_hopeless.then(|| (as_held(last, status.now_ms), slots))
}

/// Returns the holder under the claim's token, if the user chose that token and it holds the lock already, and whether
/// it shares the lock: then the claim neither gets the lock in another way nor joins the queue, however few wait. If
/// the store cannot be read, assumes that there is none.
fn held_by_its_token(store: &mut dyn Store, claim: &Claim) -> Option<(Held, bool)> {
    let status = own_status(store, claim)?;
    let holder = status.holder_under(&claim.token)?;
    Some((as_held(holder, status.now_ms), holder.is_shared))
}

/// Returns whether the claim's token, which the user chose, held the acquired lock alone before, so that it still does,
/// although the claim asked to share it or for a slot. `None` if the store cannot be read.
pub fn is_held_alone(store: &mut dyn Store, claim: &Claim) -> Option<bool> {
    if claim.request.is_none() || claim.mode.is_exclusive() {
        return Some(claim.mode.is_exclusive());
    }
    let status = own_status(store, claim)?;
    let holder = status.holder_under(&claim.token)?;
    Some(!holder.is_shared && holder.slot.is_none())
}

/// Returns the status of the lock of a claim whose token the user chose.
fn own_status(store: &mut dyn Store, claim: &Claim) -> Option<KeyStatus> {
    claim.request.as_ref()?;
    store.list(Some(&claim.key)).ok()?.found.pop()
}

/// Returns who has succeeded, if that was the last run and the store can be read.
fn done_by(store: &mut dyn Store, claim: &Claim, done: RecentSuccess) -> Option<Holder> {
    let last = store.list(Some(&claim.key)).ok()?.found.pop()?.last?;
    (last.started_unix_ms == done.began_ms && last.ending == Some(Ending::Exited(0))).then_some(last.who)
}

/// Returns the holder that has held the lock the longest; `held` if the store cannot be read or names none.
fn longest_holder(store: &mut dyn Store, claim: &Claim, held: Held) -> Held {
    let status = store.list(Some(&claim.key)).ok().and_then(|mut listing| listing.found.pop());
    let longest = status.and_then(|status| {
        // One without a token is in no record, so it may have held the lock for longer than the store knows.
        let first =
            status.holders.iter().filter(|holding| holding.token.is_some()).min_by_key(|holding| holding.since_ms)?;
        Some(as_held(first, status.now_ms))
    });
    longest.unwrap_or(held)
}

/// Converts a holder in a status to the form in which a refused request names it.
fn as_held(holding: &HolderStatus, now_ms: u64) -> Held {
    Held {
        holder: Some(holding.who.clone()),
        since: Some(between(holding.since_ms, now_ms)),
        expires_in: holding.expires_in,
        purpose: holding.purpose,
        is_revoked: holding.revoked,
        token: holding.token.clone(),
        ..Held::default()
    }
}

/// Returns the span between two moments in milliseconds; zero if they are in the wrong order.
fn between(earlier_ms: u64, later_ms: u64) -> Duration {
    Duration::from_millis(later_ms.saturating_sub(earlier_ms))
}
