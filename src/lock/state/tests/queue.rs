//! The queue.

use super::*;

/// A lock that `a` holds and the others wait for.
fn queue(others: &[&str]) -> Lock {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    for (place, name) in others.iter().enumerate() {
        assert_eq!(held(&lock.wait(name, 1)), (Some("a"), Some(place as u64)));
    }
    lock
}

/// When a waiter looks although nothing wakes it, in ms from now.
fn looks_in(acquired: &Acquired) -> Option<u128> {
    let Acquired::Held(held) = acquired else { panic!("not held: {acquired:?}") };
    held.look_in.map(|span| span.as_millis())
}

#[test]
fn a_release_makes_the_first_waiter_the_holder() {
    let mut lock = queue(&["b", "c"]);
    lock.pass(5000);
    assert_eq!(lock.release("a", DONE), Released::Free);
    assert_eq!(
        (&lock.woken[..], lock.ends_in),
        (&["b".to_owned()][..], Some(25_000)),
        "the lease of its place is the lock's"
    );
    assert_eq!((lock.holders(), lock.waiters()), (vec!["b"], vec!["c"]));
    let holder = &lock.state.holders[0];
    assert_eq!((holder.fence, holder.slot, holder.since_ms), (START + 5000, 0, START + 5000));
    assert_eq!(held(&lock.wait("c", 1)), (Some("b"), Some(0)));
    assert_eq!(held(&lock.acquire("d", 1)), (Some("b"), None), "nobody overtakes");
    // The wake-up may be lost.
    assert_eq!(lock.wait("b", 1), mine(START + 5000, 0));
}

#[test]
fn a_place_is_as_long_as_the_lease_and_half_a_minute_at_most() {
    for (ttl, place) in [(Ttl::Lasts(Duration::from_secs(4)), 4000), (lasts(3600), 30_000), (Ttl::None, 30_000)] {
        let mut lock = queue(&[]);
        let claim = Claim { ttl, ..claim("b", 1) };
        let request = Ask { if_held: QUEUE, ..ask(&claim) };
        lock.ask(&request);
        lock.release("a", DONE);
        assert_eq!(lock.ends_in, Some(place));
        // Asked again, the holder gets the lease that it wants.
        lock.ask(&request);
        assert_eq!(lock.ends_in, ttl.length().map(millis));
    }
}

#[test]
fn a_place_is_lost_unless_its_waiter_asks() {
    let mut lock = queue(&["b", "c"]);
    lock.pass(20_000);
    lock.renew("a", None);
    assert_eq!(held(&lock.wait("c", 1)), (Some("a"), Some(1)));
    lock.pass(9_999);
    assert_eq!(held(&lock.wait("c", 1)), (Some("a"), Some(1)));
    lock.pass(1);
    assert_eq!(lock.waiters(), ["c"]);
    assert_eq!(held(&lock.wait("c", 1)), (Some("a"), Some(0)));
    assert_eq!(held(&lock.wait("b", 1)), (Some("a"), Some(1)), "it has lost its place");
}

#[test]
fn however_many_have_died_the_lock_is_unused_for_one_lease() {
    let mut lock = queue(&["dead", "dead-too", "dead-as-well", "e"]);
    lock.pass(20_000);
    lock.wait("e", 1);
    // The holder dies, too, or releases the lock to the first of the dead.
    for releases in [false, true] {
        let mut lock = Lock { state: lock.state.clone(), world: lock.world.clone(), ..Lock::new() };
        if releases {
            lock.release("a", DONE);
            assert_eq!(lock.holders(), ["dead"]);
        }
        lock.pass(9_999);
        lock.wait("e", 1);
        assert_eq!(lock.holders(), [if releases { "dead" } else { "a" }]);
        lock.pass(1);
        assert_eq!(slot(&lock.wait("e", 1)), Some(0));
    }
}

#[test]
fn the_first_waiters_look_when_a_lease_or_a_place_ends() {
    let mut lock = queue(&["b", "c", "d", "e", "f"]);
    let all = ["b", "c", "d", "e", "f"].map(|name| lock.wait(name, 1));
    let looks = all.each_ref().map(looks_in);
    assert_eq!(looks, [Some(30_000), Some(30_150), Some(30_300), Some(30_450), None]);
    lock.pass(29_000);
    lock.renew("a", None);
    lock.state.waiters[1].ends_ms += 1;
    lock.pass(999);
    let answer = lock.wait("d", 1);
    assert_eq!(looks_in(&answer), Some(1), "the place of b ends before the lease of a, and c is dead, too");
}

#[test]
fn a_waiter_behind_the_dead_looks_when_the_last_of_them_has_lost_its_place() {
    let mut lock = queue(&["1", "2", "3", "4", "5"]);
    let renewed = lock.renew("a", Some(lasts(600)));
    assert_eq!(renewed, Renewed::Mine);
    lock.pass(10_000);
    let answer = lock.wait("5", 1);
    assert_eq!(looks_in(&answer), None, "it asks again before they end");
    lock.pass(10_000);
    let answer = lock.wait("5", 1);
    assert_eq!(looks_in(&answer), None, "it asks again when they end");
    lock.pass(5_000);
    let answer = lock.wait("5", 1);
    assert_eq!(looks_in(&answer), Some(5_000), "it is the first then");
}

#[test]
fn behind_the_dead_the_first_of_the_living_look() {
    let mut lock = queue(&["1", "2", "3", "4", "5", "6", "7", "8", "9"]);
    lock.renew("a", Some(lasts(600)));
    lock.pass(25_000);
    for name in ["5", "6", "7", "8", "9"] {
        lock.wait(name, 1);
    }
    lock.pass(1_000);
    let looks = ["5", "6", "7", "8", "9"].map(|name| looks_in(&lock.wait(name, 1)));
    assert_eq!(looks, [Some(4_000), Some(4_150), Some(4_300), Some(4_450), None]);
}

#[test]
fn the_dead_behind_a_waiter_do_not_count() {
    let mut lock = queue(&["1", "2", "3", "4", "5", "6", "7", "8", "9"]);
    lock.renew("a", Some(lasts(600)));
    lock.pass(25_000);
    let living = ["3", "4", "5", "6", "7"];
    for name in living {
        lock.wait(name, 1);
    }
    let looks = living.map(|name| looks_in(&lock.wait(name, 1)));
    assert_eq!(looks, [Some(5_000), Some(5_150), Some(5_300), Some(5_450), None], "two of the dead are ahead");
}

#[test]
fn waiters_are_told_of_an_end_before_they_would_ask() {
    let mut lock = queue(&["b", "c", "d", "e", "f"]);
    let shorter = Claim { by_hand: true, ttl: lasts(40), ..claim("by-hand", 1) };
    lock.release("a", DONE);
    assert_eq!(lock.woken, ["b"], "they ask again before its lease has ended");
    lock.release("b", Release::Run { ending: Ending::Exited(0), succeeded: true, retain: Retain::Kept(lasts(5)) });
    assert_eq!(lock.woken, ["c", "d", "e", "f"]);
    lock.pass(5000);
    for name in ["c", "d", "e", "f"] {
        lock.wait(name, 1);
    }
    lock.ask(&Ask { if_held: QUEUE, ..ask(&shorter) });
    assert_eq!(lock.woken, [""; 0]);
}

#[test]
fn what_is_free_is_handed_to_all_for_which_it_is_enough() {
    let mut lock = Lock::new();
    for name in ["a", "b", "c"] {
        lock.acquire(name, 3);
    }
    for name in ["d", "e", "f", "g"] {
        lock.wait(name, 3);
    }
    lock.pass(29_999);
    for name in ["d", "e", "f", "g"] {
        lock.wait(name, 3);
    }
    lock.pass(1);
    assert_eq!(slot(&lock.wait("f", 3)), Some(2), "the request that looks is one of them");
    assert_eq!(lock.woken, ["d", "e"]);
    assert_eq!((lock.holders(), lock.waiters()), (vec!["d", "e", "f"], vec!["g"]));
}

#[test]
fn one_operation_hands_the_lock_to_so_many() {
    let mut lock = Lock::new();
    lock.world.hand_offs_max = 2;
    lock.acquire("a", 0);
    for name in ["b", "c", "d", "e", "f"] {
        lock.wait(name, 5);
    }
    let applied = lock.state.release(&token("a"), DONE, false, &lock.world);
    assert!(applied.is_unfinished);
    lock.done(applied);
    assert_eq!(lock.woken, ["b", "c"]);
    let looked = lock.state.look(&lock.world);
    assert!(looked.is_unfinished);
    lock.done(looked);
    assert_eq!(lock.woken, ["d", "e"]);
    let looked = lock.state.look(&lock.world);
    assert!(!looked.is_unfinished);
    lock.done(looked);
    assert_eq!((&lock.woken[..], lock.holders().len()), (&["f".to_owned()][..], 5));
}

#[test]
fn a_waiter_that_lets_fewer_hold_the_lock_blocks_those_behind_it() {
    let mut lock = Lock::new();
    lock.acquire("a", 3);
    lock.wait("b", 1);
    lock.wait("c", 3);
    assert_eq!((lock.woken.len(), slot(&lock.acquire("d", 3))), (0, None));
    lock.cancel("b", None, false);
    assert_eq!(lock.woken, ["c"]);
}

#[test]
fn shared_waiters_come_in_together_up_to_the_next_that_is_alone() {
    let mut lock = queue(&[]);
    for (name, slots) in [("b", 0), ("c", 0), ("d", 1), ("e", 0)] {
        lock.wait(name, slots);
    }
    lock.release("a", DONE);
    assert_eq!((&lock.woken[..], lock.holders()), (&["b".to_owned(), "c".to_owned()][..], vec!["b", "c"]));
    assert_eq!(slot(&lock.acquire("f", 0)), None, "nobody overtakes the one that waits to be alone");
    lock.release("b", DONE);
    lock.release("c", DONE);
    assert_eq!(lock.woken, ["d"]);
}

#[test]
fn a_cancelled_waiter_leaves_the_queue_and_what_was_handed_to_it_passes_on() {
    let mut lock = queue(&["b", "c"]);
    assert!(lock.cancel("c", None, false));
    assert_eq!(lock.waiters(), ["b"]);
    lock.wait("d", 1);
    lock.release("a", DONE);
    assert!(lock.cancel("b", None, false));
    assert_eq!(
        (&lock.woken[..], lock.holders(), lock.last().map(|last| last.0)),
        (&["d".to_owned()][..], vec!["d"], Some("a"))
    );
}

#[test]
fn a_wait_that_has_run_out_leaves_the_queue_and_lets_others_in() {
    let mut lock = Lock::new();
    lock.acquire("a", 0);
    lock.wait("b", 1);
    lock.wait("c", 0);
    assert_eq!(held(&lock.acquire("b", 1)), (Some("a"), None));
    assert_eq!((&lock.woken[..], lock.waiters()), (&["c".to_owned()][..], vec![]));
}

#[test]
fn a_waiter_that_wants_another_mode_joins_anew() {
    let mut lock = queue(&["b", "c"]);
    assert_eq!(held(&lock.wait("b", 2)), (Some("a"), Some(1)));
}

#[test]
fn a_full_queue_is_not_joined_and_a_free_lock_is_acquired_all_the_same() {
    let mut lock = queue(&["b"]);
    let c = claim("c", 1);
    let request = Ask { if_held: queue_up_to(1), ..ask(&c) };
    assert_eq!(held(&lock.ask(&request)), (Some("a"), None));
    let b = claim("b", 1);
    assert_eq!(held(&lock.ask(&Ask { if_held: queue_up_to(0), ..ask(&b) })), (Some("a"), Some(0)));
    lock.cancel("b", None, false);
    lock.cancel("a", None, false);
    assert_eq!(slot(&lock.ask(&Ask { if_held: queue_up_to(0), ..ask(&c) })), Some(0));
}

#[test]
fn waiters_that_were_not_read_count_in_a_full_queue() {
    for (unread_waiters, place) in [(1, Some(1)), (2, None)] {
        let mut lock = queue(&["b"]);
        lock.world.unread_waiters = unread_waiters;
        let c = claim("c", 1);
        assert_eq!(
            held(&lock.ask(&Ask { if_held: queue_up_to(3), ..ask(&c) })),
            (Some("a"), place),
            "{unread_waiters}"
        );
    }
}

#[test]
fn a_waiter_whose_run_is_not_needed_any_more_is_passed_by_and_woken() {
    let mut lock = queue(&[]);
    let daily = Claim { once_per: Some(Duration::from_hours(20)), ..claim("b", 1) };
    lock.ask(&Ask { if_held: QUEUE, ..ask(&daily) });
    lock.wait("c", 1);
    lock.state.holders[0].once_per_ms = Some(1);
    lock.release("a", DONE);
    assert_eq!((&lock.woken[..], lock.holders()), (&["b".to_owned(), "c".to_owned()][..], vec!["c"]));
    assert!(matches!(lock.ask(&ask(&daily)), Acquired::NotNeeded(RecentSuccess { began_ms: START, .. })));
}

#[test]
fn a_request_that_obtained_the_lock_unheard_is_cancelled() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    assert!(lock.cancel("a", None, false));
    assert_eq!((lock.holders(), lock.last()), (vec![], None));
}

#[test]
fn a_cancelled_request_that_comes_late_gets_nothing() {
    let mut lock = Lock::new();
    assert!(lock.cancel("a", None, true));
    assert_eq!(lock.wait("a", 1), Acquired::Held(Held::default()));
    assert!(!lock.state.is_prunable(Duration::ZERO, &lock.world), "or it would get the lock after all");
    lock.pass(299_999);
    assert_eq!(lock.wait("a", 1), Acquired::Held(Held::default()));
    lock.pass(1);
    assert!(lock.state.is_prunable(Duration::ZERO, &lock.world), "it has arrived, or never will");
    assert_eq!(
        slot(&lock.state.clone().acquire(&ask(&claim("a", 1)), &lock.world).expect("a fence is left").answer),
        Some(0)
    );
    assert_eq!((lock.cancel("b", None, false), lock.state.cancelled.len()), (true, 0));
    assert_eq!(lock.state, LockState { key: String::new(), ..LockState::default() }, "nothing is left");
}

#[test]
fn a_cancel_drops_only_what_this_very_request_obtained() {
    let mut lock = Lock::new();
    let claim = Claim { by_hand: true, request: Some(Token::random()), ..claim("own", 1) };
    let (one, two) = (token("1"), token("2"));
    let by = |request: &Token| Claim { request: Some(request.clone()), ..claim.clone() };
    lock.ask(&ask(&by(&one)));
    assert!(!lock.cancel("own", Some("2"), false));
    assert_eq!(lock.holders(), ["own"]);
    // Two requests were answered that they hold the lock.
    lock.ask(&ask(&by(&two)));
    assert!(!lock.cancel("own", Some("1"), false));
    lock.release("own", Release::ByHand);
    lock.ask(&ask(&by(&one)));
    assert!(lock.cancel("own", Some("1"), false));
    assert_eq!(lock.holders(), [""; 0]);
    // The same where the lock is handed over.
    for (second, holds) in [(&one, false), (&two, true)] {
        lock.acquire("a", 1);
        for request in [&one, second] {
            lock.ask(&Ask { if_held: QUEUE, ..ask(&by(request)) });
        }
        lock.release("a", DONE);
        assert_eq!(lock.cancel("own", Some("1"), false), !holds);
        lock.release("own", Release::ByHand);
    }
}
