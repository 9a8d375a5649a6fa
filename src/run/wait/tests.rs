//! Tests of the waiting loop, on a store with scripted answers.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use anyhow::anyhow;

use super::*;
use crate::lock::holder::Holder;
use crate::lock::key::Key;
use crate::lock::lease::Ttl;
use crate::lock::state::Purpose;
use crate::lock::token::Token;
use crate::store::{KeyStatus, Listing, Release, Released, Renewed, Revoked};
use crate::sys::simulated::{self, Surroundings};

/// For how long these claims try a store that is away.
const RETRY: Duration = Duration::from_mins(1);

/// A wait for ever.
const FOR_EVER: Option<Queue> = Some(Queue { until: None, max_waiting: None });

const GRANT: Grant = Grant { fence: 7, slot: 0, lease_from: None, by_hand_off: false };

/// A store whose answers are given in advance.
#[derive(Default)]
struct Scripted {
    tries: VecDeque<Answer>,
    sleeps: VecDeque<Result<Wakeup, RequestError>>,
    /// How long each sleep lasts.
    sleeps_for: Duration,
    /// The requests that it got.
    asked: Vec<IfHeld>,
    /// In how long each sleep was to end.
    slept_for: Vec<Option<Duration>>,
    /// How often the claim was cancelled.
    cancelled: u32,
    /// Whether it fails to confirm a cancellation.
    is_away: bool,
}

impl Store for Scripted {
    fn try_acquire(&mut self, _: &Claim, if_held: IfHeld) -> Result<Acquired, RequestError> {
        self.asked.push(if_held);
        self.tries.pop_front().expect("it is not asked so often")
    }

    fn await_turn(
        &mut self,
        _: &Claim,
        until: Option<Moment>,
        waiter: &mut Waiter<'_>,
        observer: &mut dyn WaitObserver,
    ) -> Result<Wakeup, RequestError> {
        self.slept_for.push(until.map(|until| until.since(Moment::now())));
        if self.sleeps_for > Duration::ZERO {
            waiter.wait_for(None, Some(Moment::now() + self.sleeps_for), observer).expect("it can wait");
        }
        self.sleeps.pop_front().unwrap_or(Ok(Wakeup::AskAgain))
    }

    fn cancel(&mut self, _: &Claim, in_flight: bool) -> bool {
        assert!(!in_flight, "no other process has asked for it");
        self.cancelled += 1;
        !self.is_away
    }

    fn renew(&mut self, _: &Key, _: &Token, _: Option<Ttl>) -> Result<Renewed, StoreError> {
        unreachable!("a waiter has nothing to renew")
    }

    fn release(&mut self, _: &Key, _: &Token, _: Release) -> Result<Released, StoreError> {
        unreachable!("a waiter has nothing to release")
    }

    fn list(&mut self, _: Option<&Key>) -> Result<Listing<KeyStatus>, StoreError> {
        unreachable!("a waiter does not look around")
    }

    fn revoke(&mut self, _: &Key, _: Option<u64>, _: &Holder, _: bool) -> Result<Revoked, StoreError> {
        unreachable!("a waiter takes nothing away")
    }
}

/// A watcher that goes on waiting or not.
struct Onlooker {
    goes_on: bool,
    /// Whether it says that lockrun is stopped, one answer after the other; after the last one, that it is not.
    stops: RefCell<VecDeque<bool>>,
    /// The last of these answers.
    is_stopped: Cell<bool>,
    /// What was reported as left in the store.
    left: Vec<String>,
    /// The outages of the store, and their ends.
    outages: Vec<String>,
}

impl Onlooker {
    fn new(goes_on: bool) -> Self {
        Onlooker {
            goes_on,
            stops: RefCell::default(),
            is_stopped: Cell::new(false),
            left: Vec::new(),
            outages: Vec::new(),
        }
    }
}

impl WaitObserver for Onlooker {
    fn tick_every(&self) -> Option<Duration> {
        None
    }

    fn tick(&mut self) {}

    fn pause(&mut self) {}
}

impl Watcher for Onlooker {
    fn is_stopped(&self) -> bool {
        self.is_stopped.set(self.stops.borrow_mut().pop_front().unwrap_or(false));
        self.is_stopped.get()
    }

    fn waiting(&mut self, _: &Held) -> ControlFlow<()> {
        assert!(!self.is_stopped.get(), "the lock was asked for in the name of a lockrun that is stopped");
        if self.goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    fn store_away(&mut self, why: &StoreError, _: Duration) {
        self.outages.push(why.to_string());
    }

    fn store_back(&mut self) {
        self.outages.push("back".to_owned());
    }

    fn left_behind(&mut self, what: &str) {
        self.left.push(what.to_owned());
    }
}

/// The answer to a try.
type Answer = Result<Acquired, RequestError>;

const MINE: Answer = Ok(Acquired::Mine(GRANT));

const HELD: Answer = Ok(Acquired::Held(Held {
    holder: None,
    since: None,
    expires_in: None,
    withheld: None,
    place: None,
    look_in: None,
    last_fence: 0,
    token: None,
    purpose: Purpose::Run,
    is_revoked: false,
}));

fn failed<T>(is_transient: bool, never_sent: bool) -> Result<T, RequestError> {
    let retry_class = if is_transient { RetryClass::Unavailable } else { RetryClass::Permanent };
    Err(RequestError { error: anyhow!("the store fails"), retry_class, never_sent })
}

/// Waits until `until` for a lock in a store with these answers. Returns the result, with an error as text, and the
/// store.
fn wait(
    tries: impl IntoIterator<Item = Answer>,
    sleeps: impl IntoIterator<Item = Result<Wakeup, RequestError>>,
    until: Option<Moment>,
    goes_on: bool,
) -> (Result<Acquired, String>, Scripted) {
    let (tries, sleeps) = (tries.into_iter().collect(), sleeps.into_iter().collect());
    let mut store = Scripted { tries, sleeps, ..Scripted::default() };
    let signals = Signals::take_over().expect("signals can be blocked");
    let queue = Some(Queue { until, max_waiting: None });
    let watcher = &mut Onlooker::new(goes_on);
    let wait = Wait { queue, store_retry: RETRY, terms: None, signals: &signals, watcher };
    let acquired = acquire(&mut store, &Claim::example(), wait).map_err(|error| error.to_string());
    (acquired, store)
}

/// Does the same without a limit.
fn wait_for_ever(tries: impl IntoIterator<Item = Answer>) -> (Result<Acquired, String>, Scripted) {
    wait(tries, [], None, true)
}

/// How long before a test the idle machine was started.
const UPTIME: Duration = Duration::from_hours(1);

/// A clock that only waiting moves.
struct IdleMachine {
    now: Cell<Moment>,
    /// For how long the first wait suspends the process.
    suspends: Cell<Duration>,
}

impl Surroundings for IdleMachine {
    fn now(&self) -> Moment {
        self.now.get()
    }

    fn wait(&self, until: Option<Moment>) -> WakeReason {
        let suspended = self.suspends.take();
        if !suspended.is_zero() {
            self.now.set(self.now.get() + suspended);
            return WakeReason::Resumed;
        }
        self.now.set(until.expect("no one waits for ever"));
        WakeReason::Time
    }
}

impl IdleMachine {
    /// Calls `test` on such a machine.
    fn with<T>(test: impl FnOnce() -> T) -> T {
        Self::suspending(Duration::ZERO, test)
    }

    /// The same, where the first wait suspends the process for so long.
    fn suspending<T>(suspends: Duration, test: impl FnOnce() -> T) -> T {
        let machine = IdleMachine { now: Cell::new(Moment::from_boot(UPTIME)), suspends: Cell::new(suspends) };
        simulated::enter(Some(Rc::new(machine)));
        let result = test();
        simulated::enter(None);
        result
    }
}

/// Waits, on an idle machine, for a lock in a store with these answers, which has been away for so long already.
fn wait_through(
    outage: Duration,
    tries: impl IntoIterator<Item = Answer>,
    onlooker: &mut Onlooker,
) -> Result<Acquired, RequestError> {
    let signals = Signals::take_over().expect("signals can be blocked");
    let mut store = Scripted { tries: tries.into_iter().collect(), ..Scripted::default() };
    let claim = Claim::example();
    let mut waiting = WaitingClaim::new(&mut store, &claim, FOR_EVER, RETRY, None);
    waiting.outage_from = Moment::from_boot(UPTIME).before(outage);
    IdleMachine::with(|| waiting.wait(&mut Waiter::new(&signals), onlooker))
}

#[test]
fn a_lock_that_is_ours_is_not_cancelled() {
    let (acquired, store) = wait_for_ever([HELD, HELD, MINE]);
    assert_eq!(acquired, Ok(Acquired::Mine(GRANT)));
    assert_eq!((store.asked, store.cancelled), (vec![IfHeld::Queue { max_waiting: None, until: None }; 3], 0));
}

#[test]
fn the_last_try_leaves_the_queue() {
    let (acquired, store) = wait([HELD], [], Some(Moment::now()), true);
    assert_eq!(acquired, Ok(Acquired::Held(Held::default())));
    assert_eq!((store.asked, store.cancelled), (vec![IfHeld::Leave], 0));
}

#[test]
fn a_claim_that_is_not_to_wait_leaves_the_queue() {
    let (acquired, store) = wait([HELD], [], None, false);
    assert_eq!((acquired, store.cancelled), (Ok(Acquired::Held(Held::default())), 1));
}

#[test]
fn a_signal_leaves_the_queue() {
    let (acquired, store) = wait([HELD], [Ok(Wakeup::Signal(15))], None, true);
    assert_eq!((acquired, store.cancelled), (Ok(Acquired::Interrupted(15)), 1));
}

/// Tries, on an idle machine, to acquire a lock in a store with these answers, without waiting for the lock, but for so
/// long for the store. Returns the result, with an error as text, the store, and how long it took.
fn try_for(
    store_retry: Duration,
    tries: impl IntoIterator<Item = Answer>,
) -> (Result<Acquired, String>, Scripted, Duration) {
    let mut store = Scripted { tries: tries.into_iter().collect(), ..Scripted::default() };
    let signals = Signals::take_over().expect("signals can be blocked");
    let watcher = &mut Onlooker::new(true);
    let wait = Wait { queue: None, store_retry, terms: None, signals: &signals, watcher };
    let (acquired, took) = IdleMachine::with(|| {
        let began = Moment::now();
        (acquire(&mut store, &Claim::example(), wait), Moment::now().since(began))
    });
    (acquired.map_err(|error| error.to_string()), store, took)
}

#[test]
fn without_patience_a_store_is_tried_once() {
    for (never_sent, cancelled) in [(true, 0), (false, 1)] {
        let (acquired, store, _) = try_for(Duration::ZERO, [failed(true, never_sent)]);
        assert_eq!((acquired, store.cancelled), (Err("the store fails".into()), cancelled));
    }
    let (acquired, store, _) = try_for(Duration::ZERO, [busy()]);
    assert_eq!((acquired, store.cancelled), (Err("the store is busy".into()), 0));
}

#[test]
fn a_store_that_is_away_is_tried_for_as_long_as_was_asked() {
    // The second one may still arrive when the last one is answered.
    for (last, cancelled) in [(MINE, 0), (HELD, 1)] {
        let (acquired, store, _) = try_for(RETRY, [failed(true, true), slow(), busy(), last]);
        assert_eq!(acquired == Ok(Acquired::Mine(GRANT)), cancelled == 0);
        assert_eq!((store.asked, store.cancelled), (vec![IfHeld::Leave; 4], cancelled));
    }
    let (acquired, store, _) = try_for(RETRY, [failed(true, true), HELD]);
    assert_eq!((acquired, store.cancelled), (Ok(Acquired::Held(Held::default())), 0));
    for fails in [|| failed(true, true), busy] {
        let (acquired, _, took) = try_for(Duration::from_secs(5), std::iter::repeat_with(fails).take(100));
        let error = acquired.expect_err("it stays away");
        assert!(error.starts_with("the store "), "{error}");
        assert!(took >= Duration::from_secs(5) && took < Duration::from_secs(6), "{took:?}");
    }
    let (acquired, _, _) = try_for(Duration::from_secs(5), std::iter::repeat_with(|| failed(true, true)).take(100));
    assert_eq!(acquired, Err("the store fails; tried for 5s".into()));
    // What does not pass is not tried again.
    let (acquired, store, _) = try_for(RETRY, [failed(true, true), failed(false, true)]);
    assert_eq!((acquired, store.asked.len()), (Err("the store fails".into()), 2));
}

#[test]
fn a_lock_that_is_withheld_is_tried_like_a_store_that_is_away() {
    let withheld = || Ok(Acquired::Held(Held { withheld: Some(Duration::from_secs(3)), ..Held::default() }));
    let (acquired, store, _) = try_for(RETRY, [withheld(), withheld(), MINE]);
    assert_eq!((acquired, store.asked.len()), (Ok(Acquired::Mine(GRANT)), 3));
    let (acquired, store, _) = try_for(Duration::ZERO, [withheld()]);
    assert_eq!((acquired, store.asked.len()), (withheld().map_err(|_| String::new()), 1));
}

// "With `--wait DURATION` never longer than that."
#[test]
fn a_store_is_not_tried_for_longer_than_the_wait() {
    let signals = Signals::take_over().expect("signals can be blocked");
    let tries = std::iter::repeat_with(|| failed(true, true)).take(100).collect();
    let mut store = Scripted { tries, ..Scripted::default() };
    let watcher = &mut Onlooker::new(true);
    let until = Some(Moment::from_boot(UPTIME) + Duration::from_secs(3));
    let queue = Some(Queue { until, max_waiting: None });
    let wait = Wait { queue, store_retry: RETRY, terms: None, signals: &signals, watcher };
    let took = IdleMachine::with(|| {
        acquire(&mut store, &Claim::example(), wait).expect_err("it stays away");
        Moment::now().since(Moment::from_boot(UPTIME))
    });
    assert!(took < Duration::from_secs(4), "{took:?}");
    assert_eq!(store.asked.last(), Some(&IfHeld::Leave));
}

#[test]
fn the_watcher_hears_of_each_outage_once() {
    let signals = Signals::take_over().expect("signals can be blocked");
    let outage = || [failed(true, true), slow()];
    let tries = outage().into_iter().chain([HELD]).chain(outage()).chain([busy(), MINE]).collect();
    let mut store = Scripted { tries, ..Scripted::default() };
    let mut watcher = Onlooker::new(true);
    let wait = Wait { queue: FOR_EVER, store_retry: RETRY, terms: None, signals: &signals, watcher: &mut watcher };
    acquire(&mut store, &Claim::example(), wait).expect("the store does not fail");
    assert_eq!(watcher.outages, ["the store fails", "back", "the store fails", "back"]);
}

#[test]
fn an_outage_is_sat_out() {
    let outage = [false, true].map(|never_sent| failed(true, never_sent));
    let (acquired, store) = wait_for_ever([HELD].into_iter().chain(outage).chain([HELD, MINE]));
    assert_eq!((acquired, store.cancelled), (Ok(Acquired::Mine(GRANT)), 0));
}

fn busy() -> Answer {
    Err(RequestError { error: anyhow!("the store is busy"), retry_class: RetryClass::Busy, never_sent: true })
}

#[test]
fn a_store_that_is_busy_is_waited_for() {
    let (acquired, store) = wait_for_ever([busy(), busy(), HELD, busy(), MINE]);
    assert_eq!((acquired, store.cancelled), (Ok(Acquired::Mine(GRANT)), 0));
}

fn slow() -> Answer {
    Err(RequestError { error: anyhow!("the store is slow"), retry_class: RetryClass::Slow, never_sent: false })
}

#[test]
fn a_store_that_is_slow_is_waited_for() {
    let (acquired, store) = wait_for_ever([slow(), failed(true, true), HELD, slow(), MINE]);
    assert_eq!((acquired, store.cancelled), (Ok(Acquired::Mine(GRANT)), 0));
    // But not when the time for waiting is over and no holder is known.
    let (acquired, store) = wait([slow()], [], Some(Moment::now()), true);
    assert_eq!((acquired, store.cancelled), (Err("the store is slow".into()), 1));
}

#[test]
fn a_long_sleep_is_no_outage() {
    let signals = Signals::take_over().expect("signals can be blocked");
    let mut store = Scripted { tries: [failed(true, true), HELD, slow(), MINE].into(), ..Scripted::default() };
    let claim = Claim::example();
    let mut waiting = WaitingClaim::new(&mut store, &claim, FOR_EVER, RETRY, None);
    let mut onlooker = Onlooker::new(true);
    let waited = waiting.wait(&mut Waiter::new(&signals), &mut onlooker);
    assert!(matches!(waited, Ok(Acquired::Mine(GRANT))));
    assert!(Moment::now().since(waiting.outage_from) < RETRY);
}

#[test]
fn patience_with_a_slow_store_ends() {
    let waited = wait_through(2 * RETRY, [slow()], &mut Onlooker::new(true));
    assert!(waited.is_err(), "it goes on waiting for a store that has been slow for too long");
}

#[test]
fn a_claim_that_cannot_ask_once_more_at_the_end_is_held_up() {
    // Few of these are needed: the pauses between them grow to half a second.
    let answers = [HELD].into_iter().chain(std::iter::repeat_with(busy).take(20));
    // On a busy machine, the real clock could be past the end before the first answer.
    let (acquired, store) =
        IdleMachine::with(|| wait(answers, [], Some(Moment::now() + Duration::from_millis(50)), true));
    assert_eq!((acquired, store.cancelled), (Ok(Acquired::Held(Held::default())), 1));
    let (acquired, store) = wait([busy()], [], Some(Moment::now()), true);
    assert_eq!((acquired, store.cancelled), (Err("the store is busy".into()), 0));
}

#[test]
fn a_sleep_that_fails_for_a_while_is_tried_again() {
    let (acquired, store) = wait([HELD, MINE], [failed(true, true)], None, true);
    assert_eq!((acquired, store.cancelled), (Ok(Acquired::Mine(GRANT)), 0));
}

// "idle_session_timeout": a waiter whose connection is cut every few seconds must not be away for longer each time, and
// be overtaken.
#[test]
fn the_pauses_grow_only_while_connections_do_not_last() {
    let away_in_all = |sleeps_for| {
        let cuts = 20;
        let signals = Signals::take_over().expect("signals can be blocked");
        let tries = std::iter::repeat_with(|| HELD).take(cuts).chain([MINE]).collect();
        let sleeps = std::iter::repeat_with(|| failed(true, true)).take(cuts).collect();
        let mut store = Scripted { tries, sleeps, sleeps_for, ..Scripted::default() };
        let watcher = &mut Onlooker::new(true);
        let wait = Wait { queue: FOR_EVER, store_retry: RETRY, terms: None, signals: &signals, watcher };
        let (acquired, took) = IdleMachine::with(|| {
            let begin = Moment::now();
            (acquire(&mut store, &Claim::example(), wait), Moment::now().since(begin))
        });
        assert_eq!(acquired.expect("the store does not fail"), Acquired::Mine(GRANT));
        took.saturating_sub(sleeps_for * 20)
    };
    assert_eq!(away_in_all(Duration::from_secs(3)), Duration::from_millis(10) * 20);
    // 10, 20, ... 320 ms, then half a second each.
    assert_eq!(away_in_all(Duration::from_millis(1)), Duration::from_millis(630) + Duration::from_millis(500) * 14);
}

#[test]
fn what_does_not_pass_ends_the_wait_and_leaves_the_queue() {
    let (acquired, store) = wait_for_ever([HELD, failed(false, true)]);
    assert_eq!((acquired, store.cancelled), (Err("the store fails".into()), 1));
    let (acquired, store) = wait([HELD], [failed(false, true)], None, true);
    assert_eq!((acquired, store.cancelled), (Err("the store fails".into()), 1));
}

#[test]
fn patience_with_an_outage_ends() {
    let waited = wait_through(2 * RETRY, [failed(true, true)], &mut Onlooker::new(true));
    assert!(waited.is_err(), "it goes on waiting for a store that has been away for too long");
}

// "A waiter keeps trying for a minute", also one whose lockrun was stopped for longer than that before.
#[test]
fn patience_begins_anew_when_lockrun_is_continued() {
    // It looks ten times a second.
    let mut onlooker = Onlooker { stops: RefCell::new([true; 20 * 60].into()), ..Onlooker::new(true) };
    let waited = wait_through(Duration::ZERO, [failed(true, true), MINE], &mut onlooker);
    assert!(matches!(waited, Ok(Acquired::Mine(GRANT))));
}

// The same if this process was suspended between two tries.
#[test]
fn patience_begins_anew_when_the_waiter_is_continued() {
    let signals = Signals::take_over().expect("signals can be blocked");
    let tries = [failed(true, true), failed(true, true), MINE].into();
    let mut store = Scripted { tries, ..Scripted::default() };
    let claim = Claim::example();
    let mut waiting = WaitingClaim::new(&mut store, &claim, FOR_EVER, RETRY, None);
    waiting.outage_from = Moment::from_boot(UPTIME);
    let mut onlooker = Onlooker::new(true);
    let waited = IdleMachine::suspending(2 * RETRY, || waiting.wait(&mut Waiter::new(&signals), &mut onlooker));
    assert!(matches!(waited, Ok(Acquired::Mine(GRANT))));
}

#[test]
fn nothing_is_asked_for_while_lockrun_is_stopped() {
    let signals = Signals::take_over().expect("signals can be blocked");
    let mut store = Scripted { tries: [HELD, MINE].into(), ..Scripted::default() };
    let mut watcher = Onlooker { stops: RefCell::new([true; 2].into()), ..Onlooker::new(true) };
    let wait = Wait { queue: FOR_EVER, store_retry: RETRY, terms: None, signals: &signals, watcher: &mut watcher };
    let acquired = acquire(&mut store, &Claim::example(), wait).expect("the store does not fail");
    assert_eq!(acquired, Acquired::Mine(GRANT));
}

#[test]
fn what_may_be_left_behind_is_reported() {
    let signals = Signals::take_over().expect("signals can be blocked");
    let lasting = Claim { ttl: Ttl::None, ..Claim::example() };
    // Where every try was answered, only a place in the queue may be left, which goes by itself.
    for (claim, is_away, is_answered) in
        [(&lasting, true, false), (&lasting, true, true), (&lasting, false, false), (&Claim::example(), true, false)]
    {
        for goes_on in [true, false] {
            let tries = if is_answered { [HELD].into() } else { [slow(), HELD].into() };
            let sleeps = [Ok(Wakeup::Signal(15))].into();
            let mut store = Scripted { tries, sleeps, is_away, ..Scripted::default() };
            let mut watcher = Onlooker::new(goes_on);
            let wait =
                Wait { queue: FOR_EVER, store_retry: RETRY, terms: None, signals: &signals, watcher: &mut watcher };
            acquire(&mut store, claim, wait).expect("the store does not fail");
            let is_told = watcher.left.iter().any(|left| left.contains("lockrun break"));
            let is_to_be_told = is_away && !is_answered && claim.ttl == Ttl::None;
            assert_eq!(
                is_told, is_to_be_told,
                "{claim:?}, away: {is_away}, answered: {is_answered}, goes on: {goes_on}"
            );
        }
    }
    // The same where an error ends the wait.
    for (last, is_to_be_told) in [(failed(false, true), false), (failed(false, false), true)] {
        let mut store = Scripted { tries: [HELD, last].into(), is_away: true, ..Scripted::default() };
        let mut watcher = Onlooker::new(true);
        let wait = Wait { queue: FOR_EVER, store_retry: RETRY, terms: None, signals: &signals, watcher: &mut watcher };
        let error = acquire(&mut store, &lasting, wait).expect_err("the store fails");
        assert_eq!(error.to_string().contains("lockrun break"), is_to_be_told, "{error}");
    }
}

const TERMS: Terms = Terms {
    ttl: Duration::from_mins(1),
    renew_every: Duration::from_secs(20),
    kill_after: Duration::from_secs(10),
    store_timeout: Duration::from_secs(5),
};

/// The answer that the claim waits in this place, and that the last fence issued is 7.
fn waits_in(place: u64, look_in: Option<Duration>) -> Acquired {
    Acquired::Held(Held { place: Some(place), look_in, last_fence: 7, ..Held::default() })
}

/// Waits, on an idle machine, for a lock that is handed over with this fence after so long. Returns what was acquired,
/// and how often the store was asked.
fn is_handed_over(fence: u64, after: Duration, terms: Option<Terms>) -> (Acquired, usize) {
    is_handed_over_to(&mut Onlooker::new(true), fence, after, terms)
}

/// The same under the eyes of this watcher.
fn is_handed_over_to(watcher: &mut Onlooker, fence: u64, after: Duration, terms: Option<Terms>) -> (Acquired, usize) {
    let signals = Signals::take_over().expect("signals can be blocked");
    let mut store = Scripted {
        tries: [Ok(waits_in(0, None)), MINE].into(),
        sleeps: [Ok(Wakeup::HandedOver { fence, slot: 3 })].into(),
        sleeps_for: after,
        ..Scripted::default()
    };
    let claim = Claim { ttl: Ttl::Lasts(TERMS.ttl), ..Claim::example() };
    let wait = Wait { queue: FOR_EVER, store_retry: RETRY, terms, signals: &signals, watcher };
    let acquired = IdleMachine::with(|| acquire(&mut store, &claim, wait));
    assert_eq!(store.cancelled, 0);
    (acquired.expect("the store does not fail"), store.asked.len())
}

#[test]
fn the_lease_of_a_lock_that_is_handed_over_counts_from_the_last_request_that_was_answered() {
    let lease_from = Some(Moment::from_boot(UPTIME));
    let grant = Grant { fence: 8, slot: 3, lease_from, by_hand_off: true };
    for after in [Duration::from_millis(1), Duration::from_secs(9)] {
        assert_eq!(is_handed_over(8, after, Some(TERMS)), (Acquired::Mine(grant), 1));
    }
}

// Of a place of 30 s, TERM is due after 18.69 s, and a renewal takes up to 5 s.
#[test]
fn a_wake_up_that_leaves_no_time_to_renew_is_confirmed_first() {
    assert_eq!(is_handed_over(8, Duration::from_millis(13_680), Some(TERMS)).1, 1);
    for after in [13_691, 20_000, 40_000] {
        assert_eq!(is_handed_over(8, Duration::from_millis(after), Some(TERMS)), (Acquired::Mine(GRANT), 2));
    }
}

#[test]
fn a_wake_up_from_before_the_last_answer_counts_for_nothing() {
    assert_eq!(is_handed_over(7, Duration::from_millis(1), Some(TERMS)), (Acquired::Mine(GRANT), 2));
}

#[test]
fn a_wake_up_while_lockrun_is_stopped_is_confirmed_once_it_is_continued() {
    // It runs when the waiter asks, and is stopped when the wake-up comes.
    let mut watcher = Onlooker { stops: RefCell::new([false, true, true].into()), ..Onlooker::new(true) };
    let after = Duration::from_millis(1);
    assert_eq!(is_handed_over_to(&mut watcher, 8, after, Some(TERMS)), (Acquired::Mine(GRANT), 2));
    assert!(watcher.stops.borrow().is_empty());
}

// A lock by hand must last for its whole ttl when its token is printed, and a lease that never ends is not renewed.
#[test]
fn where_nothing_renews_the_lease_a_hand_off_is_confirmed_first() {
    assert_eq!(is_handed_over(8, Duration::from_millis(1), None), (Acquired::Mine(GRANT), 2));
}

#[test]
fn a_place_is_renewed_three_times_in_its_length_and_looked_after_before() {
    let slept_for = |answer: Answer, ttl: Ttl| {
        let signals = Signals::take_over().expect("signals can be blocked");
        let mut store = Scripted { tries: [answer, MINE].into(), ..Scripted::default() };
        let claim = Claim { ttl, ..Claim::example() };
        let watcher = &mut Onlooker::new(true);
        let wait = Wait { queue: FOR_EVER, store_retry: RETRY, terms: None, signals: &signals, watcher };
        IdleMachine::with(|| acquire(&mut store, &claim, wait)).expect("the store does not fail");
        store.slept_for[0]
    };
    let seconds = Duration::from_secs;
    for (ttl, third) in
        [(Ttl::Lasts(seconds(3)), seconds(1)), (Ttl::Lasts(seconds(600)), seconds(10)), (Ttl::None, seconds(10))]
    {
        assert_eq!(slept_for(Ok(waits_in(5, None)), ttl), Some(third));
    }
    let look_in = Some(Duration::from_millis(300));
    assert_eq!(slept_for(Ok(waits_in(1, look_in)), Ttl::None), look_in);
    // The kernel keeps the queue.
    assert_eq!(slept_for(HELD, Ttl::None), None);
}
