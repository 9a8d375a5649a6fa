//! What `status` shows, and what may be pruned.

use std::time::Duration;

use super::{Facts, Held, HolderState, LockState, Now, WaiterState, millis};
use crate::lock::claim::Mode;
use crate::lock::token::Token;

impl LockState {
    /// Returns the holders, the longest first.
    pub fn holders_in_force(&self, facts: &impl Facts) -> Vec<&HolderState> {
        if self.is_of_another_epoch(facts) {
            return Vec::new();
        }
        let now = facts.now();
        self.holders.iter().filter(|holder| holder.is_in_force(now, facts)).collect()
    }

    /// Returns whether the lock is held under this token.
    pub fn is_held_by(&self, token: &Token, facts: &impl Facts) -> bool {
        let is_its_holder = |holder: &HolderState| holder.token == *token && holder.is_in_force(facts.now(), facts);
        self.holders.iter().any(is_its_holder) && !self.is_of_another_epoch(facts)
    }

    /// Returns the holder whose lease ends first. If none ends, returns the one that has held the lock longest. When it is gone, a
    /// waiter gets the lock.
    pub fn first_held(&self, now: Now, facts: &impl Facts) -> Option<Held> {
        if self.is_of_another_epoch(facts) {
            return None;
        }
        let ends_of = |holder: &&HolderState| holder.lease.map_or(u64::MAX, |lease| lease.ends_ms.unwrap_or(u64::MAX));
        let mut holders: Vec<&HolderState> = self.holders.iter().collect();
        holders.sort_by_key(ends_of);
        // Lazily: a store may have to inspect a process for each holder that it is asked about.
        holders.into_iter().find(|holder| holder.is_in_force(now, facts)).map(HolderState::held)
    }

    /// Returns whether the lock could be held in this mode now, too, if nobody were ahead.
    pub fn could_hold(&self, mode: Mode, facts: &impl Facts) -> bool {
        let mut state = self.clone();
        state.drop_ended(facts.now(), facts);
        state.has_room(mode)
    }

    /// Returns the waiters, the next one first.
    pub fn waiters_in_force(&self, facts: &impl Facts) -> Vec<&WaiterState> {
        if self.is_of_another_epoch(facts) {
            return Vec::new();
        }
        let now = facts.now();
        self.waiters.iter().filter(|waiter| waiter.is_in_force(now)).collect()
    }

    /// Returns whether the key can be pruned: it has no holder and no waiter, and has not been used for `unused_for`.
    ///
    /// A sequence is never pruned, because it would start again. Nor is a fence that is ahead of the clock, because the next
    /// one would be lower; nor a key within the `once_per` period of a successful run, or with a cancelled request that may
    /// still be in flight.
    pub fn is_prunable(&self, unused_for: Duration, facts: &impl Facts) -> bool {
        let now = facts.now();
        let is_used = !self.is_of_another_epoch(facts)
            && (self.holders.iter().any(|holder| holder.is_in_force(now, facts))
                || self.waiters.iter().any(|waiter| waiter.is_in_force(now))
                || self.cancelled.iter().any(|cancelled| now.ms < cancelled.until_ms));
        // A fence is usually the time at which it was issued.
        let used_at = self.last.as_ref().map_or(self.fence, |last| last.ended_unix_ms);
        let is_old = used_at.saturating_add(millis(unused_for)) <= now.unix_ms;
        let is_done = self.success.is_some_and(|success| success.until_unix_ms > Some(now.unix_ms));
        !is_used && !is_done && self.sequence.is_none() && self.fence <= now.unix_ms && is_old
    }
}
