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
    assert_eq!((lock.holders().len(), lock.look_in), (1, Some(30_000)), "the lease begins anew");
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
    assert_eq!(lock.look_in, Some(29_000));
}

#[test]
fn asked_again_a_revoked_lease_is_whole() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    lock.revoke(None, false);
    lock.pass(1000);
    // The first reply was lost. A command started by the second one depends on a whole lease from now on.
    lock.acquire("a", 1);
    assert_eq!(lock.look_in, Some(30_000));
    assert!(matches!(lock.renew("a", None), Renewed::Revoked(_)));
}

/// What a waiter that looks now remembers.
fn seen(lock: &Lock) -> Option<Seen> {
    Seen::after(None, lock.state.first_held(lock.world.now, &lock.world).as_ref(), lock.state.ended_unix_ms())
}

fn careful<'a>(claim: &'a Claim, seen: Option<&'a Seen>) -> Ask<'a> {
    Ask { on_held: OnHeld::Wait { max: None }, seen, ..ask(claim) }
}

#[test]
fn a_holder_that_the_store_has_forgotten_is_waited_for() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    let (b, c) = (claim("b", 1), claim("c", 1));
    lock.ask(&careful(&b, None));
    lock.ask(&careful(&c, None));
    let seen = seen(&lock);
    lock.state.holders.clear();
    lock.pass(1000);
    // The request of `d`, which has seen nothing, grants the lock to the next waiter, which has. Then nobody gets it, in any
    // mode.
    assert_eq!(slot(&lock.acquire("d", 1)), None);
    assert_eq!(lock.granted, ["b"]);
    assert_eq!(held(&lock.ask(&careful(&b, seen.as_ref()))), (Some("a"), Some(0)));
    for slots in [0, 1, 8] {
        assert_eq!(held(&lock.acquire("d", slots)).0, Some("a"));
    }
    assert_eq!((lock.holders(), lock.look_in), (vec!["a"], Some(30_000)));
    // The holder learns that it has lost the lock.
    assert_eq!(lock.renew("a", None), Renewed::NotMine(None));
    assert!(matches!(lock.release("a", Release::ByHand), Released::NotMine(Some(_))));
    // Its release shows that its command is dead.
    assert_eq!(lock.release("a", DONE), Released::NotMine(None));
    assert_eq!((lock.granted.clone(), lock.last().map(|last| last.0)), (vec!["b".to_owned()], Some("a")));
    assert_eq!(slot(&lock.ask(&careful(&b, seen.as_ref()))), Some(0));
    // Nothing is forgotten any more, though `c` has not looked since.
    lock.release("b", DONE);
    assert_eq!(lock.granted, ["c"]);
    assert_eq!(slot(&lock.ask(&careful(&c, seen.as_ref()))), Some(0));
}

#[test]
fn what_was_granted_to_others_is_not_if_a_holder_is_forgotten() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    let (b, c) = (claim("b", 1), claim("c", 1));
    lock.ask(&careful(&b, None));
    lock.ask(&careful(&c, None));
    let seen = seen(&lock);
    lock.state.holders.clear();
    lock.acquire("d", 1);
    assert_eq!(lock.granted, ["b"]);
    // The second waiter has seen the holder; the first one has not looked.
    assert_eq!(slot(&lock.ask(&careful(&c, seen.as_ref()))), None);
    assert_eq!(lock.holders(), ["a"]);
    assert_eq!(slot(&lock.ask(&careful(&b, None))), None);
    lock.pass(30_000);
    assert_eq!(slot(&lock.ask(&careful(&b, None))), Some(0));
}

#[test]
fn a_run_that_was_put_back_is_not_acquired_again() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    let b = claim("b", 1);
    lock.ask(&careful(&b, None));
    let seen = seen(&lock);
    lock.state = LockState::default();
    lock.ask(&careful(&b, seen.as_ref()));
    assert_eq!(lock.state.holders[0].fence, START);
    let by_hand = Claim { by_hand: true, ttl: lasts(60), ..claim("a", 1) };
    for claim in [claim("a", 1), by_hand] {
        assert_eq!(held(&lock.ask(&careful(&claim, None))), (Some("a"), None));
        assert_eq!(lock.look_in, Some(30_000));
    }
    assert_eq!(lock.reserve("a", &Wanted::Next { from: 1, step: 1 }), Reserved::Cancelled);
    assert_eq!(lock.renew("a", None), Renewed::NotMine(None));
}

#[test]
fn what_was_acquired_by_hand_is_held_as_before_if_it_is_forgotten() {
    let mut lock = Lock::new();
    let by_hand = Claim { by_hand: true, ..claim("a", 1) };
    lock.ask(&ask(&by_hand));
    let b = claim("b", 1);
    lock.ask(&careful(&b, None));
    let seen = seen(&lock);
    lock.state = LockState::default();
    lock.pass(10_000);
    assert_eq!(held(&lock.ask(&careful(&b, seen.as_ref()))).0, Some("a"));
    assert_eq!((lock.state.holders[0].since_ms, lock.look_in), (START, Some(30_000)));
    assert_eq!(lock.renew("a", None), Renewed::Mine);
    assert_eq!(slot(&lock.ask(&ask(&by_hand))), Some(0));
    assert_eq!(lock.release("a", Release::ByHand), Released::Free);
    assert_eq!(slot(&lock.ask(&careful(&b, seen.as_ref()))), Some(0));
}

#[test]
fn what_was_acquired_by_hand_beside_others_is_alone_if_it_is_forgotten() {
    for slots in [2, 0] {
        let mut lock = Lock::new();
        let by_hand = Claim { by_hand: true, ..claim("a", slots) };
        lock.ask(&ask(&by_hand));
        lock.pass(1);
        lock.acquire("b", slots);
        let c = claim("c", 2);
        lock.ask(&careful(&c, None));
        let seen = seen(&lock);
        lock.state = LockState::default();
        assert_eq!(held(&lock.ask(&careful(&c, seen.as_ref()))).0, Some("a"));
        assert_eq!(lock.granted, Vec::<&str>::new());
    }
}

#[test]
fn what_was_kept_is_for_no_longer_than_before_if_it_is_forgotten() {
    for (passed, left) in [(10_000, Some(20_000)), (30_000, None)] {
        let mut lock = Lock::new();
        lock.acquire("a", 1);
        lock.release("a", keep(lasts(30)));
        let b = claim("b", 1);
        lock.ask(&careful(&b, None));
        let seen = seen(&lock);
        lock.state = LockState::default();
        lock.pass(passed);
        let is_acquired = slot(&lock.ask(&careful(&b, seen.as_ref()))).is_some();
        assert_eq!((is_acquired, lock.look_in), (left.is_none(), left.or(Some(30_000))));
    }
}

#[test]
fn waiters_that_have_seen_different_holders_put_back_both() {
    let mut lock = Lock::new();
    let (b, c) = (claim("b", 1), claim("c", 1));
    lock.acquire("a", 1);
    lock.ask(&careful(&b, None));
    let seen_early = seen(&lock);
    lock.release("a", DONE);
    lock.pass(10_000);
    lock.acquire("d", 1);
    let seen_late = seen(&lock);
    lock.state = LockState::default();
    lock.ask(&careful(&b, seen_early.as_ref()));
    lock.ask(&careful(&c, seen_late.as_ref()));
    assert_eq!(lock.holders(), ["a", "d"]);
    lock.ask(&careful(&c, seen_late.as_ref()));
    assert_eq!(lock.holders(), ["a", "d"]);
    lock.release("a", DONE);
    assert_eq!(slot(&lock.ask(&careful(&b, None))), None);
    lock.release("d", DONE);
    assert_eq!(lock.granted, ["b"]);
}

#[test]
fn the_holders_of_all_slots_are_put_back() {
    let mut lock = Lock::new();
    lock.acquire("old", 1);
    lock.release("old", DONE);
    for name in ["a", "b", "c"] {
        lock.acquire(name, 3);
    }
    // Each waiter has seen another one as the first.
    let mut all_seen = Vec::new();
    while !lock.state.holders.is_empty() {
        all_seen.push(seen(&lock));
        lock.state.holders.remove(0);
    }
    lock.state = LockState::default();
    for (name, seen) in ["d", "e", "f"].into_iter().zip(&all_seen) {
        lock.ask(&careful(&claim(name, 3), seen.as_ref()));
    }
    assert_eq!(lock.holders(), ["a", "b", "c"], "no hold has ended since they were seen");
}

#[test]
fn a_holder_is_forgotten_where_an_older_state_is_restored() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    let restored = lock.state.clone();
    lock.pass(1000);
    lock.release("a", DONE);
    lock.pass(30_000);
    lock.acquire("d", 1);
    let b = claim("b", 1);
    lock.ask(&careful(&b, None));
    let seen = seen(&lock);
    let d = seen.as_ref().map_or(0, |seen| seen.held.fence);
    lock.state = restored.clone();
    // The lease of `a` was restored, and has expired since.
    assert_eq!(held(&lock.ask(&careful(&b, seen.as_ref()))).0, Some("d"));
    assert!(lock.state.fence >= d, "the next fence is greater");
    // Or it has not yet expired when the waiter first looks.
    lock.state = restored;
    lock.world.now = Now::unix(START);
    let Acquired::Held { first, ended_unix_ms, .. } = lock.ask(&careful(&b, seen.as_ref())) else {
        panic!("it is held")
    };
    assert_eq!(first.as_ref().map(|held| held.token.as_str()), Some("a"));
    let seen = Seen::after(seen, first.as_ref(), ended_unix_ms);
    lock.pass(31_000);
    assert_eq!(held(&lock.ask(&careful(&b, seen.as_ref()))).0, Some("d"));
}

#[test]
fn a_holder_that_died_after_it_was_put_back_is_not_put_back_again() {
    let mut lock = Lock::new();
    lock.acquire("late", 1);
    let late = lock.state.clone();
    lock.release("late", DONE);
    lock.acquire("a", 1);
    // A run that had lost its lock ends while `a` holds it.
    lock.pass(5000);
    lock.release("late", DONE);
    let (b, c) = (claim("b", 1), claim("c", 1));
    let seen = seen(&lock);
    lock.state = LockState { holders: Vec::new(), ..late };
    assert_eq!(held(&lock.ask(&careful(&b, seen.as_ref()))).0, Some("a"));
    lock.pass(30_000);
    assert!(slot(&lock.ask(&careful(&c, seen.as_ref()))).is_none(), "it is next to `b`");
    assert_eq!(lock.holders(), Vec::<&str>::new());
}

#[test]
fn a_holder_of_which_too_little_is_known_is_not_remembered() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    let before = seen(&lock);
    let b = claim("b", 1);
    lock.ask(&careful(&b, None));
    lock.release("a", DONE);
    let first = lock.state.first_held(lock.world.now, &lock.world);
    assert_eq!(first.as_ref().map(|held| held.token.as_str()), Some("b"));
    assert_eq!(Seen::after(before.clone(), first.as_ref(), 0), before);
    assert_eq!(Seen::after(before.clone(), None, 0), before);
    lock.ask(&careful(&b, None));
    let for_ever =
        lock.state.first_held(lock.world.now, &lock.world).map(|held| Held { ends_ms: None, ttl_ms: None, ..held });
    assert_eq!(Seen::after(before, for_ever.as_ref(), 0), None);
}

#[test]
fn a_holder_whose_lease_has_run_out_is_not_forgotten() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    let (b, c) = (claim("b", 1), claim("c", 1));
    let seen = seen(&lock);
    assert_eq!(slot(&lock.ask(&careful(&b, None))), None);
    assert_eq!(slot(&lock.ask(&careful(&c, None))), None);
    lock.pass(30_000);
    // Nor if another request has dropped it, and the clock is set back then.
    lock.acquire("d", 1);
    lock.world.now = Now::unix(START);
    assert_eq!(slot(&lock.ask(&careful(&b, seen.as_ref()))), Some(0));
}

#[test]
fn a_hold_that_was_cancelled_is_not_forgotten() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    let b = claim("b", 1);
    let seen = seen(&lock);
    lock.ask(&careful(&b, None));
    lock.cancel("a", None, false);
    assert_eq!(slot(&lock.ask(&careful(&b, seen.as_ref()))), Some(0));
}

#[test]
fn ends_rise_whatever_the_clock_says() {
    let mut lock = Lock::new();
    let mut before = 0;
    for now in [START, START, START - 1000, START + 1000] {
        lock.world.now = Now::unix(now);
        lock.acquire("a", 1);
        lock.release("a", DONE);
        let ended = lock.state.ended_unix_ms();
        assert!(ended > before, "{ended}");
        before = ended;
    }
    assert_eq!((before, lock.state.unrecorded_end_unix_ms), (START + 1000, 0));
}

#[test]
fn a_claim_counts_only_beside_those_that_hold_the_lock() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    let b = claim("b", 1);
    lock.ask(&careful(&b, None));
    lock.release("a", DONE);
    assert_eq!(lock.granted, ["b"]);
    // A store that reads only the first waiters may overlook the grant.
    let overlooked = std::mem::take(&mut lock.state.waiters);
    assert_eq!(slot(&lock.acquire("c", 1)), Some(0));
    lock.state.waiters = overlooked;
    assert_eq!(held(&lock.ask(&careful(&b, None))), (Some("c"), Some(0)));
    lock.release("c", DONE);
    assert_eq!(slot(&lock.ask(&careful(&b, None))), Some(0));
}
