//! Who gets the lock.

use super::*;

#[test]
fn a_free_lock_is_acquired_and_a_held_one_is_not() {
    let mut lock = Lock::new();
    assert_eq!(lock.acquire("a", 1), Acquired::Mine { fence: START, slot: 0, leased: true });
    assert_eq!(lock.look_in, Some(30_000));
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
    // Its slot is 2, which is none of the two that this one could have; but one of those is free.
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
    // One that does not get the lock needs none.
    assert_eq!(slot(&lock.acquire("b", 1)), None);
}

#[test]
fn asked_again_it_answers_as_the_first_time() {
    let mut lock = Lock::new();
    let first = lock.acquire("a", 1);
    lock.pass(20_000);
    assert_eq!(lock.acquire("a", 1), first);
    assert_eq!((lock.holders().len(), lock.look_in), (1, Some(30_000)), "the lease begins anew");
}

#[test]
fn asked_again_by_hand_a_run_keeps_its_lease() {
    let mut lock = Lock::new();
    let first = lock.acquire("a", 1);
    lock.pass(1000);
    let shorter = Claim { by_hand: true, ttl: lasts(1), ..claim("a", 1) };
    assert_eq!(lock.ask(&ask(&shorter)), first);
    assert_eq!(lock.look_in, Some(29_000));
}

#[test]
fn asked_again_a_revoked_lease_is_whole() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    lock.revoke(None, false);
    lock.pass(1000);
    // The first answer was lost. A command that is started by the second one counts on a whole lease from now on.
    lock.acquire("a", 1);
    assert_eq!(lock.look_in, Some(30_000));
    assert!(matches!(lock.renew("a", None), Renewed::Revoked(_)));
}

#[test]
fn a_holder_that_the_store_has_forgotten_is_waited_for() {
    let mut lock = Lock::new();
    let claim = claim("b", 1);
    let careful = Ask { on_held: OnHeld::Wait { max: None }, seen: Some(Seen { at_unix_ms: START }), ..ask(&claim) };
    // The lock was held at START. Now nobody does, and no run has ended.
    lock.pass(1000);
    let answer = lock.ask(&careful);
    assert!(matches!(answer, Acquired::Held { first: None, place: Some(0), is_forgotten: true }), "{answer:?}");
    // Nobody else has it handed to this waiter either.
    assert_eq!(held(&lock.acquire("c", 1)), (None, None));
    assert_eq!((lock.granted.len(), lock.holders().len()), (0, 0));
    // Its command is dead, as its release shows.
    assert_eq!(lock.release("a", DONE), Released::NotMine(None));
    assert_eq!(lock.granted, ["b"]);
    assert_eq!(slot(&lock.ask(&careful)), Some(0));
}

#[test]
fn a_holder_whose_lease_has_run_out_is_not_forgotten() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    let claim = claim("b", 1);
    let careful = Ask { on_held: OnHeld::Wait { max: None }, seen: Some(Seen { at_unix_ms: START }), ..ask(&claim) };
    assert_eq!(slot(&lock.ask(&careful)), None);
    lock.pass(30_000);
    assert_eq!(slot(&lock.ask(&careful)), Some(0));
}
