//! The first round trip of an operation: locks the row of the lock, and reads what the rules need.

use super::batch::{Batch, READ_WRITE};
use super::connection::{Answer, Connection, Row};
use super::failure::Failure;
use super::mismatch::check_version;
use super::operation::Attempt;
use super::schema::Tables;
use super::waiter_row::{FIRST_WAITERS, MORE_WAITERS, Queued, WAITER_COLUMNS};
use crate::lock::state::{LOOKERS, LockState, Now};
use crate::lock::token::Token;
use crate::store::engine::{Operation, Transition, View};
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
    /// The record as it is stored.
    pub(super) record: String,
    /// The state in it, without waiters.
    pub(super) state: LockState,
    /// When this was read, in milliseconds of Unix time by the server's clock.
    pub(super) now_ms: u64,
    /// How the waiter that asks waits, if it does.
    pub(super) waits_by: WaitsBy,
    /// The waiters that were read.
    pub(super) queue: Queue,
}

/// The first waiters of a lock, and the one that asks.
#[derive(Default)]
pub(super) struct Queue {
    /// Their rows, in order.
    pub(super) rows: Vec<Queued>,
    /// How many of them are the first of the lock: one that asks may be behind others that were not read.
    first: usize,
    /// Whether those are all waiters of the lock, but for the one that asks.
    pub(super) is_whole: bool,
    /// Whether more than the first few were read.
    pub(super) is_extended: bool,
    /// How many others wait, if the operation counts them.
    unread: usize,
}

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
        Queue::ask(&mut batch, tables, operation, &facts(tables), FIRST_WAITERS);
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
        Ok(Snapshot {
            state,
            record,
            now_ms: now_ms.parse().map_err(|_| INCOMPLETE)?,
            waits_by,
            queue: Queue::read(found, facts.len(), counted.first(), FIRST_WAITERS)?,
        })
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
        delete_ended(&mut batch, tables, attempt.operation, self.now_ms);
        Queue::ask(&mut batch, tables, attempt.operation, "now.ms", MORE_WAITERS);
        let answers = connection.run(&batch, attempt.answer_by)?;
        let [_, found, counted @ ..] = &answers[..] else { return Err(INCOMPLETE) };
        self.queue = Queue { is_extended: true, ..Queue::read(found, 1, counted.first(), MORE_WAITERS)? };
        Ok(())
    }

    /// Returns the state, with the waiters that were read.
    pub(super) fn state(&self) -> LockState {
        let waiters = self.queue.rows.iter().map(|row| row.waiter.clone()).collect();
        LockState { waiters, ..self.state.clone() }
    }

    /// Returns the facts that the rules need besides the state.
    pub(super) fn view(&self, attempt: &Attempt<'_>) -> View {
        View {
            may_be_done: attempt.may_be_done,
            unread_waiters: self.queue.unread,
            hand_offs_max: attempt.hand_offs_max,
            ..View::at(self.now_ms)
        }
    }

    /// Returns whether the rules have made the same `transition` as if all waiters had been read: enough of the first
    /// ones remain, or another operation follows.
    pub(super) fn suffices(&self, transition: &Transition) -> bool {
        let last = self.queue.rows.get(self.queue.first.saturating_sub(1)).map(|row| row.place);
        let first = self.rows_in_force().filter(|row| Some(row.place) <= last);
        self.queue.is_whole
            || self.queue.is_extended
            || transition.is_unfinished
            || first.filter(|row| row.waiter_in(&transition.after).is_some()).count() >= LOOKERS
    }

    /// Returns the rows of the waiters whose places have not ended.
    pub(super) fn rows_in_force(&self) -> impl Iterator<Item = &Queued> {
        let now = Now::unix(self.now_ms);
        self.queue.rows.iter().filter(move |row| row.waiter.is_in_force(now))
    }
}

impl Queue {
    /// Adds the statements that read these `facts`, so many of the first waiters, and the one that asks; and that count
    /// the others, if that matters.
    fn ask(batch: &mut Batch, tables: &Tables, operation: Operation<'_>, facts: &str, limit: usize) {
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
    fn read(found: &Answer, facts: usize, counted: Option<&Answer>, limit: usize) -> Result<Self, Failure> {
        let mut queue = Queue::default();
        // Without waiters there is one row, in which a waiter's columns are null.
        for row in found.rows.iter().filter_map(|row| row.get(facts..)) {
            let Some((Some(is_first), waiter)) = row.split_first() else { continue };
            let waiter = Queued::read(waiter)?;
            if is_first == "t" {
                queue.first += 1;
                queue.rows.push(waiter);
            } else if queue.rows.iter().all(|row| row.place != waiter.place) {
                queue.rows.push(waiter);
            }
        }
        queue.rows.sort_by_key(|row| row.place);
        queue.is_whole = queue.first < limit;
        let unread = counted.and_then(|answer| answer.rows.first()?.first()?.as_deref()?.parse().ok());
        queue.unread = unread.unwrap_or(0);
        Ok(queue)
    }
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
    let state = read_record(&record)?;
    Ok((record, state))
}

/// Reads the record of a lock.
pub(super) fn read_record(record: &str) -> Result<LockState, Failure> {
    let broken = |what: &str| Failure::Broken(format!("column state of its row in the table locks: {what}"));
    // serde would also read a structure from an array of its fields, which lockrun never writes.
    if !record.starts_with('{') {
        return Err(broken("it is no JSON object"));
    }
    let state: LockState = serde_json::from_str(record).map_err(|error| broken(&error.to_string()))?;
    // Without a lease, nothing in the database would show whether the holder still lives.
    if state.holders.iter().any(|holder| holder.lease.is_none()) {
        return Err(broken("a holder has no lease"));
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::lock::claim::{Claim, Mode};
    use crate::lock::ending::Ending;
    use crate::lock::holder::Holder;
    use crate::lock::lease::Ttl;
    use crate::lock::state::{Applied, Ask, HolderState, IfHeld, LeaseRecord, Release, WaiterState};
    use crate::store::postgres::waiter_row::HAND_OFFS_MAX;
    use crate::store::{Acquired, Held};

    const NOW_MS: u64 = 1_800_000_000_000;

    fn mode() -> impl Strategy<Value = Mode> {
        prop_oneof![3 => Just(Mode::EXCLUSIVE), 2 => Just(Mode::Shared), 1 => (2u32..4).prop_map(Mode::Slots)]
    }

    fn token(number: usize) -> Token {
        Token::parse(&format!("t{number}")).expect("is a token")
    }

    fn row(number: usize, mode: Mode, ends_in: i64) -> Queued {
        let waiter = WaiterState {
            token: token(number),
            who: Holder::default(),
            mode,
            once_per_ms: None,
            purpose: crate::lock::state::Purpose::Run,
            joined_ms: NOW_MS - 60_000,
            place_ms: 30_000,
            ends_ms: NOW_MS.saturating_add_signed(ends_in),
            request: None,
        };
        Queued { place: i64::try_from(number).expect("is small"), waiter, channel: None }
    }

    fn view() -> View {
        View { hand_offs_max: HAND_OFFS_MAX, ..View::at(NOW_MS) }
    }

    /// Returns what an operation finds if it reads this many of the first waiters; as [`Queue::ask`] does.
    fn found(state: &LockState, rows: &[Queued], asking: &Token, limit: usize) -> Snapshot {
        let first = rows.len().min(limit);
        let its = rows[first..].iter().filter(|row| row.waiter.token == *asking);
        let queue = Queue {
            rows: rows[..first].iter().chain(its).cloned().collect(),
            first,
            is_whole: first < limit,
            is_extended: false,
            unread: 0,
        };
        let (record, state) = (String::new(), state.clone());
        Snapshot { record, state, now_ms: NOW_MS, waits_by: WaitsBy::Listening, queue }
    }

    /// Returns the answer, whom it concerns, the holders and the waiters after an operation that reads `limits` of the
    /// first waiters.
    fn outcome<T>(
        state: &LockState,
        rows: &[Queued],
        asking: &Token,
        limits: &[usize],
        rules: &impl Fn(&mut LockState, &View) -> Applied<T>,
    ) -> (T, Vec<Token>, Vec<HolderState>, Vec<WaiterState>) {
        let mut rows = rows.to_vec();
        for limit in limits {
            let found = found(state, &rows, asking, *limit);
            let before = found.state();
            let mut after = before.clone();
            let Applied { answer, woken, is_unfinished, begins_lease } = rules(&mut after, &view());
            let transition = Transition { before, after, woken, is_unfinished, begins_lease };
            if !found.suffices(&transition) {
                // They are deleted before more are read.
                rows.retain(|row| row.waiter.ends_ms > NOW_MS);
                continue;
            }
            let is_read = |row: &&Queued| found.queue.rows.iter().any(|read| read.place == row.place);
            let unread = rows.iter().filter(|row| !is_read(row) && row.waiter.ends_ms > NOW_MS);
            let Transition { after, woken, .. } = transition;
            let mut waiters = after.waiters;
            // One that has joined, or was behind those that were not read, comes after them.
            let last = waiters.pop_if(|waiter| waiter.token == *asking && found.row_is_not_first(asking));
            waiters.extend(unread.map(|row| row.waiter.clone()).chain(last));
            waiters.sort_by_key(|waiter| {
                rows.iter()
                    .position(|row| row.waiter.token == waiter.token && row.waiter.ends_ms > NOW_MS)
                    .unwrap_or(rows.len())
            });
            return (answer, woken, after.holders, waiters);
        }
        panic!("more was not enough");
    }

    impl Snapshot {
        fn row_is_not_first(&self, token: &Token) -> bool {
            self.queue.rows.iter().take(self.queue.first).all(|row| row.waiter.token != *token)
        }
    }

    proptest! {
        /// An operation has the same outcome whether it reads all waiters or only the first ones.
        #[test]
        fn the_first_waiters_are_enough(
            queue in prop::collection::vec((mode(), prop_oneof![1 => -9000i64..1, 3 => 1i64..30_000]), 0..40),
            holders in 0usize..3,
            shares in any::<bool>(),
            asking in 0usize..45,
            wants in mode(),
            waiting in any::<bool>(),
            releases in any::<bool>(),
        ) {
            let mut state = LockState { key: "k".into(), ..LockState::default() };
            for number in 0..holders {
                state.holders.push(HolderState {
                    token: token(100 + number),
                    slot: u32::try_from(number).expect("is small"),
                    since_ms: NOW_MS - 1000,
                    mode: if shares { Mode::Shared } else { Mode::EXCLUSIVE },
                    lease: Some(LeaseRecord { ends_ms: Some(NOW_MS + 10_000), ttl_ms: Some(30_000) }),
                    ..HolderState::default()
                });
            }
            let rows: Vec<Queued> = queue.iter().enumerate().map(|(number, (mode, ends_in))| row(number, *mode, *ends_in)).collect();
            let asking = token(if releases { 100 } else { asking });
            let limits: [&[usize]; 2] = [&[FIRST_WAITERS, MORE_WAITERS], &[usize::MAX]];
            if releases {
                let rules = |state: &mut LockState, view: &View| state.release(&asking, Release::at_once(Ending::Exited(0)), false, view);
                let [part, whole] = limits.map(|limits| outcome(&state, &rows, &asking, limits, &rules));
                prop_assert_eq!(part, whole);
            } else {
                let ttl = Ttl::Lasts(Duration::from_secs(30));
                let claim = Claim { token: asking.clone(), ttl, mode: wants, ..Claim::example() };
                let if_held = if waiting { IfHeld::Queue { max_waiting: None, until: None } } else { IfHeld::Leave };
                let ask = Ask { claim: &claim, leased: true, sent_at: Moment::from_boot(Duration::ZERO), if_held };
                let rules = |state: &mut LockState, view: &View| {
                    let applied = state.acquire(&ask, view).expect("the fence grows");
                    // The server counts the waiters ahead, and those that look too soon only look once more.
                    let answer = match applied.answer {
                        Acquired::Held(held) => Acquired::Held(Held { place: held.place.map(|_| 0), look_in: None, ..held }),
                        answer => answer,
                    };
                    Applied { answer, woken: applied.woken, is_unfinished: applied.is_unfinished, begins_lease: applied.begins_lease }
                };
                let [part, whole] = limits.map(|limits| outcome(&state, &rows, &asking, limits, &rules));
                prop_assert_eq!(part, whole);
            }
        }
    }

    #[test]
    fn one_more_reading_is_enough() {
        let rows: Vec<Queued> = (0..300).map(|number| row(number, Mode::Shared, 1000)).collect();
        let found = found(&LockState::default(), &rows, &token(299), MORE_WAITERS);
        let before = found.state();
        let mut after = before.clone();
        let Applied { woken, is_unfinished, begins_lease, .. } = after.look(&view());
        let transition = Transition { before, after, woken, is_unfinished, begins_lease };
        assert!(is_unfinished && found.suffices(&transition));
        assert_eq!(transition.after.holders.len(), HAND_OFFS_MAX);
    }
}
