//! What an operation knows besides the state of the lock.

use super::found::Found;
use crate::lock::state::{Facts, Now};

/// How many waiters an operation may take from the queue: its transaction has two operations for each of them.
pub(super) const HAND_OFFS_MAX: usize = 24;

/// The present time, and what was found.
#[derive(Clone, Copy)]
pub(super) struct EtcdFacts<'a> {
    pub(super) now_ms: u64,
    pub(super) found: &'a Found,
    /// Whether an earlier attempt at the same operation may have been carried out.
    pub(super) may_be_done: bool,
}

impl Facts for EtcdFacts<'_> {
    fn now(&self) -> Now {
        Now::unix(self.now_ms)
    }

    fn pruned_fence(&self) -> u64 {
        self.found.pruned.fence
    }

    fn hand_offs_max(&self) -> usize {
        HAND_OFFS_MAX
    }
}
