//! A wait in the queue, for stores whose waiters read the record of the lock.

use crate::lock::state::{LOOKERS, LockState, Seen};
use crate::store::{Claim, Wakeup};

/// A wait: what the last answer, or the record, said.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct Wait {
    /// How many waiters are ahead, at most.
    pub(in crate::store) ahead: u64,
    /// What the record said.
    seen: Seen,
}

impl Wait {
    /// Returns the wait after an answer that said that so many are `ahead`, with this record.
    pub(in crate::store) fn new(ahead: u64, record: &LockState) -> Self {
        Wait { ahead, seen: record.seen() }
    }

    /// Returns whether the waiter is one of the first, which look at the lock by themselves.
    pub(in crate::store) fn is_of_the_first(&self) -> bool {
        self.ahead < LOOKERS as u64
    }

    /// Learns from the record, which was read without asking. Returns what to do if it says that the claim holds the
    /// lock, or has to ask for it.
    pub(in crate::store) fn learn(&mut self, record: &LockState, claim: &Claim) -> Option<Wakeup> {
        if let Some(ours) = record.holders.iter().find(|holder| holder.token == claim.token) {
            let handed_over = Wakeup::HandedOver { fence: ours.fence, slot: ours.slot };
            return Some(if ours.is_renewable() { handed_over } else { Wakeup::AskAgain });
        }
        // Each hand-off takes at least one waiter out of the queue.
        self.ahead = self.ahead.saturating_sub(u64::from(record.fence != self.seen.fence));
        self.seen.fence = record.fence;
        record.has_news(self.seen, claim).then_some(Wakeup::AskAgain)
    }
}
