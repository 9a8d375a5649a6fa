//! What `status` shows, and what may be pruned.

use std::time::Duration;

use super::{HolderState, LockState, Now, StoreView, WaiterState, millis};
use crate::lock::claim::Mode;
use crate::lock::held::Held;
use crate::lock::key::Key;
use crate::lock::key_status::{HolderStatus, KeyStatus, WaiterStatus};
use crate::lock::token::Token;

impl LockState {
    /// Returns the status of the key, with the waiters in the state.
    pub fn status(&self, key: Key, view: &impl StoreView) -> KeyStatus {
        let now = view.now();
        let holding = |holder: &HolderState| {
            let held = holder.held(now);
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
        let waiting = |waiter: &WaiterState| WaiterStatus {
            who: waiter.who.clone(),
            since_ms: Some(now.unix_of(waiter.joined_ms)),
        };
        KeyStatus {
            key,
            now_ms: now.unix_ms,
            fence: self.fence,
            holders: self.holders_in_force(view).into_iter().map(holding).collect(),
            waiters: self.waiters_in_force(view).into_iter().map(waiting).collect(),
            last: self.last.clone(),
            success: self.success,
            value: self.sequence.as_ref().map(|sequence| sequence.last.clone()),
            withheld: None,
        }
    }

    /// Returns the holders, the longest first.
    pub fn holders_in_force(&self, view: &impl StoreView) -> Vec<&HolderState> {
        if self.is_of_another_epoch(view) {
            return Vec::new();
        }
        let now = view.now();
        self.holders.iter().filter(|holder| holder.is_in_force(now, view)).collect()
    }

    /// Returns whether the lock is held under this token.
    pub fn is_held_by(&self, token: &Token, view: &impl StoreView) -> bool {
        let is_its_holder = |holder: &HolderState| holder.token == *token && holder.is_in_force(view.now(), view);
        self.holders.iter().any(is_its_holder) && !self.is_of_another_epoch(view)
    }

    /// Returns the holder whose lease ends first. If none ends, returns the one that has held the lock longest. When it
    /// is gone, a waiter gets the lock.
    pub fn first_held(&self, now: Now, view: &impl StoreView) -> Option<Held> {
        if self.is_of_another_epoch(view) {
            return None;
        }
        let ends_of = |holder: &&HolderState| holder.lease.map_or(u64::MAX, |lease| lease.ends_ms.unwrap_or(u64::MAX));
        let mut holders: Vec<&HolderState> = self.holders.iter().collect();
        holders.sort_by_key(ends_of);
        // Lazily: a store may have to inspect a process for each holder that it is asked about.
        holders.into_iter().find(|holder| holder.is_in_force(now, view)).map(|holder| holder.held(now))
    }

    /// Returns whether the lock could be held in this mode now, too, if nobody were ahead.
    pub fn could_hold(&self, mode: Mode, view: &impl StoreView) -> bool {
        let mut state = self.clone();
        state.drop_ended(view.now(), view);
        state.has_room(mode)
    }

    /// Returns the waiters, the next one first.
    pub fn waiters_in_force(&self, view: &impl StoreView) -> Vec<&WaiterState> {
        if self.is_of_another_epoch(view) {
            return Vec::new();
        }
        let now = view.now();
        self.waiters.iter().filter(|waiter| waiter.is_in_force(now)).collect()
    }

    /// Returns whether the key can be pruned: it has no holder and no waiter, and has not been used for `unused_for`.
    ///
    /// A sequence is never pruned, because it would start again. Nor is a fence that is ahead of the clock, because the
    /// next one would be lower; nor a key within the `once_per` period of a successful run, or with a cancelled request
    /// that may still be in flight.
    pub fn is_prunable(&self, unused_for: Duration, view: &impl StoreView) -> bool {
        let now = view.now();
        let is_used = !self.is_of_another_epoch(view)
            && (self.holders.iter().any(|holder| holder.is_in_force(now, view))
                || self.waiters.iter().any(|waiter| waiter.is_in_force(now))
                || self.cancelled.iter().any(|cancelled| now.ms < cancelled.until_ms));
        // A fence is usually the time at which it was issued.
        let used_at = self.last.as_ref().map_or(self.fence, |last| last.ended_unix_ms);
        let is_old = used_at.saturating_add(millis(unused_for)) <= now.unix_ms;
        let is_done = self.success.is_some_and(|success| success.until_unix_ms > Some(now.unix_ms));
        !is_used && !is_done && self.sequence.is_none() && self.fence <= now.unix_ms && is_old
    }
}
