//! Tests that let dozens of runs come at once take turns: several of them together would keep the machine so busy that no test could say
//! anything of times.

use std::sync::{Mutex, MutexGuard, PoisonError};

static CROWD: Mutex<()> = Mutex::new(());

/// Waits until no other test has a crowd. This one's turn lasts until what is returned is dropped.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    // A test that failed has no crowd any more.
    CROWD.lock().unwrap_or_else(PoisonError::into_inner)
}
