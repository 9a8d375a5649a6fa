//! One operation on a lock: a short transaction of two round trips.
//!
//! The first ([`super::reading`]) locks the row of the lock, and only then reads the clock: a time from before a wait
//! for the row would be out of date. It also reads the record and the first waiters. The rules are applied here. The
//! second ([`super::writing`]) writes what has changed, wakes waiters and commits.

use std::thread;
use std::time::Duration;

use super::PostgresStore;
use super::connection::Connection;
use super::failure::Failure;
use super::login;
use super::reading::Snapshot;
use super::server_error::ServerError;
use super::waiting::{WaitState, statements_to_prepare};
use super::writing::CommitTrip;
use crate::lock::state::LockState;
use crate::store::engine::{Commit, HAND_OFFS_MAX, Operation, Place, Transactions, Transition, View};
use crate::sys::backoff::Backoff;
use crate::sys::clock::Moment;

/// How long a request for the lock waits at a time for the lock's row, which others have locked. After a second
/// (`deadlock_timeout`) the server compares each session that waits for a row with all others that wait for it: with a
/// thousand of them it does nothing else.
const ROW_WAIT: Duration = Duration::from_millis(900);

/// The least time that must be left to wait for the row once more.
const ROW_WAIT_MIN: Duration = Duration::from_millis(100);

/// How many attempts an operation has. Another one is needed if the lock's row or the tables were missing, a place was
/// renewed just then, or the server rolled the transaction back.
const ATTEMPTS: u32 = 5;

/// A waiter that has just logged in waits this many times as long for the answer as other requests do, if it does not
/// give up earlier. If very many clients log in at once, a server or a pooler answers the last of them late; giving up
/// and logging in again would cost it more than the answer.
pub(super) const LOGIN_PATIENCE: u32 = 3;

/// Whether waiters are notified. Without that they find out by themselves, but later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notices {
    /// They are notified with the commit.
    Sent,
    /// They are not: the server accepts no notifications at the moment.
    NotSent,
}

/// An operation that is being carried out, and how its next attempt proceeds.
// Each is a fact of its own.
#[allow(clippy::struct_excessive_bools)]
pub(in crate::store) struct Attempt<'a> {
    pub(super) operation: Operation<'a>,
    /// Whether it creates the row of the lock if it is missing: the lock may never have been used.
    pub(super) creates: bool,
    /// Whether it asks how many connections are unused: a new waiter does. Not after an attempt that found that the
    /// role lacks the right to.
    pub(super) counts_connections: bool,
    /// Whether it gives up its turn at the row after [`ROW_WAIT`]: it asks for the lock. All else keeps its turn.
    tries_again: bool,
    /// Whether an earlier attempt may have been committed, but not yet have reached the disk and the standbys: this one
    /// waits for both, even if nothing is left to write.
    pub(super) may_be_done: bool,
    /// Whether the waiters are notified. Not after an attempt that found the server's queue of notifications full.
    pub(super) notices: Notices,
    /// To how many waiters it hands the lock. Fewer after an attempt that found that one of them had renewed its
    /// place meanwhile.
    pub(super) hand_offs_max: usize,
    /// Until when it may take to connect.
    connect_by: Moment,
    /// Until when it waits for answers.
    pub(super) answer_by: Moment,
    /// Whether the connection was already open, and idle.
    was_idle: bool,
    /// Whether another attempt may follow if the connection is lost in the second trip.
    may_be_repeated: bool,
    /// How many attempts are left.
    left: u32,
    /// The pauses until a session notices the tables that others have created.
    backoff: Backoff,
}

impl<'a> Attempt<'a> {
    /// Returns the first attempt at an operation of the `store`.
    pub(super) fn first(operation: Operation<'a>, deadline: Moment, store: &PostgresStore) -> Self {
        let is_connected = store.is_connected();
        let place = operation.place();
        let patience = deadline + store.timeout * (LOGIN_PATIENCE - 1);
        let answer_by = match place {
            // An old connection may lead to a server that is gone.
            Some(_) if !is_connected => {
                operation.waits_until().map_or(patience, |until| until.clamp(deadline, patience))
            }
            _ => deadline,
        };
        let may_be_new = match operation {
            Operation::Acquire { .. } => store.wait.is_none(),
            Operation::Reserve(_) | Operation::Cancel(_) => true,
            Operation::Renew { .. } | Operation::Release { .. } | Operation::OnLock(_) => false,
        };
        Attempt {
            operation,
            creates: may_be_new,
            counts_connections: place.is_some() && may_be_new,
            tries_again: matches!(operation, Operation::Acquire { .. } | Operation::Reserve(_)),
            may_be_done: store.may_be_done,
            notices: Notices::Sent,
            hand_offs_max: HAND_OFFS_MAX,
            connect_by: deadline,
            answer_by,
            was_idle: is_connected,
            may_be_repeated: operation.is_repeatable(),
            left: ATTEMPTS,
            backoff: Backoff::new(),
        }
    }

    /// Returns how long it waits at a time for the row if others have locked it.
    pub(super) fn row_wait(&self) -> Duration {
        if self.tries_again { ROW_WAIT } else { Duration::MAX }
    }

    /// Returns whether it waits for the row once more at once. A waiter does so by itself: it renews its place first.
    fn waits_again(&self) -> bool {
        self.tries_again && self.operation.waiter().is_none() && Moment::now() + ROW_WAIT_MIN < self.answer_by
    }

    /// Prepares the next attempt after this `failure`, or fails with it if there is none left.
    fn next(&mut self, failure: Failure) -> Result<(), Failure> {
        self.left -= 1;
        self.connect_by = self.answer_by;
        if self.left == 0 { Err(failure) } else { Ok(()) }
    }

    /// Prepares another attempt after a `failure` of the second trip, or fails with it if another attempt would not
    /// help.
    fn after_commit(&mut self, failure: Failure) -> Result<(), Failure> {
        match &failure {
            // A session that listens but reads no notifications must not keep others from their locks.
            Failure::Rejected(rejection) if self.notices == Notices::Sent && rejection.is_of_full_queue() => {
                self.notices = Notices::NotSent;
            }
            Failure::Rejected(rejection) if rejection.is_worth_repeating() || rejection.is_of_lost_statement => {}
            failure if failure.is_of_changed_place() => {
                self.hand_offs_max = self.hand_offs_max.div_ceil(4);
            }
            // An old connection may have been closed for reasons that do not concern this request.
            failure
                if self.may_be_repeated && (failure.is_closed() && self.was_idle || failure.is_of_ended_session()) =>
            {
                self.may_be_repeated = false;
            }
            _ => return Err(failure),
        }
        self.next(if failure.is_of_changed_place() { Failure::Contended } else { failure })
    }
}

impl Transactions for PostgresStore {
    type Snapshot = Snapshot;
    type Attempt<'a> = Attempt<'a>;
    type Rejection = ServerError;

    fn begin<'a>(&mut self, operation: Operation<'a>, deadline: Moment) -> Attempt<'a> {
        Attempt::first(operation, deadline, self)
    }

    /// Locks the row of the lock, and reads. Starts again if that fails in a way that another attempt may mend.
    fn read(&mut self, attempt: &mut Attempt<'_>) -> Result<Snapshot, Failure> {
        loop {
            attempt.may_be_done = self.may_be_done;
            match self.read_trip(attempt) {
                Ok(found) => return Ok(found),
                Err(failure) => self.after_read(failure, attempt)?,
            }
        }
    }

    fn view(&mut self, attempt: &mut Attempt<'_>, found: &Snapshot) -> Result<(LockState, View), Failure> {
        Ok((found.found.state(), found.found.view(attempt.may_be_done, attempt.hand_offs_max)))
    }

    /// If the waiters that were read are too few for the rules, reads more. If another attempt may mend what has
    /// failed, reads again.
    fn commit(
        &mut self,
        attempt: &mut Attempt<'_>,
        mut found: Snapshot,
        transition: Transition,
    ) -> Result<Commit<Snapshot>, Failure> {
        if !found.found.suffices(&transition) {
            let connection = self.connection.as_mut().ok_or(Failure::Closed)?;
            found.read_more_waiters(connection, &self.tables, attempt)?;
            return Ok(Commit::Again(found));
        }
        match self.commit_trip(attempt, &found, &transition) {
            Ok(place) => {
                if matches!(attempt.operation, Operation::Acquire { .. }) {
                    self.wait = place.map(|ahead| WaitState::new(found.waits_by, ahead, &transition.after));
                }
                Ok(Commit::Done(place.map(|ahead| Place { ahead, look_in: None })))
            }
            Err(failure) => {
                attempt.after_commit(failure)?;
                self.read(attempt).map(Commit::Again)
            }
        }
    }

    /// An abandoned transaction would keep the row locked. One that has failed would keep a pooler's session.
    fn abandon(&mut self, attempt: Attempt<'_>, _: &Failure) {
        if self.connection.as_ref().is_some_and(Connection::is_in_transaction) {
            self.connection = None;
        }
        if let Some(connection) = self.connection.as_mut().filter(|connection| connection.is_in_failed_transaction()) {
            let _ = connection.roll_back(attempt.answer_by);
        }
    }
}

impl PostgresStore {
    /// Locks the row of the lock and reads what the rules need. If the connection turns out to have been closed while
    /// it was idle, or an administrator ends the session, opens a new one, once; if a host turns out to be a standby,
    /// which a pooler in front of it may conceal, tries the others.
    fn read_trip(&mut self, attempt: &Attempt<'_>) -> Result<Snapshot, Failure> {
        let tables = self.tables.clone();
        let mut others = self.server.hosts.len() - 1;
        let mut was_ended = false;
        let visits = self.wait.as_ref().is_some_and(WaitState::visits);
        loop {
            let was_open = self.is_connected();
            let timeout = self.timeout;
            let connected = if attempt.operation.waiter().is_some() {
                self.connected(attempt.connect_by)
            } else {
                self.connected_in_time(attempt.connect_by)
            };
            let read = connected.and_then(|connection| {
                let carry_out_by = attempt.answer_by.min(Moment::now() + timeout);
                Snapshot::read(connection, &tables, attempt, visits, carry_out_by)
            });
            match read {
                Err(failure) if failure.is_of_standby() && others > 0 => others -= 1,
                Err(failure) if was_open && failure.is_closed() => {}
                Err(failure) if failure.is_of_lost_statement() => {}
                Err(failure) if !was_ended && failure.is_of_ended_session() => was_ended = true,
                found => return found.map_err(|failure| self.find_mismatch(failure, attempt.answer_by)),
            }
        }
    }

    /// Prepares another attempt after a `failure` of the first trip, which has changed nothing, or fails with it if
    /// another attempt would not help.
    fn after_read(&mut self, failure: Failure, attempt: &mut Attempt<'_>) -> Result<(), Failure> {
        match &failure {
            Failure::Deleted(_) => attempt.creates = true,
            // A right to count them, or one that the next attempt lacks, too.
            Failure::Rejected(rejection) if attempt.counts_connections && rejection.lacks_rights() => {
                attempt.counts_connections = false;
            }
            Failure::Rejected(rejection) if rejection.lacks_tables() => match self.create_tables(attempt.answer_by) {
                Err(Failure::Rejected(rejection)) if rejection.is_worth_repeating() => {}
                // The next attempt finds what others have created. Otherwise this says what is in the way.
                Err(Failure::Rejected(rejection)) if rejection.is_of_late_notice() => {
                    thread::sleep(attempt.backoff.next());
                    return attempt.next(Failure::Rejected(rejection));
                }
                created => created?,
            },
            Failure::Rejected(rejection) if rejection.is_busy() && attempt.waits_again() => return Ok(()),
            _ => return Err(failure),
        }
        attempt.next(failure)
    }

    /// Writes the result of the rules, and commits. If the one that asks then waits, returns how many waiters are ahead
    /// of it. Notes whether a failure leaves the outcome unknown.
    fn commit_trip(
        &mut self,
        attempt: &Attempt<'_>,
        found: &Snapshot,
        transition: &Transition,
    ) -> Result<Option<u64>, Failure> {
        let connection = self.connection.as_mut().ok_or(Failure::Closed)?;
        let mut second = CommitTrip::prepare(&self.tables, attempt, found, connection, transition);
        if let Some(refused) = second.refused {
            connection.roll_back(attempt.answer_by)?;
            return Err(Failure::RecordTooLong(refused));
        }
        if second.begins_listening && connection.prepared.is_empty() {
            second.batch.prepare(statements_to_prepare(&self.tables), attempt.answer_by);
        }
        let answered = connection.run(&second.batch, attempt.answer_by);
        connection.listens |= answered.is_ok() && second.begins_listening;
        match answered.and_then(|answers| second.checks.verify(&answers).map(|()| answers)) {
            Ok(answers) => {
                self.may_be_done = false;
                Ok(second.place.map(|place| place.of(&answers)))
            }
            Err(failure) => {
                // After the login, a TLS alert is not about our certificate alone.
                let is_late_alert = matches!(failure, Failure::BadCertificate(_));
                self.may_be_done |= is_late_alert || failure.leaves_outcome_open();
                Err(failure)
            }
        }
    }

    /// Creates the tables, and the schema if it is missing.
    fn create_tables(&mut self, deadline: Moment) -> Result<(), Failure> {
        let (tables, schema) = (self.tables.clone(), self.server.schema.clone());
        let is_missing =
            self.rows("SELECT FROM pg_namespace WHERE nspname = $1", &[Some(&schema)], deadline)?.is_empty();
        let connection = self.connected(deadline)?;
        match connection.run(&tables.create(is_missing, deadline), deadline) {
            Ok(_) => Ok(()),
            Err(Failure::Rejected(rejection)) if rejection.is_busy() => {
                Err(Failure::creation_blocked(&rejection, &schema))
            }
            Err(Failure::Rejected(rejection)) if rejection.lacks_rights() => Err(Failure::no_tables(&self.server)),
            Err(failure) => Err(failure),
        }
    }

    /// Returns the connection, as [`Self::connected`] does. If the server has none left at the moment, tries again
    /// until the `deadline`: one may become free. A waiter tries again by itself, and hears signals meanwhile.
    pub(super) fn connected_in_time(&mut self, deadline: Moment) -> Result<&mut Connection, Failure> {
        let mut backoff = Backoff::new();
        while let Err(failure) = self.connected(deadline) {
            let pause = backoff.next();
            if !failure.is_of_used_up_connections() || Moment::now() + pause >= deadline {
                return Err(failure);
            }
            thread::sleep(pause);
        }
        self.connected(deadline)
    }

    /// Returns whether there is a connection that is usable as far as is known.
    fn is_connected(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| !connection.is_broken)
    }

    /// Returns the connection. Opens one if there is none, or it is broken.
    pub(super) fn connected(&mut self, deadline: Moment) -> Result<&mut Connection, Failure> {
        let open = match self.connection.take() {
            Some(mut connection) if !connection.is_broken => {
                connection.has_spoken = false;
                connection
            }
            broken => {
                // From now on, tries a host that is a standby last: if it does not report that at login, it would
                // accept us again.
                if let Some(standby) = broken.filter(|connection| connection.is_known_standby) {
                    self.server.hosts[standby.host..].rotate_left(1);
                }
                login::open(&self.server, self.tls.as_ref(), deadline)?
            }
        };
        Ok(self.connection.insert(open))
    }
}
