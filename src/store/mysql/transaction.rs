//! One operation on a lock: a short transaction of two round trips.
//!
//! The first locks the row of the lock and those of the first waiters, and reads them; a place that is renewed
//! meanwhile waits for the commit. Only then it reads the clock: UTC_TIMESTAMP is the time at which its own statement
//! began, so it stands in a statement behind those that may have to wait. The rules are applied here. The second trip
//! writes what has changed and commits.
//!
//! An operation writes rows of the queue only while it has locked the row of the lock. The one exception is a waiter that
//! renews its own place, and locks nothing else. So no two operations wait for each other in a circle.

use std::time::Duration;

use super::MysqlStore;
use super::connection::{Answer, Batch, MAY_BE_IDLE};
use super::failure::{Failure, ServerError};
use super::schema::{Tables, VERSION, bytes};
use super::waiting::Place;
use crate::lock::state::LockState;
use crate::store::engine::{
    self, Changes, Commit, FIRST_WAITERS, Found, HAND_OFFS_MAX, MORE_WAITERS, Operation, Queue, RecordChange, Row,
    Transactions, Transition, View, json, read_state,
};
use crate::sys::clock::Moment;

/// How many attempts an operation has. Another one is needed if the lock's row or the tables were missing, or the server
/// rolled the transaction back.
const ATTEMPTS: u32 = 5;

/// The server's current time in milliseconds of Unix time.
pub(super) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000";

/// An operation that is being carried out.
pub(in crate::store) struct Attempt<'a> {
    operation: Operation<'a>,
    /// Whether it creates the row of the lock if it is missing: the lock may never have been used.
    creates: bool,
    /// Until when it waits for answers.
    answer_by: Moment,
    /// Whether the connection was already open, and idle.
    was_idle: bool,
    /// How many attempts are left.
    left: u32,
}

/// What the first trip has read.
pub(in crate::store) struct Snapshot {
    found: Found,
    /// The last place in the queue.
    last_place: i64,
}

impl Attempt<'_> {
    /// Prepares the next attempt after this `failure`, or fails with it if there is none left.
    fn next(&mut self, failure: Failure) -> Result<(), Failure> {
        self.left -= 1;
        if self.left == 0 { Err(failure) } else { Ok(()) }
    }
}

/// Returns the beginning of a transaction, whatever the settings of the session are. Each statement has a time-out. So
/// has a pause between the two trips, and for so long what the server sends may remain unread: the shortest that there
/// is. For so long, a lockrun that is stopped just then keeps others from the lock. MySQL has time-outs in whole seconds
/// alone; `/*M! */` is read by MariaDB only.
pub(super) fn transaction(answer_by: Moment) -> Batch {
    let left = answer_by.since(Moment::now()).max(Duration::from_millis(1));
    let seconds = (left.as_secs() * 3 / 4).clamp(1, 31_536_000);
    let mut batch = Batch::default();
    batch.add(format!(
        "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', SESSION autocommit = 1, \
         SESSION completion_type = 'NO_CHAIN', SESSION wait_timeout = 1, SESSION net_write_timeout = 1, \
         SESSION innodb_lock_wait_timeout = {seconds}, SESSION lock_wait_timeout = {seconds} /*M!, SESSION max_statement_time = {:.3} */",
        left.as_secs_f64().min(31_536_000.0)
    ));
    batch.add("SET TRANSACTION ISOLATION LEVEL READ COMMITTED");
    batch.add("START TRANSACTION READ WRITE");
    batch
}

/// Returns whether a server takes no writes, by its variable `read_only`. It lets its administrators write all the same,
/// but what they write is not replicated, and may be lost.
pub(super) fn is_read_only(variable: Option<&str>) -> bool {
    !matches!(variable, Some("0" | "OFF"))
}

impl Transactions for MysqlStore {
    type Snapshot = Snapshot;
    type Attempt<'a> = Attempt<'a>;
    type Rejection = ServerError;

    fn begin<'a>(&mut self, operation: Operation<'a>, deadline: Moment) -> Attempt<'a> {
        let creates = match operation {
            Operation::Acquire { .. } => self.place.is_none(),
            Operation::Reserve(_) | Operation::Cancel(_) => true,
            Operation::Renew { .. } | Operation::Release { .. } | Operation::OnLock(_) => false,
        };
        let was_idle = self.is_connected();
        Attempt { operation, creates, answer_by: deadline, was_idle, left: ATTEMPTS }
    }

    /// Locks the row of the lock, and reads. Starts again if that fails in a way that another attempt may mend.
    fn read(&mut self, attempt: &mut Attempt<'_>) -> Result<Snapshot, Failure> {
        loop {
            match self.read_trip(attempt) {
                Ok(snapshot) => return Ok(snapshot),
                Err(failure) => self.after_read(failure, attempt)?,
            }
        }
    }

    fn view(&mut self, _: &mut Attempt<'_>, snapshot: &Snapshot) -> Result<(LockState, View), Failure> {
        Ok((snapshot.found.state(), snapshot.found.view(self.may_be_done, HAND_OFFS_MAX)))
    }

    /// If the waiters that were read are too few for the rules, reads more. If the server has rolled the transaction
    /// back because of others, reads again.
    fn commit(
        &mut self,
        attempt: &mut Attempt<'_>,
        mut snapshot: Snapshot,
        transition: Transition,
    ) -> Result<Commit<Snapshot>, Failure> {
        if !snapshot.found.suffices(&transition) {
            return match self.read_more_waiters(attempt, &mut snapshot) {
                Err(failure) if failure.rejection().is_some_and(ServerError::is_worth_repeating) => {
                    attempt.next(failure)?;
                    self.read(attempt).map(Commit::Again)
                }
                read => read.map(|()| Commit::Again(snapshot)),
            };
        }
        match self.commit_trip(attempt, &snapshot, &transition) {
            Ok(place) => Ok(Commit::Done(place)),
            Err(failure) if failure.rejection().is_some_and(ServerError::is_worth_repeating) => {
                attempt.next(failure)?;
                self.read(attempt).map(Commit::Again)
            }
            // An old connection may have been closed for reasons that do not concern this request.
            Err(failure) if failure.is_closed() && attempt.was_idle && attempt.operation.is_repeatable() => {
                attempt.was_idle = false;
                self.read(attempt).map(Commit::Again)
            }
            Err(failure) => Err(failure),
        }
    }

    /// An abandoned transaction would keep the row locked.
    fn abandon(&mut self, attempt: Attempt<'_>, _: &Failure) {
        if let Some(connection) = self.connection.as_mut().filter(|connection| !connection.is_broken) {
            // If that fails, the connection is broken, and the server ends the session.
            let _ = connection.roll_back(attempt.answer_by);
        }
    }
}

impl MysqlStore {
    /// Locks the row of the lock and reads what the rules need. If the connection turns out to have been closed while
    /// it was idle, opens a new one, once; if a host takes no writes, tries the others.
    fn read_trip(&mut self, attempt: &Attempt<'_>) -> Result<Snapshot, Failure> {
        let mut others = self.server.hosts.len() - 1;
        loop {
            let was_open = self.is_connected();
            match self.try_read_trip(attempt) {
                Err(failure) if was_open && failure.is_closed() => {}
                Err(failure) if failure.is_of_replica() => {
                    self.leave_replica();
                    if others == 0 {
                        return Err(failure);
                    }
                    others -= 1;
                }
                read => return read.map_err(Failure::or_mismatch),
            }
        }
    }

    fn try_read_trip(&mut self, attempt: &Attempt<'_>) -> Result<Snapshot, Failure> {
        let Tables { version, locks, waiters } = self.tables.clone();
        let connection = if attempt.operation.waiter().is_some() {
            self.connected(attempt.answer_by)?
        } else {
            self.connected_in_time(attempt.answer_by)?
        };
        connection.roll_back(attempt.answer_by)?;
        let key = bytes(attempt.operation.key().as_str());
        let mut batch = transaction(attempt.answer_by);
        if attempt.creates {
            // Unlike INSERT IGNORE, this locks a row that is there as the next statement does: two that create it at
            // once do not wait for each other.
            batch.add(format!("INSERT INTO {locks} (k, state) VALUES ({key}, '{{}}') ON DUPLICATE KEY UPDATE k = k"));
        }
        let row_at = batch.add(format!("SELECT state FROM {locks} WHERE k = {key} FOR UPDATE"));
        let queue_at = add_queue(&mut batch, &waiters, attempt.operation, FIRST_WAITERS);
        let facts_at = batch.add(format!(
            "SELECT {NOW}, @@GLOBAL.read_only, (SELECT MAX(version) FROM {version}), \
             (SELECT COALESCE(MAX(place), 0) FROM {waiters} WHERE k = {key})"
        ));
        let checks_tables = !connection.has_checked_tables;
        let engines_at = checks_tables.then(|| batch.add(format!("SELECT {}", engines_of(&[&locks, &waiters]))));
        let answers = connection.run(&batch, attempt.answer_by)?;
        if !connection.is_in_transaction {
            return Err(Failure::unwritten());
        }
        let [Some(now_ms), read_only, version, Some(last_place)] = answers[facts_at].row()? else {
            return Err(Failure::INCOMPLETE);
        };
        if is_read_only(read_only.as_deref()) {
            return Err(Failure::read_only());
        }
        check_version(version.as_deref())?;
        if let Some(at) = engines_at {
            let [engines] = answers[at].row()?;
            check_engines(engines.as_deref())?;
            connection.has_checked_tables = true;
        }
        let row = answers[row_at].rows.first().ok_or(Failure::ROW_DELETED)?;
        let [Some(record)] = &row[..] else { return Err(Failure::INCOMPLETE) };
        let (now_ms, last_place) = (now_ms.parse(), last_place.parse());
        let found = Found {
            state: read_state(record)?,
            record: record.clone(),
            now_ms: now_ms.map_err(|_| Failure::INCOMPLETE)?,
            queue: read_queue(&answers[queue_at..], FIRST_WAITERS)?,
        };
        Ok(Snapshot { found, last_place: last_place.map_err(|_| Failure::INCOMPLETE)? })
    }

    /// Prepares another attempt after a `failure` of the first trip, which has changed nothing, or fails with it if
    /// another attempt would not help.
    fn after_read(&mut self, failure: Failure, attempt: &mut Attempt<'_>) -> Result<(), Failure> {
        match &failure {
            Failure::Deleted(_) => attempt.creates = true,
            Failure::Rejected(rejection) if rejection.lacks_tables() => match self.create_tables(attempt.answer_by) {
                Err(failure) if failure.is_of_replica() => self.leave_replica(),
                created => created?,
            },
            Failure::Rejected(rejection) if rejection.is_worth_repeating() => {}
            _ => return Err(failure),
        }
        attempt.next(failure)
    }

    /// Reads more waiters of the lock. First deletes those whose places have ended, as the rules do with those that
    /// were read: there may be thousands.
    fn read_more_waiters(&mut self, attempt: &Attempt<'_>, snapshot: &mut Snapshot) -> Result<(), Failure> {
        let waiters = &self.tables.waiters;
        let mut batch = Batch::default();
        batch.add(delete_ended(waiters, attempt.operation, snapshot.found.now_ms));
        let queue_at = add_queue(&mut batch, waiters, attempt.operation, MORE_WAITERS);
        // A place may have been renewed since the clock was read.
        let now_at = batch.add(format!("SELECT {NOW}"));
        let connection = self.connection.as_mut().ok_or(Failure::Closed)?;
        let answers = connection.run(&batch, attempt.answer_by)?;
        snapshot.found.queue = read_queue(&answers[queue_at..], MORE_WAITERS)?;
        let [now_ms] = answers[now_at].row()?;
        snapshot.found.now_ms = now_ms.as_ref().and_then(|text| text.parse().ok()).ok_or(Failure::INCOMPLETE)?;
        Ok(())
    }

    /// Writes the result of the rules, and commits. If the one that asks then waits, returns its place. Notes whether a
    /// failure leaves the outcome unknown.
    fn commit_trip(
        &mut self,
        attempt: &Attempt<'_>,
        snapshot: &Snapshot,
        transition: &Transition,
    ) -> Result<Option<engine::Place>, Failure> {
        let Tables { locks, waiters, .. } = &self.tables;
        let (operation, found) = (attempt.operation, &snapshot.found);
        let key = bytes(operation.key().as_str());
        let asking = operation.waiter().map(|claim| &claim.token);
        let changes = Changes::of(found, &transition.after, asking);
        if let Some(refused) = changes.refused {
            return Err(Failure::RecordTooLong(refused));
        }
        let mut batch = Batch::default();
        // Now, so that the answer to the commit is the last one.
        batch.add(MAY_BE_IDLE);
        // The answers that must say that one row was found, in the transaction in which it was locked.
        let mut checked = Vec::new();
        match &changes.record {
            Some(RecordChange::Deleted) => checked.push(batch.add(format!("DELETE FROM {locks} WHERE k = {key}"))),
            Some(RecordChange::Written(record)) => {
                checked.push(batch.add(format!("UPDATE {locks} SET state = {} WHERE k = {key}", bytes(record))));
            }
            None => {}
        }
        if !changes.gone.is_empty() {
            let places: Vec<String> = changes.gone.iter().map(|row| row.place.to_string()).collect();
            batch.add(format!("DELETE FROM {waiters} WHERE k = {key} AND place IN ({})", places.join(",")));
        }
        if changes.has_ended {
            batch.add(delete_ended(waiters, operation, found.now_ms));
        }
        let mut own_place = None;
        for (row, waiter) in &changes.changed {
            own_place = own_place.or((asking == Some(&waiter.token)).then_some(row.place));
            let (json, ends_ms, place) = (bytes(&json(waiter)), waiter.ends_ms, row.place);
            let set = format!("waiter = {json}, ends_ms = {ends_ms}");
            checked.push(batch.add(format!("UPDATE {waiters} SET {set} WHERE k = {key} AND place = {place}")));
        }
        if let Some(joined) = changes.joined {
            let place = snapshot.last_place.saturating_add(1);
            let (token, json, ends_ms) = (bytes(joined.token.as_str()), bytes(&json(joined)), joined.ends_ms);
            let values = format!("({key}, {place}, {token}, {json}, {ends_ms})");
            checked
                .push(batch.add(format!("INSERT INTO {waiters} (k, place, token, waiter, ends_ms) VALUES {values}")));
            own_place = Some(place);
        }
        let ahead_at = own_place.filter(|_| !found.queue.is_whole).map(|place| {
            let now_ms = found.now_ms;
            let ahead = format!("k = {key} AND place < {place} AND ends_ms > {now_ms}");
            batch.add(format!("SELECT COUNT(*) FROM {waiters} WHERE {ahead}"))
        });
        let commit_at = batch.add("COMMIT");
        let connection = self.connection.as_mut().ok_or(Failure::Closed)?;
        let answers = match connection.run(&batch, attempt.answer_by) {
            Ok(answers) => answers,
            Err(failure) => {
                let is_open = failure.rejection().is_none_or(|it| it.at == commit_at && !it.is_worth_repeating());
                return Err(if is_open { self.note_outcome(failure) } else { failure });
            }
        };
        self.may_be_done = false;
        if !checked.iter().all(|at| answers[*at].affected == 1 && answers[*at].in_transaction) {
            return Err(self.note_outcome(Failure::unwritten()));
        }
        let counted = ahead_at.map(|at| answers[at].row::<1>().map(|[count]| count.as_ref()?.parse().ok()));
        let ahead = counted.transpose()?.flatten().or(changes.ahead);
        if matches!(operation, Operation::Acquire { .. }) {
            let place = own_place.zip(ahead);
            self.place = place.map(|(place, ahead)| Place::new(place, ahead, &transition.after));
        }
        Ok(ahead.map(|ahead| engine::Place { ahead, look_in: None }))
    }

    /// Notes that the transaction may have been committed, or may be later, in spite of this `failure`.
    fn note_outcome(&mut self, failure: Failure) -> Failure {
        self.may_be_done = true;
        failure
    }

    /// Creates the tables that are missing.
    fn create_tables(&mut self, deadline: Moment) -> Result<(), Failure> {
        let (creation, server) = (self.tables.creation(), self.server.clone());
        let mut batch = Batch::outside("SET SESSION lock_wait_timeout = 5");
        for statement in creation {
            batch.add(statement);
        }
        let connection = self.connected(deadline)?;
        connection.roll_back(deadline)?;
        match connection.run(&batch, deadline) {
            Err(Failure::Rejected(rejection)) if rejection.lacks_rights() => Err(Failure::lasting(format!(
                "has no tables for locks in the database {:?}, and the user {:?} may not create them; lockrun doctor \
                 --schema prints what an administrator has to run",
                server.database, server.user
            ))),
            created => created.map(|_| ()),
        }
    }
}

/// Adds the statements that read so many of the first waiters, and the one that asks; and that count the others, if that
/// matters. Returns the index of the first answer.
fn add_queue(batch: &mut Batch, waiters: &str, operation: Operation<'_>, limit: usize) -> usize {
    let key = bytes(operation.key().as_str());
    let asking = operation.asking().map_or("NULL".to_owned(), |token| bytes(token.as_str()));
    let columns = "place, waiter, ends_ms";
    // Another index would lock the rows of all waiters.
    let first = format!("FROM {waiters} FORCE INDEX (PRIMARY) WHERE k = {key} ORDER BY place");
    let at = batch.add(format!("SELECT {columns} {first} LIMIT {limit} FOR UPDATE"));
    batch.add(format!("SELECT {columns} FROM {waiters} WHERE k = {key} AND token = {asking} FOR UPDATE"));
    let others = format!("(SELECT token, ends_ms {first} LIMIT 18446744073709551615 OFFSET {limit}) AS others");
    batch.add(if operation.counts_waiters() {
        format!("SELECT COUNT(*) FROM {others} WHERE ends_ms > {NOW} AND NOT token <=> {asking}")
    } else {
        "SELECT 0".to_owned()
    });
    at
}

/// Reads the answers to these statements.
fn read_queue(answers: &[Answer], limit: usize) -> Result<Queue, Failure> {
    let [first, own, unread, ..] = answers else { return Err(Failure::INCOMPLETE) };
    let read = |row: &Vec<Option<String>>| match &row[..] {
        [Some(place), Some(waiter), Some(ends_ms)] => Row::read(place, waiter, ends_ms),
        _ => Err(Failure::INCOMPLETE),
    };
    let first = first.rows.iter().map(read).collect::<Result<_, _>>()?;
    let own = own.rows.first().map(read).transpose()?;
    let [unread] = unread.row()?;
    let unread = unread.as_ref().and_then(|count| count.parse().ok()).ok_or(Failure::INCOMPLETE)?;
    Ok(Queue::new(first, own, limit, unread))
}

/// Returns the statement that deletes the waiters of the lock whose places have ended by `now_ms`.
fn delete_ended(waiters: &str, operation: Operation<'_>, now_ms: u64) -> String {
    format!("DELETE FROM {waiters} WHERE k = {} AND ends_ms <= {now_ms}", bytes(operation.key().as_str()))
}

/// Returns the expression for those of these tables that are not InnoDB's, each with its engine.
pub(super) fn engines_of(tables: &[&str]) -> String {
    let names: Vec<String> = tables.iter().map(|name| format!("'{}'", name.trim_matches('`'))).collect();
    format!(
        "(SELECT GROUP_CONCAT(CONCAT(TABLE_NAME, ' ', COALESCE(ENGINE, TABLE_TYPE))) FROM information_schema.TABLES \
         WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN ({}) AND NOT ENGINE <=> 'InnoDB')",
        names.join(",")
    )
}

/// Fails if there are tables whose engine is not InnoDB.
pub(super) fn check_engines(others: Option<&str>) -> Result<(), Failure> {
    match others.filter(|others| !others.is_empty()) {
        Some(others) => Err(Failure::lasting(format!(
            "has tables for locks that are not InnoDB's ({others}): they have no transactions, so that two runs could get \
             the same lock; ALTER TABLE … ENGINE = InnoDB"
        ))),
        None => Ok(()),
    }
}

/// Fails if `version` is that of a later lockrun's tables. Without a version they count as of this version.
pub(super) fn check_version(version: Option<&str>) -> Result<(), Failure> {
    match version.map(str::parse::<i64>) {
        Some(Ok(version)) if version > VERSION => Err(Failure::lasting(format!(
            "has tables of version {version}, which this lockrun does not know; install a later one"
        ))),
        _ => Ok(()),
    }
}
