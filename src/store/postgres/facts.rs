//! What the tables and the server know about one lock, for the rules in [`crate::lock::state`].

use std::collections::HashMap;
use std::fmt::Display;
use std::time::Duration;

use super::failure::Failure;
use super::notices::Notices;
use super::reading::FIRST_WAITERS;
use super::waiting::{LOOKERS, Look, UNNOTIFIED_CLAIM_WINDOW};
use crate::lock::state::{CLAIM_WINDOW_MS, Facts, LockState, Now, Presence, WaiterState, millis};
use crate::lock::token::Token;

/// A waiter that is this late to look or to send a heartbeat counts as silent: it may be stopped or cut off. Less than a beat.
pub(super) const LATE: Duration = Duration::from_millis(700);

/// A waiter that was heard from within this time need not show that it is alive: another waiter called it at the same beat.
const FRESH: Duration = Duration::from_millis(400);

/// How many of the waiters that are kept from a free slot look at each beat: several, in case some of them fall silent, too.
const WATCHERS: usize = 4;

/// A waiter that is this late counts as dead, unless a session shows that it lives. A waiter whose server is away gives up earlier.
pub(super) const GONE: Duration = Duration::from_secs(75);

/// How many waiters may have an unclaimed grant: each operation reads all of these.
const GRANTS_MAX: usize = 100;

/// A row of the queue.
#[derive(Clone, Debug)]
pub(super) struct Queued {
    /// Its place: the smaller, the earlier it came.
    pub(super) place: i64,
    /// What the rules know about it.
    pub(super) waiter: WaiterState,
    /// The advisory lock that its session holds, if it listens in a session of its own; see [`super::connection::Connection::session`].
    pub(super) session: Option<i64>,
    /// When it last looked at the lock or sent a heartbeat, in milliseconds of Unix time.
    looked_at_ms: u64,
    /// When it will do so next, at the latest, in milliseconds of Unix time.
    looks_at_ms: u64,
    /// Whether its session is gone.
    is_cut_off: bool,
    /// Whether it was last heard from before the server's recent start, and may be about to reconnect.
    pub(super) is_returning: bool,
}

/// The current time, and what is known about the waiters.
pub(super) struct TableFacts<'a> {
    /// Milliseconds of Unix time, by the server's clock.
    pub(super) now_ms: u64,
    /// The waiters that were read, in their order.
    queue: &'a [Queued],
    /// The same, by their tokens.
    rows: HashMap<&'a Token, &'a Queued>,
    /// Whose operation this is.
    asking: Option<&'a Token>,
    /// Whether an earlier attempt at the same operation may have been committed.
    pub(super) may_be_done: bool,
    /// Whether waiters that are granted the lock are notified.
    pub(super) notices: Notices,
    /// How many waiters that were not read would claim the lock, if that was counted.
    pub(super) waiting_unread: usize,
}

impl Queued {
    /// Reads a row of the table of waiters: place, waiter, session, last look, next look, whether its session is gone, whether it may be
    /// about to reconnect.
    pub(super) fn read(row: &[Option<String>]) -> Result<Self, Failure> {
        let [
            Some(place),
            Some(waiter),
            session,
            Some(looked_at_ms),
            Some(looks_at_ms),
            Some(is_cut_off),
            Some(is_returning),
        ] = row
        else {
            return Err(Failure::Broken("a row in the table waiters lacks a column".to_owned()));
        };
        let broken = |column: &str, what: &dyn Display| {
            Failure::Broken(format!("column {column} of its row with place {place} in the table waiters: {what}"))
        };
        let session = session.as_ref().map(|session| session.parse()).transpose();
        Ok(Queued {
            place: place.parse().map_err(|error| broken("place", &error))?,
            waiter: serde_json::from_str(waiter).map_err(|error| broken("waiter", &error))?,
            session: session.map_err(|error| broken("session", &error))?,
            looked_at_ms: looked_at_ms.parse().map_err(|error| broken("looked_at_ms", &error))?,
            looks_at_ms: looks_at_ms.parse().map_err(|error| broken("looks_at_ms", &error))?,
            is_cut_off: is_cut_off == "t",
            is_returning: is_returning == "t",
        })
    }
}

/// What waiters must do when the lock has room for some of them, but not for those ahead of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RollCall {
    /// The waiters that could be granted the lock but for those ahead of them: they look at the next beat.
    pub(super) blocked: Vec<Token>,
    /// The waiters ahead of them that must show that they are alive.
    pub(super) called: Vec<Token>,
}

impl<'a> TableFacts<'a> {
    /// Returns the facts at `now_ms`, when the `queue` was read for an operation of `asking`, if the operation is a waiter's or holder's.
    pub(super) fn new(now_ms: u64, queue: &'a [Queued], asking: Option<&'a Token>) -> Self {
        let rows = queue.iter().map(|row| (&row.waiter.token, row)).collect();
        TableFacts { now_ms, queue, rows, asking, may_be_done: false, notices: Notices::Sent, waiting_unread: 0 }
    }

    /// Returns the waiters that were read, with those that have missed their turn marked as unresponsive.
    ///
    /// When a waiter is granted the lock, the first living waiters behind it are asked to check, one after the other, whether it has
    /// claimed the lock; behind a pooler they do so unasked. A waiter that has not looked by the turn after its own must be dead, stopped
    /// or cut off, too. Waiters that have died since were asked as well, so they count in the turns.
    pub(super) fn waiters_after_missed_turns(&self) -> Vec<WaiterState> {
        let grants = self.queue.iter().filter_map(|row| row.waiter.grant);
        let unclaimed = grants.filter(|grant| grant.ends_ms <= self.now_ms).max_by_key(|grant| grant.ends_ms);
        let (mut place, mut is_behind) = (0, false);
        let mark = |row: &Queued| {
            let mut waiter = row.waiter.clone();
            is_behind |= self.asking == Some(&waiter.token);
            let is_willing = waiter.grant.is_none() && self.is_willing(&waiter);
            let was_willing = is_willing || waiter.grant.is_none() && !waiter.is_unresponsive && row.is_cut_off;
            place += usize::from(was_willing);
            let Some(unclaimed) = unclaimed.filter(|_| is_willing) else {
                return waiter;
            };
            let turn = Look::turn(place + usize::from(row.session.is_none()));
            let is_over = self.now_ms >= unclaimed.ends_ms.saturating_add(millis(turn));
            if place < LOOKERS && !is_behind && is_over && row.looked_at_ms < unclaimed.since_ms {
                waiter.is_unresponsive = true;
            }
            waiter
        };
        self.queue.iter().map(mark).collect()
    }

    /// Calls the roll of the first waiters if they keep others waiting for whom the lock has room.
    pub(super) fn roll_call(&self, state: &LockState) -> RollCall {
        let rows = self.queue.iter().filter(|row| row.waiter.grant.is_none()).map(|row| &row.waiter.token);
        let joins = self.asking.filter(|asking| self.row_of(asking).is_none());
        let first: Vec<&Token> = rows.chain(joins).take(FIRST_WAITERS).collect();
        let is_first =
            |waiter: &&WaiterState| waiter.grant.is_none() && first.contains(&&waiter.token) && self.is_willing(waiter);
        let willing: Vec<&WaiterState> = state.waiters.iter().filter(is_first).collect();
        // If the lock has room for the next waiter, no one blocks it: it waits for something else.
        if willing.first().is_none_or(|next| state.has_room(next.mode)) {
            return RollCall::default();
        }
        let is_blocked = |waiter: &&&WaiterState| state.has_room(waiter.mode);
        let blocked: Vec<Token> = willing.iter().filter(is_blocked).take(WATCHERS).map(|it| it.token.clone()).collect();
        let Some(last) = blocked.last() else { return RollCall::default() };
        let ahead = willing.iter().take_while(|waiter| waiter.token != *last).map(|waiter| &waiter.token);
        let called = ahead.filter(|token| !blocked.contains(token) && self.must_show_itself(token)).cloned().collect();
        RollCall { blocked, called }
    }

    /// Returns whether this waiter has neither been heard from lately nor been called.
    fn must_show_itself(&self, token: &Token) -> bool {
        let is_unheard = |row: &Queued| row.looked_at_ms.saturating_add(millis(FRESH)) <= self.now_ms;
        let was_asked = |row: &Queued| row.looks_at_ms <= self.now_ms;
        self.asking != Some(token) && self.row_of(token).is_some_and(|row| is_unheard(row) && !was_asked(row))
    }

    /// Returns whether this waiter is due to look within `span`, or overdue.
    pub(super) fn looks_within(&self, token: &Token, span: Duration) -> bool {
        self.row_of(token).is_some_and(|row| row.looks_at_ms <= self.now_ms.saturating_add(millis(span)))
    }

    /// Returns the row of this waiter, if it has one.
    pub(super) fn row_of(&self, token: &Token) -> Option<&Queued> {
        self.rows.get(token).copied()
    }

    /// Returns whether the waiter would claim the lock if it were granted it.
    pub(super) fn is_willing(&self, waiter: &WaiterState) -> bool {
        !waiter.is_unresponsive && self.presence(waiter) == Presence::Listening
    }

    /// Returns how many waiters before this one were granted the lock or may be.
    pub(super) fn ahead_of(&self, token: &Token, state: &LockState) -> usize {
        let before = state.waiters.iter().take_while(|waiter| waiter.token != *token);
        before.filter(|waiter| waiter.grant.is_some() || self.is_willing(waiter)).count()
    }

    /// Returns whether one of the waiters in the state can be granted the lock in its turn: then none behind those that were read is next.
    /// The waiter that asks does not count: it may be behind others that were not read.
    pub(super) fn has_next(&self, state: &LockState) -> bool {
        let is_next = |waiter: &WaiterState| {
            self.asking != Some(&waiter.token) && waiter.grant.is_none() && self.is_willing(waiter)
        };
        state.waiters.iter().any(is_next)
    }
}

impl Facts for TableFacts<'_> {
    fn now(&self) -> Now {
        Now::unix(self.now_ms)
    }

    fn claim_window_ms(&self, waiter: &WaiterState) -> u64 {
        let listens = self.row_of(&waiter.token).is_some_and(|row| row.session.is_some());
        match self.notices {
            Notices::NotSent if listens => millis(UNNOTIFIED_CLAIM_WINDOW),
            Notices::NotSent | Notices::Sent => CLAIM_WINDOW_MS,
        }
    }

    fn grants_max(&self) -> usize {
        GRANTS_MAX
    }

    fn presence(&self, waiter: &WaiterState) -> Presence {
        let Some(row) = self.row_of(&waiter.token) else {
            // It is joining now.
            return Presence::Listening;
        };
        let late = self.now_ms.saturating_sub(row.looks_at_ms);
        if self.asking == Some(&waiter.token) || row.is_returning {
            Presence::Listening
        } else if late > millis(GONE) && (row.is_cut_off || row.session.is_none()) {
            Presence::Gone
        } else if late > millis(LATE) || row.is_cut_off {
            Presence::Silent
        } else {
            Presence::Listening
        }
    }
}
