//! The first round trip of an operation: locks the row of the lock, and reads what the rules need.

use std::collections::BTreeMap;

use super::batch::{Batch, READ_WRITE};
use super::connection::{Answer, Connection, Row};
use super::failure::Failure;
use super::mismatch::check_version;
use super::schema::Tables;
use super::transaction::Attempt;
use crate::lock::state::LockState;
use crate::lock::token::Token;
use crate::store::engine::{FIRST_WAITERS, Found, MORE_WAITERS, Operation, Queue, Row as Waiting, read_state};
use crate::sys::clock::Moment;

/// The server's current time, as a table.
pub(super) const NOW: &str = "(SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS ms) AS now";

/// A waiter that finds fewer unused connections than this, and than a quarter of the limit, waits without one, so that
/// there are some for those who hold the lock, and for the short visits of those that wait so.
const CONNECTIONS_LEFT: u32 = 5;

/// Returns the query for whether so few connections are unused, of those that the server, the database or the role
/// allows. A server older than PostgreSQL 16 has no `reserved_connections`.
fn is_crowded() -> String {
    format!(
        "WITH limits AS (\
          SELECT current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint \
           - coalesce(current_setting('reserved_connections', true), '0')::bigint AS most, \
           (SELECT sum(pg_stat_get_db_numbackends(oid)) FROM pg_database) AS used \
          UNION ALL SELECT datconnlimit, pg_stat_get_db_numbackends(oid) \
           FROM pg_database WHERE datname = current_database() AND datconnlimit >= 0 \
          UNION ALL SELECT rolconnlimit, (SELECT count(*) FROM pg_stat_get_activity(NULL) WHERE usesysid = oid) \
           FROM pg_roles WHERE rolname = session_user AND rolconnlimit >= 0) \
         SELECT bool_or(most - used < {CONNECTIONS_LEFT} AND (most - used) * 4 < most) FROM limits"
    )
}

const INCOMPLETE: Failure = Failure::UnexpectedReply("an answer lacks columns");

/// How a waiter learns that it was handed the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitsBy {
    /// It listens in a session of its own.
    Listening,
    /// It reads the record through a pooler, which gives each transaction another session.
    Polling,
    /// It reads the record, and has no connection in between, to leave it to others.
    Visiting,
}

/// What the first round trip has read.
pub(in crate::store) struct Snapshot {
    /// What was found of the lock.
    pub(super) found: Found,
    /// How the waiter that asks waits, if it does.
    pub(super) waits_by: WaitsBy,
    /// The channels on which waiters listen, by their places.
    pub(super) channels: Channels,
}

/// The channels on which waiters listen, by their places.
pub(super) type Channels = BTreeMap<i64, String>;

impl Snapshot {
    /// Begins a transaction, locks the row, and reads. `visits`: whether the waiter that asks waits without a
    /// connection. From when it begins, the server has the time that is now left until `carry_out_by`. Fails with
    /// [`Failure::ROW_DELETED`] if there is no row.
    pub(super) fn read(
        connection: &mut Connection,
        tables: &Tables,
        attempt: &Attempt<'_>,
        visits: bool,
        carry_out_by: Moment,
    ) -> Result<Self, Failure> {
        let locks = &tables.locks;
        let (operation, creates) = (attempt.operation, attempt.creates);
        let key = Some(operation.key().as_str());
        let mut batch = Batch::transaction_with_lock_timeout(READ_WRITE, carry_out_by, attempt.row_wait());
        // Only a new waiter asks: with each waiter that comes, there is one connection less. Before the row is locked:
        // it may take a while.
        let asks_if_crowded = attempt.counts_connections;
        if asks_if_crowded {
            batch.add(&is_crowded(), &[]);
        }
        if creates {
            // This waits for another transaction that is creating the row.
            let create = format!("INSERT INTO {locks} (key, state) VALUES ($1, '{{}}') ON CONFLICT DO NOTHING");
            batch.add(&create, &[key]);
        }
        batch.add(&lock_row(tables), &[key]);
        // A separate statement, so that the clock and the waiters are read after the row is locked.
        ask_for_queue(&mut batch, tables, operation, &facts(tables), FIRST_WAITERS);
        let answers = &mut connection.run(&batch, attempt.answer_by)?[..];
        let is_crowded = asks_if_crowded
            && answers.first().and_then(|answer| answer.rows.first()?.first()?.as_deref()).is_some_and(|it| it == "t");
        let before = usize::from(asks_if_crowded) + usize::from(creates);
        let Some([locked, found, counted @ ..]) = answers.get_mut(before..) else {
            return Err(INCOMPLETE);
        };
        if !connection.is_in_transaction() {
            return Err(Failure::unwritten());
        }
        let (facts, _) = found.rows.first().and_then(|row| row.split_first_chunk()).ok_or(INCOMPLETE)?;
        let [Some(now_ms), Some(process), version] = facts else { return Err(INCOMPLETE) };
        check_version(version.as_deref(), tables)?;
        let row = locked.rows.pop().ok_or(Failure::ROW_DELETED)?;
        let (record, state) = read_record_of(operation.key().as_str(), row)?;
        let waits_by = match process.parse() == Ok(connection.process) {
            false => WaitsBy::Polling,
            true if visits || is_crowded => WaitsBy::Visiting,
            true => WaitsBy::Listening,
        };
        let now_ms = now_ms.parse().map_err(|_| INCOMPLETE)?;
        let (queue, channels) = read_queue(found, facts.len(), counted.first(), FIRST_WAITERS)?;
        Ok(Snapshot { found: Found { record, state, now_ms, queue }, waits_by, channels })
    }

    /// Reads more waiters of the lock. First deletes those whose places have ended, as the rules do with those that
    /// were read: there may be thousands.
    pub(super) fn read_more_waiters(
        &mut self,
        connection: &mut Connection,
        tables: &Tables,
        attempt: &Attempt<'_>,
    ) -> Result<(), Failure> {
        let mut batch = Batch::default();
        delete_ended(&mut batch, tables, attempt.operation, self.found.now_ms);
        ask_for_queue(&mut batch, tables, attempt.operation, "now.ms", MORE_WAITERS);
        let answers = connection.run(&batch, attempt.answer_by)?;
        let [_, found, counted @ ..] = &answers[..] else { return Err(INCOMPLETE) };
        (self.found.queue, self.channels) = read_queue(found, 1, counted.first(), MORE_WAITERS)?;
        // A place may have been renewed since the clock was read: until then it would seem to last too long, and be
        // cut short.
        let now_ms = found.rows.first().and_then(|row| row.first()?.as_deref()?.parse().ok());
        self.found.now_ms = now_ms.ok_or(INCOMPLETE)?;
        Ok(())
    }
}

/// Adds the statements that read these `facts`, so many of the first waiters, and the one that asks; and that count the
/// others, if that matters.
fn ask_for_queue(batch: &mut Batch, tables: &Tables, operation: Operation<'_>, facts: &str, limit: usize) {
    let waiters = &tables.waiters;
    let (key, asking) = (Some(operation.key().as_str()), operation.asking().map(Token::as_str));
    let limit = limit.to_string();
    batch.add(&first_waiters(tables, facts), &[key, asking, Some(&limit)]);
    if operation.counts_waiters() {
        batch.add(
            &format!(
                "SELECT count(*) FROM (SELECT token, ends_ms FROM {waiters} WHERE key = $1 ORDER BY place OFFSET $3::bigint) AS it, \
                 {NOW} WHERE ends_ms > now.ms AND token IS DISTINCT FROM $2"
            ),
            &[key, asking, Some(&limit)],
        );
    }
}

/// Reads the answers to these statements, in whose rows so many facts come first.
fn read_queue(
    found: &Answer,
    facts: usize,
    counted: Option<&Answer>,
    limit: usize,
) -> Result<(Queue, Channels), Failure> {
    let (mut first, mut own, mut channels) = (Vec::new(), None, Channels::new());
    // Without waiters there is one row, in which a waiter's columns are null.
    for row in found.rows.iter().filter_map(|row| row.get(facts..)) {
        let Some((Some(is_first), columns)) = row.split_first() else { continue };
        let (waiter, channel) = read_waiter(columns)?;
        channels.extend(channel.map(|channel| (waiter.place, channel)));
        if is_first == "t" { first.push(waiter) } else { own = Some(waiter) }
    }
    let unread = counted.and_then(|answer| answer.rows.first()?.first()?.as_deref()?.parse().ok());
    Ok((Queue::new(first, own, limit, unread.unwrap_or(0)), channels))
}

/// The columns of a waiter in the order of [`read_waiter`].
const WAITER_COLUMNS: &str = "place, waiter, ends_ms, channel";

/// Reads a row of the table of waiters, and the channel on which the waiter listens, if it does.
fn read_waiter(columns: &[Option<String>]) -> Result<(Waiting, Option<String>), Failure> {
    let [Some(place), Some(waiter), Some(ends_ms), channel] = columns else {
        return Err(Failure::Broken("a row in the table waiters lacks a column".to_owned()));
    };
    Ok((Waiting::read(place, waiter, ends_ms)?, channel.clone().filter(|channel| is_channel(channel))))
}

/// Returns whether a session of lockrun may listen on the channel of this name.
fn is_channel(name: &str) -> bool {
    name.starts_with("lockrun_")
        && name.len() < 64
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Returns the statement that locks the row of the lock $1, and reads it.
pub(super) fn lock_row(tables: &Tables) -> String {
    format!("SELECT state, key FROM {} WHERE key = $1 FOR UPDATE", tables.locks)
}

/// Returns the columns of the facts that an operation reads first.
pub(super) fn facts(tables: &Tables) -> String {
    format!("now.ms, pg_backend_pid(), (SELECT max(version) FROM {})", tables.version)
}

/// Returns the statement that reads these `facts`, the first $3 waiters of the lock $1, and the one with the token $2.
pub(super) fn first_waiters(tables: &Tables, facts: &str) -> String {
    let waiters = &tables.waiters;
    format!(
        "SELECT {facts}, its.* FROM {NOW} LEFT JOIN (\
         (SELECT true, {WAITER_COLUMNS} FROM {waiters} WHERE key = $1 ORDER BY place LIMIT $3::bigint) \
         UNION ALL SELECT false, {WAITER_COLUMNS} FROM {waiters} WHERE key = $1 AND token = $2\
         ) AS its ON true"
    )
}

/// Adds the statement that deletes the waiters of the lock whose places have ended by `now_ms`.
pub(super) fn delete_ended(batch: &mut Batch, tables: &Tables, operation: Operation<'_>, now_ms: u64) {
    let statement = format!("DELETE FROM {} WHERE key = $1 AND ends_ms <= $2::bigint", tables.waiters);
    batch.add(&statement, &[Some(operation.key().as_str()), Some(&now_ms.to_string())]);
}

/// Reads the columns `state` and `key` of the row of a lock, which must be that of this key. Returns the record as it
/// is stored, and the state in it.
pub(super) fn read_record_of(key: &str, row: Row) -> Result<(String, LockState), Failure> {
    let [Some(record), Some(stored_key)] = <[_; 2]>::try_from(row).map_err(|_| INCOMPLETE)? else {
        return Err(INCOMPLETE);
    };
    if stored_key != key {
        return Err(Failure::other_key());
    }
    let state = read_state(&record)?;
    Ok((record, state))
}
