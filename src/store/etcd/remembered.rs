//! What is remembered of a lock that is held, so that its holder's next operation, mostly the release, begins with its
//! transaction.
//!
//! The transaction that acquires or renews the lock reads it in the end. A holder to which the lock was handed reads it
//! while COMMAND runs.
//!
//! Others may have changed the lock since. Then the transaction fails, and reads the lock anew, like any that was too
//! slow: it compares all that it goes by, see [`ChangeDraft::change`](super::change::ChangeDraft::change).

use std::time::Duration;

use super::EtcdStore;
use super::client::MemberClock;
use super::snapshot::{Scope, Snapshot};
use crate::lock::key::Key;
use crate::lock::token::Token;
use crate::store::engine::Operation;
use crate::sys::clock::Moment;

/// For how long it counts. The longer ago it was read, the likelier a waiter has joined, and a transaction that fails
/// costs the members a write to their disks, which a read does not.
const LASTS: Duration = Duration::from_secs(10);

/// A lock that is held, as it was a while ago.
pub(super) struct Remembered {
    /// The holder that remembers it.
    token: Token,
    scope: Scope,
    found: Snapshot,
    /// The clock of the member that has answered: only this clock may judge what that member has said of times.
    clock: Option<MemberClock>,
    at: Moment,
}

impl EtcdStore {
    /// Remembers what was just found of a lock that is held under this token.
    pub(super) fn remember(&mut self, token: &Token, scope: &Scope, found: Snapshot) {
        let (token, scope, clock) = (token.clone(), scope.clone(), self.client.clock);
        self.remembered = Some(Remembered { token, scope, found, clock, at: Moment::now() });
    }

    /// Returns what is remembered of a lock for an operation by this token, if that serves, and forgets it: unless the
    /// operation succeeds, nobody knows what is there.
    pub(super) fn recall(&mut self, asking: Option<&Token>, scope: &Scope) -> Option<Snapshot> {
        let known = self.remembered.take()?;
        let serves = asking == Some(&known.token) && *scope == known.scope && !self.client.may_be_done;
        if !serves || Moment::now() >= known.at + LASTS {
            return None;
        }
        self.client.clock = known.clock;
        Some(known.found)
    }

    /// Reads the lock that is held under this token, unless it is remembered, or there is little time `until` the lease
    /// is renewed: a renewal must find the connection idle, and remembers the lock itself.
    pub(super) fn read_ahead(&mut self, key: &Key, token: &Token, until: Moment) {
        let deadline = Moment::now() + self.timeout / 4;
        if self.remembered.is_some() || until < deadline {
            return;
        }
        let scope = self.scope(Operation::Renew { key, token });
        // If this fails, the release reads it.
        self.client.begin();
        if let Ok(found) = self.read_scope(&scope, deadline) {
            self.remember(token, &scope, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;
    use crate::store::etcd::api::{Step, Transacted};
    use crate::store::etcd::url::parse;
    use crate::sys::simulated::{self, Surroundings};
    use crate::sys::wait::WakeReason;

    /// A clock that only the test moves.
    struct StoppedClock(Cell<Moment>);

    impl Surroundings for StoppedClock {
        fn now(&self) -> Moment {
            self.0.get()
        }

        fn wait(&self, _: Option<Moment>) -> WakeReason {
            unreachable!("nothing waits")
        }
    }

    #[test]
    fn what_is_remembered_counts_for_its_holder_for_a_while_by_the_clock_of_its_member() {
        let clock = Rc::new(StoppedClock(Cell::new(Moment::from_boot(Duration::from_mins(1)))));
        simulated::enter(Some(clock.clone()));
        let cluster = parse("etcd://127.0.0.1").expect("is a URL");
        let mut store = EtcdStore::new(cluster, Duration::from_secs(5)).expect("needs no files");
        let (key, token) = (Key::new("k".as_ref()).expect("is a key"), Token::random());
        let scope = store.scope(Operation::Renew { key: &key, token: &token });
        let nothing = Transacted { responses: vec![Step::default(); 4], ..Transacted::default() };
        let found = scope.read(nothing).expect("is complete");
        let its_clock = Some((1_000, Moment::now()));
        let mut recall = |by: Option<&Token>, may_be_done: bool, after: Duration| {
            store.client.clock = its_clock;
            store.remember(&token, &scope, found.clone());
            // Another member has answered since.
            store.client.clock = Some((9_000, Moment::now()));
            store.client.may_be_done = may_be_done;
            let began = clock.0.get();
            clock.0.set(began + after);
            let recalled = store.recall(by, &scope).map(|_| store.client.clock);
            assert!(store.recall(by, &scope).is_none(), "it is known only once");
            clock.0.set(began);
            recalled
        };
        assert_eq!(recall(Some(&token), false, Duration::ZERO), Some(its_clock));
        assert_eq!(recall(Some(&Token::random()), false, Duration::ZERO), None, "another's");
        assert_eq!(recall(None, false, Duration::ZERO), None);
        assert_eq!(recall(Some(&token), true, Duration::ZERO), None, "a write is unanswered");
        assert_eq!(recall(Some(&token), false, LASTS), None, "too old");
        simulated::enter(None);
    }
}
