//! What the tables and the server know of one lock, for the rules in [`crate::lock::state`].

use std::time::Duration;

use super::connection::Row;
use super::failure::Failure;
use crate::lock::state::{Facts, LockState, Now, Presence, WaiterState, millis};
use crate::lock::token::Token;

/// How long after the moment of its next look a waiter that has not looked counts as silent: it may be stopped or cut off, or the
/// machine busy.
const LATE: Duration = Duration::from_secs(1);

/// How long after that moment it counts as dead. A waiter whose server is away gives up earlier.
const GONE: Duration = Duration::from_secs(75);

/// A row of the queue.
#[derive(Clone, Debug)]
pub(super) struct Queued {
    /// Its place: the smaller, the earlier it came.
    pub(super) place: i64,
    /// What the rules know of it.
    pub(super) waiter: WaiterState,
    /// The lock that its session holds while it lives, if it listens in a session of its own; see [`super::connection::Connection::session`].
    pub(super) session: Option<i64>,
    /// When it will ask again by itself at the latest, in milliseconds of Unix time.
    looks_at_ms: u64,
    /// Whether its session is gone.
    is_cut_off: bool,
}

/// The present time, and what is known of the waiters.
pub(super) struct TableFacts<'a> {
    /// Milliseconds of Unix time, by the server's clock.
    pub(super) now_ms: u64,
    /// The waiters that were read, in their order.
    pub(super) queue: &'a [Queued],
    /// The one that asks now.
    pub(super) asking: Option<&'a Token>,
}

impl Queued {
    /// Reads a row of the waiters: place, waiter, session, next look, whether its session is gone.
    pub(super) fn read(row: &Row) -> Result<Self, Failure> {
        let broken = || Failure::Broken("a row of the waiters cannot be read".to_owned());
        let [Some(place), Some(waiter), session, Some(looks_at_ms), Some(is_cut_off)] = &row[..] else {
            return Err(broken());
        };
        Ok(Queued {
            place: place.parse().map_err(|_| broken())?,
            waiter: serde_json::from_str(waiter).map_err(|_| broken())?,
            session: session.as_ref().map(|session| session.parse()).transpose().map_err(|_| broken())?,
            looks_at_ms: looks_at_ms.parse().map_err(|_| broken())?,
            is_cut_off: is_cut_off == "t",
        })
    }
}

impl TableFacts<'_> {
    /// Returns whether one of the waiters in the state can be granted the lock in its turn: then nobody behind those that were read is
    /// next. The one that asks does not count: it may stand behind others that were not read.
    pub(super) fn has_next(&self, state: &LockState) -> bool {
        let is_next = |waiter: &WaiterState| {
            let is_there = self.asking != Some(&waiter.token) && self.presence(waiter) == Presence::Listening;
            is_there && waiter.grant.is_none() && !waiter.is_unresponsive
        };
        state.waiters.iter().any(is_next)
    }
}

impl Facts for TableFacts<'_> {
    fn now(&self) -> Now {
        Now::unix(self.now_ms)
    }

    fn presence(&self, waiter: &WaiterState) -> Presence {
        let Some(row) = self.queue.iter().find(|row| row.waiter.token == waiter.token) else {
            // It has joined just now.
            return Presence::Listening;
        };
        let late = self.now_ms.saturating_sub(row.looks_at_ms);
        if self.asking == Some(&waiter.token) {
            Presence::Listening
        } else if late > millis(GONE) {
            Presence::Gone
        } else if late > millis(LATE) || row.is_cut_off {
            Presence::Silent
        } else {
            Presence::Listening
        }
    }
}
