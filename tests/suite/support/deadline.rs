//! Waiting for a condition instead of sleeping and hoping.

use std::thread;
use std::time::{Duration, Instant};

/// Longer than anything takes that works, also on a busy machine: only something broken gets here.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// Waits until `condition` holds; fails the test when it does not within `limit`.
#[track_caller]
pub(crate) fn eventually(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    eventually_some(limit, what, || condition().then_some(()));
}

/// Waits until `look` finds something; fails the test when it does not within `limit`.
#[track_caller]
pub(crate) fn eventually_some<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < limit, "not within {limit:?}: {what}");
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}
