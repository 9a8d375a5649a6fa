//! Converts the answers of the lock's rules to a store's. Each store adds what only it knows.

use std::time::Duration;

use crate::lock::claim::Mode;
use crate::lock::key::Key;
use crate::lock::state::{self, Facts, HolderState, LockState, Now, WaiterState};
use crate::store::{
    Grant, Held, HolderStatus, KeyStatus, LivingHolder, PastRun, Released, Renewed, Reserved, Revoked, WaiterStatus,
};
use crate::sys::clock::Moment;

/// Returns a holder as others see it.
pub(super) fn held(held: state::Held, now: Now) -> Held {
    Held {
        since: Some(Duration::from_millis(now.ms.saturating_sub(held.since_ms))),
        expires_in: held.ends_ms.map(|ends_ms| Duration::from_millis(ends_ms.saturating_sub(now.ms))),
        holder: Some(held.who),
        token: Some(held.token),
        ..Held::default()
    }
}

/// Returns the answer to a request that waits in this place, or does not hold the lock otherwise: see [`state::Acquired::Held`].
pub(super) fn waits(
    first: Option<state::Held>,
    place: Option<u64>,
    look_at_ms: Option<u64>,
    last_fence: u64,
    now: Now,
) -> Held {
    let look_in = look_at_ms.map(|at_ms| Duration::from_millis(at_ms.saturating_sub(now.ms)));
    Held { place, look_in, last_fence, ..first.map(|first| held(first, now)).unwrap_or_default() }
}

/// Returns the answer to a renewal.
pub(super) fn renewed(renewed: state::Renewed, now: Now) -> Renewed {
    match renewed {
        state::Renewed::Mine => Renewed::Mine,
        state::Renewed::NotMine(by) => Renewed::NotMine(by.map(|by| held(by, now))),
        state::Renewed::Revoked(by) => Renewed::Revoked(by),
    }
}

/// Returns the answer to a release.
pub(super) fn released(released: state::Released, now: Now) -> Released {
    match released {
        state::Released::Free => Released::Free,
        state::Released::Retained => Released::Retained,
        state::Released::WhenItEnds => Released::WhenItEnds,
        state::Released::NotMine(by) => Released::NotMine(by.map(|by| held(by, now))),
    }
}

/// Returns the answer to a reservation. The lease of a reserved value counts from `lease_from`, if it has one.
pub(super) fn reserved(reserved: state::Reserved, lease_from: Option<Moment>) -> Reserved {
    match reserved {
        state::Reserved::Mine { fence, slot, value } => {
            Reserved::Mine(Grant { fence, slot, lease_from, by_hand_off: false }, value)
        }
        state::Reserved::Taken | state::Reserved::Cancelled => Reserved::Taken,
        state::Reserved::NoNext(last) => Reserved::NoNext(last),
        state::Reserved::LastChanged(last) => Reserved::LastChanged(last),
    }
}

/// Returns the answer to a revocation. `pids_of` returns the processes that keep a lock without a lease.
pub(super) fn revoked(
    revoked: state::Revoked,
    now: Now,
    pids_of: impl Fn(&state::LivingHolder) -> Vec<u32>,
) -> Revoked {
    let all = |holders: Vec<state::Held>| holders.into_iter().map(|holder| held(holder, now)).collect();
    let free_in = Duration::from_millis(revoked.free_in_ms(now));
    match revoked {
        state::Revoked::Free => Revoked::Free,
        state::Revoked::Others(others) => Revoked::Others(all(others)),
        state::Revoked::From { from, living, may_run_unaware, .. } => {
            let living = living.into_iter().map(|it| LivingHolder { pids: pids_of(&it), held: held(it.held, now) });
            Revoked::From { from: all(from), living: living.collect(), free_in, may_run_unaware }
        }
    }
}

/// Returns the status of one key, with the waiters in the state.
pub(super) fn status(key: Key, state: &LockState, facts: &impl Facts) -> KeyStatus {
    let now = facts.now();
    let holding = |holder: &HolderState| {
        let held = held(holder.held(), now);
        HolderStatus {
            who: holder.who.clone(),
            since_ms: now.unix_of(holder.since_ms),
            has_lease: holder.lease.is_some(),
            expires_in: held.expires_in,
            fence: holder.fence,
            slot: holder.mode.several_slots().map(|_| holder.slot),
            purpose: holder.purpose,
            is_shared: holder.mode == Mode::Shared,
            value: holder.value.as_ref().map(|value| value.value.clone()),
            revoked: holder.revoked_by.is_some(),
            token: held.token,
        }
    };
    let waiting =
        |waiter: &WaiterState| WaiterStatus { who: waiter.who.clone(), since_ms: Some(now.unix_of(waiter.joined_ms)) };
    let last = state.last.as_ref().map(|last| PastRun {
        who: last.who.clone(),
        started_ms: last.started_unix_ms,
        ended_ms: last.ended_unix_ms,
        ending: last.ending,
    });
    KeyStatus {
        key,
        now_ms: now.unix_ms,
        fence: state.fence,
        holders: state.holders_in_force(facts).into_iter().map(holding).collect(),
        waiters: state.waiters_in_force(facts).into_iter().map(waiting).collect(),
        last,
        success: state.success,
        value: state.sequence.as_ref().map(|sequence| sequence.last.clone()),
        withheld: None,
    }
}
