//! Turns for the tests that start dozens of runs at once: several of them together would keep the machine so busy that no test could check
//! any times.

use std::sync::{Mutex, MutexGuard, PoisonError};

static CROWD: Mutex<()> = Mutex::new(());

/// Waits until no other test has its turn. This test's turn lasts until the guard is dropped.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    // A failed test has ended its runs, so its poisoned turn is over.
    CROWD.lock().unwrap_or_else(PoisonError::into_inner)
}
