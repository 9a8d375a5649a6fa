//! The end of a run, release by hand, the last run.

use super::*;

const OK: Option<Ending> = Some(Ending::Exited(0));

fn at_least(seconds: u64) -> Release {
    let retain = Retain::AtLeast(Duration::from_secs(seconds));
    Release::Run { ending: Ending::Exited(0), succeeded: false, retain }
}

#[test]
fn a_run_that_is_over_frees_the_lock_and_is_recorded() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    lock.pass(5000);
    assert_eq!(lock.release("a", DONE), Released::Free);
    let last = LastRun { who: who("a"), started_unix_ms: START, ended_unix_ms: START + 5000, ending: OK };
    assert_eq!(lock.state.last, Some(last));
    assert_eq!(lock.holders(), [""; 0]);
}

#[test]
fn a_kept_lock_stays_until_it_is_released_by_hand_and_its_result_stays() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    assert_eq!(lock.release("a", keep(Ttl::None)), Released::Retained);
    lock.pass(1_000_000);
    assert_eq!((lock.holders(), lock.last()), (vec!["a"], Some(("a", Some(Ending::Exited(3))))));
    let ended = lock.state.last.clone();
    assert_eq!(lock.release("a", Release::ByHand), Released::Free);
    assert_eq!((lock.holders(), &lock.state.last), (vec![], &ended));
}

#[test]
fn a_kept_lock_goes_with_its_lease() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    lock.release("a", keep(lasts(60)));
    assert_eq!(lock.ends_in, Some(60_000));
    lock.pass(60_000);
    assert_eq!(slot(&lock.acquire("b", 1)), Some(0));
}

#[test]
fn a_kept_lock_whose_release_is_repeated_stays_as_it_is() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    lock.release("a", keep(lasts(60)));
    lock.pass(1000);
    assert_eq!(lock.release("a", keep(lasts(60))), Released::Retained);
    assert_eq!((lock.ends_in, lock.state.last.as_ref().map(|last| last.ended_unix_ms)), (Some(59_000), Some(START)));
}

#[test]
fn a_lock_is_held_at_least_that_long_from_its_acquisition() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    lock.pass(4000);
    assert_eq!(lock.release("a", at_least(10)), Released::Retained);
    assert_eq!(lock.ends_in, Some(6000));
    lock.pass(6000);
    lock.acquire("b", 1);
    lock.pass(10_000);
    assert_eq!(lock.release("b", at_least(10)), Released::Free);
}

#[test]
fn a_release_by_hand_frees_what_was_acquired_by_hand() {
    let mut lock = Lock::new();
    lock.by_hand("a");
    lock.wait("b", 1);
    assert_eq!(lock.release("a", Release::ByHand), Released::Free);
    assert_eq!((&lock.woken[..], lock.last()), (&["b".to_owned()][..], Some(("a", None))));
    assert!(
        matches!(lock.release("a", Release::ByHand), Released::NotMine(Some(held)) if held.token == Some(token("b")))
    );
}

#[test]
fn a_release_by_hand_takes_effect_when_the_command_ends() {
    let mut lock = Lock::new();
    for (retaining, ending) in [(keep(Ttl::None), Ending::Exited(3)), (at_least(10), Ending::Exited(0))] {
        lock.acquire("a", 1);
        assert_eq!(lock.release("a", Release::ByHand), Released::WhenItEnds);
        assert_eq!(lock.renew("a", None), Renewed::Mine);
        assert_eq!(lock.holders(), ["a"]);
        assert_eq!(lock.release("a", retaining), Released::Free);
        assert_eq!((lock.holders(), lock.last()), (vec![], Some(("a", Some(ending)))));
    }
}

#[test]
fn a_run_that_has_lost_its_lock_is_recorded() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    lock.pass(30_000);
    assert_eq!(lock.release("a", DONE), Released::NotMine(None));
    assert_eq!(lock.last(), Some(("a", OK)));
}

#[test]
fn a_late_release_never_overwrites_how_a_later_run_ended() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    lock.pass(30_000);
    lock.acquire("b", 1);
    lock.release("b", DONE);
    let ended = lock.state.last.clone();
    lock.pass(1000);
    assert_eq!(lock.release("a", Release::at_once(Ending::Exited(3))), Released::NotMine(None));
    assert_eq!(&lock.state.last, &ended);
}

#[test]
fn a_run_of_which_nothing_is_known_is_not_recorded() {
    let mut lock = Lock::new();
    assert_eq!(lock.release("a", DONE), Released::NotMine(None));
    assert_eq!(lock.state, LockState::default());
}

#[test]
fn a_release_does_not_touch_another_ones_lock() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    lock.pass(30_000);
    lock.acquire("b", 1);
    assert_eq!(lock.release("a", DONE), Released::NotMine(None));
    assert_eq!(lock.holders(), ["b"]);
}

#[test]
fn a_request_in_flight_is_refused_after_the_release() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    let applied = lock.state.release(&token("a"), DONE, true, &lock.world);
    assert_eq!(lock.done(applied), Released::Free);
    assert_eq!(lock.acquire("a", 1), Acquired::Held(Held::default()));
}

#[test]
fn a_success_counts_for_its_period() {
    let mut lock = Lock::new();
    let once = |name: &str| Claim { once_per: Some(Duration::from_mins(1)), ..claim(name, 1) };
    lock.ask(&ask(&once("a")));
    lock.release("a", DONE);
    lock.pass(59_999);
    assert!(matches!(lock.ask(&ask(&once("b"))), Acquired::NotNeeded(RecentSuccess { began_ms: START, .. })));
    assert!(!lock.state.is_prunable(Duration::ZERO, &lock.world));
    lock.pass(1);
    assert!(lock.state.is_prunable(Duration::ZERO, &lock.world));
    assert_eq!(slot(&lock.ask(&ask(&once("b")))), Some(0));
}

#[test]
fn only_a_run_with_a_period_makes_others_superfluous() {
    let mut lock = Lock::new();
    let once = |name: &str| Claim { once_per: Some(Duration::from_mins(1)), ..claim(name, 1) };
    lock.acquire("editor", 1);
    lock.release("editor", DONE);
    assert_eq!(slot(&lock.ask(&ask(&once("a")))), Some(0));
    lock.release("a", DONE);
    lock.pass(30_000);
    lock.acquire("editor", 1);
    lock.release("editor", DONE);
    assert!(matches!(lock.ask(&ask(&once("b"))), Acquired::NotNeeded(RecentSuccess { began_ms: START, .. })));
    lock.pass(30_000);
    assert_eq!(slot(&lock.ask(&ask(&once("b")))), Some(0));
}

#[test]
fn a_success_can_be_forgotten() {
    let mut lock = Lock::new();
    let once = |name: &str| Claim { once_per: Some(Duration::from_mins(1)), ..claim(name, 1) };
    assert!(!lock.state.forget_success().answer);
    lock.ask(&ask(&once("a")));
    lock.release("a", DONE);
    assert!(lock.state.forget_success().answer);
    assert!(!lock.state.forget_success().answer);
    assert!(lock.state.is_prunable(Duration::ZERO, &lock.world));
    assert_eq!(lock.state.success.map(|success| success.began_unix_ms), Some(START));
    assert_eq!(slot(&lock.ask(&ask(&once("b")))), Some(0));
}

#[test]
fn only_a_run_that_held_the_lock_until_it_succeeded_is_a_success() {
    let success = |release: Release, before: fn(&mut Lock)| {
        let mut lock = Lock::new();
        lock.acquire("a", 1);
        before(&mut lock);
        lock.release("a", release);
        lock.state.success.is_some()
    };
    assert!(success(DONE, |_| ()));
    assert!(!success(Release::at_once(Ending::Exited(3)), |_| ()), "it has failed");
    assert!(!success(DONE, |lock| lock.pass(30_000)), "its lease has expired");
    assert!(!success(DONE, |lock| drop(lock.revoke(None, false))), "its lease was revoked");
    assert!(!success(DONE, |lock| lock.state.holders[0].purpose = Purpose::Unrecorded), "its record was deleted");
}

#[test]
fn a_success_by_a_clock_that_was_wrong_gives_way() {
    let mut lock = Lock::new();
    let once = |name: &str| Claim { once_per: Some(Duration::from_mins(1)), ..claim(name, 1) };
    let year = 365 * 24 * 3_600_000;
    lock.pass(year);
    lock.ask(&ask(&once("a")));
    lock.release("a", DONE);
    lock.world.now = Now::unix(START);
    assert_eq!(slot(&lock.ask(&ask(&once("b")))), Some(0));
    lock.release("b", DONE);
    assert!(matches!(lock.ask(&ask(&once("c"))), Acquired::NotNeeded(RecentSuccess { began_ms: START, .. })));
    // The period of a success stays, whatever runs in the meantime.
    lock.pass(1_000);
    lock.acquire("d", 1);
    lock.release("d", DONE);
    assert_eq!(lock.state.success.and_then(|success| success.until_unix_ms), Some(START + 60_000));
    assert!(!lock.state.is_prunable(Duration::ZERO, &lock.world));
}
