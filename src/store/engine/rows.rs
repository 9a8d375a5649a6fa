//! What is stored of one lock, for stores that keep its record in a row of one table, and each waiter in a row of
//! another.
//!
//! An operation locks the row of the record, so that it is alone with the lock, and reads only the first waiters: it
//! costs the same however many there are.

use std::fmt::Display;

use super::{Transition, View};
use crate::lock::state::{LOOKERS, LockState, Now, WaiterState};
use crate::store::failure::Failure;

/// To how many waiters one operation hands the lock.
pub(in crate::store) const HAND_OFFS_MAX: usize = 100;

/// How many waiters an operation reads at first, and how many if those were not enough: so few that the connection
/// takes them in even if lockrun is stopped just then. A server that waits until it can send the rest keeps the row
/// locked.
pub(in crate::store) const FIRST_WAITERS: usize = 2 * LOOKERS;
pub(in crate::store) const MORE_WAITERS: usize = HAND_OFFS_MAX + LOOKERS;

/// A row of the queue.
#[derive(Clone, Debug)]
pub(in crate::store) struct Row {
    /// Its place: the smaller, the earlier it came.
    pub(in crate::store) place: i64,
    /// What the rules know about it.
    pub(in crate::store) waiter: WaiterState,
}

impl Row {
    /// Reads these columns of the table `waiters`. The end of the place has a column of its own, where a waiter
    /// renews it alone: it is newer than the one in the JSON.
    pub(in crate::store) fn read<R>(place: &str, waiter: &str, ends_ms: &str) -> Result<Self, Failure<R>> {
        let broken = |column: &str, what: &dyn Display| {
            Failure::Broken(format!(
                "column {column} of its row with place {place} in the table waiters: {what}; delete this row: a \
                 waiter that still lives joins the end of the queue"
            ))
        };
        let waiter: WaiterState = serde_json::from_str(waiter).map_err(|error| broken("waiter", &error))?;
        let ends_ms = ends_ms.parse().map_err(|error| broken("ends_ms", &error))?;
        let place = place.parse().map_err(|error| broken("place", &error))?;
        Ok(Row { place, waiter: WaiterState { ends_ms, ..waiter } })
    }

    /// Returns the waiter as it is in the `state` after an operation, if it has kept its place. One that wants another
    /// mode has joined anew.
    pub(in crate::store) fn waiter_in<'s>(&self, state: &'s LockState) -> Option<&'s WaiterState> {
        let is_it = |waiter: &&WaiterState| waiter.token == self.waiter.token && waiter.mode == self.waiter.mode;
        state.waiters.iter().find(is_it)
    }
}

/// The first waiters of a lock, and the one that asks.
#[derive(Default)]
pub(in crate::store) struct Queue {
    /// Their rows, in order.
    pub(in crate::store) rows: Vec<Row>,
    /// How many of them are the first of the lock: one that asks may be behind others that were not read.
    first: usize,
    /// Whether those are all waiters of the lock, but for the one that asks.
    pub(in crate::store) is_whole: bool,
    /// Whether more than the first few were read.
    pub(in crate::store) is_extended: bool,
    /// How many others wait, if the operation counts them.
    unread: usize,
}

impl Queue {
    /// Returns the queue of which at most `limit` rows were read, the `first` ones in order, and that of the waiter that
    /// asks. `unread`: how many others wait, if that matters.
    pub(in crate::store) fn new(first: Vec<Row>, own: Option<Row>, limit: usize, unread: usize) -> Self {
        let (first, mut rows) = (first.len(), first);
        rows.extend(own.filter(|own| rows.iter().all(|row| row.place != own.place)));
        rows.sort_by_key(|row| row.place);
        Queue { rows, first, is_whole: first < limit, is_extended: limit > FIRST_WAITERS, unread }
    }
}

/// What was found of a lock, at one moment.
pub(in crate::store) struct Found {
    /// The record as it is stored.
    pub(in crate::store) record: String,
    /// The state in it, without waiters.
    pub(in crate::store) state: LockState,
    /// When this was read, in milliseconds of Unix time by the server's clock.
    pub(in crate::store) now_ms: u64,
    /// The waiters that were read.
    pub(in crate::store) queue: Queue,
}

impl Found {
    /// Returns the state, with the waiters that were read.
    pub(in crate::store) fn state(&self) -> LockState {
        let waiters = self.queue.rows.iter().map(|row| row.waiter.clone()).collect();
        LockState { waiters, ..self.state.clone() }
    }

    /// Returns the facts that the rules need besides the state.
    pub(in crate::store) fn view(&self, may_be_done: bool, hand_offs_max: usize) -> View {
        View { may_be_done, unread_waiters: self.queue.unread, hand_offs_max, ..View::at(self.now_ms) }
    }

    /// Returns whether the rules have made the same `transition` as if all waiters had been read: enough of the first
    /// ones remain, or another operation follows.
    pub(in crate::store) fn suffices(&self, transition: &Transition) -> bool {
        let last = self.queue.rows.get(self.queue.first.saturating_sub(1)).map(|row| row.place);
        let first = self.rows_in_force().filter(|row| Some(row.place) <= last);
        self.queue.is_whole
            || self.queue.is_extended
            || transition.is_unfinished
            || first.filter(|row| row.waiter_in(&transition.after).is_some()).count() >= LOOKERS
    }

    /// Returns the rows of the waiters whose places have not ended.
    pub(in crate::store) fn rows_in_force(&self) -> impl Iterator<Item = &Row> {
        let now = Now::unix(self.now_ms);
        self.queue.rows.iter().filter(move |row| row.waiter.is_in_force(now))
    }
}

/// Reads the column `state` of the row of a lock.
pub(in crate::store) fn read_state<R>(record: &str) -> Result<LockState, Failure<R>> {
    read_record(record).map_err(|what| {
        Failure::Broken(format!(
            "column state of its row in the table locks: {what}; once nothing runs under the lock, delete this row (its \
             sequence begins anew)"
        ))
    })
}

/// Reads the record of a lock that is held by leases. The error says what is wrong with it.
pub(in crate::store) fn read_record(record: &str) -> Result<LockState, String> {
    // serde would also read a structure from an array of its fields, which lockrun never writes.
    if !record.starts_with('{') {
        return Err("it is no JSON object".to_owned());
    }
    let state: LockState = serde_json::from_str(record).map_err(|error| error.to_string())?;
    // Without a lease, nothing in the store would show whether the holder still lives.
    if state.holders.iter().any(|holder| holder.lease.is_none()) {
        return Err("a holder has no lease".to_owned());
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
    use crate::lock::state::{Applied, Ask, HolderState, IfHeld, LeaseRecord, Release};
    use crate::lock::token::Token;
    use crate::store::{Acquired, Held};
    use crate::sys::clock::Moment;

    const NOW_MS: u64 = 1_800_000_000_000;

    fn mode() -> impl Strategy<Value = Mode> {
        prop_oneof![3 => Just(Mode::EXCLUSIVE), 2 => Just(Mode::Shared), 1 => (2u32..4).prop_map(Mode::Slots)]
    }

    fn token(number: usize) -> Token {
        Token::parse(&format!("t{number}")).expect("is a token")
    }

    fn row(number: usize, mode: Mode, ends_in: i64) -> Row {
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
        Row { place: i64::try_from(number).expect("is small"), waiter }
    }

    fn view() -> View {
        View { hand_offs_max: HAND_OFFS_MAX, ..View::at(NOW_MS) }
    }

    /// Returns what an operation finds if it reads this many of the first waiters; as a store does.
    fn found(state: &LockState, rows: &[Row], asking: &Token, limit: usize) -> Found {
        let first = rows.len().min(limit);
        let own = rows[first..].iter().find(|row| row.waiter.token == *asking).cloned();
        // Whether these are more than the first makes a difference of its own.
        let queue = Queue { is_extended: false, ..Queue::new(rows[..first].to_vec(), own, limit, 0) };
        Found { record: String::new(), state: state.clone(), now_ms: NOW_MS, queue }
    }

    /// Returns the answer, whom it concerns, the holders and the waiters after an operation that reads `limits` of the
    /// first waiters.
    fn outcome<T>(
        state: &LockState,
        rows: &[Row],
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
            let is_read = |row: &&Row| found.queue.rows.iter().any(|read| read.place == row.place);
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

    impl Found {
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
            let rows: Vec<Row> = queue.iter().enumerate().map(|(number, (mode, ends_in))| row(number, *mode, *ends_in)).collect();
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
    fn a_holder_without_a_lease_is_refused() {
        let mut state = LockState { key: "k".into(), ..LockState::default() };
        for lease in [Some(LeaseRecord { ends_ms: None, ttl_ms: None }), None] {
            state.holders.push(HolderState { lease, ..HolderState::default() });
            let text = serde_json::to_string(&state).expect("is JSON");
            assert_eq!(read_record(&text).is_ok(), lease.is_some());
        }
        assert!(read_record("[]").is_err() && read_record("{}").is_ok());
    }

    #[test]
    fn so_many_waiters_must_remain_as_look_at_the_lock_by_themselves() {
        let holder = HolderState {
            lease: Some(LeaseRecord { ends_ms: Some(NOW_MS + 10_000), ttl_ms: Some(30_000) }),
            ..HolderState::default()
        };
        let state = LockState { holders: vec![holder], ..LockState::default() };
        for ended in 0..=FIRST_WAITERS {
            let row = |number| row(number, Mode::EXCLUSIVE, if number < ended { 0 } else { 1000 });
            let rows: Vec<Row> = (0..3 * FIRST_WAITERS).map(row).collect();
            let found = found(&state, &rows, &token(100), FIRST_WAITERS);
            let before = found.state();
            let mut after = before.clone();
            let Applied { woken, is_unfinished, begins_lease, .. } = after.look(&view());
            let transition = Transition { before, after, woken, is_unfinished, begins_lease };
            assert_eq!(
                found.suffices(&transition),
                FIRST_WAITERS - ended >= LOOKERS,
                "{ended} of the first have ended"
            );
        }
    }

    #[test]
    fn one_more_reading_is_enough() {
        let rows: Vec<Row> = (0..300).map(|number| row(number, Mode::Shared, 1000)).collect();
        let found = found(&LockState::default(), &rows, &token(299), MORE_WAITERS);
        let before = found.state();
        let mut after = before.clone();
        let Applied { woken, is_unfinished, begins_lease, .. } = after.look(&view());
        let transition = Transition { before, after, woken, is_unfinished, begins_lease };
        assert!(is_unfinished && found.suffices(&transition));
        assert_eq!(transition.after.holders.len(), HAND_OFFS_MAX);
    }
}
