//! Turns for tests that start dozens of processes at once. Beside others of their kind these would be too slow for
//! their deadlines; but one at a time leaves the processors idle.

use std::num::NonZero;
use std::sync::{Condvar, LazyLock, Mutex, PoisonError};
use std::thread::available_parallelism;

use super::store::Store;

/// How many more tests may have their turn: as many as there are processors.
static TURNS: LazyLock<Mutex<usize>> = LazyLock::new(|| Mutex::new(available_parallelism().map_or(1, NonZero::get)));

static TURN_ENDED: Condvar = Condvar::new();

/// The turn of a test, until it is dropped.
pub(crate) struct Turn(());

/// Waits until few enough other tests have their turns, if this test may load the machine with such a crowd: waiters
/// that poll spend most of the time asleep, and would only keep others from their turns.
pub(crate) fn turn_at(store: &Store) -> Option<Turn> {
    (!store.is_polled()).then(turn)
}

/// Waits until few enough other tests have their turns.
pub(crate) fn turn() -> Turn {
    let left = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut left = TURN_ENDED.wait_while(left, |left| *left == 0).unwrap_or_else(PoisonError::into_inner);
    *left -= 1;
    Turn(())
}

impl Drop for Turn {
    fn drop(&mut self) {
        *TURNS.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        TURN_ENDED.notify_one();
    }
}
