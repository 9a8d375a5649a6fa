//! Revocation: `lockrun break`.

use std::time::Duration;

use super::{Applied, HolderState, LeaseRecord, LockState, Purpose, StoreView};
use crate::lock::answer::{LivingHolder, Revoked};
use crate::lock::held::Held;
use crate::lock::holder::Holder;

impl LockState {
    /// Returns the fences of the holders; with `only`, that one if a holder has it. A revocation that is made again
    /// goes by the fences that it found first, so that it takes nothing from a later holder.
    pub fn fences(&self, only: Option<u64>) -> Vec<u64> {
        let fences = self.holders.iter().map(|holder| holder.fence);
        fences.filter(|fence| only.is_none_or(|only| *fence == only)).collect()
    }

    /// Revokes the lock, on behalf of `by`, from all its holders or from those with one of these `fences`.
    ///
    /// A command's lease can no longer be renewed: lockrun learns that from its next renewal, and the command holds the
    /// lock until it has ended, or until the lease ends. A lease that was made endless by hand gets an end for that.
    /// With `at_once` the lock is free now. It is also free now if there is nothing to wait for: it was acquired by
    /// hand, it is kept, or its run does not renew it, because it never ends. A lock that a living process holds
    /// without a lease cannot be revoked.
    pub fn revoke(
        &mut self,
        fences: Option<&[u64]>,
        by: &Holder,
        at_once: bool,
        view: &impl StoreView,
    ) -> Applied<Revoked> {
        let (now, before) = (view.now(), self.next_end());
        self.drop_ended(now, view);
        let is_meant = |holder: &HolderState| fences.is_none_or(|fences| fences.contains(&holder.fence));
        if !self.holders.iter().any(is_meant) {
            let others: Vec<Held> = self.holders.iter().map(|holder| holder.held(now)).collect();
            let answer = if others.is_empty() { Revoked::Free } else { Revoked::Others(others) };
            return self.finish(answer, before, now, view);
        }
        let (mut from, mut living, mut free_in, mut may_run_unaware) = (Vec::new(), Vec::new(), Duration::ZERO, false);
        for mut holder in std::mem::take(&mut self.holders) {
            let Some(lease) = holder.lease.filter(|_| is_meant(&holder)) else {
                if is_meant(&holder) {
                    living.push(LivingHolder { held: holder.held(now), slot: holder.slot, pids: Vec::new() });
                }
                self.holders.push(holder);
                continue;
            };
            from.push(holder.held(now));
            let runs = matches!(holder.purpose, Purpose::Run | Purpose::Unrecorded);
            let ends_ms = lease.ends_ms.or(lease.ttl_ms.map(|ttl_ms| now.ms.saturating_add(ttl_ms)));
            if let Some(end_ms) = ends_ms.filter(|_| runs && !at_once) {
                free_in = free_in.max(now.until(end_ms));
                holder.lease = Some(LeaseRecord { ends_ms, ..lease });
                holder.revoked_by = Some(by.clone());
                self.holders.push(holder);
            } else {
                may_run_unaware |= runs;
                self.record(&holder, None, now);
            }
        }
        self.finish(Revoked::From { from, living, free_in, may_run_unaware }, before, now, view)
    }
}

impl Revoked {
    /// Returns the answer to a revocation that was made again, and answered so the second time, because the first one
    /// may have been carried out.
    pub fn made_again(self, second: &Self) -> Self {
        match self {
            // A holder that is not found any more may have lost the lock by the first one.
            Revoked::From { from, living, may_run_unaware, .. } => {
                let free_in = if let Revoked::From { free_in, .. } = second { *free_in } else { Duration::ZERO };
                Revoked::From { from, living, free_in, may_run_unaware }
            }
            Revoked::Free | Revoked::Others(_) => self,
        }
    }
}
