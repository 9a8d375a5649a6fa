//! Who gets the lock.

use super::*;

#[test]
fn a_free_lock_is_acquired_and_a_held_one_is_not() {
    let mut lock = Lock::new();
    assert_eq!(lock.acquire("a", 1), mine(START, 0));
    assert_eq!(lock.ends_in, Some(30_000));
    assert_eq!(held(&lock.acquire("b", 1)), (Some("a"), None));
    assert_eq!((lock.holders(), lock.waiters()), (vec!["a"], vec![]));
}

#[test]
fn the_lowest_free_slot_is_given() {
    let mut lock = Lock::new();
    let slots: Vec<_> = ["a", "b", "c"].iter().map(|name| slot(&lock.acquire(name, 3))).collect();
    assert_eq!(slots, [Some(0), Some(1), Some(2)]);
    assert_eq!(slot(&lock.acquire("d", 3)), None);
    lock.release("b", DONE);
    assert_eq!(slot(&lock.acquire("d", 3)), Some(1));
}

#[test]
fn each_goes_by_its_own_number_of_slots() {
    let mut lock = Lock::new();
    for name in ["a", "b", "c"] {
        lock.acquire(name, 3);
    }
    assert_eq!(slot(&lock.acquire("d", 2)), None);
    assert_eq!(slot(&lock.acquire("e", 4)), Some(3));
    for name in ["a", "b", "e"] {
        lock.release(name, DONE);
    }
    // The remaining holder has slot 2, which is neither of the two that `g` may have; one of those is free.
    assert_eq!(slot(&lock.acquire("f", 1)), None);
    assert_eq!(slot(&lock.acquire("g", 2)), Some(0));
}

#[test]
fn a_fence_is_greater_than_the_last_one_and_not_below_the_time() {
    let mut lock = Lock::new();
    assert_eq!(fence(&lock.acquire("a", 9)), START);
    assert_eq!(fence(&lock.acquire("b", 9)), START + 1);
    lock.pass(5000);
    assert_eq!(fence(&lock.acquire("c", 9)), START + 5000);
    lock.world.now.unix_ms = 7;
    assert_eq!(fence(&lock.acquire("d", 9)), START + 5001);
    // The store has lost its data.
    lock.state = LockState::default();
    lock.world.now.unix_ms = START + 6000;
    assert_eq!(fence(&lock.acquire("e", 9)), START + 6000);
}

#[test]
fn at_the_end_of_the_range_there_is_no_fence() {
    let mut lock = Lock::new();
    lock.state.fence = i64::MAX.unsigned_abs() - 1;
    assert_eq!(fence(&lock.acquire("a", 2)), i64::MAX.unsigned_abs());
    assert_eq!(lock.try_ask(&ask(&claim("b", 2))), Err(FenceExhausted { last: i64::MAX.unsigned_abs() }));
    // A request that does not get the lock needs no fence.
    assert_eq!(slot(&lock.acquire("b", 1)), None);
}

#[test]
fn asked_again_it_answers_as_the_first_time() {
    let mut lock = Lock::new();
    let first = lock.acquire("a", 1);
    lock.pass(20_000);
    assert_eq!(lock.acquire("a", 1), first);
    assert_eq!((lock.holders().len(), lock.ends_in), (1, Some(30_000)), "the lease begins anew");
}

#[test]
fn asked_again_in_another_mode_it_does_not_hold_the_lock() {
    let mut lock = Lock::new();
    for name in ["a", "b", "c"] {
        lock.acquire(name, 3);
    }
    for (name, slots) in [("a", 1), ("b", 2), ("c", 0), ("c", 2)] {
        assert_eq!(slot(&lock.acquire(name, slots)), None, "{name} holds one of three, not of {slots}");
    }
    lock.acquire("d", 4);
    assert_eq!(slot(&lock.acquire("b", 3)), Some(1), "more have joined it since, but it holds what it asked for");
    for name in ["a", "c", "d"] {
        lock.release(name, DONE);
    }
    let again = [1, 2, 0].map(|slots| slot(&lock.acquire("b", slots)));
    assert_eq!(again, [None, None, None], "others come by the mode in which it holds the lock");
}

#[test]
fn asked_again_by_hand_a_run_keeps_its_lease() {
    let mut lock = Lock::new();
    let first = lock.acquire("a", 1);
    lock.pass(1000);
    let shorter = Claim { by_hand: true, ttl: lasts(1), ..claim("a", 1) };
    assert_eq!(lock.ask(&ask(&shorter)), first);
    assert_eq!(lock.ends_in, Some(29_000));
}

#[test]
fn a_store_learns_whether_a_lease_begins() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    for by_hand in [false, true] {
        let claim = Claim { by_hand, ..claim("a", 1) };
        let applied = lock.state.acquire(&ask(&claim), &lock.world).expect("a fence is left");
        assert_eq!(applied.begins_lease, !by_hand, "a lease that ends as before may be a new one all the same");
    }
    assert!(lock.state.renew(&token("a"), None, &lock.world).begins_lease);
    assert!(!lock.state.renew(&token("b"), None, &lock.world).begins_lease, "it holds nothing");
}

#[test]
fn asked_again_a_revoked_lease_is_whole() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    lock.revoke(None, false);
    lock.pass(1000);
    // The first reply was lost. A command started by the second one depends on a whole lease from now on.
    lock.acquire("a", 1);
    assert_eq!(lock.ends_in, Some(30_000));
    assert!(matches!(lock.renew("a", None), Renewed::Revoked(_)));
}
