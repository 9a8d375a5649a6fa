//! The second round trip of an operation: writes what has changed, and commits. For the notices that wake waiters see `notices.rs`.

use std::time::Duration;

use super::batch::{Batch, Commit};
use super::connection::{Answer, Connection};
use super::encoding::{array, boolean, json};
use super::facts::{Queued, RollCall};
use super::failure::Failure;
use super::operation::Subject;
use super::reading::{Found, WaitsBy};
use super::schema::Tables;
use super::waiting::{Look, beat_in};
use crate::lock::state::{Applied, LockState, WaiterState, millis};
use crate::lock::token::Token;
use crate::store::record_limit::{self, RecordTooLong};

/// The second round trip.
pub(super) struct SecondTrip<'a> {
    pub(super) tables: &'a Tables,
    pub(super) subject: Subject<'a>,
    pub(super) found: &'a Found,
    /// See [`Connection::session`].
    pub(super) session: i64,
    /// What the answers must say.
    pub(super) checks: Checks,
    /// Whether the waiter that asks joins the queue.
    joins: bool,
    /// Whether the operation does nothing else, and stays right while the record does not change.
    pub(super) only_joins: bool,
    /// The statements.
    pub(super) batch: Batch,
    /// When the waiter that asks looks again, if it waits.
    pub(super) look: Option<Look>,
    /// Its place.
    pub(super) place: PlaceSource,
    /// The token for which the session listens afterwards.
    pub(super) listens_for: Option<Token>,
    /// Whether the session stops listening for its previous token.
    pub(super) ends_listening: bool,
    /// Why none of this must be carried out.
    pub(super) refused: Option<RecordTooLong>,
}

/// What the answers must say: another user's rule or trigger may have discarded a write.
#[derive(Clone, Copy)]
pub(super) struct Checks {
    /// Whether the first statement writes the record of the lock; otherwise only the queue has changed.
    writes_record: bool,
    /// The index of the statement that joins the queue, if it does so only if the record is still as it was read.
    joins_at: Option<usize>,
    /// The index of the statement that commits.
    commit_at: usize,
}

impl Checks {
    /// Fails unless the answers, none of which is a refusal, say that everything was written and committed, and that the server did not
    /// cancel its wait for a standby: a failover could lose what was written.
    pub(super) fn verify(self, answers: &[Answer]) -> Result<(), Failure> {
        // Outside the transaction the write would have been blind, over what another client may have written since.
        let is_written =
            |answer: &Answer| answer.in_transaction && matches!(answer.tag.as_str(), "UPDATE 1" | "DELETE 1");
        let is_recorded = !self.writes_record || answers.first().is_some_and(is_written);
        let has_joined = self.joins_at.is_none_or(|at| answers.get(at).is_some_and(|it| it.tag == "INSERT 0 1"));
        let is_committed = answers.get(self.commit_at).is_some_and(|answer| answer.tag == "COMMIT");
        if !has_joined {
            // The record has changed; or an earlier attempt has joined after all, as the next one finds.
            Err(Failure::RowBusy)
        } else if !is_recorded || !is_committed {
            Err(Failure::Unwritten)
        } else if answers.iter().skip(self.commit_at).any(|answer| answer.is_unconfirmed) {
            Err(Failure::Unconfirmed)
        } else {
            Ok(())
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

impl<'a> SecondTrip<'a> {
    /// Prepares the statements for what an operation has made of what was `found`: the new `state`, and what else it has `applied`.
    pub(super) fn prepare<T>(
        tables: &'a Tables,
        subject: Subject<'a>,
        found: &'a Found,
        connection: &Connection,
        state: &LockState,
        applied: &Applied<T>,
    ) -> Self {
        let at = subject.asking.and_then(|asking| state.waiters.iter().position(|waiter| waiter.token == *asking));
        let end_in = applied.look_at_ms.map(|at_ms| Duration::from_millis(at_ms.saturating_sub(found.now_ms)));
        let facts = found.facts(subject);
        let roll_call = facts.roll_call(state);
        let beat_in = beat_in(found.now_ms);
        let polls = found.waits_by != WaitsBy::Listening;
        let look = at.and(subject.asking).map(|asking| {
            // If it was granted the lock beside others, it claims it at once.
            let is_granted = applied.granted.contains(asking).then_some(Duration::ZERO);
            let is_blocked = roll_call.blocked.contains(asking).then_some(beat_in);
            // A waiter that joins is the last for now.
            let is_last = facts.row_of(asking).is_none_or(|row| row.is_returning);
            let look_in = is_granted.or(is_blocked);
            let mut look = Look::in_turn(facts.ahead_of(asking, state), is_last, end_in, look_in, polls);
            look.gives_up_connection = found.waits_by == WaitsBy::Visiting;
            look
        });
        let mut trip = SecondTrip {
            tables,
            subject,
            found,
            session: connection.session,
            checks: Checks { writes_record: false, joins_at: None, commit_at: 0 },
            only_joins: false,
            joins: false,
            batch: Batch::default(),
            look,
            place: PlaceSource::Known(at.unwrap_or(0) as u64),
            listens_for: look.filter(|_| !polls).and(subject.asking).cloned(),
            ends_listening: false,
            refused: None,
        };
        trip.write_record(state);
        trip.write_queue(state);
        trip.only_joins = trip.only_joins(state, &roll_call, applied);
        trip.count();
        trip.call(&roll_call, beat_in);
        trip.wake(state, applied);
        trip.listen(connection);
        let hands_off = applied.granted.iter().any(|token| subject.asking != Some(token));
        let how = match trip.checks.writes_record || trip.joins {
            // The next holder need not wait for the disk twice.
            true if hands_off => found.hand_off,
            true => Commit::Durable,
            // What is already there may not have reached the disk or the standbys.
            false if subject.may_be_done => found.hand_off,
            // If a crash makes the server forget this, it only costs time: that is not worth waiting for the disk.
            false => Commit::NotDurable,
        };
        trip.checks.commit_at = trip.batch.commit(how);
        trip
    }

    /// Returns whether a statement follows the commit, so that a refusal does not mean that nothing was done.
    pub(super) fn may_be_refused_when_done(&self) -> bool {
        self.batch.len() > self.checks.commit_at + 1
    }

    fn write_record(&mut self, state: &LockState) {
        let locks = &self.tables.locks;
        let key = Some(self.subject.key.as_str());
        let state = LockState { waiters: Vec::new(), ..state.clone() };
        let record = json(&state);
        if record == self.found.record {
            return;
        }
        let before = (&self.found.state, self.found.record.len());
        self.refused = record_limit::check(before, (&state, record.len())).err();
        // The lock is then as if it had never been used.
        if state == LockState::default() {
            self.batch.add(&format!("DELETE FROM {locks} WHERE key = $1"), &[key]);
        } else {
            self.batch.add(&format!("UPDATE {locks} SET state = $2::json WHERE key = $1"), &[key, Some(&record)]);
        }
        self.checks.writes_record = true;
    }

    /// Writes the rows of the waiters that have changed.
    fn write_queue(&mut self, state: &LockState) {
        let waiters = &self.tables.waiters;
        let key = Some(self.subject.key.as_str());
        let find = |token: &Token| state.waiters.iter().find(|waiter| waiter.token == *token);
        let mut gone = Vec::new();
        for row in &self.found.queue {
            let place = row.place.to_string();
            match find(&row.waiter.token) {
                Some(after) if *after == row.waiter => {}
                Some(after) => self.batch.add(
                    &format!(
                        "UPDATE {waiters} SET waiter = $3::json, is_granted = $4::boolean, grant_ends_ms = $5::bigint, \
                         is_unresponsive = $6::boolean WHERE key = $1 AND place = $2::bigint"
                    ),
                    &[
                        key,
                        Some(&place),
                        Some(&json(after)),
                        Some(boolean(after.grant.is_some())),
                        grant_ends(after).as_deref(),
                        Some(boolean(after.is_unresponsive)),
                    ],
                ),
                None => gone.push(place),
            }
        }
        if !gone.is_empty() {
            let statement = format!("DELETE FROM {waiters} WHERE key = $1 AND place = ANY($2::bigint[])");
            self.batch.add(&statement, &[key, Some(&array(&gone))]);
        }
        let (Some(asking), Some(look)) = (self.subject.asking, self.look) else { return };
        let Some(own) = find(asking) else { return };
        let looked_at_ms = self.found.now_ms.to_string();
        let looks_at_ms = self.found.now_ms.saturating_add(millis(look.heard_within())).to_string();
        let session = (self.found.waits_by == WaitsBy::Listening).then(|| self.session.to_string());
        let (session, looked, looks) = (session.as_deref(), Some(looked_at_ms.as_str()), Some(looks_at_ms.as_str()));
        if self.found.queue.iter().any(|row| row.waiter.token == *asking) {
            self.batch.add(
                &format!(
                    "UPDATE {waiters} SET session = $3::bigint, looked_at_ms = $4::bigint, looks_at_ms = $5::bigint \
                     WHERE key = $1 AND token = $2"
                ),
                &[key, Some(asking.as_str()), session, looked, looks],
            );
        } else {
            self.join(own, session, looked, looks);
        }
    }

    /// Adds the row of the waiter that asks. If the row of the lock is not locked, only if the record is still as it was read.
    fn join(&mut self, own: &WaiterState, session: Option<&str>, looked: Option<&str>, looks: Option<&str>) {
        let Tables { locks, waiters, .. } = self.tables;
        self.joins = true;
        let (waiter, grant_ends) = (json(own), grant_ends(own));
        let values = [
            Some(self.subject.key.as_str()),
            Some(own.token.as_str()),
            Some(&waiter),
            Some(boolean(own.grant.is_some())),
            session,
            looked,
            looks,
            grant_ends.as_deref(),
        ];
        let columns = "key, token, waiter, is_granted, session, looked_at_ms, looks_at_ms, grant_ends_ms";
        let insert = format!(
            "INSERT INTO {waiters} ({columns}) \
             SELECT $1::text, $2::text, $3::json, $4::boolean, $5::bigint, $6::bigint, $7::bigint, $8::bigint"
        );
        if self.found.is_locked {
            self.batch.add(&insert, &values);
            return;
        }
        self.checks.joins_at = Some(self.batch.len());
        // FOR SHARE keeps the record as it is until this is committed. An earlier attempt may have joined meanwhile.
        let unchanged = format!("(SELECT FROM {locks} WHERE key = $1 AND state::text = $9 FOR SHARE) AS unchanged");
        let values = [&values[..], &[Some(self.found.record.as_str())]].concat();
        self.batch.add(&format!("{insert} FROM {unchanged} ON CONFLICT DO NOTHING"), &values);
    }

    /// Returns whether the operation does nothing but join the queue, and the holders alone leave no room for the waiter. Grants do not
    /// count: they are stored in the waiters' rows, and when a granted waiter leaves, the record does not change.
    fn only_joins<T>(&self, state: &LockState, roll_call: &RollCall, applied: &Applied<T>) -> bool {
        let find = |token: &Token| state.waiters.iter().find(|waiter| waiter.token == *token);
        let is_unchanged = |row: &Queued| find(&row.waiter.token).is_some_and(|after| *after == row.waiter);
        let changes_none = !self.checks.writes_record && self.found.queue.iter().all(is_unchanged);
        let calls_none = applied.granted.is_empty() && *roll_call == RollCall::default();
        let held = LockState { waiters: Vec::new(), ..state.clone() };
        let has_room = self.subject.asking.and_then(find).is_none_or(|waiter| held.has_room(waiter.mode));
        self.joins && changes_none && calls_none && !has_room
    }

    /// Asks how many waiters are ahead of the one that asks, unless that is known.
    fn count(&mut self) {
        let Some(asking) = self.subject.asking.filter(|_| self.look.is_some() && !self.found.has_all_waiters) else {
            return;
        };
        let waiters = &self.tables.waiters;
        self.place = PlaceSource::Answer(self.batch.len());
        self.batch.add(
            &format!(
                "SELECT count(*) FROM {waiters} \
                 WHERE key = $1 AND place < (SELECT place FROM {waiters} WHERE key = $1 AND token = $2)"
            ),
            &[Some(self.subject.key.as_str()), Some(asking.as_str())],
        );
    }
}

/// Returns when the waiter's grant ends, if it was granted the lock.
fn grant_ends(waiter: &WaiterState) -> Option<String> {
    waiter.grant.map(|grant| grant.ends_ms.to_string())
}
