//! Revocation: `lockrun break`.

use super::{Applied, Facts, Held, HolderState, LockState, Now, Purpose};
use crate::lock::holder::Holder;

/// What came of a revocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Revoked {
    /// Nobody holds the lock.
    Free,
    /// It is held, but not under the fence that was meant.
    Others(Vec<Held>),
    /// It was revoked where it can be.
    From {
        /// From these.
        from: Vec<Held>,
        /// It stays with these, whose living processes hold it.
        living: Vec<Living>,
        /// When the last lease ends of a command that has to end, if any has.
        free_at_ms: Option<u64>,
        /// Whether a command may still run under it, and will not learn of this.
        is_untold: bool,
    },
}

/// A holder whose living process holds the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Living {
    /// As others see it.
    pub held: Held,
    /// Its slot.
    pub slot: u32,
}

impl LockState {
    /// Revokes the lock from its holders, or from the one with this `fence`, as `by` asks.
    ///
    /// A command that runs under a lease cannot renew it any more: it learns that by its next renewal, and holds the lock until it
    /// has ended, at the latest until its lease ends. With `at_once` the lock is free now, and so it is if there is nothing to wait
    /// for: it was acquired by hand, is kept, or has a lease without end. What a living process holds without a lease nobody can
    /// revoke.
    pub fn revoke(&mut self, fence: Option<u64>, by: &Holder, at_once: bool, facts: &impl Facts) -> Applied<Revoked> {
        let now = facts.now();
        self.drop_ended(None, now, facts);
        let is_meant = |holder: &HolderState| fence.is_none_or(|fence| holder.fence == fence);
        if !self.holders.iter().any(is_meant) {
            let others: Vec<Held> = self.holders.iter().map(HolderState::held).collect();
            let answer = if others.is_empty() { Revoked::Free } else { Revoked::Others(others) };
            return self.applied(answer, now, facts);
        }
        let (mut from, mut living, mut free_at_ms, mut is_untold) = (Vec::new(), Vec::new(), None, false);
        for mut holder in std::mem::take(&mut self.holders) {
            let Some(lease) = holder.lease.filter(|_| is_meant(&holder)) else {
                if is_meant(&holder) {
                    living.push(Living { held: holder.held(), slot: holder.slot });
                }
                self.holders.push(holder);
                continue;
            };
            from.push(holder.held());
            let runs = matches!(holder.purpose, Purpose::Run | Purpose::Forgotten);
            if runs && !at_once && lease.ends_ms.is_some() {
                free_at_ms = free_at_ms.max(lease.ends_ms);
                holder.revoked_by = Some(by.clone());
                self.holders.push(holder);
            } else {
                is_untold |= runs;
                self.record(&holder, None, now);
            }
        }
        self.applied(Revoked::From { from, living, free_at_ms, is_untold }, now, facts)
    }
}

impl Revoked {
    /// Returns in how many milliseconds from `now` the lock is free at the latest.
    pub fn free_in_ms(&self, now: Now) -> u64 {
        match self {
            Revoked::From { free_at_ms: Some(free_at_ms), .. } => free_at_ms.saturating_sub(now.ms),
            _ => 0,
        }
    }
}
