//! What a store knows beside the state of a lock.

use crate::lock::state::{Now, StoreView};

/// What a store knows beside the state of a lock that it has read.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct View {
    /// The store's clock, in milliseconds of Unix time.
    pub(in crate::store) now_ms: u64,
    /// Whether the lock has a record.
    pub(in crate::store) has_record: bool,
    /// Whether an earlier attempt at the same operation may have been carried out.
    pub(in crate::store) may_be_done: bool,
    /// See [`StoreView::pruned_fence`].
    pub(in crate::store) pruned_fence: u64,
    /// See [`StoreView::unread_waiters`].
    pub(in crate::store) unread_waiters: usize,
    /// See [`StoreView::hand_offs_max`].
    pub(in crate::store) hand_offs_max: usize,
}

impl View {
    /// Returns the view at `now_ms` of a lock that has a record, of which everything was read.
    pub(in crate::store) fn at(now_ms: u64) -> Self {
        View {
            now_ms,
            has_record: true,
            may_be_done: false,
            pruned_fence: 0,
            unread_waiters: 0,
            hand_offs_max: usize::MAX,
        }
    }
}

impl StoreView for View {
    fn now(&self) -> Now {
        Now::unix(self.now_ms)
    }

    fn pruned_fence(&self) -> u64 {
        self.pruned_fence
    }

    fn unread_waiters(&self) -> usize {
        self.unread_waiters
    }

    fn hand_offs_max(&self) -> usize {
        self.hand_offs_max
    }
}
