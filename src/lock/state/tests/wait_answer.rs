//! The answer to a waiter that has renewed its place, or has read the record.

use super::*;
use crate::lock::state::wait_answer::Ahead;

#[test]
fn only_the_first_waiter_asks_for_a_lock_that_is_free() {
    let lock = Lock::new();
    for (count, waits) in [(0, false), (1, true)] {
        let ahead = Ahead { count, first_end_ms: (count > 0).then_some(START + 30_000), ..Ahead::default() };
        let held = lock.state.still_waits(&claim("c", 1), ahead, &lock.world);
        assert_eq!(held.map(|held| held.place), waits.then_some(Some(count)), "behind {count}");
    }
}

#[test]
fn a_waiter_looks_when_the_lease_or_a_place_ahead_ends_whichever_is_first() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    // The lease ends in 30 s.
    for (place_ends_in, looks_in) in [(20_000, 20), (40_000, 30)] {
        let ahead = Ahead { count: 0, first_end_ms: Some(START + place_ends_in), ..Ahead::default() };
        let held = lock.state.still_waits(&claim("c", 1), ahead, &lock.world).expect("it waits");
        assert_eq!(held.look_in, Some(Duration::from_secs(looks_in)));
    }
}

#[test]
fn a_success_is_news_to_a_run_that_it_may_make_superfluous() {
    let mut lock = Lock::new();
    let seen = lock.state.seen();
    lock.acquire("a", 1);
    lock.release("a", DONE);
    lock.state.fence = seen.fence;
    assert_ne!(lock.state.seen(), seen, "there was a success");
    let plain = claim("c", 1);
    let once = Claim { once_per: Some(Duration::from_mins(1)), ..plain.clone() };
    assert_eq!((lock.state.has_news(seen, &plain), lock.state.has_news(seen, &once)), (false, true));
    let seen = lock.state.seen();
    assert!(!lock.state.has_news(seen, &once), "it knows of it");
}
