//! A lock as a model for the linearizability checker: who may hold it beside whom, and with which fence.

use super::linearizable::Model;

/// How a run holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Mode {
    Exclusive,
    Shared,
    /// In this slot.
    Slot(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// The run with this number acquired the lock.
    Acquire {
        run: usize,
        mode: Mode,
        fence: u64,
    },
    Release {
        run: usize,
    },
}

/// A lock with its number of slots, and the fences that were seen of it.
pub(super) struct Lock {
    slots: usize,
    fences: Vec<u64>,
}

/// Who holds it, and the last fence.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Held {
    by: Vec<(usize, Mode)>,
    fence: u64,
}

impl Lock {
    /// Returns the lock for all these actions.
    pub(super) fn of<'a>(slots: usize, actions: impl IntoIterator<Item = &'a Action>) -> Self {
        let fence = |action: &Action| match *action {
            Action::Acquire { fence, .. } => Some(fence),
            Action::Release { .. } => None,
        };
        let mut fences: Vec<u64> = actions.into_iter().filter_map(fence).collect();
        fences.sort_unstable();
        Self { slots, fences }
    }

    /// Returns the greatest fence below this one. All acquisitions must take effect and fences rise, so no other fence
    /// can come right before it: this spares the checker all other orders.
    fn before(&self, fence: u64) -> u64 {
        let below = self.fences.partition_point(|other| *other < fence);
        below.checked_sub(1).map_or(0, |last| self.fences[last])
    }

    fn admits(&self, mode: Mode, held: &Held) -> bool {
        match mode {
            Mode::Exclusive => held.by.is_empty(),
            Mode::Shared => held.by.iter().all(|(_, other)| *other == Mode::Shared),
            Mode::Slot(slot) => {
                let is_another = |(_, other): &(usize, Mode)| matches!(*other, Mode::Slot(taken) if taken != slot);
                slot < self.slots && held.by.iter().all(is_another)
            }
        }
    }
}

impl Model for Lock {
    type Operation = Action;
    type State = Held;

    fn apply(&self, what: &Action, held: &Held) -> Option<Held> {
        let mut held = held.clone();
        match *what {
            Action::Acquire { run, mode, fence } => {
                if held.fence != self.before(fence) || !self.admits(mode, &held) {
                    return None;
                }
                held.by.push((run, mode));
                held.by.sort_unstable_by_key(|(run, _)| *run);
                held.fence = fence;
            }
            Action::Release { run } => {
                let at = held.by.iter().position(|(holder, _)| *holder == run)?;
                held.by.remove(at);
            }
        }
        Some(held)
    }
}

mod tests {
    use super::super::linearizable::{Operation, check};
    use super::*;

    /// Returns whether runs could have held a lock with this many slots like this. Each has its mode and fence, and the
    /// moments at which it was invoked, first and last seen to hold the lock, and had released it.
    fn is_possible(slots: usize, runs: &[(Mode, u64, [i64; 4])]) -> bool {
        let of = |(run, &(mode, fence, [invoked, first, last, released])): (usize, &(Mode, u64, [i64; 4]))| {
            let acquire = Action::Acquire { run, mode, fence };
            // A run that was killed may have released the lock at any time.
            let released = (released > 0).then_some(released);
            [
                Operation { what: acquire, invoked, responded: Some(first) },
                Operation { what: Action::Release { run }, invoked: last, responded: released },
            ]
        };
        let operations: Vec<_> = runs.iter().enumerate().flat_map(of).collect();
        let lock = Lock::of(slots, operations.iter().map(|operation| &operation.what));
        check(&lock, Held::default(), &operations).is_ok()
    }

    // One holder at a time, in whatever order they waited; a run whose end is unknown makes room for the next one.
    #[test]
    fn one_at_a_time() {
        let alone = Mode::Exclusive;
        assert!(is_possible(1, &[(alone, 7, [0, 1, 3, 4]), (alone, 8, [0, 5, 6, 7])]));
        assert!(is_possible(1, &[(alone, 8, [0, 4, 5, 6]), (alone, 7, [0, 1, 3, 9])]));
        assert!(is_possible(1, &[(alone, 7, [0, 1, 3, 0]), (alone, 8, [0, 4, 6, 7])]));
        assert!(!is_possible(1, &[(alone, 7, [0, 1, 5, 6]), (alone, 8, [0, 4, 8, 9])]), "two at once");
        assert!(
            !is_possible(1, &[(alone, 7, [0, 1, 5, 0]), (alone, 8, [0, 4, 8, 9])]),
            "two at once, one of them killed"
        );
        assert!(!is_possible(1, &[(alone, 8, [0, 1, 2, 3]), (alone, 7, [0, 4, 5, 6])]), "a fence that falls");
        assert!(
            !is_possible(1, &[(alone, 7, [0, 1, 2, 3]), (alone, 7, [0, 4, 5, 6])]),
            "a fence that was there before"
        );
        assert!(!is_possible(1, &[(alone, 7, [0, 1, 9, 4])]), "it ran on after its release");
    }

    // As many holders as slots, each in a slot of its own.
    #[test]
    fn in_slots() {
        let slot = |number, fence, times| (Mode::Slot(number), fence, times);
        let two = [slot(0, 7, [0, 1, 5, 6]), slot(1, 8, [0, 2, 6, 7])];
        assert!(is_possible(2, &two));
        assert!(is_possible(2, &[two[0], two[1], slot(0, 9, [3, 7, 8, 9])]));
        assert!(!is_possible(2, &[two[0], two[1], slot(0, 9, [3, 4, 8, 9])]), "the same slot twice at once");
        assert!(!is_possible(2, &[two[0], two[1], slot(2, 9, [3, 4, 8, 9])]), "one more than the slots");
        assert!(
            !is_possible(2, &[slot(0, 8, [0, 1, 5, 6]), slot(1, 7, [2, 3, 6, 7])]),
            "a fence that falls, side by side"
        );
    }

    // Readers beside readers, a writer alone.
    #[test]
    fn readers_and_writers() {
        let (reader, writer) = (Mode::Shared, Mode::Exclusive);
        let readers = [(reader, 7, [0, 1, 5, 6]), (reader, 8, [0, 2, 6, 7])];
        assert!(is_possible(1, &readers));
        assert!(is_possible(1, &[readers[0], readers[1], (writer, 9, [0, 7, 8, 9])]));
        assert!(!is_possible(1, &[readers[0], readers[1], (writer, 9, [0, 5, 8, 9])]), "a writer beside a reader");
        assert!(!is_possible(1, &[(writer, 7, [0, 1, 5, 6]), (reader, 8, [0, 4, 6, 7])]), "a reader beside a writer");
    }
}
