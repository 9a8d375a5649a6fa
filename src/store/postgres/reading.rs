//! The first round trip of an operation: locks the row of the lock, and reads what the rules need.

use std::time::Duration;

use super::connection::{Batch, Connection};
use super::facts::{Queued, TableFacts};
use super::failure::Failure;
use super::operation::Subject;
use super::schema::{Tables, VERSION};
use crate::lock::state::{LockState, millis};
use crate::lock::token::Token;
use crate::sys::clock::Moment;

/// How long a transaction may stand still between its round trips, at most half as long as a request may take; then the server ends
/// the session. A lockrun that is stopped right then keeps the others from the lock for so long, and its holder from renewing it.
const IDLE_MAX: Duration = Duration::from_millis(1500);

/// How many waiters are read, beside those that were granted the lock and the one that asks.
const FIRST_WAITERS: usize = 8;

const INCOMPLETE: Failure = Failure::Strange("an answer lacks columns");

/// What was found.
pub(super) struct Found {
    /// The record as it is stored; `None`: there is none.
    pub(super) record: Option<String>,
    /// The state in it, without waiters.
    state: LockState,
    /// When this was so, in milliseconds of Unix time by the server's clock.
    pub(super) now_ms: u64,
    /// Whether a pooler gives each transaction another session.
    pub(super) is_pooled: bool,
    /// The waiters that were read, in their order.
    pub(super) queue: Vec<Queued>,
    /// Whether those are all that there are.
    pub(super) has_all_waiters: bool,
}

impl Found {
    /// Begins a transaction, and reads.
    pub(super) fn read(
        connection: &mut Connection,
        tables: &Tables,
        subject: Subject<'_>,
        deadline: Moment,
    ) -> Result<Self, Failure> {
        let left = deadline.since(Moment::now());
        let Tables { version, locks, .. } = tables;
        let mut batch = Batch::default();
        batch.add("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE", &[]);
        let [patience, whole, idle] =
            [left * 3 / 4, left, IDLE_MAX.min(left / 2)].map(|span| millis(span).max(1).to_string());
        batch.add(
            "SELECT pg_catalog.set_config('lock_timeout', $1, true), pg_catalog.set_config('statement_timeout', $2, true), \
             pg_catalog.set_config('idle_in_transaction_session_timeout', $3, true)",
            &[Some(&patience), Some(&whole), Some(&idle)],
        );
        batch.add(&format!("SELECT state FROM {locks} WHERE key = $1 FOR UPDATE"), &[Some(subject.key.as_str())]);
        batch.add(
            &format!(
                "SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000)::bigint, pg_catalog.pg_backend_pid(), \
                 (SELECT max(version) FROM {version})"
            ),
            &[],
        );
        add_question(&mut batch, tables, subject, subject.needs_all_waiters);
        let [_, _, locked, facts, queue] = &mut connection.run(batch, deadline)?[..] else { return Err(INCOMPLETE) };
        let facts = facts.rows.pop().ok_or(INCOMPLETE)?;
        let [Some(now_ms), Some(process), version] = &facts[..] else { return Err(INCOMPLETE) };
        let version = version.as_ref().map_or(Ok(VERSION), |version| version.parse()).map_err(|_| INCOMPLETE)?;
        if version > VERSION {
            return Err(Failure::NewerTables(version));
        }
        let record = locked.rows.pop().and_then(|mut row| row.pop().flatten());
        let queue: Vec<Queued> = queue.rows.iter().map(Queued::read).collect::<Result<_, _>>()?;
        let others = queue.iter().filter(|row| row.waiter.grant.is_none()).count();
        Ok(Found {
            state: record.as_deref().map_or(Ok(LockState::default()), read_record)?,
            record,
            now_ms: now_ms.parse().map_err(|_| INCOMPLETE)?,
            is_pooled: process.parse() != Ok(connection.process),
            has_all_waiters: subject.needs_all_waiters || others < FIRST_WAITERS,
            queue,
        })
    }

    /// Reads all waiters of the lock.
    pub(super) fn read_all_waiters(
        &mut self,
        connection: &mut Connection,
        tables: &Tables,
        subject: Subject<'_>,
        deadline: Moment,
    ) -> Result<(), Failure> {
        let mut batch = Batch::default();
        add_question(&mut batch, tables, subject, true);
        let answers = connection.run(batch, deadline)?;
        let rows = answers.iter().flat_map(|answer| &answer.rows);
        self.queue = rows.map(Queued::read).collect::<Result<_, _>>()?;
        self.has_all_waiters = true;
        Ok(())
    }

    /// Returns the state, with the waiters that were read.
    pub(super) fn state(&self) -> LockState {
        LockState { waiters: self.queue.iter().map(|row| row.waiter.clone()).collect(), ..self.state.clone() }
    }

    /// Returns what the rules ask for beside it.
    pub(super) fn facts<'a>(&'a self, subject: Subject<'a>) -> TableFacts<'a> {
        TableFacts { now_ms: self.now_ms, queue: &self.queue, asking: subject.asking }
    }
}

/// Reads the record of a lock.
pub(super) fn read_record(record: &str) -> Result<LockState, Failure> {
    serde_json::from_str(record).map_err(|error| Failure::Broken(error.to_string()))
}

/// Adds the question for the waiters: those that were granted the lock, the one that asks, and the first others, or `all`.
///
/// A waiter that listens holds an advisory lock in its session. If that can be acquired, the session is gone. It is acquired shared, so
/// that two that look at once do not take each other for the waiter.
fn add_question(batch: &mut Batch, tables: &Tables, subject: Subject<'_>, all: bool) {
    let waiters = &tables.waiters;
    let limit = (!all).then(|| FIRST_WAITERS.to_string());
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
        &[Some(subject.key.as_str()), subject.asking.map(Token::as_str), limit.as_deref()],
    );
}
