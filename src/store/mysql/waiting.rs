//! How a waiter renews its place, and learns that it was handed the lock: MySQL has no notifications, so it reads the
//! record again and again, the more rarely the further behind it is. One that is far behind leaves its connection to
//! others meanwhile.

use std::time::Duration;

use super::MysqlStore;
use super::connection::{Batch, MAY_BE_IDLE};
use super::failure::Failure;
use super::schema::bytes;
use super::transaction::{NOW, is_read_only, transaction};
use crate::lock::state::{ASKS_PER_PLACE, Ahead, LockState, millis};
use crate::store::engine::{View, Wait, read_state};
use crate::store::{Claim, Held, RetryClass, Wakeup};
use crate::sys::clock::Moment;
use crate::sys::wait::{WaitObserver, Waiter, WakeReason};

/// The time between two reads of the record by one of the first waiters, by one that is near, and by one that is far
/// behind.
const POLL: [Duration; 3] = [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(3)];

/// How many waiters are near. They keep their connections: by default a server accepts 151.
const NEAR: u64 = 24;

/// Our place in the queue: what the last answer said.
#[derive(Debug)]
pub(super) struct Place {
    /// The number of our row.
    number: i64,
    /// What we know of the lock.
    wait: Wait,
}

impl Place {
    /// Returns the place after an answer that said that so many are `ahead` of our row, with this record.
    pub(super) fn new(number: i64, ahead: u64, record: &LockState) -> Self {
        Place { number, wait: Wait::new(ahead, record) }
    }

    /// Returns whether we keep our connection.
    fn is_near(&self) -> bool {
        self.wait.ahead < NEAR
    }

    /// Returns how long to sleep before we read the record.
    fn poll(&self) -> Duration {
        match self.wait {
            wait if wait.is_of_the_first() => POLL[0],
            _ if self.is_near() => POLL[1],
            _ => POLL[2],
        }
    }
}

impl MysqlStore {
    /// Renews our place in the queue, without the row of the lock: waiters do not keep each other waiting. Returns the
    /// answer that we wait; or `None` if we do not wait, or must look at the lock.
    pub(super) fn renew_own_place(&mut self, claim: &Claim, deadline: Moment) -> Result<Option<Held>, Failure> {
        let Some(number) = self.place.as_ref().map(|place| place.number) else { return Ok(None) };
        let (locks, waiters) = (self.tables.locks.clone(), self.tables.waiters.clone());
        let (key, token) = (bytes(claim.key.as_str()), bytes(claim.token.as_str()));
        let (place_ms, asks_ms) = (millis(claim.place()), millis(claim.place() / ASKS_PER_PLACE));
        let ahead = format!("FROM {waiters} AS it WHERE it.k = {key} AND it.place < {number}");
        let mut batch = transaction(deadline);
        // While our row is locked, nobody can hand us the lock: the record that is read then does not lag behind.
        let renewed_at = batch.add(format!(
            "UPDATE {waiters} FORCE INDEX (PRIMARY) SET ends_ms = GREATEST(ends_ms, {NOW} + {place_ms}) \
             WHERE k = {key} AND place = {number} AND token = {token} AND ends_ms > {NOW}"
        ));
        let read_at = batch.add(format!(
            "SELECT now.ms, (SELECT COUNT(*) {ahead} AND it.ends_ms > now.ms), (SELECT MIN(it.ends_ms) {ahead}), \
             (SELECT COUNT(*) {ahead} AND it.ends_ms > now.ms AND it.ends_ms < now.ms + {asks_ms}), \
             (SELECT MAX(it.ends_ms) {ahead} AND it.ends_ms < now.ms + {asks_ms}), \
             @@GLOBAL.read_only, (SELECT state FROM {locks} WHERE k = {key}) FROM (SELECT {NOW} AS ms) AS now"
        ));
        batch.add(MAY_BE_IDLE);
        batch.add("COMMIT");
        let connection = self.connected(deadline)?;
        connection.roll_back(deadline)?;
        let answers = match connection.run(&batch, deadline) {
            Ok(answers) => answers,
            // The operation that follows rolls back what is left.
            Err(failure) if may_be_overcome(&failure) => return Ok(None),
            Err(failure) => return Err(failure),
        };
        let [Some(now_ms), Some(count), first_end_ms, Some(ending), last_end_ms, read_only, Some(record)] =
            answers[read_at].row()?
        else {
            return Ok(None);
        };
        // The operation that follows leaves a server that takes writes only from its administrators.
        if answers[renewed_at].affected != 1 || is_read_only(read_only.as_deref()) {
            return Ok(None);
        }
        let number_in = |text: &String| text.parse::<u64>().map_err(|_| Failure::INCOMPLETE);
        let count = number_in(count)?;
        let ahead = Ahead {
            count,
            first_end_ms: first_end_ms.as_ref().map(number_in).transpose()?,
            ending: (
                usize::try_from(number_in(ending)?).unwrap_or(usize::MAX),
                last_end_ms.as_ref().map(number_in).transpose()?,
            ),
        };
        // The operation that follows reports a record that is broken.
        let Ok(state) = read_state::<()>(record) else { return Ok(None) };
        let held = state.still_waits(claim, ahead, &View::at(number_in(now_ms)?));
        if held.is_some() {
            self.place = Some(Place::new(number, count, &state));
        }
        Ok(held)
    }

    /// Sleeps until we were handed the lock or have to ask, or until `until`.
    pub(super) fn look_again_and_again(
        &mut self,
        claim: &Claim,
        until: Option<Moment>,
        waiter: &mut Waiter<'_>,
        observer: &mut dyn WaitObserver,
    ) -> Result<Wakeup, Failure> {
        loop {
            let Some(place) = &self.place else { return Ok(Wakeup::AskAgain) };
            let look_at = Moment::now() + place.poll();
            if !place.is_near()
                && let Some(connection) = self.connection.take()
            {
                connection.quit();
            }
            match waiter.wait_for(None, until.into_iter().chain([look_at]).min(), observer) {
                Ok(WakeReason::Signal(signal)) => return Ok(Wakeup::Signal(signal)),
                Ok(WakeReason::Time | WakeReason::Ready | WakeReason::Resumed) => {}
                Err(errno) => return Err(Failure::NoWait(errno)),
            }
            if until.is_some_and(|until| until <= Moment::now()) {
                return Ok(Wakeup::AskAgain);
            }
            if let Some(wakeup) = self.read_record(claim)? {
                return Ok(wakeup);
            }
        }
    }

    /// Reads the record, and whether we are near now. Returns what to do if it says that we hold the lock, or that we
    /// have to ask.
    fn read_record(&mut self, claim: &Claim) -> Result<Option<Wakeup>, Failure> {
        let deadline = Moment::now() + self.timeout;
        let (locks, waiters) = (self.tables.locks.clone(), self.tables.waiters.clone());
        let Some(number) = self.place.as_ref().map(|place| place.number) else { return Ok(Some(Wakeup::AskAgain)) };
        let key = bytes(claim.key.as_str());
        let batch = Batch::outside(format!(
            "SELECT (SELECT state FROM {locks} WHERE k = {key}), \
             (SELECT COUNT(*) FROM (SELECT 1 FROM {waiters} WHERE k = {key} AND place < {number} LIMIT {NEAR}) AS ahead)"
        ));
        let answers = match self.connected(deadline)?.run(&batch, deadline) {
            Err(failure) if may_be_overcome(&failure) => return Ok(Some(Wakeup::AskAgain)),
            answers => answers?,
        };
        let ([Some(record), Some(ahead)], Some(place)) = (answers[1].row()?, &mut self.place) else {
            return Ok(Some(Wakeup::AskAgain));
        };
        let Ok(state) = read_state::<()>(record) else { return Ok(Some(Wakeup::AskAgain)) };
        place.wait.ahead = ahead.parse().map_err(|_| Failure::INCOMPLETE)?;
        Ok(place.wait.learn(&state, claim))
    }
}

/// Returns whether an operation may succeed at once after this failure of a statement that a waiter has sent: it opens
/// a new connection, and creates the tables, or tells what is wrong with them.
fn may_be_overcome(failure: &Failure) -> bool {
    match failure {
        Failure::Rejected(rejection) => {
            rejection.lacks_tables()
                || rejection.is_worth_repeating()
                || failure.is_closed()
                || failure.is_of_replica()
                || failure.retry_class() == RetryClass::Permanent
        }
        failure => failure.is_closed(),
    }
}
