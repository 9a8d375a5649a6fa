//! Leases: expiry and renewal.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Applied, HolderState, LockState, Now, Purpose, StoreView};
use crate::lock::answer::Renewed;
use crate::lock::lease::Ttl;
use crate::lock::token::Token;

/// A lease. At its end the lock is free, whatever its holder does. A record that lacks one of the fields is broken:
/// otherwise it would be read as a lease that never ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// Its end; `None` if it never ends.
    #[serde(deserialize_with = "Option::deserialize")]
    pub ends_ms: Option<u64>,
    /// How long it lasts after each renewal; `None` if it never ends and nobody renews it. The lease of a run that was
    /// made endless by hand keeps its length, because lockrun goes on to renew it.
    #[serde(deserialize_with = "Option::deserialize")]
    pub ttl_ms: Option<u64>,
}

/// The epoch of a store that cannot tell this epoch of its clock from others.
pub const UNKNOWN_EPOCH: &str = "unknown";

impl LeaseRecord {
    /// Returns a lease of `ttl` from `now`.
    pub(super) fn new(ttl: Ttl, now: Now) -> Self {
        let ttl_ms = ttl.length().map(millis);
        LeaseRecord { ends_ms: ttl_ms.map(|ttl_ms| now.ms.saturating_add(ttl_ms)), ttl_ms }
    }

    /// Returns whether the lease is still in force at `now`.
    pub fn is_in_force(&self, now: Now) -> bool {
        self.ends_ms.is_none_or(|ends| now.ms < ends)
    }

    /// Returns whether more of the lease is left at `now` than its whole length.
    fn is_impossible(&self, now: Now) -> bool {
        matches!((self.ends_ms, self.ttl_ms), (Some(ends_ms), Some(ttl_ms)) if ends_ms > now.ms.saturating_add(ttl_ms))
    }
}

impl LockState {
    /// Renews the lease under `token` for `ttl` from now, or for its own length.
    ///
    /// A renewal never creates a lock: an expired lock may have had another holder since. Nor does it shorten the lease
    /// of a running command, or give it a smaller length: its lockrun depends on the lease, and would learn of a
    /// shorter one, from a renewal by hand, too late.
    ///
    /// A renewal frees nothing, so it does not look at the queue.
    pub fn renew(&mut self, token: &Token, ttl: Option<Ttl>, view: &impl StoreView) -> Applied<Renewed> {
        let (now, before) = (view.now(), self.next_end());
        self.void_other_epochs(view);
        let at = self.position(token).filter(|at| self.holders[*at].is_in_force(now, view));
        let Some(at) = at else {
            let held = self.first_held(now, view);
            return self.finish_with(Renewed::NotMine(held), before, Vec::new(), view);
        };
        let holder = &mut self.holders[at];
        if holder.purpose == Purpose::Unrecorded {
            return self.finish_with(Renewed::NotMine(None), before, Vec::new(), view);
        }
        if let Some(by) = &holder.revoked_by {
            let by = by.clone();
            return self.finish_with(Renewed::Revoked(by), before, Vec::new(), view);
        }
        if let Some(lease) = &mut holder.lease {
            let ttl = ttl.unwrap_or_else(|| lease.ttl());
            let renewed = LeaseRecord::new(ttl, now);
            if holder.purpose == Purpose::Run {
                // The run was promised its present end, and the greatest length so far at each renewal.
                lease.ttl_ms = lease.ttl_ms.map(|ttl_ms| ttl_ms.max(renewed.ttl_ms.unwrap_or(ttl_ms)));
                let promised = LeaseRecord::new(lease.ttl(), now);
                lease.ends_ms = [lease.ends_ms, promised.ends_ms, renewed.ends_ms].into_iter().try_fold(0, later);
            } else {
                *lease = renewed;
            }
        }
        Applied { begins_lease: true, ..self.finish_with(Renewed::Mine, before, Vec::new(), view) }
    }

    /// Renews the lease of the run under `token` for `ttl` from now. If the run is over and the lock is kept, this
    /// request was delayed: the lease stays as the release has set it.
    pub fn renew_run(&mut self, token: &Token, ttl: Ttl, view: &impl StoreView) -> Applied<Renewed> {
        let (now, before) = (view.now(), self.next_end());
        self.void_other_epochs(view);
        let is_kept = |holder: &HolderState| holder.purpose == Purpose::Kept && holder.is_in_force(now, view);
        if self.position(token).is_some_and(|at| is_kept(&self.holders[at])) {
            return self.finish_with(Renewed::NotMine(None), before, Vec::new(), view);
        }
        self.renew(token, Some(ttl), view)
    }

    /// Returns a lease of `ttl`, and marks the state's times as of this epoch.
    pub(super) fn new_lease(&mut self, ttl: Ttl, now: Now, view: &impl StoreView) -> LeaseRecord {
        self.epoch = view.epoch();
        LeaseRecord::new(ttl, now)
    }

    /// Drops everything with a time limit from an earlier epoch of the store's clock. The fence and the sequence stay,
    /// because they must never be issued twice; so does the last run.
    pub(super) fn void_other_epochs(&mut self, view: &impl StoreView) {
        if self.is_of_another_epoch(view) {
            self.holders.clear();
            self.waiters.clear();
            self.cancelled.clear();
            self.epoch.clear();
        }
    }

    /// Returns whether the times in the state are from another epoch of the store's clock. If the store cannot tell,
    /// only impossible times are: otherwise a lease of this epoch could be lost. So a lease of another epoch may count,
    /// but for no longer than its length.
    pub(super) fn is_of_another_epoch(&self, view: &impl StoreView) -> bool {
        if self.epoch.is_empty() {
            return false;
        }
        let present = view.epoch();
        if self.epoch != UNKNOWN_EPOCH && present != UNKNOWN_EPOCH {
            return self.epoch != present;
        }
        let now = view.now();
        self.holders
            .iter()
            .any(|holder| holder.since_ms > now.ms || holder.lease.is_some_and(|it| it.is_impossible(now)))
    }

    /// Drops what has ended: holders whose lease has expired or whose processes are gone, and places. The caller hands
    /// off what has become free.
    pub(super) fn drop_ended(&mut self, now: Now, view: &impl StoreView) {
        self.void_other_epochs(view);
        self.holders.retain(|holder| holder.is_in_force(now, view));
        self.waiters.retain(|waiter| waiter.is_in_force(now));
        for waiter in &mut self.waiters {
            // After the clock was set back: or a dead waiter would keep its place for that long.
            waiter.ends_ms = waiter.ends_ms.min(now.ms.saturating_add(waiter.place_ms));
        }
        self.cancelled.retain(|cancelled| now.ms < cancelled.until_ms);
    }

    /// Returns when the next lease ends.
    pub fn next_end(&self) -> Option<u64> {
        self.holders.iter().filter_map(|holder| holder.lease?.ends_ms).min()
    }
}

impl HolderState {
    /// Returns whether the holder still holds the lock.
    pub(super) fn is_in_force(&self, now: Now, view: &impl StoreView) -> bool {
        match &self.lease {
            Some(lease) => lease.is_in_force(now),
            None => view.holds_slot(self),
        }
    }
}

impl LeaseRecord {
    fn ttl(&self) -> Ttl {
        self.ttl_ms.map_or(Ttl::None, |ttl_ms| Ttl::Lasts(Duration::from_millis(ttl_ms)))
    }
}

/// Returns the later of two ends, where `None` means never.
fn later(a: u64, b: Option<u64>) -> Option<u64> {
    b.map(|b| a.max(b))
}

/// Returns a span in whole milliseconds.
pub fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
