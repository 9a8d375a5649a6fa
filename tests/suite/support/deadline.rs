//! Waiting for a condition, instead of sleeping for a fixed time. One that does not come in time fails a contract as late.

use std::thread;
use std::time::{Duration, Instant};

use super::calm::late;

/// Longer than any working operation takes, even on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// The pause between two looks at a condition: many tests look at once, and each look costs.
pub(crate) const PAUSE: Duration = Duration::from_millis(20);

/// The longer a condition has not held, the less often it is looked at: the next time after this fraction of the time so
/// far, one in so many, but at the latest after `SPARSE`.
const LATER: u32 = 40;
const SPARSE: Duration = Duration::from_millis(200);

/// Waits until `condition` holds. Fails the test if it does not within `limit`.
#[track_caller]
pub(crate) fn eventually(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    eventually_some(limit, what, || condition().then_some(()));
}

/// Waits until `look` finds something. Fails the test if it does not within `limit`.
#[track_caller]
pub(crate) fn eventually_some<T>(limit: Duration, what: &str, look: impl FnMut() -> Option<T>) -> T {
    match find_within(limit, look) {
        Some(found) => found,
        None => late(&format!("not within {limit:?}: {what}")),
    }
}

/// Waits until `condition` holds. Returns false if it does not within `limit`.
pub(crate) fn happens_within(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    find_within(limit, || condition().then_some(())).is_some()
}

fn find_within<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let started = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        let found = look();
        if found.is_some() || started.elapsed() >= limit {
            return found;
        }
        thread::sleep(pause);
        let sparse = (started.elapsed() / LATER).min(SPARSE);
        pause = (pause * 2).min(PAUSE.max(sparse));
    }
}

/// Checks throughout `span` that `holds`: for claims that nothing happens for a while, or that count what happens
/// meanwhile.
#[track_caller]
pub(crate) fn stays_true_for(span: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    loop {
        assert!(holds(), "not for {span:?}, but only for {:?}: {what}", started.elapsed());
        let left = span.saturating_sub(started.elapsed());
        if left.is_zero() {
            return;
        }
        thread::sleep(left.min(PAUSE));
    }
}
