//! Turns for tests that start dozens of processes at once: such a crowd keeps all processors busy by itself, and beside
//! another one it would be too slow for its deadlines.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::store::Store;

static TURN: Mutex<()> = Mutex::new(());

/// Waits until no other test has its turn. Returns the turn of this one, which lasts until it is dropped.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`turn`], but waiters that poll are asleep most of the time: they need no turn.
pub(crate) fn turn_at(store: &Store) -> Option<MutexGuard<'static, ()>> {
    (!store.is_polled()).then(turn)
}
