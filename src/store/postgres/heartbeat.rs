//! What a waiter asks and says about its own row of the queue, by one statement that leaves the row of the lock alone.

use std::time::Duration;

use super::PostgresStore;
use super::batch::{Batch, READ_WRITE, SNAPSHOT};
use super::connection::Row;
use super::facts::LATE;
use super::failure::Failure;
use super::schema::Tables;
use super::waiting::{LOOKERS, Look};
use crate::lock::state::millis;
use crate::store::Claim;
use crate::sys::clock::Moment;

/// What a waiter learns from its row.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnRow {
    /// Whether it was granted the lock.
    pub(super) is_granted: bool,
    /// Whether it is due to show that it is alive.
    pub(super) is_called: bool,
    /// How many others are ahead that were granted the lock or seem to be alive, [`LOOKERS`] at most.
    pub(super) turn: usize,
    /// When the next lease or grant ends, if one does, in milliseconds of Unix time.
    pub(super) ends_ms: Option<u64>,
    /// Whether a run holds the lock.
    pub(super) is_held: bool,
    /// The longest of the holders' leases.
    pub(super) ttl: Option<Duration>,
    /// When this was so, in milliseconds of Unix time by the server's clock.
    pub(super) now_ms: u64,
}

/// The present time of the server, as a table.
const NOW: &str = "(SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS ms) AS now";

impl PostgresStore {
    /// Reads our row of the queue. Returns nothing if we have lost our place.
    pub(super) fn poll(&mut self, claim: &Claim) -> Result<Option<OwnRow>, Failure> {
        let Tables { waiters, .. } = &self.tables;
        let (columns, others) = (columns(&self.tables), others(&self.tables));
        let statement =
            format!("SELECT {columns} FROM {waiters} AS own, {NOW}, {others} WHERE own.key = $1 AND own.token = $2");
        self.ask(claim, SNAPSHOT, &statement, None)
    }

    /// Says in our row of the queue that we are alive, and will say so again within `next`; and reads it as [`Self::poll`] does.
    ///
    /// The waiters need not take turns for this, however many there are: the row of the lock is not locked.
    pub(super) fn send_heartbeat(&mut self, claim: &Claim, next: Duration) -> Result<Option<OwnRow>, Failure> {
        let Tables { waiters, .. } = &self.tables;
        let (columns, others) = (columns(&self.tables), others(&self.tables));
        let statement = format!(
            "UPDATE {waiters} AS own SET looked_at_ms = now.ms, looks_at_ms = now.ms + $3::bigint FROM {NOW}, {others} \
             WHERE own.key = $1 AND own.token = $2 RETURNING {columns}"
        );
        self.ask(claim, READ_WRITE, &statement, Some(&millis(next).to_string()))
    }

    fn ask(
        &mut self,
        claim: &Claim,
        begin: &str,
        statement: &str,
        next: Option<&str>,
    ) -> Result<Option<OwnRow>, Failure> {
        let deadline = Moment::now() + self.timeout;
        let parameters: Vec<_> =
            [Some(claim.key.as_str()), Some(claim.token.as_str())].into_iter().chain(next.map(Some)).collect();
        let mut batch = Batch::transaction(begin, deadline);
        batch.add(statement, &parameters);
        batch.commit(false);
        let answers = match self.connected(deadline)?.run(batch, deadline) {
            // Whoever looks at the lock as a whole creates the tables, or says what is wrong with its record.
            Err(Failure::Refused(refusal)) if refusal.lacks_tables() || refusal.is_about_data() => return Ok(None),
            answers => answers?,
        };
        answers.first().and_then(|answer| answer.rows.first()).map(OwnRow::read).transpose()
    }
}

impl OwnRow {
    fn read(row: &Row) -> Result<Self, Failure> {
        const STRANGE: Failure = Failure::Strange("an answer lacks columns");
        let [Some(is_granted), Some(is_called), Some(turn), ends_ms, Some(holders), ttl_ms, Some(now_ms)] = &row[..]
        else {
            return Err(STRANGE);
        };
        let number = |text: &String| text.parse::<u64>().map_err(|_| STRANGE);
        let maybe = |text: &Option<String>| text.as_ref().map(number).transpose();
        Ok(OwnRow {
            is_granted: is_granted == "t",
            is_called: is_called == "t",
            turn: turn.parse().map_err(|_| STRANGE)?,
            ends_ms: maybe(ends_ms)?,
            is_held: number(holders)? > 0,
            ttl: maybe(ttl_ms)?.map(Duration::from_millis),
            now_ms: number(now_ms)?,
        })
    }

    /// Returns in how long it is the turn of this waiter to look whether what ends next has ended, if a lease or a grant does.
    pub(super) fn turn_in(&self) -> Option<Duration> {
        let at_ms = self.ends_ms?.saturating_add(millis(Look::turn(self.turn)));
        Some(Duration::from_millis(at_ms.saturating_sub(self.now_ms)))
    }

    /// Returns whether it is worth a look at the lock.
    pub(super) fn is_worth_a_look(&self) -> bool {
        self.is_granted || self.turn_in() == Some(Duration::ZERO)
    }
}

/// Returns what is asked of the row `own`, in the order of [`OwnRow::read`].
fn columns(tables: &Tables) -> String {
    let waiters = &tables.waiters;
    let late = millis(LATE);
    format!(
        "own.is_granted, own.looks_at_ms <= now.ms, \
         (SELECT count(*) FROM (SELECT FROM {waiters} AS it WHERE it.key = $1 AND it.place < own.place \
          AND (it.is_granted OR it.looks_at_ms + {late} >= now.ms AND it.waiter->>'is_unresponsive' IS NULL) \
          LIMIT {LOOKERS}) AS ahead), \
         least(leases.ends_ms, grants.ends_ms), leases.holders, leases.ttl_ms, now.ms"
    )
}

/// Returns what is known of those that hold the lock or were granted it, as tables.
fn others(tables: &Tables) -> String {
    let Tables { locks, waiters, .. } = tables;
    format!(
        "(SELECT count(*) AS holders, min((it->'lease'->>'ends_ms')::bigint) AS ends_ms, \
          max((it->'lease'->>'ttl_ms')::bigint) AS ttl_ms \
          FROM {locks} AS held, json_array_elements(held.state->'holders') AS it WHERE held.key = $1) AS leases, \
         (SELECT min((it.waiter->'grant'->>'ends_ms')::bigint) AS ends_ms \
          FROM {waiters} AS it WHERE it.key = $1 AND it.is_granted) AS grants"
    )
}
