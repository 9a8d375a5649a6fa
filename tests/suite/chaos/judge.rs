//! Judges who held a lock when. Of lockrun it knows only what a lock is.

use std::collections::BTreeMap;

use super::model::Mode;
use super::runs::{Holder, SLOTS};

/// The verdict on one lock.
#[derive(Default)]
pub(super) struct Verdict {
    pub(super) overlaps: Vec<String>,
    pub(super) fences: Vec<String>,
    /// The smallest time between two holders that exclude each other, in nanoseconds.
    pub(super) margin: Option<i64>,
}

/// Judges the holders of one lock, in the order in which they were first seen; times are given from `since`.
pub(super) fn judge<'a>(holders: impl IntoIterator<Item = &'a Holder>, since: i64) -> Verdict {
    let mut verdict = Verdict::default();
    // Of the earlier holders, by mode: the one that was seen last, and the one with the greatest fence.
    let mut before: BTreeMap<Mode, (&Holder, &Holder)> = BTreeMap::new();
    let mut in_slots: Vec<&Holder> = Vec::new();
    for later in holders {
        let both = |earlier| format!("{}, and {}", shown(earlier, since), shown(later, since));
        for (last, greatest) in before.values().filter(|(earlier, _)| earlier.excludes(later)) {
            let gap = later.first - last.last;
            verdict.margin = Some(verdict.margin.map_or(gap, |known| known.min(gap)));
            if gap <= 0 {
                verdict.overlaps.push(both(last));
            }
            if greatest.fence >= later.fence {
                verdict.fences.push(both(greatest));
            }
        }
        let (last, greatest) = before.entry(later.mode).or_insert((later, later));
        *last = if last.last > later.last { last } else { later };
        *greatest = if greatest.fence > later.fence { greatest } else { later };
        if matches!(later.mode, Mode::Slot(_)) {
            in_slots.retain(|earlier| earlier.last >= later.first);
            in_slots.push(later);
            if in_slots.len() > SLOTS {
                let all: Vec<_> = in_slots.iter().map(|holder| shown(holder, since)).collect();
                verdict.overlaps.push(all.join(", and "));
            }
        }
    }
    verdict
}

fn shown(holder: &Holder, since: i64) -> String {
    let ms = |nanos: i64| nanos / 1_000_000;
    let Holder { run, lock, mode, fence, first, last } = holder;
    format!("run {run} with {lock} ({mode:?}), fence {fence}, from {} to {} ms", ms(first - since), ms(last - since))
}

mod tests {
    use super::*;

    fn holder(run: usize, mode: Mode, fence: u64, first: i64, last: i64) -> Holder {
        Holder { run, lock: "l".into(), mode, fence, first, last }
    }

    fn counts(holders: &[Holder]) -> (usize, usize, Option<i64>) {
        let verdict = judge(holders, 0);
        (verdict.overlaps.len(), verdict.fences.len(), verdict.margin)
    }

    // The judge notices two holders at once, even with another one between them, and a fence that falls.
    #[test]
    fn what_must_not_be() {
        let alone = |run, fence, first, last| holder(run, Mode::Exclusive, fence, first, last);
        assert_eq!(counts(&[alone(0, 7, 0, 3), alone(1, 8, 5, 6), alone(2, 9, 9, 9)]), (0, 0, Some(2)));
        assert_eq!(counts(&[alone(0, 7, 0, 8), alone(1, 8, 5, 6)]), (1, 0, Some(-3)));
        assert_eq!(counts(&[alone(0, 7, 0, 8), alone(1, 8, 5, 6), alone(2, 9, 7, 9)]), (2, 0, Some(-3)));
        assert_eq!(counts(&[alone(0, 9, 0, 3), alone(1, 7, 5, 6), alone(2, 8, 8, 9)]), (0, 2, Some(2)));
    }

    // Readers may overlap, and so may two holders in slots of their own; a writer and a third holder may not.
    #[test]
    fn what_may_be() {
        let (reader, writer) = (Mode::Shared, Mode::Exclusive);
        let readers = [holder(0, reader, 8, 0, 5), holder(1, reader, 7, 1, 6)];
        assert_eq!(counts(&readers), (0, 0, None));
        let beside = [readers[0].clone(), readers[1].clone(), holder(2, writer, 9, 6, 8)];
        assert_eq!(counts(&beside), (1, 0, Some(0)));
        let slots = [holder(0, Mode::Slot(0), 8, 0, 5), holder(1, Mode::Slot(1), 7, 1, 6)];
        assert_eq!(counts(&slots), (0, 0, None));
        let third = [slots[0].clone(), slots[1].clone(), holder(2, Mode::Slot(2), 9, 2, 3)];
        assert_eq!(counts(&third), (1, 0, None));
        let same = [slots[0].clone(), slots[1].clone(), holder(2, Mode::Slot(0), 9, 7, 8)];
        assert_eq!(counts(&same), (0, 0, Some(2)));
    }
}
