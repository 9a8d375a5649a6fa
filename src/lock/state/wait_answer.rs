//! The answer to a waiter that has renewed its place, or has read the record, without asking for the lock itself.

use std::time::Duration;

use super::queue::look_at_ms;
use super::{LockState, StoreView, Success};
use crate::lock::claim::Claim;
use crate::lock::held::Held;

/// The waiters ahead of one that has renewed its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ahead {
    /// How many there are.
    pub count: u64,
    /// When the first of their places ends.
    pub first_end_ms: Option<u64>,
    /// How many of the places end before this waiter asks again, which are those of the dead, and when the last of
    /// these ends.
    pub ending: (usize, Option<u64>),
}

/// What a waiter has seen in the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The last fence issued.
    pub fence: u64,
    /// When the next lease ends.
    next_end_ms: Option<u64>,
    /// What was known of the successful runs.
    success: Option<Success>,
}

/// In how long one of the first waiters looks at the lock if nothing says when what keeps it from the lock ends, in
/// milliseconds.
const LOOK_AGAIN_MS: u64 = 400;

/// Returns in how long a waiter in this place looks at the lock if nothing says when to look; `None`: it need not.
pub fn look_again(place: u64) -> Option<Duration> {
    look_at_ms(usize::try_from(place).ok()?, Some(LOOK_AGAIN_MS), (0, None)).map(Duration::from_millis)
}

impl LockState {
    /// Returns the answer that the claim waits, which has renewed its place behind these waiters; `None` if it must
    /// ask for the lock: it may hold it, is not needed any more, or something ahead of it has ended.
    pub fn still_waits(&self, claim: &Claim, ahead: Ahead, view: &impl StoreView) -> Option<Held> {
        let now = view.now();
        let place = usize::try_from(ahead.count).unwrap_or(usize::MAX);
        let end_ms = self.next_end().into_iter().chain(ahead.first_end_ms).min();
        let look_at_ms = look_at_ms(place, end_ms, ahead.ending);
        let is_due = look_at_ms.is_some_and(|at_ms| at_ms <= now.ms);
        let may_hold = place == 0 && self.could_hold(claim.mode, view);
        if is_due || may_hold || self.recent_success(claim.once_per, now).is_some() {
            return None;
        }
        Some(Held {
            place: Some(ahead.count),
            look_in: look_at_ms.map(|at_ms| now.until(at_ms)),
            last_fence: self.fence,
            ..self.first_held(now, view).unwrap_or_default()
        })
    }

    /// Returns what a waiter sees in the record.
    pub fn seen(&self) -> Seen {
        Seen { fence: self.fence, next_end_ms: self.next_end(), success: self.success }
    }

    /// Returns whether the claim, which waits and has seen this before, must ask for the lock: a lease ends sooner than
    /// it knew, or its run may not be needed any more.
    pub fn has_news(&self, seen: Seen, claim: &Claim) -> bool {
        let now = self.seen();
        let ends_sooner = now.next_end_ms.is_some_and(|end| seen.next_end_ms.is_none_or(|before| end < before));
        ends_sooner || claim.once_per.is_some() && now.success != seen.success
    }
}
