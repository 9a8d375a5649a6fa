//! What is asked of a lock, as a store needs to know it to read the right part and to write it back.

use std::time::Duration;

use crate::lock::key::Key;
use crate::lock::token::Token;
use crate::store::{Claim, IfHeld, Release};
use crate::sys::clock::Moment;

/// An operation on a lock.
#[derive(Clone, Copy)]
pub(in crate::store) enum Operation<'a> {
    /// Acquires the lock, or waits for it.
    Acquire { claim: &'a Claim, if_held: IfHeld },
    /// Reserves a value of its sequence.
    Reserve(&'a Claim),
    /// Cancels a claim.
    Cancel(&'a Claim),
    /// Renews the lease under a token.
    Renew { key: &'a Key, token: &'a Token },
    /// Releases what is held under a token.
    Release { key: &'a Key, token: &'a Token, how: Release },
    /// Revokes, prunes or hands off the lock: neither for a holder nor for a waiter.
    OnLock(&'a Key),
}

impl<'a> Operation<'a> {
    /// Returns the key of the lock.
    pub(in crate::store) fn key(self) -> &'a Key {
        match self {
            Operation::Acquire { claim, .. } | Operation::Reserve(claim) | Operation::Cancel(claim) => &claim.key,
            Operation::Renew { key, .. } | Operation::Release { key, .. } | Operation::OnLock(key) => key,
        }
    }

    /// Returns the token that asks, if one does.
    pub(in crate::store) fn asking(self) -> Option<&'a Token> {
        match self {
            Operation::Acquire { claim, .. } | Operation::Reserve(claim) | Operation::Cancel(claim) => {
                Some(&claim.token)
            }
            Operation::Renew { token, .. } | Operation::Release { token, .. } => Some(token),
            Operation::OnLock(_) => None,
        }
    }

    /// Returns whether it may be carried out twice: under a token it has the same outcome each time.
    pub(in crate::store) fn is_repeatable(self) -> bool {
        self.asking().is_some()
    }

    /// Returns the claim that joins the queue by this, or renews its place there, if the lock is held.
    pub(in crate::store) fn waiter(self) -> Option<&'a Claim> {
        match self {
            Operation::Acquire { claim, if_held: IfHeld::Queue { .. } } => Some(claim),
            _ => None,
        }
    }

    /// Returns until when it is worth waiting for an answer; `None`: for ever, or nothing waits.
    pub(in crate::store) fn waits_until(self) -> Option<Moment> {
        match self {
            Operation::Acquire { if_held: IfHeld::Queue { until, .. }, .. } => until,
            _ => None,
        }
    }

    /// Returns how long the place must last that it may take in the queue.
    pub(in crate::store) fn place(self) -> Option<Duration> {
        self.waiter().map(Claim::place)
    }

    /// Returns whether it matters how many wait.
    pub(in crate::store) fn counts_waiters(self) -> bool {
        matches!(self, Operation::Acquire { if_held: IfHeld::Queue { max_waiting: Some(_), .. }, .. })
    }

    /// Returns whether no command runs any more under the token that asks.
    pub(in crate::store) fn gives_up(self) -> bool {
        match self {
            Operation::Release { how, .. } => how != Release::ByHand,
            // Under a token of the user's own, one may run.
            Operation::Cancel(claim) => claim.request.is_none(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::ending::Ending;

    #[test]
    fn what_has_a_token_may_be_carried_out_twice() {
        let claim = Claim::example();
        let (key, token) = (&claim.key, &claim.token);
        let under_token = [
            Operation::Acquire { claim: &claim, if_held: IfHeld::Leave },
            Operation::Reserve(&claim),
            Operation::Cancel(&claim),
            Operation::Renew { key, token },
            Operation::Release { key, token, how: Release::ByHand },
        ];
        assert!(under_token.iter().all(|operation| operation.is_repeatable() && operation.asking() == Some(token)));
        assert!(!Operation::OnLock(key).is_repeatable());
    }

    #[test]
    fn waiters_are_counted_if_their_number_is_limited() {
        let claim = Claim::example();
        for max_waiting in [None, Some(1)] {
            let if_held = IfHeld::Queue { max_waiting, until: None };
            assert_eq!(Operation::Acquire { claim: &claim, if_held }.counts_waiters(), max_waiting.is_some());
        }
        assert!(!Operation::Acquire { claim: &claim, if_held: IfHeld::Leave }.counts_waiters());
    }

    #[test]
    fn a_command_may_run_under_a_token_of_the_users_own() {
        let run = Claim::example();
        let by_hand = Claim { request: Some(Token::random()), ..run.clone() };
        let (key, token) = (&run.key, &run.token);
        assert!(Operation::Cancel(&run).gives_up());
        assert!(Operation::Release { key, token, how: Release::at_once(Ending::Exited(0)) }.gives_up());
        assert!(!Operation::Cancel(&by_hand).gives_up());
        assert!(!Operation::Release { key, token, how: Release::ByHand }.gives_up());
        assert!(!Operation::Renew { key, token }.gives_up());
    }
}
