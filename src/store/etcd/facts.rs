//! What a waiter knows of the others.
//!
//! No clock of etcd's is asked whether somebody who was granted the lock has had time enough to claim it: each waiter measures by its own
//! clock for how long it has seen a grant, or a call that nobody answers. It is no matter if one of them is mistaken. A grant is not yet
//! the lock, and a waiter that was passed over keeps its place.

use std::collections::HashMap;
use std::time::Duration;

use super::found::{Found, Row};
use super::waiting::LOOKERS;
use crate::lock::state::{Facts, LockState, Now, WaiterState, millis};
use crate::lock::token::Token;
use crate::sys::clock::Moment;

/// For how long a waiter sees that somebody does not claim what was granted to it, before it is granted to the next one.
pub(super) const CLAIM_WINDOW: Duration = Duration::from_millis(800);

/// For how long it sees that somebody who was called does not answer, before that one is passed over.
pub(super) const CALL_WINDOW: Duration = Duration::from_millis(400);

/// Since when this process has seen that somebody is granted the lock, or called, in which row.
#[derive(Debug, Default)]
pub(super) struct Observed {
    since: HashMap<(String, u64), Moment>,
    now: Option<Moment>,
}

impl Observed {
    /// Notes what was read of the queue just now: all of its rows, or the first.
    pub(super) fn note(&mut self, rows: &[Row], are_all: bool) {
        let now = Moment::now();
        let since = |row: &Row| {
            let challenge = (row.name.clone(), row.value.challenge()?);
            let since = self.since.get(&challenge).copied().unwrap_or(now);
            Some((challenge, since))
        };
        let read: HashMap<_, _> = rows.iter().filter_map(since).collect();
        if are_all {
            self.since = read;
        } else {
            self.since.extend(read);
        }
        self.now = Some(now);
    }

    /// Notes that this process has granted the lock to somebody just now, or called it.
    pub(super) fn mark(&mut self, challenge: &(String, u64)) {
        self.since.entry(challenge.clone()).or_insert_with(Moment::now);
    }

    /// Returns for how long this process has seen that the waiter in a row is granted the lock, or called.
    fn age(&self, row: &Row) -> Duration {
        let since = row.value.challenge().and_then(|challenge| self.since.get(&(row.name.clone(), challenge)));
        self.now.zip(since).map_or(Duration::ZERO, |(now, since)| now.since(*since))
    }

    /// Returns the waiter in a row. What was granted to it has ended if it has not been claimed in time, and it is passed over if it was called
    /// and has not answered.
    pub(super) fn waiter(&self, row: &Row, now_ms: u64) -> WaiterState {
        let mut waiter = row.value.waiter.clone();
        if let Some(grant) = &mut waiter.grant {
            let left = CLAIM_WINDOW.saturating_sub(self.age(row));
            grant.ends_ms = if left.is_zero() { 0 } else { now_ms.saturating_add(millis(left)) };
        } else if row.value.called.is_some() {
            waiter.is_unresponsive |= self.age(row) >= CALL_WINDOW;
        }
        waiter
    }

    /// Returns when the first of these waiters has had time enough, if one was granted the lock or called.
    pub(super) fn next_end<'a>(&self, rows: impl Iterator<Item = &'a Row>) -> Option<Duration> {
        let left = |row: &Row| {
            let window = if row.value.waiter.grant.is_some() {
                CLAIM_WINDOW
            } else if row.value.called.is_some() && !row.value.waiter.is_unresponsive {
                CALL_WINDOW
            } else {
                return None;
            };
            Some(window.saturating_sub(self.age(row)))
        };
        rows.filter_map(left).min()
    }
}

/// The present time, and what is known of the waiters.
pub(super) struct EtcdFacts<'a> {
    pub(super) now_ms: u64,
    pub(super) found: &'a Found,
    pub(super) observed: &'a Observed,
    pub(super) asking: Option<&'a Token>,
    /// Whether an earlier attempt at the same operation may have been carried out.
    pub(super) may_be_done: bool,
}

impl EtcdFacts<'_> {
    /// Returns whether enough of the waiters in the state, without the one that asks, can be granted the lock in their turn: then nobody behind
    /// those that were read is next, nor near the head of the queue.
    pub(super) fn has_enough(&self, state: &LockState) -> bool {
        let others = state.waiters.iter().filter(|waiter| self.asking != Some(&waiter.token));
        others.filter(|waiter| is_willing(waiter)).count() > LOOKERS
    }
}

/// Returns whether a waiter can be granted the lock.
pub(super) fn is_willing(waiter: &WaiterState) -> bool {
    waiter.grant.is_none() && !waiter.is_unresponsive
}

/// Returns whether a waiter is one of the first in this state that can be granted the lock.
pub(super) fn is_near(waiter: &WaiterState, state: &LockState) -> bool {
    let mut first = state.waiters.iter().filter(|waiter| is_willing(waiter)).take(LOOKERS);
    first.any(|it| it.token == waiter.token)
}

impl Facts for EtcdFacts<'_> {
    fn now(&self) -> Now {
        Now::unix(self.now_ms)
    }
}
