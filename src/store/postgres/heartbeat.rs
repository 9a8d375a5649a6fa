//! How a waiter reads and updates its own row of the queue: by one statement that does not lock the row of the lock.

use std::time::Duration;

use super::PostgresStore;
use super::batch::{Batch, READ_WRITE, SNAPSHOT};
use super::connection::Row;
use super::facts::LATE;
use super::failure::Failure;
use super::reading::{ROW_WAIT, read_record};
use super::schema::Tables;
use super::waiting::{LOOKERS, Look, STAND_INS};
use crate::lock::state::{Held, HolderState, millis};
use crate::store::Claim;
use crate::sys::clock::Moment;

/// What a waiter learns from its own row and its neighbours'.
#[derive(Debug)]
pub(super) struct OwnRow {
    /// Whether it was granted the lock, or is passed over until it asks again.
    is_to_ask: bool,
    /// Whether it is due to show that it is alive.
    pub(super) is_called: bool,
    /// Whether it was overdue for so long that others may have taken it for silent: see [`WAS_SILENT`].
    pub(super) was_silent: bool,
    /// How many waiters ahead of it were granted the lock or seem to be alive, [`LOOKERS`] at most.
    pub(super) turn: usize,
    /// How many waiters are behind it, [`STAND_INS`] at most.
    behind: usize,
    /// When the next lease or grant ends, if one does, in milliseconds of Unix time.
    ends_ms: Option<u64>,
    /// The holder whose lease ends first.
    pub(super) held: Option<Held>,
    /// When the last hold ended, see [`LockState::ended_unix_ms`](crate::lock::state::LockState::ended_unix_ms).
    pub(super) ended_unix_ms: u64,
    /// When this was read, in milliseconds of Unix time by the server's clock.
    now_ms: u64,
}

/// A waiter whose heartbeat is this late may have been passed over, and a slot that it could have had left free. Less than [`LATE`], after
/// which the others take it for silent: one of them may be doing so as the heartbeat arrives.
const WAS_SILENT: Duration = Duration::from_millis(350);

/// The server's current time, as a table.
pub(super) const NOW: &str = "(SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS ms) AS now";

impl PostgresStore {
    /// Reads our row of the queue. Returns `None` if we have lost our place.
    pub(super) fn poll(&mut self, claim: &Claim) -> Result<Option<OwnRow>, Failure> {
        let (waiters, columns) = (&self.tables.waiters, columns(&self.tables));
        let statement = format!("SELECT {columns} FROM {waiters} AS own, {NOW} WHERE own.key = $1 AND own.token = $2");
        self.ask(claim, SNAPSHOT, &statement, None)
    }

    /// Records in our row of the queue that we are alive and will be heard from again within `next`, and reads the row as [`Self::poll`]
    /// does.
    ///
    /// The row of the lock is not locked, so waiters do not block each other, however many there are.
    pub(super) fn send_heartbeat(&mut self, claim: &Claim, next: Duration) -> Result<Option<OwnRow>, Failure> {
        let (waiters, columns) = (&self.tables.waiters, columns(&self.tables));
        let statement = format!(
            "UPDATE {waiters} AS own SET looked_at_ms = now.ms, looks_at_ms = now.ms + $3::bigint FROM {NOW} WHERE own.key = $1 AND own.token = $2 RETURNING {columns}"
        );
        self.ask(claim, READ_WRITE, &statement, Some(&millis(next).to_string()))
    }

    fn ask(
        &mut self,
        claim: &Claim,
        kind: &str,
        statement: &str,
        next: Option<&str>,
    ) -> Result<Option<OwnRow>, Failure> {
        let deadline = Moment::now() + self.timeout;
        let parameters: Vec<_> =
            [Some(claim.key.as_str()), Some(claim.token.as_str())].into_iter().chain(next.map(Some)).collect();
        let mut batch = Batch::impatient_transaction(kind, deadline, ROW_WAIT);
        batch.add(statement, &parameters);
        // A heartbeat need not survive a crash of the server. It ends with END, an operation with COMMIT, so that the two can be
        // distinguished on the wire.
        batch.add("SELECT pg_catalog.set_config('synchronous_commit', 'off', true)", &[]);
        batch.add("END", &[]);
        let answers = match self.connected(deadline)?.run(&batch, deadline) {
            // The next look at the lock creates the tables.
            Err(Failure::Refused(refusal)) if refusal.lacks_tables() => return Ok(None),
            // This may be no answer to the statement, but a message that came unasked. Nor does the wait depend on it.
            Err(Failure::UnexpectedReply(_)) => return Err(Failure::Closed),
            answers => answers.map_err(|failure| self.find_mismatch(failure, deadline))?,
        };
        match answers.first().and_then(|answer| answer.rows.first()).map(OwnRow::read).transpose() {
            // The next `acquire` finds out whether a later version wrote it.
            Err(Failure::Broken(_)) => Ok(None),
            own => own,
        }
    }
}

impl OwnRow {
    fn read(row: &Row) -> Result<Self, Failure> {
        const LACKS_COLUMNS: Failure = Failure::UnexpectedReply("an answer lacks columns");
        let [
            Some(is_to_ask),
            Some(is_called),
            Some(was_silent),
            Some(turn),
            Some(behind),
            record,
            grant_ends_ms,
            Some(now_ms),
        ] = &row[..]
        else {
            return Err(LACKS_COLUMNS);
        };
        let number = |text: &String| text.parse::<u64>().map_err(|_| LACKS_COLUMNS);
        let state = record.as_deref().map(read_record).transpose()?.unwrap_or_default();
        let grant_ends_ms = grant_ends_ms.as_ref().map(number).transpose()?;
        let now_ms = number(now_ms)?;
        let ends_ms = |holder: &&HolderState| holder.lease.and_then(|lease| lease.ends_ms).unwrap_or(u64::MAX);
        let first = state.holders.iter().filter(|holder| ends_ms(holder) > now_ms).min_by_key(ends_ms);
        Ok(OwnRow {
            is_to_ask: is_to_ask == "t",
            is_called: is_called == "t",
            was_silent: was_silent == "t",
            turn: turn.parse().map_err(|_| LACKS_COLUMNS)?,
            behind: behind.parse().map_err(|_| LACKS_COLUMNS)?,
            ends_ms: state.next_end().into_iter().chain(grant_ends_ms).min(),
            held: first.map(HolderState::held),
            ended_unix_ms: state.ended_unix_ms(),
            now_ms,
        })
    }

    /// Returns how long a waiter with `turn` others ahead waits until it looks whether the next lease or grant has ended. `None` if none
    /// ends.
    pub(super) fn turn_in(&self, turn: usize) -> Option<Duration> {
        let at_ms = self.ends_ms?.saturating_add(millis(Look::turn(turn)));
        Some(Duration::from_millis(at_ms.saturating_sub(self.now_ms)))
    }

    /// Returns whether it is one of the last [`STAND_INS`] waiters.
    pub(super) fn is_among_last(&self) -> bool {
        self.behind < STAND_INS
    }

    /// Returns whether the lock is neither held nor granted.
    pub(super) fn is_free(&self) -> bool {
        self.held.is_none() && self.ends_ms.is_none()
    }

    /// Returns whether a look at the lock is worthwhile for a waiter with `turn` others ahead.
    pub(super) fn is_worth_a_look(&self, turn: usize) -> bool {
        self.is_to_ask || self.turn_in(turn) == Some(Duration::ZERO)
    }
}

/// Returns the columns to select for the row `own`, in the order of [`OwnRow::read`]. If the same statement updates the row, `own` is the
/// row after the update, and the subqueries see the rows before it.
fn columns(tables: &Tables) -> String {
    let Tables { locks, waiters, .. } = tables;
    let (late, was_silent) = (millis(LATE), millis(WAS_SILENT));
    format!(
        "own.is_granted OR own.is_unresponsive, own.looks_at_ms <= now.ms, \
         (SELECT it.looks_at_ms + {was_silent} < now.ms FROM {waiters} AS it WHERE it.key = $1 AND it.token = $2), \
         (SELECT count(*) FROM (SELECT FROM {waiters} AS it WHERE it.key = $1 AND it.place < own.place \
          AND (it.is_granted OR it.looks_at_ms + {late} >= now.ms AND NOT it.is_unresponsive) LIMIT {LOOKERS}) AS ahead), \
         (SELECT count(*) FROM (SELECT FROM {waiters} AS it WHERE it.key = $1 AND it.place > own.place LIMIT {STAND_INS}) AS behind), \
         (SELECT it.state FROM {locks} AS it WHERE it.key = $1), \
         (SELECT min(it.grant_ends_ms) FROM {waiters} AS it WHERE it.key = $1 AND it.is_granted), \
         now.ms"
    )
}
