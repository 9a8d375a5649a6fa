//! How an operation that loses against others gives way to them, and still gets its turn.

use std::time::Duration;

use uuid::Uuid;

/// The pauses of an operation that loses against others: random, and longer each time, because there may be many
/// others. They are shorter for an urgent operation, and towards the end of the time: an operation that has lost for
/// long would otherwise try once where each newcomer tries ten times.
#[derive(Default)]
pub(super) struct Pauses {
    tried: u32,
}

impl Pauses {
    /// How often an urgent operation tries again without a pause.
    const AT_ONCE: u32 = 2;
    /// The longest first pause (at least a round trip), the longest of all, and the longest of an urgent operation.
    const FIRST: Duration = Duration::from_millis(20);
    const MOST: Duration = Duration::from_millis(1500);
    const MOST_URGENT: Duration = Duration::from_millis(100);

    /// What part of the time left a pause takes at most, the first ones aside.
    const PART: u32 = 8;

    /// How many round trips an attempt after a pause may take: it reads and writes, and one of the two may take longer.
    const ROUND_TRIPS: u32 = 3;

    /// Returns the next pause, if the time `left` allows another attempt. One without a pause only writes, so a slow
    /// `round_trip` shortens the pauses before it ends the operation.
    pub(super) fn next(&mut self, is_urgent: bool, round_trip: Duration, left: Duration) -> Option<Duration> {
        if left <= round_trip {
            return None;
        }
        self.tried += 1;
        let skipped = if is_urgent { Self::AT_ONCE } else { 0 };
        if self.tried <= skipped {
            return Some(Duration::ZERO);
        }
        let spare = left.saturating_sub(round_trip * Self::ROUND_TRIPS);
        let first = Self::FIRST.max(round_trip);
        let most = if is_urgent { Self::MOST_URGENT } else { Self::MOST.min(first.max(left / Self::PART)) };
        let longest = (first * (1 << (self.tried - skipped - 1).min(10))).min(most);
        let random = Uuid::new_v4().as_u64_pair().1 % 1000;
        Some((longest * u32::try_from(random).unwrap_or(0) / 1000).min(spare / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP: Duration = Duration::from_millis(50);

    #[test]
    fn a_pause_leaves_time_to_read_and_to_write() {
        for is_urgent in [false, true] {
            for left in (0..2000).map(Duration::from_millis) {
                let mut pauses = Pauses::default();
                let pause = std::iter::from_fn(|| pauses.next(is_urgent, ROUND_TRIP, left)).take(8).max();
                let after = pause.filter(|pause| !pause.is_zero()).map(|pause| left.saturating_sub(pause));
                assert!(after.is_none_or(|after| after >= 2 * ROUND_TRIP), "{left:?} {pause:?}");
            }
        }
    }

    #[test]
    fn an_operation_that_always_loses_does_not_give_newcomers_the_rest_of_its_time() {
        // With all of its pauses at their longest it has 17 tries; pauses that only grow leave it 12 on average.
        for _ in 0..100 {
            let (mut pauses, mut left, mut tries) = (Pauses::default(), Duration::from_secs(5), 0);
            while let Some(pause) = pauses.next(false, ROUND_TRIP, left) {
                left = left.saturating_sub(pause + 2 * ROUND_TRIP);
                tries += 1;
            }
            assert!(tries >= 16, "{tries}");
        }
    }

    #[test]
    fn one_slow_answer_does_not_end_an_operation() {
        let (slow, left) = (Duration::from_millis(1250), Duration::from_millis(3400));
        for is_urgent in [false, true] {
            let mut pauses = Pauses::default();
            assert_eq!(pauses.next(is_urgent, slow, left), Some(Duration::ZERO));
            assert_eq!(pauses.next(is_urgent, slow, slow), None, "too little time to write");
        }
    }

    #[test]
    fn an_urgent_operation_tries_again_at_once() {
        let left = Duration::from_secs(1);
        let mut pauses = Pauses::default();
        assert!((0..Pauses::AT_ONCE).all(|_| pauses.next(true, ROUND_TRIP, left) == Some(Duration::ZERO)));
        assert!(pauses.next(true, ROUND_TRIP, left).is_some_and(|pause| pause <= Pauses::MOST_URGENT));
    }
}
