//! What is remembered of a lock that is held, so that its holder's next operation, mostly the release, begins with its transaction.
//!
//! The transaction that acquires or renews the lock reads it in the end. A holder to which the lock was handed reads it while COMMAND runs.
//!
//! Others may have changed the lock since. Then the transaction fails, and reads the lock anew, like any that was too slow: it
//! compares all that it goes by, see [`Draft::change`](super::change::Draft::change).

use std::time::Duration;

use super::found::{FIRST_WAITERS, Found, OwnRow, Scope};
use super::operation::Subject;
use super::{EtcdStore, on};
use crate::lock::key::Key;
use crate::lock::token::Token;
use crate::sys::clock::Moment;

/// For how long it counts. The longer ago it was read, the likelier a waiter has joined, and a transaction that fails costs the
/// members a write to their disks, which a read does not. The time of the member that has answered is also not taken from an older answer.
const LASTS: Duration = Duration::from_secs(10);

/// A lock that is held.
pub(super) struct Remembered {
    /// The key of its record.
    state: String,
    /// The holder that remembers it.
    token: Token,
    found: Found,
    at: Moment,
}

impl EtcdStore {
    /// Remembers what was just found of a lock that is held under this token.
    pub(super) fn remember(&mut self, token: &Token, scope: &Scope, found: Found) {
        let (state, token) = (scope.names.state.clone(), token.clone());
        self.remembered = Some(Remembered { state, token, found, at: Moment::now() });
    }

    /// Returns what is remembered of a lock for an operation by this token, if that serves, and forgets it: unless the operation
    /// succeeds, nobody knows what is there.
    pub(super) fn recall(&mut self, asking: Option<&Token>, scope: &Scope) -> Option<Found> {
        let Remembered { state, token, found, at } = self.remembered.take()?;
        let is_it = state == scope.names.state && asking == Some(&token);
        let serves = scope.own_row == OwnRow::None && scope.limit == FIRST_WAITERS && !self.client.may_be_done;
        (is_it && serves && Moment::now() < at + LASTS).then_some(found)
    }

    /// Reads the lock that is held under this token, unless it is remembered, until `until` at most.
    pub(super) fn read_ahead(&mut self, key: &Key, token: &Token, until: Moment) {
        if self.remembered.is_some() {
            return;
        }
        let scope = self.scope(Subject { asking: Some(token), ..on(key) });
        let deadline = until.min(Moment::now() + self.timeout / 4);
        // If this fails, the release reads it.
        self.client.begin();
        if let Ok(found) = self.read(&scope, deadline) {
            self.remember(token, &scope, found);
        }
    }
}
