//! Waiting in turn: how a waiter renews its place, and how it learns that it was handed the lock.
//!
//! A waiter that has a session of its own listens on a channel of its own. Every role of the database can send a
//! notification, so one read of the record confirms it. Behind a pooler that gives each transaction another session, a
//! waiter cannot listen: it reads the record once or twice a second. So does one that leaves its connection to others.

use std::os::fd::AsFd as _;
use std::time::Duration;

use super::PostgresStore;
use super::batch::{Batch, Preparable, READ_WRITE, SETTINGS};
use super::connection::{Connection, Row};
use super::failure::Failure;
use super::reading::{NOW, WaitsBy, facts, first_waiters, lock_row, read_record_of};
use super::schema::Tables;
use super::transaction::LOGIN_PATIENCE;
use super::writing::{NOTIFY, hand_off};
use crate::lock::state::{ASKS_PER_PLACE, Ahead, LockState, millis};
use crate::store::engine::{View, Wait};
use crate::store::{Claim, Held, Wakeup};
use crate::sys::clock::Moment;
use crate::sys::wait::{WaitObserver, Waiter, WakeReason};

/// The time between two reads of the record by a waiter that cannot listen: for one of the first, and for the others.
const POLL: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(1));

/// Our wait in the queue: what the last answer said.
#[derive(Debug)]
pub(super) struct WaitState {
    /// How we learn that we were handed the lock.
    by: WaitsBy,
    /// What we know of the lock.
    wait: Wait,
}

impl WaitState {
    /// Returns the state after an answer that said that so many are `ahead`, with this record.
    pub(super) fn new(by: WaitsBy, ahead: u64, record: &LockState) -> Self {
        WaitState { by, wait: Wait::new(ahead, record) }
    }

    /// Returns whether we wait without a connection.
    pub(super) fn visits(&self) -> bool {
        self.by == WaitsBy::Visiting
    }

    /// Returns when to read the record, if we do not listen.
    fn poll_at(&self) -> Option<Moment> {
        let every = match self.by {
            WaitsBy::Listening => return None,
            // To log in twice a second would cost the server more than a connection.
            WaitsBy::Polling if self.wait.is_of_the_first() => POLL.0,
            WaitsBy::Polling | WaitsBy::Visiting => POLL.1,
        };
        Some(Moment::now() + every)
    }
}

impl PostgresStore {
    /// Renews our place in the queue, without the row of the lock: waiters do not keep each other waiting, nor the
    /// holder. Returns the answer that we wait; or `None` if we do not wait, or must look at the lock.
    ///
    /// The commit waits for the server's disk, as that of a renewal does: the lease of a lock that is handed to us ends
    /// with the place, so a server that crashed must not go back to an earlier end.
    pub(super) fn renew_own_place(&mut self, claim: &Claim, deadline: Moment) -> Result<Option<Held>, Failure> {
        let Some(by) = self.wait.as_ref().map(|wait| wait.by) else { return Ok(None) };
        // A new session does not listen yet, so it has to ask. That may take a while, if many others do.
        let listens = self.connection.as_ref().is_some_and(|it| it.listens && !it.is_broken);
        let has_to_ask = by == WaitsBy::Listening && !listens;
        let answer_by = if has_to_ask { deadline + self.timeout * (LOGIN_PATIENCE - 1) } else { deadline };
        let (locks, waiters) = (&self.tables.locks, &self.tables.waiters);
        let mut batch = Batch::transaction(READ_WRITE, answer_by);
        let ahead = format!("FROM {waiters} AS it WHERE it.key = $1 AND it.place < own.place");
        batch.add(
            &format!(
                "UPDATE {waiters} AS own SET ends_ms = greatest(own.ends_ms, now.ms + $3::bigint) FROM {NOW} \
                 WHERE own.key = $1 AND own.token = $2 AND own.ends_ms > now.ms \
                 RETURNING now.ms, (SELECT count(*) {ahead} AND it.ends_ms > now.ms), (SELECT min(it.ends_ms) {ahead}), \
                 (SELECT count(*) {ahead} AND it.ends_ms > now.ms AND it.ends_ms < now.ms + $4::bigint), \
                 (SELECT max(it.ends_ms) {ahead} AND it.ends_ms < now.ms + $4::bigint), \
                 (SELECT it.state FROM {locks} AS it WHERE it.key = $1), own.key"
            ),
            &[
                Some(claim.key.as_str()),
                Some(claim.token.as_str()),
                Some(&millis(claim.place()).to_string()),
                Some(&millis(claim.place() / ASKS_PER_PLACE).to_string()),
            ],
        );
        let commit_at = batch.commit(true);
        let answers = self.connected(deadline)?.run(&batch, answer_by);
        let mut answers = match answers {
            Err(failure) if may_be_overcome(&failure) => return Ok(None),
            answers => answers?,
        };
        let is_committed = answers.get(commit_at).is_some_and(|it| it.tag == "COMMIT" && !it.is_unconfirmed);
        match answers.first_mut().and_then(|answer| answer.rows.pop()).filter(|_| is_committed && !has_to_ask) {
            Some(row) => self.waits(claim, by, row),
            None => Ok(None),
        }
    }

    /// Returns the answer that we wait, from the row that the renewal of the place has returned, unless we must look at
    /// the lock.
    fn waits(&mut self, claim: &Claim, by: WaitsBy, mut row: Row) -> Result<Option<Held>, Failure> {
        const LACKS_COLUMNS: Failure = Failure::UnexpectedReply("an answer lacks columns");
        let record = row.split_off(row.len().min(5));
        let [Some(now_ms), Some(place), ends_ahead, Some(dead), last_dead] = &row[..] else {
            return Err(LACKS_COLUMNS);
        };
        let number = |text: &String| text.parse::<u64>().map_err(|_| LACKS_COLUMNS);
        let view = View::at(number(now_ms)?);
        let dead = usize::try_from(number(dead)?).unwrap_or(usize::MAX);
        let ahead = Ahead {
            count: number(place)?,
            first_end_ms: ends_ahead.as_ref().map(number).transpose()?,
            ending: (dead, last_dead.as_ref().map(number).transpose()?),
        };
        // The operation that follows reports a record that is missing or broken.
        let Ok((_, state)) = read_record_of(claim.key.as_str(), record) else { return Ok(None) };
        let held = state.still_waits(claim, ahead, &view);
        if held.is_some() {
            self.wait = Some(WaitState::new(by, ahead.count, &state));
        }
        Ok(held)
    }

    /// Sleeps until we were handed the lock or have to ask, or until `until`.
    pub(super) fn await_notification(
        &mut self,
        claim: &Claim,
        until: Option<Moment>,
        waiter: &mut Waiter<'_>,
        observer: &mut dyn WaitObserver,
    ) -> Result<Wakeup, Failure> {
        let Some(mut poll_at) = self.wait.as_ref().map(WaitState::poll_at) else { return Ok(Wakeup::AskAgain) };
        loop {
            // A notification may already have come with an answer.
            if poll_at.is_none() && self.is_notified()? {
                return self.read_record(claim).map(|wakeup| wakeup.unwrap_or(Wakeup::AskAgain));
            }
            if self.wait.as_ref().is_some_and(WaitState::visits) {
                // Only now: the server does not end a session at once, so to open another one in its place could fail.
                self.connection = None;
            }
            let source = self.connection.as_ref().filter(|_| poll_at.is_none()).map(Connection::as_fd);
            match waiter.wait_for(source, until.into_iter().chain(poll_at).min(), observer) {
                Ok(WakeReason::Signal(signal)) => return Ok(Wakeup::Signal(signal)),
                Ok(WakeReason::Time | WakeReason::Ready | WakeReason::Resumed) => {}
                Err(errno) => return Err(Failure::NoWait(errno)),
            }
            let now = Moment::now();
            if until.is_some_and(|until| until <= now) {
                return Ok(Wakeup::AskAgain);
            }
            if poll_at.is_some_and(|at| at <= now) {
                if let Some(wakeup) = self.read_record(claim)? {
                    return Ok(wakeup);
                }
                poll_at = self.wait.as_ref().and_then(WaitState::poll_at);
            }
        }
    }

    /// Returns whether somebody has notified us. Fails if the session does not listen.
    fn is_notified(&mut self) -> Result<bool, Failure> {
        let connection = self.connection.as_mut().filter(|connection| connection.listens).ok_or(Failure::Closed)?;
        let notifications = connection.notifications()?;
        Ok(notifications.iter().any(|notification| notification.channel == connection.channel))
    }

    /// Reads the record, without a transaction of several statements. Returns what to do if it says that we hold the
    /// lock, or that we have to ask.
    fn read_record(&mut self, claim: &Claim) -> Result<Option<Wakeup>, Failure> {
        let deadline = Moment::now() + self.timeout;
        let mut batch = Batch::default();
        batch.add(&record(&self.tables), &[Some(claim.key.as_str())]);
        let answers = self.connected(deadline)?.run(&batch, deadline);
        let Some(wait) = &mut self.wait else { return Ok(Some(Wakeup::AskAgain)) };
        let mut answers = match answers {
            Err(failure) if may_be_overcome(&failure) => return Ok(Some(Wakeup::AskAgain)),
            answers => answers?,
        };
        let row = answers.first_mut().and_then(|answer| answer.rows.pop());
        let Some(Ok((_, state))) = row.map(|row| read_record_of(claim.key.as_str(), row)) else {
            return Ok(Some(Wakeup::AskAgain));
        };
        Ok(wait.wait.learn(&state, claim))
    }
}

/// Returns the statement that reads the record of the lock $1, outside of a transaction of ours.
fn record(tables: &Tables) -> String {
    format!("SELECT state, key FROM {} WHERE key OPERATOR(pg_catalog.=) $1", tables.locks)
}

/// Returns the statements with which a waiter confirms that it was woken, and hands the lock on. Its session prepares
/// them when it begins to listen: then parsing and planning them delays no hand-off.
pub(super) fn statements_to_prepare(tables: &Tables) -> Vec<Preparable> {
    let outside = [(record(tables), 1), (SETTINGS.to_owned(), 3)];
    let within = [
        (lock_row(tables), 1),
        (first_waiters(tables, &facts(tables)), 3),
        (hand_off(tables), 4),
        (NOTIFY.to_owned(), 1),
    ];
    let outside = outside.map(|(text, parameters)| Preparable { text, parameters, has_our_settings: false });
    let within = within.map(|(text, parameters)| Preparable { text, parameters, has_our_settings: true });
    outside.into_iter().chain(within).collect()
}

/// Returns whether an operation may succeed at once after this failure of a statement that a waiter has sent: it opens
/// a new connection, and creates the tables, or tells what is wrong with them. An unexpected reply may be a message
/// that came unasked.
fn may_be_overcome(failure: &Failure) -> bool {
    match failure {
        Failure::Rejected(rejection) => {
            rejection.is_fatal()
                || rejection.is_of_lost_statement
                || rejection.lacks_tables()
                || !rejection.is_transient()
        }
        failure => matches!(failure, Failure::Closed | Failure::UnexpectedReply(_)),
    }
}
