//! What the kernel knows about one lock, for the rules in [`crate::lock::state`].

use std::cell::{Cell, OnceCell, RefCell};

use anyhow::Context;

use super::clock;
use super::lock_file::LockFile;
use crate::lock::state::{HolderState, Now, StoreView};
use crate::store::StoreError;

/// The present time, and the kernel's locks on the slots of one file.
///
/// If the kernel refuses to answer, the whole operation fails: see [`KernelView::check`].
pub(super) struct KernelView<'f> {
    file: &'f LockFile,
    now: Now,
    /// The id of this boot, once it has been read.
    boot: OnceCell<String>,
    /// The slot that this process already holds through this open file, for which the kernel therefore reports it as
    /// free.
    ours: Option<u32>,
    /// The slot that the operation took, if it took one.
    taken: Cell<Option<u32>>,
    failure: RefCell<Option<StoreError>>,
}

impl<'f> KernelView<'f> {
    /// Returns the view at this moment.
    pub(super) fn of(file: &'f LockFile, ours: Option<u32>) -> Self {
        KernelView {
            file,
            now: clock::now(),
            boot: OnceCell::new(),
            ours,
            taken: Cell::new(None),
            failure: RefCell::new(None),
        }
    }

    /// Frees the slot that the operation took, if it took one: a lock acquired by hand outlives this process, so a
    /// lease holds it instead.
    pub(super) fn free_taken(&self) -> Result<(), StoreError> {
        let Some(slot) = self.taken.take() else { return Ok(()) };
        self.file.free_slot(slot).with_context(|| format!("cannot unlock {}", self.file.path()))
    }

    /// Fails if the kernel did not answer a question of the operation. Then the new state must not be stored.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Returns the answer; if there is none, records the failure and returns `otherwise`, which lets the operation
    /// finish.
    fn note_failure<T>(&self, answer: Result<T, StoreError>, otherwise: T) -> T {
        answer.unwrap_or_else(|error| {
            self.failure.replace(Some(error));
            otherwise
        })
    }
}

impl StoreView for KernelView<'_> {
    fn now(&self) -> Now {
        self.now
    }

    fn epoch(&self) -> String {
        let ask = || clock::this_boot().map_err(StoreError::from);
        self.boot.get_or_init(|| self.note_failure(ask(), String::new())).clone()
    }

    fn holds_slot(&self, holder: &HolderState) -> bool {
        let ask =
            || self.file.slot_is_taken(holder.slot).with_context(|| format!("cannot look at {}", self.file.path()));
        self.ours == Some(holder.slot) || self.note_failure(ask(), true)
    }

    fn take_share(&self) -> bool {
        let share = self.file.share().with_context(|| format!("cannot lock {}", self.file.path()));
        self.note_failure(share, true)
    }

    fn take_slot(&self, slot: u32) -> bool {
        let take = self.file.take_slot(slot).with_context(|| format!("cannot lock {}", self.file.path()));
        if matches!(take, Ok(true)) {
            self.taken.set(Some(slot));
        }
        self.note_failure(take, true)
    }
}
