//! The first round trip of an operation: locks the row of the lock, and reads what the rules need.

use std::collections::HashSet;
use std::time::Duration;

use super::batch::{Batch, Commit, FLUSH_OID, READ_WRITE};
use super::connection::{Answer, Connection};
use super::facts::{GONE, LATE, Queued, TableFacts};
use super::failure::Failure;
use super::heartbeat::NOW;
use super::mismatch::check_version;
use super::operation::{RowLock, Subject};
use super::schema::Tables;
use super::waiting::LOOKERS;
use crate::lock::state::{LockState, millis};
use crate::lock::token::Token;
use crate::sys::clock::Moment;

/// How many waiters are read, besides those that were granted the lock and the one that asks: as many as look when a lease or grant ends.
pub(super) const FIRST_WAITERS: usize = LOOKERS;

/// How many more are read at once if all of those are dead, stopped or cut off: so few that the connection takes them in even if lockrun is
/// stopped just then. A server that waits until it can send the rest keeps the row locked.
const MORE_WAITERS: usize = 100;

/// How long a new waiter waits for a row that others have locked, before it joins without locking it.
const JOIN_WAIT: Duration = Duration::from_millis(500);

/// How long a waiter waits for a row that others have locked. Then it sends a heartbeat before it tries again, so that it keeps its place
/// however long the answer takes.
pub(super) const ROW_WAIT: Duration = Duration::from_secs(10);

/// How long after the server's start, in milliseconds, earlier waiters are not overtaken although they have not reconnected. Its recovery from
/// a crash is part of that time. Waiters that died meanwhile keep the others waiting for at most this long.
const RETURN_MS: u64 = 5000;

/// A waiter that finds fewer unused connections than this, and than a quarter of the limit, waits without one, so that there are some for
/// those who hold the lock, and for the short visits of those that wait so.
const CONNECTIONS_LEFT: u32 = 5;

/// Returns the query for whether so few connections are unused, of those that the server, the database or the role allows. A server older
/// than PostgreSQL 16 has no `reserved_connections`.
fn is_crowded() -> String {
    format!(
        "WITH used AS (SELECT datid, usesysid FROM pg_stat_get_activity(NULL) WHERE datid <> 0), limits AS (\
          SELECT current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint \
           - coalesce(current_setting('reserved_connections', true), '0')::bigint AS most, (SELECT count(*) FROM used) AS used \
          UNION ALL SELECT datconnlimit, (SELECT count(*) FROM used WHERE datid = oid) \
           FROM pg_database WHERE datname = current_database() AND datconnlimit >= 0 \
          UNION ALL SELECT rolconnlimit, (SELECT count(*) FROM used WHERE usesysid = oid) \
           FROM pg_roles WHERE rolname = session_user AND rolconnlimit >= 0) \
         SELECT bool_or(most - used < {CONNECTIONS_LEFT} AND (most - used) * 4 < most) FROM limits"
    )
}

/// The time at which the server was started, as a table.
pub(super) const STARTED: &str =
    "(SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000)::bigint AS ms) AS started";

/// Returns the columns of a waiter in the order of [`Queued::read`], from its table, [`NOW`] and [`STARTED`].
///
/// A waiter that listens holds an advisory lock in its session. If that lock can be acquired, the session is gone. It is acquired in shared
/// mode, so that two transactions that test it at once do not take each other for the waiter. After a recent start of the server, an
/// earlier waiter may not have a session again yet, unless it counted as dead by then.
pub(super) fn waiter_columns() -> String {
    format!(
        "place, waiter, session, looked_at_ms, looks_at_ms, \
         session IS NOT NULL AND pg_try_advisory_xact_lock_shared(session), {}",
        is_returning()
    )
}

/// Returns the last of these columns.
fn is_returning() -> String {
    format!(
        "looked_at_ms < started.ms AND looks_at_ms > started.ms - {} AND now.ms BETWEEN started.ms AND started.ms + {RETURN_MS}",
        millis(GONE)
    )
}

const INCOMPLETE: Failure = Failure::UnexpectedReply("an answer lacks columns");

/// How a waiter learns that it was granted the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitsBy {
    /// It listens in a session of its own.
    Listening,
    /// It reads its own row through a pooler, which gives each transaction another session.
    Polling,
    /// It reads its own row, and has no connection in between, to leave it to others.
    Visiting,
}

/// What the first round trip has read.
pub(super) struct Found {
    /// The record as it is stored.
    pub(super) record: String,
    /// The state in it, without waiters.
    pub(super) state: LockState,
    /// When this was read, in milliseconds of Unix time by the server's clock.
    pub(super) now_ms: u64,
    /// How the waiter that asks waits, if it does.
    pub(super) waits_by: WaitsBy,
    /// How a hand-off commits: [`Commit::VisibleEarly`] if our role has the right to do so.
    pub(super) hand_off: Commit,
    /// The waiters that were read, in their order.
    pub(super) queue: Vec<Queued>,
    /// Whether those are all waiters of the lock.
    pub(super) has_all_waiters: bool,
    /// How many of the waiters that were not read would claim the lock, if the operation counts them.
    pub(super) waiting_unread: usize,
    /// Whether the row is locked: then nothing but heartbeats can change any of this until the transaction ends.
    pub(super) is_locked: bool,
}

impl Found {
    /// Begins a transaction, locks the row as `lock` says, and reads. `visits`: whether the waiter that asks waits without a connection. From
    /// when it begins, the server has the time that is now left until `carry_out_by`; we wait for the answer until `answer_by`. Fails with
    /// [`Failure::RowDeleted`] if there is no row.
    pub(super) fn read(
        connection: &mut Connection,
        tables: &Tables,
        subject: Subject<'_>,
        lock: RowLock,
        visits: bool,
        carry_out_by: Moment,
        answer_by: Moment,
    ) -> Result<Self, Failure> {
        let Tables { version, locks, .. } = tables;
        let key = Some(subject.key.as_str());
        let lock_wait = match subject.answer_by {
            Some(_) if subject.can_join_unlocked() => JOIN_WAIT,
            Some(_) => ROW_WAIT,
            None => Duration::MAX,
        };
        let mut batch = Batch::impatient_transaction(READ_WRITE, carry_out_by, lock_wait);
        // Only a new waiter asks: with each waiter that comes, there is one connection less. Before the row is locked: it may take a while.
        let asks_if_crowded = subject.is_new_waiter() && subject.may_count_connections;
        if asks_if_crowded {
            batch.add(&is_crowded(), &[]);
        }
        if lock == RowLock::Created {
            // This waits for another transaction that is creating the row.
            let create = format!("INSERT INTO {locks} (key, state) VALUES ($1, '{{}}') ON CONFLICT DO NOTHING");
            batch.add(&create, &[key]);
        }
        let for_update = if lock == RowLock::None { "" } else { " FOR UPDATE" };
        batch.add(&format!("SELECT state, key FROM {locks} WHERE key = $1{for_update}"), &[key]);
        let waiters = Waiters::of(tables, subject, 0, FIRST_WAITERS);
        // A separate statement, so that the clock and the waiters are read after the row is locked.
        batch.add(
            &format!(
                "SELECT now.ms, pg_backend_pid(), (SELECT max(version) FROM {version}), \
                 has_function_privilege({FLUSH_OID}::oid, 'EXECUTE'), its.* \
                 FROM {NOW} LEFT JOIN ({}) AS its ON true ORDER BY its.place",
                waiters.query
            ),
            &waiters.parameters(),
        );
        let counts = Unread::count(tables, subject, 0, FIRST_WAITERS, &mut batch);
        let answers = &mut connection.run(&batch, answer_by)?[..];
        let waiting_unread = counts.read(answers);
        let is_crowded = asks_if_crowded
            && answers.first().and_then(|answer| answer.rows.first()?.first()?.as_deref()).is_some_and(|it| it == "t");
        let before = usize::from(asks_if_crowded) + usize::from(lock == RowLock::Created);
        let Some([locked, found, ..]) = answers.get_mut(before..) else {
            return Err(INCOMPLETE);
        };
        if !connection.is_in_transaction() {
            return Err(Failure::Unwritten);
        }
        let (facts, _) = found.rows.first().and_then(|row| row.split_first_chunk()).ok_or(INCOMPLETE)?;
        let [Some(now_ms), Some(process), version, may_flush] = facts else { return Err(INCOMPLETE) };
        check_version(version.as_deref())?;
        let row = locked.rows.pop().ok_or(Failure::RowDeleted)?;
        let [Some(record), Some(stored_key)] = <[_; 2]>::try_from(row).map_err(|_| INCOMPLETE)? else {
            return Err(INCOMPLETE);
        };
        if stored_key != subject.key.as_str() {
            return Err(Failure::OtherKey);
        }
        // Without waiters there is one row, in which a waiter's columns are null.
        let waiters =
            found.rows.iter().filter_map(|row| row.get(facts.len()..)).filter(|row| row.iter().any(Option::is_some));
        let queue: Vec<Queued> = waiters.map(Queued::read).collect::<Result<_, _>>()?;
        let has_pooler = process.parse() != Ok(connection.process);
        let waits_by = match has_pooler {
            true => WaitsBy::Polling,
            false if visits || is_crowded => WaitsBy::Visiting,
            false => WaitsBy::Listening,
        };
        let others = queue.iter().filter(|row| row.waiter.grant.is_none()).count();
        Ok(Found {
            state: read_record(&record)?,
            record,
            now_ms: now_ms.parse().map_err(|_| INCOMPLETE)?,
            waits_by,
            hand_off: if may_flush.as_deref() == Some("t") { Commit::VisibleEarly } else { Commit::Durable },
            has_all_waiters: others < FIRST_WAITERS,
            waiting_unread,
            queue,
            is_locked: lock != RowLock::None,
        })
    }

    /// Reads more waiters of the lock, up to one that may be next, or all.
    pub(super) fn read_more_waiters(
        &mut self,
        connection: &mut Connection,
        tables: &Tables,
        subject: Subject<'_>,
        deadline: Moment,
    ) -> Result<(), Failure> {
        let last_of = |queue: &[Queued]| {
            let others =
                queue.iter().filter(|row| row.waiter.grant.is_none() && subject.asking != Some(&row.waiter.token));
            others.map(|row| row.place).max().unwrap_or_default()
        };
        let mut after = last_of(&self.queue);
        if self.is_locked {
            self.delete_gone(connection, tables, subject, after, deadline)?;
        }
        while !self.has_all_waiters {
            let waiters = Waiters::of(tables, subject, after, MORE_WAITERS);
            let mut batch = Batch::default();
            batch.add(&format!("{} ORDER BY place", waiters.query), &waiters.parameters());
            let counts = Unread::count(tables, subject, after, MORE_WAITERS, &mut batch);
            let answers = connection.run(&batch, deadline)?;
            self.waiting_unread = counts.read(&answers);
            let rows = answers.first().map(|answer| answer.rows.as_slice()).unwrap_or_default();
            let mut more: Vec<Queued> = rows.iter().map(|row| Queued::read(row)).collect::<Result<_, _>>()?;
            // Those that were granted the lock, and the one that asks, are read again.
            let places: HashSet<i64> = self.queue.iter().map(|row| row.place).collect();
            more.retain(|row| !places.contains(&row.place));
            let is_other = |row: &&Queued| row.waiter.grant.is_none() && subject.asking != Some(&row.waiter.token);
            self.has_all_waiters = more.iter().filter(is_other).count() < MORE_WAITERS;
            after = last_of(&more);
            let facts = TableFacts::new(self.now_ms, &more, subject.asking);
            let has_next = more.iter().any(|row| row.waiter.grant.is_none() && facts.is_willing(&row.waiter));
            self.queue.extend(more);
            if has_next {
                break;
            }
        }
        self.queue.sort_by_key(|row| row.place);
        Ok(())
    }

    /// Deletes the waiters behind this place that are gone, as the rules do with those that were read. There may be thousands.
    fn delete_gone(
        &self,
        connection: &mut Connection,
        tables: &Tables,
        subject: Subject<'_>,
        after: i64,
        deadline: Moment,
    ) -> Result<(), Failure> {
        let waiters = &tables.waiters;
        let mut batch = Batch::default();
        // As `TableFacts::presence` judges them.
        batch.add(
            &format!(
                "DELETE FROM {waiters} USING {NOW}, {STARTED} WHERE key = $1 AND place > $3::bigint AND NOT is_granted \
                 AND token IS DISTINCT FROM $2 AND looks_at_ms + {} < $4::bigint AND NOT ({}) \
                 AND (session IS NULL OR pg_try_advisory_xact_lock_shared(session))",
                millis(GONE),
                is_returning()
            ),
            &[
                Some(subject.key.as_str()),
                subject.asking.map(Token::as_str),
                Some(&after.to_string()),
                Some(&self.now_ms.to_string()),
            ],
        );
        connection.run(&batch, deadline).map(|_| ())
    }

    /// Returns the state, with the waiters that were read.
    pub(super) fn state(&self, subject: Subject<'_>) -> LockState {
        LockState { waiters: self.facts(subject).waiters_after_missed_turns(), ..self.state.clone() }
    }

    /// Returns when the next lease or grant ends, as it was read.
    pub(super) fn next_end(&self) -> Option<u64> {
        let leases = self.state.next_end();
        let grants = self.queue.iter().filter_map(|row| Some(row.waiter.grant?.ends_ms));
        leases.into_iter().chain(grants).min()
    }

    /// Returns the facts that the rules need besides the state.
    pub(super) fn facts<'a>(&'a self, subject: Subject<'a>) -> TableFacts<'a> {
        let mut facts = TableFacts::new(self.now_ms, &self.queue, subject.asking);
        (facts.may_be_done, facts.notices) = (subject.may_be_done, subject.notices);
        facts.waiting_unread = self.waiting_unread;
        facts
    }
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

/// The query for the waiters: those that were granted the lock, the one that asks, and some others.
struct Waiters<'a> {
    subject: Subject<'a>,
    /// The place after which those come.
    after: String,
    /// How many others.
    limit: String,
    /// The query, without an order.
    query: String,
}

impl<'a> Waiters<'a> {
    fn of(tables: &Tables, subject: Subject<'a>, after: i64, limit: usize) -> Self {
        let waiters = &tables.waiters;
        let query = format!(
            "SELECT {} FROM {waiters}, {NOW}, {STARTED} WHERE key = $1 AND place IN (\
              SELECT place FROM {waiters} WHERE key = $1 AND is_granted \
              UNION SELECT place FROM {waiters} WHERE key = $1 AND token = $2 \
              UNION (SELECT place FROM {waiters} WHERE key = $1 AND NOT is_granted AND place > $3::bigint ORDER BY place LIMIT $4::bigint)\
             )",
            waiter_columns()
        );
        Waiters { subject, after: after.to_string(), limit: limit.to_string(), query }
    }

    fn parameters(&self) -> [Option<&str>; 4] {
        let Waiters { subject, after, limit, .. } = self;
        [Some(subject.key.as_str()), subject.asking.map(Token::as_str), Some(after), Some(limit)]
    }
}

/// The number of waiters that were not read and would claim the lock: their rows stay at the server.
struct Unread {
    /// The index of the answer, if they are counted.
    at: Option<usize>,
}

impl Unread {
    /// Adds a statement that counts them, if the operation needs that, where `read` waiters without a grant `after` this place are read.
    fn count(tables: &Tables, subject: Subject<'_>, after: i64, read: usize, batch: &mut Batch) -> Self {
        if !subject.counts_waiting {
            return Unread { at: None };
        }
        let waiters = &tables.waiters;
        let at = batch.answers();
        // As `TableFacts::is_willing` judges them.
        batch.add(
            &format!(
                "SELECT count(*) FROM (SELECT token, session, is_unresponsive, looked_at_ms, looks_at_ms FROM {waiters} \
                  WHERE key = $1 AND NOT is_granted AND place > $3::bigint ORDER BY place OFFSET $4::bigint) AS it, {NOW}, {STARTED} \
                 WHERE token IS DISTINCT FROM $2 AND NOT is_unresponsive AND CASE \
                  WHEN {} THEN true WHEN looks_at_ms + {} < now.ms THEN false \
                  ELSE session IS NULL OR NOT pg_try_advisory_xact_lock_shared(session) END",
                is_returning(),
                millis(LATE)
            ),
            &[
                Some(subject.key.as_str()),
                subject.asking.map(Token::as_str),
                Some(&after.to_string()),
                Some(&read.to_string()),
            ],
        );
        Unread { at: Some(at) }
    }

    /// Returns the number in these answers; 0 if it was not asked for.
    fn read(&self, answers: &[Answer]) -> usize {
        let row = self.at.and_then(|at| answers.get(at)?.rows.first());
        row.and_then(|row| row.first()?.as_deref()?.parse().ok()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::lock::claim::{Claim, Mode};
    use crate::lock::ending::Ending;
    use crate::lock::holder::Holder;
    use crate::lock::lease::Ttl;
    use crate::lock::state::{Applied, Ask, Facts as _, HolderState, Lease, OnHeld, Presence, Release, WaiterState};
    use crate::store::postgres::facts::RollCall;

    const NOW_MS: u64 = 1_800_000_000_000;

    /// A waiter: its mode, whether it was granted the lock, whether it is unresponsive, in how many milliseconds it is heard from next, and
    /// how many milliseconds ago it was heard from last.
    type Waits = (Mode, bool, bool, i64, u64);

    fn mode() -> impl Strategy<Value = Mode> {
        prop_oneof![3 => Just(Mode::EXCLUSIVE), 1 => Just(Mode::Shared), 1 => (2u32..4).prop_map(Mode::Slots)]
    }

    fn waits() -> impl Strategy<Value = Waits> {
        let looks_in = prop_oneof![1 => -100_000i64..0, 2 => -1000i64..1000, 2 => 0i64..12_000];
        (mode(), prop::bool::weighted(0.1), prop::bool::weighted(0.3), looks_in, 0u64..1000)
    }

    fn token(number: usize) -> Token {
        Token::parse(&format!("t{number}")).expect("is a token")
    }

    fn row((number, (mode, is_granted, is_unresponsive, looks_in, looked_ago)): (usize, &Waits)) -> Queued {
        // One after the other, as successive operations hand off what is free.
        let granted_ago = 300 * (12 - number.min(12) as u64);
        let grant = is_granted.then(|| {
            serde_json::from_value(serde_json::json!({
                "slot": number + 10, "since_ms": NOW_MS - granted_ago, "ends_ms": NOW_MS - granted_ago + 1400
            }))
        });
        let waiter = WaiterState {
            token: token(number),
            who: Holder::default(),
            mode: *mode,
            joined_ms: NOW_MS - 60_000,
            grant: grant.map(|grant| grant.expect("is a grant")),
            is_unresponsive: !is_granted && *is_unresponsive,
        };
        let looks_at_ms = NOW_MS.saturating_add_signed(*looks_in).to_string();
        let looked_at_ms = (NOW_MS - looked_ago).to_string();
        let json = serde_json::to_string(&waiter).expect("is JSON");
        let values = [&number.to_string(), &json, "7", &looked_at_ms, &looks_at_ms, "f", "f"];
        let mut values = values.map(|value| Some(value.to_owned()));
        // Some wait through a pooler.
        values[2] = values[2].take().filter(|_| number % 3 > 0);
        Queued::read(&values).expect("is a row")
    }

    /// Returns what an operation makes of a lock if it reads all waiters, or only those that it reads at first.
    fn outcome<T>(
        state: &LockState,
        rows: &[Queued],
        asking: &Token,
        all: bool,
        rules: &impl Fn(&mut LockState, &TableFacts<'_>) -> Applied<T>,
    ) -> (Applied<T>, Vec<WaiterState>, RollCall) {
        let others = rows.iter().filter(|row| row.waiter.grant.is_none()).take(FIRST_WAITERS).map(|row| row.place);
        let first: Vec<i64> = others.collect();
        let is_read = |row: &&Queued| {
            all || row.waiter.grant.is_some() || row.waiter.token == *asking || first.contains(&row.place)
        };
        let queue: Vec<Queued> = rows.iter().filter(is_read).cloned().collect();
        let has_all = all || queue.len() == rows.len();
        let facts = TableFacts::new(NOW_MS, &queue, Some(asking));
        let mut after = LockState { waiters: facts.waiters_after_missed_turns(), ..state.clone() };
        let applied = rules(&mut after, &facts);
        if !has_all && !facts.has_next(&after) {
            return outcome(state, rows, asking, true, rules);
        }
        let roll_call = facts.roll_call(&after);
        // Those that were not read stay as they are; the dead among them are found when their turn comes.
        let full = TableFacts::new(NOW_MS, rows, Some(asking));
        let unread = rows.iter().filter(|row| !is_read(row)).map(|row| row.waiter.clone());
        let mut waiters: Vec<WaiterState> = after.waiters.into_iter().chain(unread).collect();
        // Nor are unread waiters marked as having missed their turn.
        for waiter in &mut waiters {
            let row = rows.iter().find(|row| row.waiter.token == waiter.token);
            waiter.is_unresponsive &= row.is_none_or(|row| row.waiter.is_unresponsive || first.contains(&row.place));
        }
        waiters.retain(|waiter| full.presence(waiter) != Presence::Gone);
        let place =
            |waiter: &WaiterState| rows.iter().position(|row| row.waiter.token == waiter.token).unwrap_or(rows.len());
        waiters.sort_by_key(place);
        (applied, waiters, roll_call)
    }

    proptest! {
        /// An operation has the same outcome whether it reads all waiters or only the first ones.
        #[test]
        fn the_first_waiters_are_enough(
            queue in prop::collection::vec(waits(), 0..24),
            holders in 0usize..3,
            shares in any::<bool>(),
            asking in 0usize..30,
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
                    lease: Some(Lease { ends_ms: Some(NOW_MS + 10_000), ttl_ms: Some(30_000) }),
                    ..HolderState::default()
                });
            }
            let rows: Vec<Queued> = queue.iter().enumerate().map(row).collect();
            let asking = token(if releases { 100 } else { asking });
            let claim = Claim { token: asking.clone(), ttl: Ttl::Lasts(Duration::from_secs(30)), mode: wants, ..Claim::example() };
            let on_held = if waiting { OnHeld::Wait { max: None } } else { OnHeld::Leave };
            let ask = Ask { claim: &claim, leased: true, request: None, on_held, seen: None };
            if releases {
                let rules = |state: &mut LockState, facts: &TableFacts<'_>| state.release(&asking, Release::at_once(Ending::Exited(0)), false, facts);
                let [part, whole] = [false, true].map(|all| outcome(&state, &rows, &asking, all, &rules));
                prop_assert_eq!((part.0.answer, part.0.granted, part.1, part.2), (whole.0.answer, whole.0.granted, whole.1, whole.2));
            } else {
                let rules = |state: &mut LockState, facts: &TableFacts<'_>| state.acquire(&ask, facts).expect("the fence grows");
                let [part, whole] = [false, true].map(|all| outcome(&state, &rows, &asking, all, &rules));
                let without_place = |answer| match answer {
                    crate::lock::state::Acquired::Held { first, place, ended_unix_ms } => {
                        crate::lock::state::Acquired::Held { first, place: place.map(|_| 0), ended_unix_ms }
                    }
                    answer => answer,
                };
                let (part_answer, whole_answer) = (without_place(part.0.answer), without_place(whole.0.answer));
                prop_assert_eq!((part_answer, part.0.granted, part.1, part.2), (whole_answer, whole.0.granted, whole.1, whole.2));
            }
        }
    }
}
