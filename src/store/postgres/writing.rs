//! The second round trip of an operation: writes what has changed, wakes waiters, and commits.
//!
//! A waiter renews its place without the row of the lock, so it may do so after its row was read. The promise that it
//! gets then must be kept: a row is deleted only as it was read. Otherwise a division by zero ends the transaction, and
//! the operation is repeated.

use super::batch::Batch;
use super::connection::{Answer, Connection};
use super::failure::Failure;
use super::reading::{Snapshot, WaitsBy, delete_ended};
use super::schema::Tables;
use super::transaction::{Attempt, Notices};
use crate::lock::token::Token;
use crate::store::RetryClass;
use crate::store::engine::{Changes, RecordChange, Transition, json};
use crate::store::record_limit::RecordTooLong;

/// The second round trip.
pub(super) struct CommitTrip<'a> {
    tables: &'a Tables,
    attempt: &'a Attempt<'a>,
    snapshot: &'a Snapshot,
    /// The statements.
    pub(super) batch: Batch,
    /// What the answers must say.
    pub(super) checks: Checks,
    /// The place of the waiter that asks, if it waits.
    pub(super) place: Option<PlaceSource>,
    /// Whether the session begins to listen.
    pub(super) begins_listening: bool,
    /// Why none of this must be carried out.
    pub(super) refused: Option<RecordTooLong>,
}

/// What the answers must say: another user's rule or trigger may have discarded a write.
#[derive(Clone, Copy, Default)]
pub(super) struct Checks {
    /// Whether the first statement writes the record of the lock; otherwise only the queue has changed.
    writes_record: bool,
    /// The index of the statement that writes the row of the waiter that asks, if one does.
    own_at: Option<usize>,
    /// The index of the statement that commits.
    commit_at: usize,
}

impl Checks {
    /// Fails unless the answers, none of which is an error, say that everything was written and committed, and that the
    /// server did not cancel its wait for a standby: a failover could lose what was written.
    pub(super) fn verify(self, answers: &[Answer]) -> Result<(), Failure> {
        // Outside the transaction the write would have been blind, over what another client may have written since.
        let is_written =
            |answer: &Answer| answer.in_transaction && matches!(answer.tag.as_str(), "UPDATE 1" | "DELETE 1");
        let is_recorded = !self.writes_record || answers.first().is_some_and(is_written);
        let waits = |answer: &Answer| answer.in_transaction && matches!(answer.tag.as_str(), "UPDATE 1" | "INSERT 0 1");
        let is_recorded = is_recorded && self.own_at.is_none_or(|at| answers.get(at).is_some_and(waits));
        let commit = answers.get(self.commit_at).filter(|answer| answer.tag == "COMMIT");
        match commit {
            Some(commit) if is_recorded && commit.is_unconfirmed => {
                let what = "has committed, but no standby has confirmed that it has received it; see why, and who has \
                            cancelled the wait for it";
                Err(Failure::Other(RetryClass::Slow, what.to_owned()))
            }
            Some(_) if is_recorded => Ok(()),
            _ => Err(Failure::unwritten()),
        }
    }
}

/// Where to find the place of a waiter.
#[derive(Clone, Copy)]
pub(super) enum PlaceSource {
    /// Here: all waiters were read.
    Known(u64),
    /// In this answer of the batch.
    Answer(usize),
}

impl PlaceSource {
    /// Returns the place, from 0.
    pub(super) fn of(self, answers: &[Answer]) -> u64 {
        match self {
            PlaceSource::Known(place) => place,
            PlaceSource::Answer(at) => {
                let row = answers.get(at).and_then(|answer| answer.rows.first());
                row.and_then(|row| row.first()?.as_deref()?.parse().ok()).unwrap_or(0)
            }
        }
    }
}

impl<'a> CommitTrip<'a> {
    /// Prepares the statements for what an operation has made of this `snapshot`.
    pub(super) fn prepare(
        tables: &'a Tables,
        attempt: &'a Attempt<'a>,
        snapshot: &'a Snapshot,
        connection: &Connection,
        transition: &Transition,
    ) -> Self {
        let mut trip = CommitTrip {
            tables,
            attempt,
            snapshot,
            batch: Batch::default(),
            checks: Checks::default(),
            place: None,
            begins_listening: false,
            refused: None,
        };
        let asking = attempt.operation.waiter().map(|claim| &claim.token);
        let changes = Changes::of(&snapshot.found, &transition.after, asking);
        let listens = snapshot.waits_by == WaitsBy::Listening;
        trip.refused = changes.refused;
        trip.write_record(&changes);
        trip.write_queue(&changes, asking, listens.then_some(&connection.channel));
        trip.wake(&transition.woken);
        if trip.place.is_some() && listens && !connection.listens {
            trip.begins_listening = true;
            trip.batch.add(&format!("LISTEN {}", connection.channel), &[]);
        }
        // What an earlier attempt has left may not have reached the disk or the standbys.
        trip.checks.commit_at = trip.batch.commit(changes.is_lasting() || attempt.may_be_done);
        trip
    }

    /// Writes the record, and deletes the rows of the waiters that have left the queue.
    fn write_record(&mut self, changes: &Changes<'_>) {
        let locks = &self.tables.locks;
        let key = Some(self.attempt.operation.key().as_str());
        let places = array(changes.gone.iter().map(|row| row.place));
        let ends_ms = array(changes.gone.iter().map(|row| row.waiter.ends_ms));
        self.checks.writes_record = changes.record.is_some();
        match &changes.record {
            Some(RecordChange::Deleted) => self.batch.add(&format!("DELETE FROM {locks} WHERE key = $1"), &[key]),
            Some(RecordChange::Written(record)) if changes.gone.is_empty() => {
                self.batch.add(&format!("UPDATE {locks} SET state = $2::json WHERE key = $1"), &[key, Some(record)]);
            }
            Some(RecordChange::Written(record)) => {
                return self.batch.add(&hand_off(self.tables), &[key, Some(&places), Some(&ends_ms), Some(record)]);
            }
            None => {}
        }
        if !changes.gone.is_empty() {
            let delete = format!("{} SELECT one FROM are_as_read", delete_gone(self.tables));
            self.batch.add(&delete, &[key, Some(&places), Some(&ends_ms)]);
        }
    }

    /// Writes the rows of the waiters that have changed or joined, and deletes those whose places have ended. `channel`:
    /// that of the waiter that asks, if it listens.
    fn write_queue(&mut self, changes: &Changes<'_>, asking: Option<&Token>, channel: Option<&String>) {
        let waiters = &self.tables.waiters;
        let (operation, snapshot) = (self.attempt.operation, self.snapshot);
        let key = Some(operation.key().as_str());
        if changes.has_ended {
            delete_ended(&mut self.batch, self.tables, operation, snapshot.found.now_ms);
        }
        for (row, waiter) in &changes.changed {
            let asks = asking == Some(&waiter.token);
            let channel = if asks { channel } else { snapshot.channels.get(&row.place) };
            if asks {
                self.checks.own_at = Some(self.batch.answers());
            }
            // A place that was renewed since it was read is not made shorter.
            let update = "SET waiter = $3::json, channel = $4, ends_ms = CASE WHEN ends_ms = $5::bigint THEN $6::bigint \
                 ELSE greatest(ends_ms, $6::bigint) END WHERE key = $1 AND place = $2::bigint";
            let values = [
                key,
                Some(&row.place.to_string()),
                Some(&json(waiter)),
                channel.map(String::as_str),
                Some(&row.waiter.ends_ms.to_string()),
                Some(&waiter.ends_ms.to_string()),
            ];
            self.batch.add(&format!("UPDATE {waiters} {update}"), &values);
        }
        if let Some(joined) = changes.joined {
            self.checks.own_at = Some(self.batch.answers());
            let insert = "(key, token, waiter, ends_ms, channel) VALUES ($1, $2, $3::json, $4::bigint, $5)";
            let (token, ends_ms) = (joined.token.as_str(), joined.ends_ms.to_string());
            let values = [key, Some(token), Some(&json(joined)), Some(&ends_ms), channel.map(String::as_str)];
            self.batch.add(&format!("INSERT INTO {waiters} {insert}"), &values);
        }
        self.place = changes.ahead.zip(asking).map(|(ahead, asking)| self.place_of(asking, ahead));
    }

    /// Returns where to find the place of the waiter that asks, which so many of those that were read are `ahead` of.
    fn place_of(&mut self, asking: &Token, ahead: u64) -> PlaceSource {
        let found = &self.snapshot.found;
        if found.queue.is_whole {
            return PlaceSource::Known(ahead);
        }
        let waiters = &self.tables.waiters;
        self.batch.add(
            &format!(
                "SELECT count(*) FROM {waiters} WHERE key = $1 AND ends_ms > $3::bigint \
                 AND place < (SELECT place FROM {waiters} WHERE key = $1 AND token = $2)"
            ),
            &[Some(self.attempt.operation.key().as_str()), Some(asking.as_str()), Some(&found.now_ms.to_string())],
        );
        PlaceSource::Answer(self.batch.answers() - 1)
    }

    /// Notifies these waiters, if they listen. They find out by themselves otherwise, but later.
    fn wake(&mut self, woken: &[Token]) {
        let Snapshot { found, channels, .. } = self.snapshot;
        let rows = woken.iter().filter_map(|token| found.rows_in_force().find(|row| row.waiter.token == *token));
        let channels = array(rows.filter_map(|row| channels.get(&row.place)));
        if channels != array::<&String>([]) && self.attempt.notices == Notices::Sent {
            self.batch.add(NOTIFY, &[Some(&channels)]);
        }
    }
}

/// Notifies the channels $1.
pub(super) const NOTIFY: &str = "SELECT pg_notify(channel, '') FROM unnest($1::text[]) AS it (channel)";

/// Returns the statement that writes the record $4 of the lock $1, and deletes the rows of its waiters with the places
/// $2 whose ends are $3.
pub(super) fn hand_off(tables: &Tables) -> String {
    let update = "SET state = $4::json WHERE key = $1 AND (SELECT one FROM are_as_read) = 1";
    format!("{} UPDATE {} {update}", delete_gone(tables), tables.locks)
}

/// Returns the beginning of a statement that deletes these rows. Its number `one` is a division by zero if one of them
/// is not as it was read.
fn delete_gone(tables: &Tables) -> String {
    format!(
        "WITH gone AS (DELETE FROM {} AS it USING unnest($2::bigint[], $3::bigint[]) AS was (place, ends_ms) \
          WHERE it.key = $1 AND it.place = was.place AND it.ends_ms = was.ends_ms RETURNING it.place), \
         are_as_read AS (SELECT 1 / (count(*) = cardinality($2::bigint[]))::int AS one FROM gone)",
        tables.waiters
    )
}

/// Returns a PostgreSQL array of numbers, or of words that consist of letters, digits and underscores.
fn array<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let words: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    format!("{{{}}}", words.join(","))
}
