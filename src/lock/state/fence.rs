//! The fencing token: a number that grows with each acquisition of a key.

use std::fmt;

use super::{LockState, StoreView};

/// The greatest fence: what every store, and every program that checks fences, can keep as a signed number.
const FENCE_MAX: u64 = i64::MAX.unsigned_abs();

/// No fence greater than the last one is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FenceExhausted {
    /// The last fence.
    pub last: u64,
}

impl fmt::Display for FenceExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the fence cannot grow: {} is the greatest there is", self.last)
    }
}

impl std::error::Error for FenceExhausted {}

impl LockState {
    /// Returns the next fence: greater than the last one, and not below the Unix time in ms. So it grows even if the
    /// store has lost the last one, provided that the clock was not set back and fences were not issued faster than one
    /// per millisecond.
    pub(super) fn next_fence(&self, view: &impl StoreView) -> Result<u64, FenceExhausted> {
        let last = self.fence.max(view.pruned_fence());
        let next = last.saturating_add(1).max(view.now().unix_ms);
        if next > FENCE_MAX { Err(FenceExhausted { last }) } else { Ok(next) }
    }
}
