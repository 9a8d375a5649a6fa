//! Expiry, renewal, pruning.

use super::*;

#[test]
fn a_lease_that_has_run_out_frees_the_lock() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    lock.pass(29_999);
    assert_eq!(slot(&lock.acquire("b", 1)), None);
    lock.pass(1);
    assert_eq!(lock.holders(), [""; 0]);
    assert_eq!(slot(&lock.acquire("b", 1)), Some(0));
}

#[test]
fn each_of_several_holders_holds_the_lock() {
    let mut lock = Lock::new();
    lock.acquire("a", 0);
    lock.acquire("b", 0);
    let is_held_by = |name| lock.state.is_held_by(&token(name), &lock.world);
    assert_eq!(["a", "b", "c"].map(is_held_by), [true, true, false]);
}

#[test]
fn a_renewal_extends_the_lease() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    lock.pass(20_000);
    assert_eq!(lock.renew("a", None), Renewed::Mine);
    lock.pass(29_999);
    assert_eq!(lock.holders(), ["a"]);
}

#[test]
fn a_renewal_never_creates() {
    let mut lock = Lock::new();
    assert_eq!(lock.renew("a", None), Renewed::NotMine(None));
    lock.acquire("a", 1);
    lock.pass(30_000);
    assert_eq!(lock.renew("a", Some(lasts(60))), Renewed::NotMine(None));
    assert_eq!(lock.holders(), [""; 0]);
    lock.acquire("b", 1);
    let Renewed::NotMine(Some(held)) = lock.renew("a", None) else { panic!("it is the other's") };
    assert_eq!(held.token, Some(token("b")));
}

#[test]
fn a_waiter_cannot_renew_before_the_lock_is_handed_to_it() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    lock.wait("b", 1);
    assert!(matches!(lock.renew("b", None), Renewed::NotMine(_)));
    lock.release("a", DONE);
    assert_eq!((lock.renew("b", Some(lasts(90))), lock.ends_in), (Renewed::Mine, Some(90_000)));
}

#[test]
fn a_renewal_by_hand_never_shortens_the_lease_of_a_command() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    assert_eq!(lock.renew("a", Some(lasts(1))), Renewed::Mine);
    assert_eq!(lock.ends_in, Some(30_000));
    lock.renew("a", Some(lasts(90)));
    assert_eq!(lock.ends_in, Some(90_000));
    lock.pass(10_000);
    lock.renew("a", Some(lasts(30)));
    assert_eq!(lock.ends_in, Some(90_000), "the greatest length stays");
    lock.renew("a", Some(Ttl::None));
    assert_eq!(lock.ends_in, None);
    lock.renew("a", Some(lasts(30)));
    assert_eq!(lock.ends_in, None);
}

#[test]
fn a_renewal_may_shorten_a_lease_by_hand() {
    let mut lock = Lock::new();
    lock.by_hand("a");
    lock.renew("a", Some(lasts(5)));
    assert_eq!(lock.ends_in, Some(5000));
    lock.pass(1000);
    lock.renew("a", None);
    assert_eq!(lock.ends_in, Some(5000), "the new length stays");
}

#[test]
fn a_late_renewal_of_a_run_leaves_alone_what_is_kept() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    let renew_run = |lock: &mut Lock| lock.state.renew_run(&token("a"), lasts(30), &lock.world).answer;
    assert_eq!(renew_run(&mut lock), Renewed::Mine);
    assert_eq!(lock.release("a", keep(lasts(90))), Released::Retained);
    assert_eq!(renew_run(&mut lock), Renewed::NotMine(None));
    assert_eq!(lock.state.next_end(), Some(START + 90_000));
    lock.renew("a", Some(lasts(5)));
    assert_eq!(lock.ends_in, Some(5000), "by hand it may be changed");
}

#[test]
fn a_free_key_is_pruned_when_it_is_old() {
    let mut lock = Lock::new();
    let day = Duration::from_hours(24);
    lock.acquire("a", 1);
    assert!(!lock.state.is_prunable(Duration::ZERO, &lock.world), "it is held");
    lock.pass(1000);
    lock.release("a", DONE);
    assert!(lock.state.is_prunable(Duration::ZERO, &lock.world));
    assert!(!lock.state.is_prunable(day, &lock.world));
    lock.pass(millis(day) - 1);
    assert!(!lock.state.is_prunable(day, &lock.world));
    lock.pass(1);
    assert!(lock.state.is_prunable(day, &lock.world));
    lock.world.now.unix_ms = START;
    assert!(!lock.state.is_prunable(Duration::ZERO, &lock.world), "the clock was set back");
}

#[test]
fn what_must_not_be_forgotten_is_not_pruned() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    lock.wait("b", 1);
    lock.state.holders.clear();
    lock.pass(29_999);
    assert!(!lock.state.is_prunable(Duration::ZERO, &lock.world), "it is waited for");
    lock.pass(1);
    assert!(lock.state.is_prunable(Duration::ZERO, &lock.world));
    lock.state.sequence = Some(SequenceState::default());
    assert!(!lock.state.is_prunable(Duration::ZERO, &lock.world), "it has a sequence");
    lock.state.sequence = None;
    lock.state.fence = lock.world.now.unix_ms + 1;
    assert!(!lock.state.is_prunable(Duration::ZERO, &lock.world), "its fence is ahead of the clock");
}
