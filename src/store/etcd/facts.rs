//! What a waiter knows of the others.
//!
//! Whether a waiter that was granted the lock has had time enough to claim it is not decided by etcd's clock: each waiter
//! measures by its own clock how long it has seen a grant, or an unanswered call. Single mistakes do no harm: a grant is not
//! yet the lock, and a waiter that was passed over keeps its place. But many mistakes at once would make many waiters claim
//! the lock at once and conflict; so where etcd answers slowly, or others acquire the lock meanwhile, waiters are more
//! patient. And while etcd does not answer, nobody can claim anything: that time is held against no waiter.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::found::{Found, Row};
use super::waiting::{GRANTS_MAX, LOOKERS};
use crate::lock::state::{Facts, LockState, Now, WaiterState, millis};
use crate::lock::token::Token;
use crate::sys::clock::Moment;

/// How long a waiter sees an unclaimed grant before it grants the lock to the next waiter.
const CLAIM_WINDOW: Duration = Duration::from_millis(800);

/// How long it sees an unanswered call before it passes the called waiter over; also how long it sees an unclaimed grant if
/// the waiter before that one has not claimed its grant either.
const CALL_WINDOW: Duration = Duration::from_millis(400);

/// For how many of these windows an answer to a call counts as a sign of life.
const ANSWER_LASTS: u32 = 2;

/// A window lasts at least this many round trips (a claim takes one or two), up to SLOW_WINDOW.
const ROUND_TRIPS: u32 = 6;
const SLOW_WINDOW: Duration = Duration::from_secs(4);

/// A window starts again whenever another client acquires the lock, because a claim may have lost against that. But no grant or
/// call is prolonged beyond this for that reason, or beyond CLAIM_TRIPS round trips for each grant that was unclaimed at the
/// same time: claims succeed one after another.
const LONGEST_WINDOW: Duration = Duration::from_millis(1600);
const CLAIM_TRIPS: u32 = 3;

/// By how much later a window starts after a disturbance. A claim that was lost in it is repeated after its member's share of the timeout:
/// 5 s / 3 by default, which is less than this and a window.
const DISTURBANCE: Duration = Duration::from_secs(1);

/// A grant or a call, as this process has seen it.
#[derive(Clone, Copy, Debug)]
struct Observation {
    since: Moment,
    /// The most unclaimed grants that it has seen at once since then.
    grants: u32,
}

/// What this process has seen of each grant and each call.
#[derive(Debug, Default)]
pub(super) struct Observed {
    challenges: HashMap<(String, u64), Observation>,
    /// When this process saw that the waiter in a row had answered a call.
    answered: HashMap<String, Moment>,
    now: Option<Moment>,
    /// The last fence, and when it was first seen.
    fence: Option<(u64, Moment)>,
    /// The cluster's term, and how many requests of ours had failed, both as of the last answer.
    conditions: Option<(String, u64)>,
    /// How long the last answer took.
    round_trip: Duration,
}

impl Observed {
    /// Notes what was read just now, after a `round_trip`: the record, and all rows of the queue, or the first. `failed` is
    /// how many requests of ours have failed so far.
    ///
    /// If one has failed since the last time, or there was an election, requests of others may be lost, too: then earlier
    /// observations do not count.
    pub(super) fn note(&mut self, found: &Found, round_trip: Duration, failed: u64) {
        let now = Moment::now();
        let lasts = self.call_window() * ANSWER_LASTS;
        let is_recent = |at: &Moment| now.since(*at) < lasts;
        let challenged = self.challenges.iter().filter(|(_, seen)| is_recent(&seen.since));
        let challenged: HashSet<&str> = challenged.map(|((name, _), _)| name.as_str()).collect();
        let is_answer = |row: &&Row| {
            let is_quiet = row.value.challenge().is_none() && !row.value.waiter.is_unresponsive;
            is_quiet && challenged.contains(row.name.as_str())
        };
        let answers = found.rows.iter().filter(is_answer).map(|row| (row.name.clone(), now));
        let answers: HashMap<_, _> = answers.collect();
        self.challenges.retain(|(name, _), _| !answers.contains_key(name));
        self.answered.retain(|_, at| is_recent(at));
        self.answered.extend(answers);
        let conditions = (found.member_and_term.1.clone(), failed);
        let is_disturbed = self.conditions.as_ref().is_some_and(|before| *before != conditions);
        if is_disturbed {
            self.challenges.clear();
        }
        let first_seen = if is_disturbed { now + DISTURBANCE } else { now };
        let grants = found.rows.iter().filter(|row| row.value.waiter.grant.is_some()).count();
        let grants = u32::try_from(grants).unwrap_or(u32::MAX);
        let observation = |row: &Row| {
            let challenge = (row.name.clone(), row.value.challenge()?);
            let before = self.challenges.get(&challenge);
            let since = before.map_or(first_seen, |before| before.since);
            let grants = before.map_or(grants, |before| before.grants.max(grants));
            Some((challenge, Observation { since, grants }))
        };
        let read: HashMap<_, _> = found.rows.iter().filter_map(observation).collect();
        if found.has_all_rows {
            self.challenges = read;
        } else {
            self.challenges.extend(read);
        }
        let fence = found.stored.fence;
        self.fence = self.fence.filter(|(seen, _)| *seen == fence).or(Some((fence, now)));
        self.conditions = Some(conditions);
        self.round_trip = round_trip;
        self.now = Some(now);
    }

    /// Notes that this process has just granted the lock to a waiter, or called it.
    pub(super) fn mark(&mut self, challenge: &(String, u64)) {
        let new = || Observation { since: Moment::now(), grants: 0 };
        self.challenges.entry(challenge.clone()).or_insert_with(new);
    }

    /// Returns whether this process has recently seen the waiter in this row answer a call.
    pub(super) fn has_answered(&self, name: &str) -> bool {
        self.answered.contains_key(name)
    }

    /// Returns for how long the waiter in a row may still claim its grant, or answer a call.
    fn left(&self, row: &Row) -> Option<Duration> {
        let challenge = row.value.challenge()?;
        let window = if row.value.called.is_some() { self.call_window() } else { self.longer(CLAIM_WINDOW) };
        let age = |since: Option<Moment>| self.now.zip(since).map_or(Duration::ZERO, |(now, since)| now.since(since));
        let seen = self.challenges.get(&(row.name.clone(), challenge));
        let age_of_challenge = age(seen.map(|seen| seen.since));
        let quiet = age(self.fence.map(|(_, since)| since)).min(age_of_challenge);
        let longest = self.longest_window(seen.map_or(0, |seen| seen.grants));
        Some(window.saturating_sub(quiet).min(longest.saturating_sub(age_of_challenge)))
    }

    /// Returns how long a called waiter may take to answer.
    pub(super) fn call_window(&self) -> Duration {
        self.longer(CALL_WINDOW)
    }

    /// Returns how long a window may last at most while others acquire the lock, if so many grants were unclaimed at once.
    fn longest_window(&self, grants: u32) -> Duration {
        // A single answer that took very long says little about the next ones.
        let round_trip = self.round_trip.min(SLOW_WINDOW / ROUND_TRIPS);
        self.longer(LONGEST_WINDOW).max(round_trip * CLAIM_TRIPS * grants)
    }

    /// Returns `window`, or a longer one if etcd answers slowly.
    fn longer(&self, window: Duration) -> Duration {
        window.max((self.round_trip * ROUND_TRIPS).min(SLOW_WINDOW))
    }

    /// Returns the waiter in a row. Its grant has ended if it was not claimed in time; the waiter is passed over if it was
    /// called and has not answered.
    pub(super) fn waiter(&self, row: &Row, now_ms: u64) -> WaiterState {
        let mut waiter = row.value.waiter.clone();
        let left = self.left(row).unwrap_or_default();
        if let Some(grant) = &mut waiter.grant {
            grant.ends_ms = if left.is_zero() { 0 } else { now_ms.saturating_add(millis(left)) };
        } else if row.value.called.is_some() {
            waiter.is_unresponsive |= left.is_zero();
        }
        waiter
    }

    /// Returns when the first window of a granted or called waiter among these ends, if there is one.
    pub(super) fn next_end<'a>(&self, rows: impl Iterator<Item = &'a Row>) -> Option<Duration> {
        let is_passed_over = |row: &&Row| row.value.waiter.is_unresponsive;
        rows.filter(|row| !is_passed_over(row)).filter_map(|row| self.left(row)).min()
    }
}

/// The present time, and what is known of the waiters.
pub(super) struct EtcdFacts<'a> {
    pub(super) now_ms: u64,
    pub(super) found: &'a Found,
    pub(super) observed: &'a Observed,
    pub(super) asking: Option<&'a Token>,
    /// Whether an earlier attempt at the same operation may have been carried out.
    pub(super) may_be_done: bool,
}

impl EtcdFacts<'_> {
    /// Returns whether the asking client holds the lock in this state.
    pub(super) fn is_held_by_asking(&self, state: &LockState) -> bool {
        state.holders.iter().any(|holder| self.asking == Some(&holder.token))
    }

    /// Returns whether enough waiters in the state, besides the asking client, can be granted the lock: then no waiter behind
    /// those that were read is next, or near the head of the queue.
    pub(super) fn has_enough(&self, state: &LockState) -> bool {
        let others = state.waiters.iter().filter(|waiter| self.asking != Some(&waiter.token));
        others.filter(|waiter| is_willing(waiter)).count() > LOOKERS
    }
}

/// Returns whether a waiter can be granted the lock.
pub(super) fn is_willing(waiter: &WaiterState) -> bool {
    waiter.grant.is_none() && !waiter.is_unresponsive
}

/// Returns whether a waiter is among the first in this state that can be granted the lock.
pub(super) fn is_near(waiter: &WaiterState, state: &LockState) -> bool {
    let mut first = state.waiters.iter().filter(|waiter| is_willing(waiter)).take(LOOKERS);
    first.any(|it| it.token == waiter.token)
}

impl Facts for EtcdFacts<'_> {
    fn now(&self) -> Now {
        Now::unix(self.now_ms)
    }

    fn pruned_fence(&self) -> u64 {
        self.found.pruned.fence
    }

    fn grants_max(&self) -> usize {
        GRANTS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::etcd::found::{PrunedFence, RowValue};

    const ROUND_TRIP: Duration = Duration::from_millis(5);

    /// Returns what was found in this term: a waiter is granted the lock, and another client acquired it last, with this
    /// fence.
    fn found(fence: u64, term: &str) -> Found {
        let waiter = r#"{"token": "granted", "who": {}, "mode": {"slots": 8}, "joined_ms": 0,
            "grant": {"slot": 0, "since_ms": 1, "ends_ms": 0}}"#;
        let waiter = serde_json::from_str(waiter).expect("a waiter as it is stored");
        let value = RowValue { waiter, called: None, is_near: false, record: None };
        let row = Row { name: "row".into(), revision: 1, value, lease: 0 };
        Found {
            member_and_term: (String::new(), term.to_owned()),
            revision: 1,
            record_revision: 1,
            stored: LockState { fence, ..LockState::default() },
            pruned: PrunedFence::default(),
            lives: Vec::new(),
            rows: vec![row],
            has_all_rows: true,
            waiting: 1,
            ahead: 0,
        }
    }

    /// Returns what was observed if the grant, and the last acquisition by another client, are this old.
    fn observed(grant: Duration, acquisition: Duration, round_trip: Duration) -> Observed {
        let mut observed = Observed::default();
        observed.note(&found(1, "1"), round_trip, 0);
        age(&mut observed, grant);
        let now = observed.now.expect("it has been noted");
        observed.fence = Some((1, now.before(acquisition)));
        observed
    }

    /// Makes the grant older.
    fn age(observed: &mut Observed, span: Duration) {
        observed.challenges.values_mut().for_each(|seen| seen.since = seen.since.before(span));
    }

    fn has_ended(observed: &Observed) -> bool {
        observed.waiter(&found(1, "1").rows[0], 1000).grant.is_some_and(|grant| grant.ends_ms == 0)
    }

    #[test]
    fn a_grant_ends_when_no_client_has_acquired_the_lock_for_a_window() {
        let ages = |grant: Duration, acquisition: Duration| has_ended(&observed(grant, acquisition, ROUND_TRIP));
        assert!(!ages(CLAIM_WINDOW / 2, CLAIM_WINDOW * 2));
        assert!(ages(CLAIM_WINDOW, CLAIM_WINDOW * 2));
        // A waiter that claims it has lost against those that acquired the lock.
        assert!(!ages(CLAIM_WINDOW * 3 / 2, CLAIM_WINDOW / 2));
        assert!(ages(LONGEST_WINDOW, CLAIM_WINDOW / 2));
    }

    #[test]
    fn where_etcd_is_slow_a_grant_lasts_longer() {
        let slow = Duration::from_millis(400);
        assert!(!has_ended(&observed(CLAIM_WINDOW * 2, CLAIM_WINDOW * 2, slow)));
        assert!(has_ended(&observed(slow * ROUND_TRIPS, slow * ROUND_TRIPS, slow)));
        assert!(has_ended(&observed(SLOW_WINDOW, SLOW_WINDOW, slow * 100)));
    }

    #[test]
    fn where_many_claim_at_once_a_grant_lasts_longer() {
        let slow = Duration::from_millis(120);
        let row = |number| found(1, "1").rows.into_iter().map(move |row| Row { name: format!("row {number}"), ..row });
        let mut many = found(1, "1");
        many.rows.extend((1..16).flat_map(row));
        let mut observed = Observed::default();
        observed.note(&many, slow, 0);
        age(&mut observed, LONGEST_WINDOW);
        // The others have claimed theirs.
        observed.note(&found(16, "1"), slow, 0);
        assert!(!has_ended(&observed));
        age(&mut observed, slow * CLAIM_TRIPS * 16);
        observed.note(&found(17, "1"), slow, 0);
        assert!(has_ended(&observed));
    }

    #[test]
    fn an_acquisition_is_noticed() {
        let mut observed = observed(CLAIM_WINDOW, CLAIM_WINDOW, ROUND_TRIP);
        observed.note(&found(1, "1"), ROUND_TRIP, 0);
        assert!(has_ended(&observed));
        observed.note(&found(2, "1"), ROUND_TRIP, 0);
        assert!(!has_ended(&observed));
    }

    #[test]
    fn what_was_seen_before_a_disturbance_does_not_count() {
        for (term, failed) in [("2", 0), ("1", 1)] {
            let mut observed = observed(CLAIM_WINDOW, CLAIM_WINDOW, ROUND_TRIP);
            observed.note(&found(1, term), ROUND_TRIP, failed);
            age(&mut observed, CLAIM_WINDOW);
            assert!(!has_ended(&observed), "{term} {failed}");
            age(&mut observed, DISTURBANCE);
            observed.note(&found(1, term), ROUND_TRIP, failed);
            assert!(has_ended(&observed), "{term} {failed}");
        }
    }
}
