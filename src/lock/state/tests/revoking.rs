//! `break`.

use super::*;

/// In how many ms the lock is free.
fn free_in_ms(revoked: &Revoked) -> u128 {
    let Revoked::From { free_in, .. } = revoked else { panic!("not revoked: {revoked:?}") };
    free_in.as_millis()
}

#[test]
fn a_free_lock_is_not_revoked() {
    let mut lock = Lock::new();
    assert_eq!(lock.revoke(None, true), Revoked::Free);
    lock.acquire("a", 1);
    lock.release("a", DONE);
    assert_eq!(lock.revoke(None, true), Revoked::Free);
}

#[test]
fn a_revoked_run_holds_the_lock_until_it_ends_and_cannot_renew_it() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    lock.wait("b", 1);
    lock.pass(1000);
    let revoked = lock.revoke(None, false);
    assert_eq!(free_in_ms(&revoked), 29_000);
    assert!(
        matches!(revoked, Revoked::From { from, living, may_run_unaware: false, .. } if from.len() == 1 && living.is_empty())
    );
    assert_eq!((lock.holders(), lock.woken.len()), (vec!["a"], 0));
    assert_eq!(lock.renew("a", None), Renewed::Revoked(who("admin")));
    assert_eq!(lock.release("a", keep(Ttl::None)), Released::NotMine(None), "it does not stay");
    assert_eq!((&lock.woken[..], lock.last()), (&["b".to_owned()][..], Some(("a", Some(Ending::Exited(3))))));
}

#[test]
fn a_revoked_lease_runs_out() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    lock.revoke(None, false);
    lock.pass(30_000);
    assert_eq!(slot(&lock.acquire("b", 1)), Some(0));
}

#[test]
fn a_revocation_at_once_frees_the_lock() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    lock.wait("b", 1);
    assert!(matches!(lock.revoke(None, true), Revoked::From { may_run_unaware: true, free_in: Duration::ZERO, .. }));
    assert_eq!((&lock.woken[..], lock.last()), (&["b".to_owned()][..], Some(("a", None))));
    assert_eq!(lock.holders(), ["b"]);
    assert!(matches!(lock.renew("a", None), Renewed::NotMine(Some(_))));
}

#[test]
fn a_lock_by_hand_or_without_end_is_free_at_once() {
    let mut lock = Lock::new();
    lock.by_hand("a");
    assert!(matches!(lock.revoke(None, false), Revoked::From { may_run_unaware: false, free_in: Duration::ZERO, .. }));
    let endless = Claim { ttl: Ttl::None, ..claim("b", 1) };
    lock.ask(&ask(&endless));
    assert!(matches!(lock.revoke(None, false), Revoked::From { may_run_unaware: true, free_in: Duration::ZERO, .. }));
    assert_eq!(lock.holders(), [""; 0]);
}

#[test]
fn a_run_whose_lease_was_made_endless_by_hand_learns_of_a_revocation() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    lock.renew("a", Some(Ttl::None));
    lock.pass(1000);
    let revoked = lock.revoke(None, false);
    assert_eq!((free_in_ms(&revoked), lock.holders()), (30_000, vec!["a"]));
    assert_eq!(lock.renew("a", None), Renewed::Revoked(who("admin")));
    lock.pass(30_000);
    assert_eq!(lock.holders(), [""; 0]);
}

#[test]
fn a_kept_lock_is_revoked_and_its_result_stays() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    lock.release("a", keep(Ttl::None));
    lock.pass(1000);
    assert!(matches!(lock.revoke(None, false), Revoked::From { may_run_unaware: false, .. }));
    assert_eq!((lock.holders(), lock.last()), (vec![], Some(("a", Some(Ending::Exited(3))))));
}

#[test]
fn only_the_fence_that_was_meant_is_revoked() {
    let mut lock = Lock::new();
    lock.acquire("a", 2);
    let right = fence(&lock.acquire("b", 2));
    assert!(matches!(lock.revoke(Some(7), true), Revoked::Others(others) if others.len() == 2));
    assert!(matches!(lock.revoke(Some(right), true), Revoked::From { from, .. } if from[0].token == Some(token("b"))));
    assert_eq!(lock.holders(), ["a"]);
}
