//! How a waiter learns that it is its turn.
//!
//! It watches its own row of the queue, which changes when the lock is granted to it. The first waiters, and the last ones,
//! which may outlive all of those, look at the lock regularly: whether the holder's life has ended, and whether a grant was
//! claimed. A waiter that does not claim its grant is passed over, and those behind it are called, to show that they are
//! alive before it is their turn.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::time::Duration;

use uuid::Uuid;

use super::EtcdStore;
use super::api::{self, LeaseMessage, WatchMessage};
use super::client::Effect;
use super::facts::{EtcdFacts, is_willing};
use super::failure::Failure;
use super::found::{Found, Row};
use super::http::Connection;
use crate::lock::state::{Held, LockState, Seen, WaiterState, millis};
use crate::lock::token::Token;
use crate::store::Wakeup;
use crate::sys::clock::Moment;
use crate::sys::wait::{WaitObserver, Waiter, WakeReason};

/// How long the lease of a waiter lasts, and how often it is renewed.
pub(super) const WAITER_TTL: Duration = Duration::from_secs(20);
const KEEP_ALIVE: Duration = Duration::from_secs(6);

/// How many of the first waiters look at the lock regularly. The first half of them, and so many of the last waiters
/// (STAND_INS), look twice as often.
pub(super) const LOOKERS: usize = 8;
const FREQUENT_LOOKERS: usize = LOOKERS / 2;
const STAND_INS: u64 = 2;

/// How often the frequent ones look.
const BEAT: Duration = Duration::from_millis(700);

/// The distance between two of them, so that they do not conflict.
const TURN: Duration = Duration::from_millis(20);

/// How often the others look: at the earliest, and at the latest.
const OTHERS_LOOK_EVERY: (Duration, Duration) = (Duration::from_secs(8), Duration::from_secs(12));

/// How many waiters may have an unanswered call.
const CALLS_MAX: usize = 56;

/// How many waiters may have an unclaimed grant.
pub(super) const GRANTS_MAX: usize = 24;

/// How many rows grants, unclaimed grants and calls change at most. An operation calls nobody beyond that.
pub(super) const ROWS_MAX: usize = 2 * GRANTS_MAX + CALLS_MAX;

/// How many waiters that are kept from a free slot look.
pub(super) const WATCHERS: usize = 4;

/// When a waiter looks at the lock again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    within: Duration,
}

/// A watch of our row: opened when we first sleep, when another member answers us, and when our row is a new one.
struct Watch {
    member: usize,
    row: String,
    connection: Connection,
}

/// The state of our wait in the queue: what we know since our last look.
pub(super) struct WaitState {
    /// Who held the lock.
    pub(super) seen: Option<Seen>,
    look_at: Moment,
    /// The watch that reports changes of our row.
    watch: Option<Watch>,
    /// When to renew the lease of our row.
    keep_alive_at: Moment,
    /// What the last event of the watch says, if it is enough to claim the lock.
    pub(super) granted: Option<Found>,
}

impl Look {
    /// If the asking client waits, returns when it looks again, and how many are ahead of it. It looks soon if it has called
    /// others, or passed them over.
    pub(super) fn of(asking: &Token, facts: &EtcdFacts<'_>, after: &LockState, wakes: bool) -> Option<(Self, u64)> {
        let at = after.waiters.iter().position(|waiter| waiter.token == *asking)?;
        let found = facts.found;
        let place = match found.row_of(asking) {
            None => found.waiting,
            Some(_) if found.has_all_rows => at as u64,
            Some(_) => found.ahead,
        };
        let behind = found.waiting.saturating_sub(place + 1);
        let ahead = &after.waiters[..at];
        let turn = ahead.iter().filter(|waiter| is_willing(waiter)).count();
        let turn = turn.max(usize::try_from(place).unwrap_or(usize::MAX).saturating_sub(after.waiters.len()));
        if after.waiters[at].grant.is_some() {
            return Some((Look { within: Duration::ZERO }, place));
        }
        let looks =
            turn < LOOKERS || behind < STAND_INS || blocked_waiters(after).any(|waiter| waiter.token == *asking);
        let within = if wakes {
            facts.observed.call_window()
        } else if !looks {
            let (least, most) = OTHERS_LOOK_EVERY;
            let spread = millis(most.saturating_sub(least)) + 1;
            least + Duration::from_millis(Uuid::new_v4().as_u64_pair().1 % spread)
        } else {
            let rows = ahead.iter().filter_map(|waiter| found.row_of(&waiter.token));
            let next = beat_in(facts.now_ms, place);
            let beat = if turn < FREQUENT_LOOKERS || behind < STAND_INS { next } else { next + BEAT };
            facts.observed.next_end(rows).map_or(beat, |left| left.min(beat))
        };
        // The waiter that has called the others is the first to look for their answers.
        let turns = if wakes { 0 } else { u32::try_from(turn.min(FREQUENT_LOOKERS)).unwrap_or(0) };
        Some((Look { within: within + TURN * turns + Duration::from_millis(5) }, place))
    }
}

/// Returns the time until the next regular look of the waiter in this place: a beat, or half of one to a whole one for the
/// first look. By the clock, neighbours look a golden section of a beat apart, which spreads any set of neighbours evenly, so
/// that one of them soon notices what has happened.
fn beat_in(now_ms: u64, place: u64) -> Duration {
    const GOLDEN_SECTION: u64 = 433;
    let beat = millis(BEAT);
    let left = beat - (now_ms + place % beat * GOLDEN_SECTION) % beat;
    Duration::from_millis(if left < beat / 2 { left + beat / 2 } else { left })
}

/// Returns the first waiters that only those ahead of them keep from a slot, which these leave unused.
fn blocked_waiters(state: &LockState) -> impl Iterator<Item = &WaiterState> {
    let willing = state.waiters.iter().filter(|waiter| is_willing(waiter));
    let is_blocked = willing.clone().next().is_some_and(|next| !state.has_room(next.mode));
    willing.filter(move |waiter| is_blocked && state.has_room(waiter.mode)).take(WATCHERS)
}

/// Returns whether an operation passes a waiter over.
pub(super) fn passes_over(before: &LockState, after: &LockState) -> bool {
    let find = |token: &Token| before.waiters.iter().find(|waiter| waiter.token == *token);
    let is_passed_over = |waiter: &WaiterState| {
        waiter.is_unresponsive && find(&waiter.token).is_some_and(|before| !before.is_unresponsive)
    };
    after.waiters.iter().any(is_passed_over)
}

/// Why a waiter is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wake {
    /// To check whether a slot is its own.
    Check,
    /// To show that it is alive.
    Call,
}

/// Returns which waiters are woken, by the names of their rows.
pub(super) fn to_wake(facts: &EtcdFacts<'_>, before: &LockState, after: &LockState) -> BTreeMap<String, Wake> {
    let name = |waiter: &WaiterState| facts.found.row_of(&waiter.token).map(|row| row.name.clone());
    let is_other = |waiter: &&WaiterState| facts.asking != Some(&waiter.token);
    let passes_over = passes_over(before, after);
    let mut woken = BTreeMap::new();
    let asks_for_blocked =
        facts.asking.is_some_and(|asking| blocked_waiters(after).any(|waiter| waiter.token == *asking));
    if !asks_for_blocked && (passes_over || before.holders.len() != after.holders.len()) {
        woken.extend(blocked_waiters(after).filter(is_other).filter_map(|waiter| Some((name(waiter)?, Wake::Check))));
    }
    // Another waiter may be dead, too: one that is granted the lock now, unless it has answered recently, or one that keeps
    // the asking client from a slot.
    let has_answered = |waiter: &WaiterState| name(waiter).is_some_and(|name| facts.observed.has_answered(&name));
    let next_may_be_dead = || {
        let mut granted = after.waiters.iter().filter(|waiter| waiter.grant.is_some()).peekable();
        granted.peek().is_none() || !granted.all(has_answered)
    };
    if asks_for_blocked || passes_over && next_may_be_dead() {
        let is_called =
            |waiter: &WaiterState| facts.found.row_of(&waiter.token).is_some_and(|row| row.value.called.is_some());
        let waited_for = after.waiters.iter().filter(|waiter| is_willing(waiter) && is_called(waiter)).count();
        let most = CALLS_MAX.saturating_sub(waited_for).min(ROWS_MAX.saturating_sub(count_changed(facts.found, after)));
        // The waiters ahead of the asking client, or all if it does not wait.
        let ahead = after.waiters.iter().take_while(|waiter| facts.asking != Some(&waiter.token));
        let uncalled = ahead.filter(|waiter| is_willing(waiter) && !is_called(waiter));
        woken.extend(uncalled.take(most).filter_map(|waiter| Some((name(waiter)?, Wake::Call))));
    }
    woken
}

/// Reads the last event of a watch. Returns what it says of the lock, if that is enough to claim it. A message that came in
/// several parts is ignored; then the lock is read.
fn read_grant(heard: &[u8]) -> Option<Found> {
    let lines = heard.split(|byte| *byte == b'\n');
    let watched = lines.filter_map(|line| serde_json::from_slice::<WatchMessage>(line).ok());
    let last = watched.flat_map(|watched| watched.result.events).last()?;
    Found::of_granted(&last.kv)
}

/// Returns in how many rows an operation removes the waiter, or changes whether it is granted the lock or passed over.
fn count_changed(found: &Found, after: &LockState) -> usize {
    let is_changed = |row: &&Row| {
        let before = &row.value.waiter;
        let waiter = after.waiters.iter().find(|waiter| waiter.token == before.token);
        waiter.is_none_or(|it| {
            (it.grant.is_some(), it.is_unresponsive) != (before.grant.is_some(), before.is_unresponsive)
        })
    };
    found.rows.iter().filter(is_changed).count()
}

impl WaitState {
    /// Returns what is known after another look. `held`: the holder that it found; `ended_unix_ms`: when a hold had last
    /// ended.
    pub(super) fn after(before: Option<Self>, held: Option<&Held>, ended_unix_ms: u64, look: Look) -> Self {
        let now = Moment::now();
        let (seen, watch, keep_alive_at) = match before {
            Some(before) => (before.seen, before.watch, before.keep_alive_at),
            None => (None, None, now + KEEP_ALIVE),
        };
        let seen = Seen::after(seen, held, ended_unix_ms);
        WaitState { seen, look_at: now + look.within, watch, keep_alive_at, granted: None }
    }
}

impl EtcdStore {
    /// Sleeps until a look at the lock is worthwhile, or until `until`.
    pub(super) fn sleep_in_queue(
        &mut self,
        until: Option<Moment>,
        waiter: &mut Waiter<'_>,
        observer: &mut dyn WaitObserver,
    ) -> Result<Wakeup, Failure> {
        self.keep_place();
        let (Some(mut wait), Some((row, lease))) = (self.wait.take(), self.own_row.clone()) else {
            return Ok(Wakeup::TryAgain);
        };
        let watches = self.keep_watch(&mut wait, &row);
        let wakeup = watches.and_then(|()| self.sleep_until(&mut wait, lease, until, waiter, observer));
        self.wait = Some(wait);
        wakeup
    }

    /// Makes sure that our row is watched at the member that answers us.
    fn keep_watch(&mut self, wait: &mut WaitState, row: &str) -> Result<(), Failure> {
        // We have a new row if the old one was lost and we have joined again.
        let is_right = |watch: &Watch| watch.member == self.client.member && watch.row == row;
        if !wait.watch.as_ref().is_some_and(is_right) {
            let connection = self.watch_row(row)?;
            wait.watch = Some(Watch { member: self.client.member, row: row.to_owned(), connection });
            // The row may have changed before that.
            wait.look_at = Moment::now();
        }
        Ok(())
    }

    /// Watches our row from now on.
    fn watch_row(&mut self, row: &str) -> Result<Connection, Failure> {
        let deadline = Moment::now() + self.timeout;
        self.client.watch(row, deadline)
    }

    fn sleep_until(
        &mut self,
        wait: &mut WaitState,
        lease: i64,
        until: Option<Moment>,
        waiter: &mut Waiter<'_>,
        observer: &mut dyn WaitObserver,
    ) -> Result<Wakeup, Failure> {
        loop {
            let wake_at = [wait.keep_alive_at].into_iter().chain(until).fold(wait.look_at, Moment::min);
            let source = wait.watch.as_ref().map(|watch| watch.connection.as_fd());
            match waiter.wait_for(source, Some(wake_at), observer) {
                Ok(WakeReason::Signal(signal)) => return Ok(Wakeup::Signal(signal)),
                Ok(WakeReason::Time | WakeReason::Ready | WakeReason::Resumed) => {}
                Err(errno) => return Err(Failure::NoWait(errno)),
            }
            let (heard, goes_on) = wait.watch.as_mut().map_or((&[][..], true), |watch| watch.connection.drain());
            let has_changed = !heard.is_empty();
            wait.granted = goes_on.then(|| read_grant(heard)).flatten();
            if !goes_on {
                wait.watch = None;
                return Ok(Wakeup::TryAgain);
            }
            let now = Moment::now();
            let is_time = until.into_iter().chain([wait.look_at]).any(|at| at <= now);
            if has_changed || is_time || observer.is_stopped() {
                return Ok(Wakeup::TryAgain);
            }
            if wait.keep_alive_at <= now {
                if !self.keep_alive(lease, self.timeout)? {
                    return Ok(Wakeup::TryAgain);
                }
                wait.keep_alive_at = Moment::now() + KEEP_ALIVE;
            }
        }
    }

    /// Renews the lease of our row if that is due, although we do not sleep: while other requests fail, our place in the queue
    /// must not be lost. If this fails, too, the next sleep or failure repeats it.
    pub(super) fn keep_place(&mut self) {
        let (Some(wait), Some((_, lease))) = (&self.wait, &self.own_row) else { return };
        if wait.keep_alive_at > Moment::now() {
            return;
        }
        // The request that has failed has taken its time already.
        let kept = self.keep_alive(*lease, self.timeout / 4);
        let Some(wait) = &mut self.wait else { return };
        match kept {
            Ok(true) => wait.keep_alive_at = Moment::now() + KEEP_ALIVE,
            // The place is lost: the next look joins the queue anew.
            Ok(false) => wait.look_at = Moment::now(),
            Err(_) => {}
        }
    }

    /// Renews the lease of our row, within `timeout`. Returns whether it still existed.
    fn keep_alive(&mut self, lease: i64, timeout: Duration) -> Result<bool, Failure> {
        let deadline = Moment::now() + timeout;
        let responses = self.client.exchange(&[api::keep_alive(lease)], Effect::Reads, deadline)?;
        let response = responses.first().ok_or(Failure::Closed)?;
        match Failure::of_response(response) {
            Some(Failure::Refused(refusal)) if refusal.lease_is_missing() => Ok(false),
            Some(failure) => Err(failure),
            None => Ok(api::read::<LeaseMessage>(&response.body)?.result.ttl > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    /// Returns the events of these changes of a row, each in a message of its own, as the gateway sends them.
    fn heard(changes: &[(i64, &str)]) -> String {
        let message = |(revision, value): &(i64, &str)| {
            let (key, value) = (STANDARD.encode("q/1-t"), STANDARD.encode(value));
            let kv = format!(r#"{{"key":"{key}","mod_revision":"{revision}","value":"{value}","lease":"7"}}"#);
            let message = format!(r#"{{"result":{{"header":{{"revision":"{revision}"}},"events":[{{"kv":{kv}}}]}}}}"#);
            format!("{:x}\r\n{message}\n\r\n", message.len() + 1)
        };
        changes.iter().map(message).collect()
    }

    #[test]
    fn an_event_of_a_grant_says_what_is_needed_to_claim_it() {
        let waiter = r#""token": "t", "who": {}, "mode": {"slots": 1}, "joined_ms": 0"#;
        let near = format!(r#"{{"waiter": {{{waiter}}}, "is_near": true}}"#);
        let grant = r#""grant": {"slot": 0, "since_ms": 1, "ends_ms": 2}"#;
        let granted = format!(r#"{{"waiter": {{{waiter}, {grant}}}, "record": {{"fence": 9}}}}"#);
        let bare = format!(r#"{{"waiter": {{{waiter}, {grant}}}}}"#);
        let all = heard(&[(5, &near), (6, &granted)]);
        let found = read_grant(all.as_bytes()).expect("is a grant");
        assert_eq!((found.record_revision, found.stored.fence, found.rows.len()), (6, 9, 1));
        assert_eq!(found.rows[0].name, "q/1-t");
        // What came after the grant counts. An event that cannot be read, or lacks the record, is no grant.
        for other in
            [heard(&[(6, &granted), (7, &near)]), heard(&[(6, &bare)]), heard(&[(6, "")]), all[..all.len() - 9].into()]
        {
            assert!(read_grant(other.as_bytes()).is_none(), "{other}");
        }
    }

    #[test]
    fn neighbours_look_at_different_times() {
        let (now_ms, beat) = (1_800_000_000_000, millis(BEAT));
        for place in 0..2000 {
            let spans: Vec<u64> = (place..place + 4).map(|place| millis(beat_in(now_ms, place))).collect();
            assert!(spans.iter().all(|span| (beat / 2..=beat).contains(span)), "{spans:?}");
            // When each looks after that.
            let next = |(place, span): (u64, &u64)| (span + millis(beat_in(now_ms + span, place))) % beat;
            let mut times: Vec<u64> = (place..).zip(&spans).map(next).collect();
            times.sort_unstable();
            assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= beat / 8), "{place}: {times:?}");
        }
    }
}
