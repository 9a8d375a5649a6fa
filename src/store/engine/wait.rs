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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::state::HolderState;
    use crate::lock::token::Token;

    #[test]
    fn a_waiter_that_reads_the_record_learns_whether_it_holds_the_lock() {
        let claim = Claim::example();
        let holder = |token: &Token| HolderState { token: token.clone(), fence: 8, slot: 1, ..HolderState::default() };
        let mut record = LockState { fence: 7, holders: vec![holder(&Token::random())], ..LockState::default() };
        let mut wait = Wait::new(LOOKERS as u64 + 1, &record);
        assert!(wait.learn(&record, &claim).is_none() && !wait.is_of_the_first());
        // Another one has got the lock: this one has moved up by one.
        record.fence = 8;
        assert!(wait.learn(&record, &claim).is_none() && wait.ahead == LOOKERS as u64);
        assert!(wait.learn(&record, &claim).is_none() && !wait.is_of_the_first());
        record.fence = 9;
        assert!(wait.learn(&record, &claim).is_none() && wait.is_of_the_first());
        record.holders.push(holder(&claim.token));
        assert!(matches!(wait.learn(&record, &claim), Some(Wakeup::HandedOver { fence: 8, slot: 1 })));
    }
}
