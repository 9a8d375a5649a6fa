//! The queue.

use super::*;
use crate::lock::state::queue::CLAIM_WINDOW_MS;

/// A lock that `a` holds and the others wait for.
fn queue(others: &[&str]) -> Lock {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    for (place, name) in others.iter().enumerate() {
        assert_eq!(held(&lock.wait(name, 1)), (Some("a"), Some(place)));
    }
    lock
}

#[test]
fn a_release_grants_the_lock_to_the_first_waiter() {
    let mut lock = queue(&["b", "c"]);
    assert_eq!(lock.release("a", DONE), Released::Free);
    assert_eq!((&lock.granted[..], lock.look_in), (&["b".to_owned()][..], Some(CLAIM_WINDOW_MS)));
    assert_eq!(lock.holders(), [""; 0], "it is not a holder before it claims it");
    assert_eq!(held(&lock.wait("c", 1)), (Some("b"), Some(1)));
    assert_eq!(held(&lock.acquire("d", 1)), (Some("b"), None), "nobody overtakes");
    lock.claim("b");
    assert_eq!((lock.holders(), lock.waiters()), (vec!["b"], vec!["c"]));
}

#[test]
fn a_grant_that_is_not_claimed_passes_on_and_the_waiter_keeps_its_place() {
    let mut lock = queue(&["b", "c"]);
    lock.release("a", DONE);
    lock.pass(CLAIM_WINDOW_MS - 1);
    lock.wait("c", 1);
    assert_eq!(lock.granted, [""; 0]);
    lock.pass(1);
    assert_eq!(slot(&lock.wait("c", 1)), Some(0), "the one behind it has it at once");
    assert_eq!(held(&lock.wait("b", 1)), (Some("c"), Some(0)));
    lock.wait("d", 1);
    lock.release("c", DONE);
    assert_eq!(lock.granted, ["b"]);
}

#[test]
fn an_unresponsive_waiter_is_passed_by_until_it_asks() {
    let mut lock = queue(&["b", "c", "d"]);
    lock.release("a", DONE);
    lock.pass(CLAIM_WINDOW_MS);
    lock.claim("c");
    lock.release("c", DONE);
    assert_eq!((&lock.granted[..], lock.waiters()), (&["d".to_owned()][..], vec!["b", "d"]));
}

#[test]
fn a_silent_waiter_is_passed_by_and_a_dead_one_leaves() {
    let mut lock = queue(&["b", "c", "d"]);
    lock.world.absent.insert("b".into(), Presence::Gone);
    lock.world.absent.insert("c".into(), Presence::Silent);
    lock.release("a", DONE);
    assert_eq!((&lock.granted[..], lock.waiters()), (&["d".to_owned()][..], vec!["c", "d"]));
    lock.claim("d");
    lock.world.absent.clear();
    lock.release("d", DONE);
    assert_eq!(lock.granted, ["c"]);
}

#[test]
fn the_grant_of_a_dead_waiter_passes_on() {
    let mut lock = queue(&["b", "c"]);
    lock.release("a", DONE);
    lock.world.absent.insert("b".into(), Presence::Gone);
    assert_eq!(slot(&lock.wait("c", 1)), Some(0));
}

#[test]
fn a_waiter_that_asks_is_alive() {
    let mut lock = queue(&["b"]);
    lock.world.absent.insert("b".into(), Presence::Gone);
    assert_eq!(held(&lock.wait("b", 1)), (Some("a"), Some(0)));
}

#[test]
fn a_newcomer_overtakes_only_those_that_do_not_listen() {
    let mut lock = queue(&["b"]);
    lock.world.absent.insert("b".into(), Presence::Silent);
    lock.pass(30_000);
    assert_eq!(slot(&lock.acquire("c", 1)), Some(0));
}

#[test]
fn what_is_free_is_granted_to_all_that_it_is_enough_for() {
    let mut lock = Lock::new();
    for name in ["a", "b", "c"] {
        lock.acquire(name, 3);
    }
    for name in ["d", "e", "f", "g"] {
        lock.wait(name, 3);
    }
    lock.pass(30_000);
    assert_eq!(slot(&lock.wait("d", 3)), Some(0), "who asks has it at once");
    assert_eq!(lock.granted, ["e", "f"]);
    lock.claim("f");
    assert_eq!(lock.state.holders.last().map(|holder| holder.slot), Some(2));
}

#[test]
fn only_so_many_grants_are_unclaimed_at_a_time() {
    let mut lock = Lock::new();
    lock.world.grants_max = 2;
    lock.acquire("a", 0);
    for name in ["b", "c", "d", "e", "f"] {
        lock.wait(name, 5);
    }
    lock.release("a", DONE);
    assert_eq!(lock.granted, ["b", "c"]);
    lock.claim("b");
    assert_eq!(lock.granted, ["d"]);
    lock.claim("c");
    assert_eq!(lock.granted, ["e"]);
}

#[test]
fn a_waiter_that_lets_fewer_hold_the_lock_blocks_those_behind_it() {
    let mut lock = Lock::new();
    lock.acquire("a", 3);
    lock.wait("b", 1);
    lock.wait("c", 3);
    assert_eq!((lock.granted.len(), slot(&lock.acquire("d", 3))), (0, None));
    lock.cancel("b", None, false);
    assert_eq!(lock.granted, ["c"]);
}

#[test]
fn a_grant_waits_for_one_ahead_that_would_find_too_many() {
    let mut lock = Lock::new();
    lock.acquire("a", 3);
    lock.wait("b", 1);
    lock.wait("c", 3);
    lock.release("a", DONE);
    // It must be alone when it starts.
    assert_eq!(lock.granted, ["b"]);
    assert_eq!(slot(&lock.wait("c", 3)), None);
    lock.claim("b");
    assert_eq!(lock.granted, ["c"]);
}

#[test]
fn a_cancelled_waiter_leaves_the_queue_and_its_grant_passes_on() {
    let mut lock = queue(&["b", "c"]);
    assert!(lock.cancel("c", None, false));
    assert_eq!(lock.waiters(), ["b"]);
    lock.wait("d", 1);
    lock.release("a", DONE);
    assert!(lock.cancel("b", None, false));
    assert_eq!((&lock.granted[..], lock.waiters()), (&["d".to_owned()][..], vec!["d"]));
}

#[test]
fn a_wait_that_has_run_out_leaves_the_queue() {
    let mut lock = queue(&["b", "c"]);
    lock.acquire("b", 1);
    assert_eq!(lock.waiters(), ["c"]);
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
    assert_eq!(lock.wait("a", 1), Acquired::Cancelled);
    assert!(!lock.state.is_prunable(Duration::ZERO, &lock.world), "or it would get the lock after all");
    lock.pass(299_999);
    assert_eq!(lock.wait("a", 1), Acquired::Cancelled);
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
    lock.ask(&Ask { request: Some(&one), ..ask(&claim) });
    assert!(!lock.cancel("own", Some("2"), false));
    assert_eq!(lock.holders(), ["own"]);
    // Two requests were told that they hold the lock.
    lock.ask(&Ask { request: Some(&two), ..ask(&claim) });
    assert!(!lock.cancel("own", Some("1"), false));
    lock.release("own", Release::ByHand);
    lock.ask(&Ask { request: Some(&one), ..ask(&claim) });
    assert!(lock.cancel("own", Some("1"), false));
    assert_eq!(lock.holders(), [""; 0]);
}
