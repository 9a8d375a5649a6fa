//! The answers of the rules, as the store gives them.

use std::time::Duration;

use super::facts::KernelFacts;
use super::lock_file::{self, LockFile};
use super::{directory, waiters};
use crate::lock::key::Key;
use crate::lock::state::{self, Facts, LockState, Now};
use crate::store::{Grant, Held, Holding, KeyStatus, Living, Past, Released, Renewed, Reserved, Revoked, StoreError};
use crate::sys::clock::Moment;

/// Returns a holder as others see it.
pub(super) fn held(held: state::Held, now: Now) -> Held {
    Held {
        since: Some(Duration::from_millis(now.ms.saturating_sub(held.since_ms))),
        expires_in: held.ends_ms.map(|ends_ms| Duration::from_millis(ends_ms.saturating_sub(now.ms))),
        place: None,
        holder: Some(held.who),
        token: Some(held.token),
    }
}

/// Returns what was granted now.
pub(super) fn grant(fence: u64, slot: u32, leased: bool) -> Grant {
    let lease_from = if leased { Some(Moment::now()) } else { None };
    Grant { fence, slot, lease_from }
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

/// Returns the answer to a reservation.
pub(super) fn reserved(reserved: state::Reserved) -> Reserved {
    match reserved {
        state::Reserved::Mine { fence, slot, value } => Reserved::Mine(grant(fence, slot, false), value),
        // No request is on its way to a file.
        state::Reserved::Taken | state::Reserved::Cancelled => Reserved::Taken,
        state::Reserved::NoNext(last) => Reserved::NoNext(last),
        state::Reserved::Moved(last) => Reserved::Moved(last),
    }
}

/// Returns the answer to a revocation.
pub(super) fn revoked(revoked: state::Revoked, file: &LockFile, now: Now) -> Revoked {
    let all = |holders: Vec<state::Held>| holders.into_iter().map(|holder| held(holder, now)).collect();
    let free_in = Duration::from_millis(revoked.free_in_ms(now));
    match revoked {
        state::Revoked::Free => Revoked::Free,
        state::Revoked::Others(others) => Revoked::Others(all(others)),
        state::Revoked::From { from, living, is_untold, .. } => {
            let with_pids = |living: state::Living| {
                let pids = keepers(living.held.who.pid, living.slot, file);
                Living { held: held(living.held, now), pids }
            };
            let living = living.into_iter().map(with_pids).collect();
            Revoked::Taken { from: all(from), living, free_in, untold: is_untold }
        }
    }
}

/// Returns the living processes that keep a slot taken: lockrun, which had this pid, or, if that is dead, all that have inherited
/// it. Only those that we may look into.
fn keepers(pid: u32, slot: u32, file: &LockFile) -> Vec<u32> {
    let pids = waiters::with_lock(file, lock_file::byte_of(slot));
    // The number of one that has died may be another's by now.
    if pids.contains(&pid) { vec![pid] } else { pids }
}

/// Returns the key whose state stands in the file of this `name`; `None` if it is no lock of ours, or not yet.
pub(super) fn key_in(state: &LockState, name: &str) -> Option<Key> {
    Key::new(state.key.as_ref()).ok().filter(|key| directory::file_name(key) == name)
}

/// Returns what is known of one key.
pub(super) fn status(
    key: Key,
    state: &LockState,
    facts: &KernelFacts<'_>,
    file: &LockFile,
    waiters: &waiters::Waiters,
) -> Result<KeyStatus, StoreError> {
    let now = facts.now();
    let holding = |holder: &state::HolderState| {
        let held = held(holder.held(), now);
        Holding {
            who: holder.who.clone(),
            since_ms: now.unix_of(holder.since_ms),
            expires_in: held.expires_in,
            fence: holder.fence,
            slot: holder.slot,
            is_shared: holder.is_shared,
            value: holder.value.as_ref().map(|value| value.value.clone()),
            revoked: holder.revoked_by.is_some(),
            token: held.token,
        }
    };
    let last = state.last.as_ref().map(|last| Past {
        who: last.who.clone(),
        started_ms: last.started_unix_ms,
        ended_ms: last.ended_unix_ms,
        ending: last.ending,
    });
    Ok(KeyStatus {
        key,
        now_ms: now.unix_ms,
        fence: state.fence,
        holders: state.holders_in_force(facts).into_iter().map(holding).collect(),
        waiters: waiters.of(file)?,
        last,
        success: state.success,
        value: state.sequence.as_ref().map(|sequence| sequence.last.clone()),
    })
}
