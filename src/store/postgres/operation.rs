//! One operation on a lock: a short transaction of two round trips.
//!
//! The first locks the row of the lock, and only then reads the clock: what was read before a wait for the row would be old. It also
//! reads the record and the first waiters. The rules are applied here. The second round trip writes what has changed, wakes waiters
//! and commits. A client that is stopped between the two blocks the lock for [`IDLE_MAX`] at most; then the server ends its session.

use std::time::Duration;

use serde_json::to_string;

use super::PostgresStore;
use super::connection::{Batch, Connection, Row};
use super::facts::{Queued, TableFacts};
use super::failure::Failure;
use super::schema::{Tables, VERSION};
use super::waiting::{self, Look};
use crate::lock::key::Key;
use crate::lock::state::{Applied, Facts as _, FenceExhausted, LockState, Presence, millis};
use crate::lock::token::Token;
use crate::sys::clock::Moment;

/// How long a transaction may stand still between its round trips. A waiter that is stopped right then keeps the others from the lock
/// for so long.
const IDLE_MAX: Duration = Duration::from_millis(1500);

/// How many waiters are read at first. Those that were granted the lock come on top.
const FIRST_WAITERS: u64 = 8;

/// How many waiters behind those that were granted the lock are asked to look whether these claim it.
const WATCHERS: usize = 2;

/// How often an operation is begun anew because another one has created the lock's row, or lockrun its tables, meanwhile.
const ATTEMPTS: u32 = 5;

/// What an operation is about.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    /// The lock.
    pub(super) key: &'a Key,
    /// The one that asks, if it may stand in the queue.
    pub(super) asking: Option<&'a Token>,
    /// Whether all waiters matter, not only the first.
    pub(super) needs_all_waiters: bool,
}

/// An operation that was committed.
pub(super) struct Committed<T> {
    /// The answer.
    pub(super) answer: T,
    /// When it was carried out, in milliseconds of Unix time by the server's clock.
    pub(super) now_ms: u64,
    /// If the one that asks waits now: when it looks again.
    pub(super) look: Option<Look>,
    /// How many waiters came earlier than the one that asks.
    pub(super) ahead: u64,
}

/// What the first round trip has found.
struct Found {
    state: LockState,
    /// The record as it is stored; `None`: there is none.
    record: Option<String>,
    now_ms: u64,
    is_pooled: bool,
    ahead: u64,
    queue: Vec<Queued>,
    /// Whether those are all waiters that there are.
    has_all: bool,
}

impl PostgresStore {
    /// Applies `rules` to the state of a lock and stores what they make of it. They may be applied several times, to what is found then.
    pub(super) fn operate<T>(
        &mut self,
        subject: Subject<'_>,
        deadline: Moment,
        mut rules: impl FnMut(&mut LockState, &TableFacts<'_>) -> Result<Applied<T>, FenceExhausted>,
    ) -> Result<Committed<T>, Failure> {
        self.may_be_done = false;
        let tables = self.tables.clone();
        for _ in 0..ATTEMPTS {
            let mut found = match self.first_trip(&tables, subject, deadline) {
                Ok(found) => found,
                Err(Failure::Refused(refusal)) if refusal.lacks_tables() => {
                    self.create_tables(deadline)?;
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            let (state, applied) = loop {
                let mut state = found.state.clone();
                state.waiters = found.queue.iter().map(|row| row.waiter.clone()).collect();
                let facts = TableFacts { now_ms: found.now_ms, queue: &found.queue, asking: subject.asking };
                let applied = match rules(&mut state, &facts) {
                    Ok(applied) => applied,
                    Err(FenceExhausted { last }) => {
                        self.connection = None;
                        return Err(Failure::FenceEnds(last));
                    }
                };
                if found.has_all || has_willing(&state, &facts) {
                    break (state, applied);
                }
                // All that were read are dead, stopped or cut off: one behind them may be next.
                let connection = self.connection.as_mut().ok_or(Failure::Closed)?;
                found.queue = read_queue(connection, &tables, subject, deadline)?;
                found.has_all = true;
            };
            let connection = self.connection.as_mut().ok_or(Failure::Closed)?;
            let mut second = SecondTrip { tables: &tables, subject, found: &found, batch: Batch::default() };
            let look = second.write(&state, &applied, connection);
            let batch = second.batch;
            self.may_be_done = true;
            match connection.run(batch, deadline) {
                Ok(_) => {
                    self.may_be_done = false;
                    connection.listens_for = look.and(subject.asking).filter(|_| !found.is_pooled).cloned();
                    let Found { now_ms, ahead, .. } = found;
                    return Ok(Committed { answer: applied.answer, now_ms, look, ahead });
                }
                Err(Failure::Refused(refusal)) if refusal.is_duplicate() => self.may_be_done = false,
                Err(failure) => {
                    // Refused: nothing of the transaction was done.
                    self.may_be_done = !matches!(&failure, Failure::Refused(refusal) if !refusal.is_fatal());
                    self.connection = None;
                    return Err(failure);
                }
            }
        }
        Err(Failure::Strange("the row of the lock comes and goes"))
    }

    /// Locks the row of the lock and reads what the rules need. A connection that turns out to have been closed while it was idle is
    /// opened anew, once.
    fn first_trip(&mut self, tables: &Tables, subject: Subject<'_>, deadline: Moment) -> Result<Found, Failure> {
        loop {
            let was_open = self.connection.is_some();
            let connection = self.connected(deadline)?;
            match read(connection, tables, subject, deadline) {
                Ok(found) => return Ok(found),
                Err(failure) => {
                    let is_closed = match &failure {
                        Failure::Closed => true,
                        Failure::Refused(refusal) => refusal.is_fatal(),
                        _ => false,
                    };
                    if is_closed || !matches!(failure, Failure::Refused(_)) {
                        self.connection = None;
                    }
                    if !was_open || !is_closed {
                        return Err(failure);
                    }
                }
            }
        }
    }

    /// Creates the tables, and the schema if it is missing, too.
    fn create_tables(&mut self, deadline: Moment) -> Result<(), Failure> {
        let tables = self.tables.clone();
        let schema = self.server.schema.clone();
        let connection = self.connected(deadline)?;
        let mut look = Batch::default();
        look.add("SELECT count(*) FROM pg_catalog.pg_namespace WHERE nspname = $1", &[Some(&schema)]);
        let answers = connection.run(look, deadline)?;
        let is_missing = answers[0].rows.first().is_none_or(|row| row[0].as_deref() == Some("0"));
        match connection.run(tables.create(is_missing), deadline) {
            Ok(_) => Ok(()),
            Err(Failure::Refused(refusal)) if refusal.lacks_rights() => Err(Failure::NoTables),
            Err(failure) => {
                self.connection = None;
                Err(failure)
            }
        }
    }

    /// The connection, opened if there is none.
    pub(super) fn connected(&mut self, deadline: Moment) -> Result<&mut Connection, Failure> {
        match &mut self.connection {
            Some(connection) => Ok(connection),
            none => Ok(none.insert(super::login::open(&self.server, deadline)?)),
        }
    }
}

/// The first round trip.
fn read(
    connection: &mut Connection,
    tables: &Tables,
    subject: Subject<'_>,
    deadline: Moment,
) -> Result<Found, Failure> {
    let left = deadline.since(Moment::now());
    let Tables { version, locks, waiters, .. } = tables;
    let key = Some(subject.key.as_str());
    let asking = subject.asking.map(Token::as_str);
    let mut batch = Batch::default();
    batch.add("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE", &[]);
    let [patience, whole, idle] = [left * 3 / 4, left, IDLE_MAX].map(|span| millis(span).max(1).to_string());
    batch.add(
        "SELECT pg_catalog.set_config('lock_timeout', $1, true), pg_catalog.set_config('statement_timeout', $2, true), \
         pg_catalog.set_config('idle_in_transaction_session_timeout', $3, true)",
        &[Some(&patience), Some(&whole), Some(&idle)],
    );
    batch.add(&format!("SELECT state FROM {locks} WHERE key = $1 FOR UPDATE"), &[key]);
    batch.add(
        &format!(
            "SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000)::bigint, pg_catalog.pg_backend_pid(), \
             (SELECT max(version) FROM {version}), \
             (SELECT count(*) FROM {waiters} WHERE key = $1 AND \
              place < coalesce((SELECT place FROM {waiters} WHERE key = $1 AND token = $2), 9223372036854775807))"
        ),
        &[key, asking],
    );
    let limit = (!subject.needs_all_waiters).then(|| FIRST_WAITERS.to_string());
    add_queue(&mut batch, tables, subject, limit.as_deref());
    let mut answers = connection.run(batch, deadline)?;
    let strange = || Failure::Strange("an answer that lacks columns");
    let queue = answers.pop().ok_or_else(strange)?.rows;
    let facts = answers.pop().and_then(|mut facts| facts.rows.pop()).ok_or_else(strange)?;
    let record = answers.pop().and_then(|mut locked| locked.rows.pop()).and_then(|mut row| row.pop().flatten());
    let [Some(now_ms), Some(process), version, Some(ahead)] = &facts[..] else { return Err(strange()) };
    let version: i64 = version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(VERSION);
    if version > VERSION {
        return Err(Failure::NewerTables(version));
    }
    let state = match &record {
        None => LockState::default(),
        Some(text) => serde_json::from_str(text).map_err(|error| Failure::Broken(error.to_string()))?,
    };
    let queue: Vec<Queued> = queue.iter().map(|row| Queued::read(row)).collect::<Result<_, _>>()?;
    let not_granted = queue.iter().filter(|row| row.waiter.grant.is_none()).count() as u64;
    Ok(Found {
        state,
        record,
        now_ms: now_ms.parse().map_err(|_| strange())?,
        is_pooled: process.parse() != Ok(connection.process),
        ahead: ahead.parse().map_err(|_| strange())?,
        has_all: limit.is_none() || not_granted < FIRST_WAITERS,
        queue,
    })
}

/// Reads all waiters of the lock.
fn read_queue(
    connection: &mut Connection,
    tables: &Tables,
    subject: Subject<'_>,
    deadline: Moment,
) -> Result<Vec<Queued>, Failure> {
    let mut batch = Batch::default();
    add_queue(&mut batch, tables, subject, None);
    let rows = connection.run(batch, deadline)?.pop().map(|answer| answer.rows).unwrap_or_default();
    rows.iter().map(|row| Queued::read(row)).collect()
}

/// Adds the question for the waiters: those that were granted the lock, the one that asks, and the first `limit` others.
///
/// A waiter that listens holds an advisory lock in its session. Where that can be had, the session is gone; it is shared here, so that two
/// that look at once do not take each other for the waiter.
fn add_queue(batch: &mut Batch, tables: &Tables, subject: Subject<'_>, limit: Option<&str>) {
    let waiters = &tables.waiters;
    batch.add(
        &format!(
            "SELECT place, waiter, session, looks_at_ms, \
             session IS NOT NULL AND pg_catalog.pg_try_advisory_xact_lock_shared(session) \
             FROM {waiters} WHERE key = $1 AND place IN (\
              SELECT place FROM {waiters} WHERE key = $1 AND is_granted \
              UNION SELECT place FROM {waiters} WHERE key = $1 AND token = $2 \
              UNION (SELECT place FROM {waiters} WHERE key = $1 AND NOT is_granted ORDER BY place LIMIT $3::bigint)\
             ) ORDER BY place"
        ),
        &[Some(subject.key.as_str()), subject.asking.map(Token::as_str), limit],
    );
}

/// Returns whether one of the waiters can be granted the lock in its turn: then nobody behind those that were read is next.
fn has_willing(state: &LockState, facts: &TableFacts<'_>) -> bool {
    let is_willing = |waiter: &crate::lock::state::WaiterState| {
        !waiter.is_unresponsive && facts.presence(waiter) == Presence::Listening
    };
    state.waiters.iter().any(|waiter| waiter.grant.is_none() && is_willing(waiter))
}

/// What the second round trip writes.
struct SecondTrip<'a> {
    tables: &'a Tables,
    subject: Subject<'a>,
    found: &'a Found,
    batch: Batch,
}

impl SecondTrip<'_> {
    /// Adds all that an operation has changed, and the end of the transaction. Returns when the one that asks looks again, if it waits.
    fn write<T>(&mut self, state: &LockState, applied: &Applied<T>, connection: &Connection) -> Option<Look> {
        self.write_record(state);
        let waits = self.subject.asking.and_then(|asking| {
            let at = state.waiters.iter().position(|waiter| waiter.token == *asking)?;
            Some((at, asking))
        });
        let look = waits.map(|(at, _)| {
            let end_in = applied.look_at_ms.map(|at_ms| Duration::from_millis(at_ms.saturating_sub(self.found.now_ms)));
            Look::at_place(at, end_in, self.found.is_pooled)
        });
        self.write_queue(state, look);
        self.wake(state, applied);
        let listens_for = connection.listens_for.as_ref();
        match waits.map(|(_, asking)| asking).filter(|_| !self.found.is_pooled) {
            Some(asking) if listens_for == Some(asking) => {}
            Some(asking) => {
                let session = waiting::session_of(asking).to_string();
                self.batch.add(&format!("LISTEN {}", waiting::channel_of(asking)), &[]);
                self.batch.add("SELECT pg_catalog.pg_advisory_lock($1::bigint)", &[Some(&session)]);
            }
            None if listens_for.is_some() => {
                self.batch.add("UNLISTEN *", &[]);
                self.batch.add("SELECT pg_catalog.pg_advisory_unlock_all()", &[]);
            }
            None => {}
        }
        self.batch.add("COMMIT", &[]);
        look
    }

    fn write_record(&mut self, state: &LockState) {
        let locks = &self.tables.locks;
        let key = Some(self.subject.key.as_str());
        let state = LockState { waiters: Vec::new(), ..state.clone() };
        // A state has nothing that cannot be written as JSON.
        let record = to_string(&state).unwrap_or_default();
        match &self.found.record {
            Some(before) if *before == record => {}
            // As if it had never been used.
            Some(_) if state == LockState::default() => {
                self.batch.add(&format!("DELETE FROM {locks} WHERE key = $1"), &[key])
            }
            Some(_) => {
                self.batch.add(&format!("UPDATE {locks} SET state = $2::json WHERE key = $1"), &[key, Some(&record)])
            }
            None if state == LockState::default() => {}
            None => self
                .batch
                .add(&format!("INSERT INTO {locks} (key, state) VALUES ($1, $2::json)"), &[key, Some(&record)]),
        }
    }

    /// Writes the rows of the waiters that have changed.
    fn write_queue(&mut self, state: &LockState, look: Option<Look>) {
        let waiters = &self.tables.waiters;
        let key = Some(self.subject.key.as_str());
        let find = |token: &Token| state.waiters.iter().find(|waiter| waiter.token == *token);
        for row in &self.found.queue {
            let place = row.place.to_string();
            let Some(after) = find(&row.waiter.token) else {
                self.batch
                    .add(&format!("DELETE FROM {waiters} WHERE key = $1 AND place = $2::bigint"), &[key, Some(&place)]);
                continue;
            };
            if *after != row.waiter {
                self.batch.add(
                    &format!("UPDATE {waiters} SET waiter = $3::json, is_granted = $4::boolean WHERE key = $1 AND place = $2::bigint"),
                    &[key, Some(&place), Some(&to_string(after).unwrap_or_default()), Some(boolean(after.grant.is_some()))],
                );
            }
        }
        let (Some(asking), Some(look)) = (self.subject.asking, look) else { return };
        let Some(own) = find(asking) else { return };
        let looks_at_ms = (self.found.now_ms + millis(look.within)).to_string();
        let session = (!self.found.is_pooled).then(|| waiting::session_of(asking).to_string());
        if self.found.queue.iter().any(|row| row.waiter.token == *asking) {
            self.batch.add(
                &format!(
                    "UPDATE {waiters} SET session = $3::bigint, looks_at_ms = $4::bigint WHERE key = $1 AND token = $2"
                ),
                &[key, Some(asking.as_str()), session.as_deref(), Some(&looks_at_ms)],
            );
        } else {
            self.batch.add(
                &format!(
                    "INSERT INTO {waiters} (key, token, waiter, is_granted, session, looks_at_ms) \
                     VALUES ($1, $2, $3::json, $4::boolean, $5::bigint, $6::bigint)"
                ),
                &[
                    key,
                    Some(asking.as_str()),
                    Some(&to_string(own).unwrap_or_default()),
                    Some(boolean(own.grant.is_some())),
                    session.as_deref(),
                    Some(&looks_at_ms),
                ],
            );
        }
    }

    /// Wakes those to which the lock was granted, and a few behind them, who look whether it is claimed.
    fn wake<T>(&mut self, state: &LockState, applied: &Applied<T>) {
        if applied.granted.is_empty() {
            return;
        }
        let listens = |token: &Token| {
            let row = self.found.queue.iter().find(|row| row.waiter.token == *token);
            row.is_some_and(|row| row.session.is_some()) && self.subject.asking != Some(token)
        };
        let behind = state.waiters.iter().filter(|waiter| waiter.grant.is_none() && !waiter.is_unresponsive);
        let watchers = behind.map(|waiter| &waiter.token).filter(|token| listens(token)).take(WATCHERS);
        let woken = applied.granted.iter().filter(|token| listens(token)).chain(watchers);
        let channels: Vec<String> = woken.map(waiting::channel_of).collect();
        if !channels.is_empty() {
            self.batch.add(
                "SELECT pg_catalog.pg_notify(channel, '') FROM unnest($1::text[]) AS channel",
                &[Some(&format!("{{{}}}", channels.join(",")))],
            );
        }
    }
}

fn boolean(is: bool) -> &'static str {
    if is { "t" } else { "f" }
}

/// Returns the value of a column that is there.
pub(super) fn column(row: &Row, at: usize) -> Option<&str> {
    row.get(at)?.as_deref()
}
