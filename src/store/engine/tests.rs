//! The engine above a store in memory.

mod memory;

use std::time::Duration;

use self::memory::{Fate, Memory, NOW_MS};
use super::*;
use crate::lock::ending::Ending;
use crate::lock::holder::Holder;
use crate::store::{
    IfHeld, Listing, Mode, Prune as _, Release, Released, Renewed, Reserved, Retain, RetryClass, Sequences as _,
    Store as _, Wanted,
};

const QUEUE: IfHeld = IfHeld::Queue { max_waiting: None, until: None };

fn claim() -> Claim {
    Claim { ttl: Ttl::Lasts(Duration::from_secs(30)), ..Claim::example() }
}

fn shared() -> Claim {
    Claim { mode: Mode::Shared, ..claim() }
}

fn by_hand() -> Claim {
    Claim { by_hand: true, request: Some(Token::random()), ..claim() }
}

fn key(name: &str) -> Key {
    Key::new(name.as_ref()).expect("is a key")
}

fn at_once() -> Release {
    Release::at_once(Ending::Exited(1))
}

#[track_caller]
fn fence(store: &mut Memory, claim: &Claim) -> u64 {
    match store.try_acquire(claim, IfHeld::Leave).expect("an answer") {
        Acquired::Mine(grant) => grant.fence,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn waits(store: &mut Memory, claim: &Claim) -> u64 {
    match store.try_acquire(claim, QUEUE).expect("an answer") {
        Acquired::Held(Held { place: Some(place), .. }) => place,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lock_is_acquired_renewed_released_and_acquired_again() {
    let (mut store, first, second) = (Memory::new(), claim(), claim());
    let before = fence(&mut store, &first);
    assert!(store.holders()[0].lease.is_some(), "it is held by a lease");
    assert!(matches!(store.try_acquire(&second, IfHeld::Leave), Ok(Acquired::Held(_))));
    store.now_ms += 20_000;
    assert_eq!(store.renew(&first.key, &first.token, None).expect("an answer"), Renewed::Mine);
    store.now_ms += 20_000;
    assert!(matches!(store.renew(&first.key, &second.token, None), Ok(Renewed::NotMine(_))));
    assert_eq!(store.renew_run(&first.key, &first.token, first.ttl).expect("an answer"), Renewed::Mine);
    assert_eq!(store.release(&first.key, &first.token, at_once()).expect("an answer"), Released::Free);
    assert!(fence(&mut store, &second) > before);
}

#[test]
fn a_claim_whose_request_was_lost_or_carried_out_gets_one_lock() {
    for fate in [Fate::AnswerLost, Fate::RequestLost, Fate::Repeated] {
        let is_answered = matches!(fate, Fate::Repeated);
        let (mut store, claim) = (Memory::new().failing([fate]), claim());
        if !is_answered {
            let failed = store.try_acquire(&claim, IfHeld::Leave).expect_err("it is lost");
            assert!(!failed.never_sent && failed.retry_class == RetryClass::Unavailable);
        }
        let fence = fence(&mut store, &claim);
        let holders = store.holders();
        assert_eq!(holders.iter().map(|holder| holder.fence).collect::<Vec<_>>(), [fence]);
    }
}

#[test]
fn a_release_is_repeated_until_it_is_answered() {
    let (mut store, claim) = (Memory::new(), claim());
    fence(&mut store, &claim);
    store.fates.extend([Fate::RequestLost, Fate::AnswerLost]);
    // The answer is that of the attempt that was carried out, not that the lock is gone.
    assert_eq!(store.release(&claim.key, &claim.token, at_once()).expect("an answer"), Released::Free);
    assert_eq!((store.commits, store.holders()), (4, vec![]));
}

#[test]
fn a_lock_that_others_break_before_the_release_was_not_ours() {
    let (mut store, claim) = (Memory::new(), claim());
    fence(&mut store, &claim);
    store.fates.push_back(Fate::Preceded(|state| state.holders.clear()));
    let released = store.release(&claim.key, &claim.token, at_once()).expect("an answer");
    assert_eq!(released, Released::NotMine(None));
}

#[test]
fn a_cancel_is_repeated_if_a_request_may_be_carried_out() {
    let cancelled = |claim: &Claim, is_unsure: bool, in_flight: bool| {
        let mut store = Memory::new();
        if is_unsure {
            store.fates.push_back(Fate::AnswerLost);
            store.try_acquire(claim, IfHeld::Leave).expect_err("the answer is lost");
        }
        store.fates.push_back(Fate::RequestLost);
        let is_clean = store.cancel(claim, in_flight);
        assert!(!is_clean || store.holders().is_empty());
        is_clean
    };
    assert!(cancelled(&claim(), true, false));
    assert!(cancelled(&claim(), false, true), "another process sent it");
    assert!(cancelled(&by_hand(), false, false), "an earlier process may have sent it");
    assert!(!cancelled(&claim(), false, false), "nothing of it can be there");
    let (mut store, claim) = (Memory::new(), claim());
    fence(&mut store, &by_hand());
    waits(&mut store, &claim);
    store.fates.push_back(Fate::RequestLost);
    assert!(store.cancel(&claim, false) && store.waiters().is_empty(), "it waits");
}

#[test]
fn a_cancelled_request_that_arrives_late_gets_nothing() {
    let (mut store, claim) = (Memory::new(), claim());
    assert!(store.cancel(&claim, true));
    assert!(matches!(store.try_acquire(&claim, IfHeld::Leave), Ok(Acquired::Held(_) | Acquired::NotQueued(_))));
    // A request by hand may be repeated under its token.
    let by_hand = by_hand();
    assert!(store.cancel(&by_hand, true));
    fence(&mut store, &Claim { request: Some(Token::random()), ..by_hand });
}

#[test]
fn a_lock_is_handed_to_more_waiters_than_one_operation_reads() {
    let (mut store, holder) = (Memory::new(), claim());
    fence(&mut store, &holder);
    let waiters: Vec<Claim> = (0..3 * MORE_WAITERS).map(|_| shared()).collect();
    for (at, waiter) in waiters.iter().enumerate() {
        // A real store adds those that were not read.
        assert_eq!(waits(&mut store, waiter), at.min(FIRST_WAITERS) as u64);
    }
    let last = claim();
    waits(&mut store, &last);
    store.release(&holder.key, &holder.token, at_once()).expect("an answer");
    assert_eq!(store.holders().len(), waiters.len());
    assert_eq!(store.waiters(), [last.token]);
}

#[test]
fn a_hand_off_that_fails_after_the_release_is_no_failure_of_the_release() {
    let (mut store, holder) = (Memory::new(), by_hand());
    fence(&mut store, &holder);
    for _ in 0..2 * HAND_OFFS_MAX {
        waits(&mut store, &shared());
    }
    // The release hands the lock to the first waiters, and another operation to those behind them.
    store.fates.extend([Fate::Carried, Fate::RequestLost]);
    assert_eq!(store.release(&holder.key, &holder.token, at_once()).expect("an answer"), Released::Free);
    assert_eq!((store.holders().len(), store.waiters().len()), (HAND_OFFS_MAX, HAND_OFFS_MAX));
    assert!(!store.may_be_done, "nothing of the release is open");
}

#[test]
fn the_dead_at_the_head_of_the_queue_are_passed_over() {
    let (mut store, holder) = (Memory::new(), by_hand());
    fence(&mut store, &holder);
    for _ in 0..3 * FIRST_WAITERS {
        waits(&mut store, &claim());
    }
    store.now_ms += 29_000;
    let (living, next) = (claim(), claim());
    waits(&mut store, &living);
    waits(&mut store, &next);
    assert_eq!(store.renew(&holder.key, &holder.token, None).expect("an answer"), Renewed::Mine);
    store.now_ms += 2_000;
    store.release(&holder.key, &holder.token, at_once()).expect("an answer");
    assert_eq!(store.holders()[0].token, living.token);
    assert_eq!(store.waiters(), [next.token]);
}

#[test]
fn a_waiter_keeps_its_place_and_leaves_it() {
    let (mut store, holder, first, second) = (Memory::new(), by_hand(), claim(), claim());
    fence(&mut store, &holder);
    assert_eq!((waits(&mut store, &first), waits(&mut store, &second), waits(&mut store, &first)), (0, 1, 0));
    let before = store.entry(&first.key).1[0].waiter.ends_ms;
    store.now_ms += 1_000;
    assert!(matches!(store.renew(&first.key, &first.token, Some(first.ttl)), Ok(Renewed::NotMine(_))));
    assert_eq!(waits(&mut store, &first), 0);
    assert!(store.entry(&first.key).1[0].waiter.ends_ms > before, "it is renewed");
    assert!(matches!(store.try_acquire(&first, IfHeld::Leave), Ok(Acquired::Held(_))));
    assert_eq!(store.waiters(), [second.token]);
}

#[test]
fn a_revocation_is_answered_by_what_it_found_first() {
    let by = Holder::default();
    for fate in [None, Some(Fate::Repeated)] {
        let (mut store, holder) = (Memory::new(), by_hand());
        let fence = fence(&mut store, &holder);
        store.fates.extend(fate);
        let revoked = store.revoke(&holder.key, Some(fence), &by, true).expect("an answer");
        let Revoked::From { from, .. } = revoked else { panic!("{revoked:?}") };
        assert_eq!((from.len(), store.holders()), (1, vec![]));
    }
    // It takes nothing from a later holder.
    let (mut store, holder) = (Memory::new(), by_hand());
    fence(&mut store, &holder);
    store.fates.push_back(Fate::Preceded(|state| {
        state.holders[0].fence += 1;
        state.fence += 1;
    }));
    let revoked = store.revoke(&holder.key, None, &by, true).expect("an answer");
    assert!(matches!(revoked, Revoked::Others(_)), "{revoked:?}");
    assert_eq!(store.holders().len(), 1);
}

#[test]
fn two_reservations_get_two_values() {
    let mut store = Memory::new();
    let wanted = Wanted::Next { from: 7, step: 1 };
    for expected in ["7", "8"] {
        let reserved = store.reserve(&claim(), &wanted).expect("an answer");
        assert!(matches!(&reserved, Reserved::Mine(_, value) if value == expected), "{reserved:?}");
    }
    assert!(store.holders().iter().all(|holder| holder.lease.is_some()));
    store.fates.push_back(Fate::RequestLost);
    assert!(!store.reserve(&claim(), &wanted).expect_err("it is lost").never_sent);
}

#[test]
fn a_success_is_forgotten_once() {
    let run = Claim { once_per: Some(Duration::from_hours(1)), ..claim() };
    let succeeded = Release::Run { ending: Ending::Exited(0), succeeded: true, retain: Retain::Not };
    for fate in [None, Some(Fate::Repeated)] {
        let mut store = Memory::new();
        fence(&mut store, &run);
        store.release(&run.key, &run.token, succeeded).expect("an answer");
        assert!(matches!(store.try_acquire(&run, IfHeld::Leave), Ok(Acquired::NotNeeded(_))));
        store.fates.extend(fate);
        assert!(store.forget_success(&run.key).expect("an answer"));
        store.may_be_done = true;
        assert!(!store.forget_success(&run.key).expect("an answer"), "that was left by an earlier operation");
        fence(&mut store, &run);
    }
}

#[test]
fn a_record_that_cannot_be_read_hides_no_other() {
    let mut store = Memory::new();
    for name in ["a", "b", "c"] {
        let claim = Claim { key: key(name), ..claim() };
        fence(&mut store, &claim);
        store.release(&claim.key, &claim.token, at_once()).expect("an answer");
    }
    store.entry(&key("b")).0 = "[]".into();
    let listed = store.list(None).expect("a list");
    assert_eq!(listed.found.iter().map(|status| status.key.as_str()).collect::<Vec<_>>(), ["a", "c"]);
    assert!(format!("{:#}", listed.unreadable[0]).contains("\"b\""));
    store.list(Some(&key("b"))).expect_err("asked for by name");
    assert_eq!(store.list(Some(&key("d"))).expect("a list").found[0].key, key("d"), "one that was never used");
    store.now_ms += 3_600_000;
    let names = |pruned: &Listing<Key>| {
        (pruned.found.iter().map(|key| key.as_str().to_owned()).collect::<Vec<_>>(), pruned.unreadable.len())
    };
    let old = Duration::from_hours(1);
    let none = store.prune(None, old + Duration::from_secs(1), true).expect("a list");
    assert_eq!(names(&none), (vec![], 1), "none is that old");
    let found = store.prune(None, old, false).expect("a list");
    assert_eq!((names(&found), store.locks.len()), ((vec!["a".into(), "c".into()], 1), 3), "they are only found");
    store.pages_left = Some(0);
    store.list(None).expect_err("no page is read");
    store.prune(None, old, true).expect_err("no page is read");
    // A page is full, so another one is read after it.
    store.pages_left = Some(1);
    for number in 0..PAGE - 2 {
        store.locks.insert(format!("b{number:04}"), ("[]".into(), Vec::new()));
    }
    let pruned = store.prune(None, old, true).expect("a list");
    // What was removed is reported although the next page cannot be read.
    assert_eq!(names(&pruned).0, ["a"]);
    assert!(format!("{:#}", pruned.unreadable.last().expect("there is one")).contains("cannot prune the other keys"));
    store.pages_left = None;
    let pruned = store.prune(None, old, true).expect("a list");
    assert_eq!((names(&pruned).0, store.locks.len()), (vec!["c".into()], PAGE - 1));
}

#[test]
fn a_key_that_was_used_since_it_was_listed_is_not_pruned() {
    let (mut store, holder) = (Memory::new(), by_hand());
    fence(&mut store, &holder);
    store.release(&holder.key, &holder.token, at_once()).expect("an answer");
    store.now_ms += 1000;
    store.fates.push_back(Fate::Preceded(|state| {
        state.last = None;
        state.fence = NOW_MS + 999;
    }));
    let pruned = store.prune(None, Duration::from_secs(1), true).expect("a list");
    assert!(pruned.found.is_empty() && store.locks.len() == 1);
}
