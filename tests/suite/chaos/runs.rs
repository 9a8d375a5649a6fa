//! What is known about the runs in the end: from outside, when they began and ended; from their commands, when these
//! lived.

use std::path::Path;

use super::model::Mode;
use crate::support::witness::{Life, lives};

/// The number of slots.
pub(super) const SLOTS: usize = 2;

/// A run that has ended. Its times are those of the boot clock, in nanoseconds.
#[derive(Clone, Debug)]
pub(super) struct Past {
    pub(super) number: usize,
    pub(super) lock: &'static str,
    pub(super) host: usize,
    /// Before it was started, and after it ended.
    pub(super) invoked: i64,
    pub(super) ended: i64,
    /// It was told that the lock is held.
    pub(super) is_refused: bool,
    /// It has said that it released the lock.
    pub(super) has_released: bool,
    /// It has said that it lost the lock, or was stopped for that.
    pub(super) has_lost: bool,
    /// What it said if it failed.
    pub(super) error: Option<String>,
}

impl Past {
    /// Returns by when it had released the lock; `None` if that is unknown.
    pub(super) fn released(&self) -> Option<i64> {
        self.has_released.then_some(self.ended)
    }
}

/// A command under a lock.
#[derive(Clone, Debug)]
pub(super) struct Holder {
    pub(super) run: usize,
    pub(super) lock: String,
    pub(super) mode: Mode,
    pub(super) fence: u64,
    /// When it was first and last seen.
    pub(super) first: i64,
    pub(super) last: i64,
}

impl Holder {
    /// Reads `lock-r|w-run-fence-slot`; the slot may be missing.
    fn of(life: &Life) -> Self {
        let words: Vec<&str> = life.tag.split('-').collect();
        let [lock, how, run, fence, slot] = words[..] else { panic!("an unknown command: {}", life.tag) };
        let mode = match (slot.parse(), how) {
            (Ok(slot), _) => Mode::Slot(slot),
            (Err(_), "r") => Mode::Shared,
            _ => Mode::Exclusive,
        };
        Holder {
            run: run.parse().expect("a number"),
            lock: lock.to_owned(),
            mode,
            fence: fence.parse().expect("a fence is a number"),
            first: life.first,
            last: life.last,
        }
    }

    /// Returns whether the two must not hold their lock at the same time.
    pub(super) fn excludes(&self, other: &Self) -> bool {
        match (self.mode, other.mode) {
            (Mode::Slot(one), Mode::Slot(other)) => one == other,
            (one, other) => one != Mode::Shared || other != Mode::Shared,
        }
    }
}

/// Returns the commands under a lock, in the order in which they were first seen.
pub(super) fn holders(record: &Path) -> Vec<Holder> {
    lives(record).iter().map(Holder::of).collect()
}
