//! The record in a lock file: the lock's state, as one line of JSON. [`super::record_file`] says how it is stored.

use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow};

use super::kernel_view::KernelView;
use super::lock_file::{LockFile, RECORD_TIMEOUT};
use super::record_file::{Copies, Damage};
use super::unreadable::Unreadable;
use crate::lock::state::LockState;
use crate::store::StoreError;
use crate::sys::clock::Moment;

impl LockFile {
    /// Locks the record, reads the state, calls `change`, and writes the state back if it has changed.
    pub(super) fn edit<T>(
        &self,
        change: impl FnOnce(&mut LockState, &KernelView<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.lock_record()?;
        let result = self.edit_locked(None, change);
        self.unlock_record(result)
    }

    /// Does the same, and frees the slot even if the record cannot be changed. The record is written first: if this
    /// process is killed in between, a lock to retain is retained, and the end of the run is recorded. Waiters that the
    /// change wakes can read the record only when the slot is free. The outer error means that the slot is not free,
    /// the inner one that the record is unchanged.
    pub(super) fn edit_and_free<T>(
        &self,
        slot: u32,
        change: impl FnOnce(&mut LockState, &KernelView<'_>) -> Result<T, StoreError>,
    ) -> Result<Result<T, StoreError>, StoreError> {
        let result = self.lock_record().and_then(|()| self.edit_locked(Some(slot), change));
        // The slot first: a waiter that gets the record must find the slot free.
        let freed = self.free_slot(slot).and(self.free_record());
        freed.with_context(|| format!("cannot unlock {}", self.path))?;
        Ok(result)
    }

    /// Locks the record, reads the state and calls `view`.
    pub(super) fn look<T>(
        &self,
        answer: impl FnOnce(&LockState, &KernelView<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.lock_record()?;
        let result = self.look_locked(answer);
        self.unlock_record(result)
    }

    /// Writes the record to the disk, so that it survives a power failure.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        self.file.sync_data().with_context(|| format!("cannot bring {} to the disk", self.path))
    }

    /// Calls `act` with the record locked.
    pub(super) fn with_record_locked<T>(&self, act: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.lock_record()?;
        self.unlock_record(act())
    }

    fn edit_locked<T>(
        &self,
        ours: Option<u32>,
        change: impl FnOnce(&mut LockState, &KernelView<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let copies = self.copies()?;
        let (location, before) = copies.newest().map_err(|damage| self.unreadable(damage))?;
        let mut state = self.read(before)?;
        let view = KernelView::of(self, ours);
        let result = change(&mut state, &view)?;
        view.check()?;
        let after = serde_json::to_vec(&state)?;
        let was_never_written = before.is_empty() && state == LockState::default();
        if after != before && !was_never_written {
            location.write(&self.file, &after).with_context(|| format!("cannot write {}", self.path))?;
        }
        Ok(result)
    }

    fn look_locked<T>(
        &self,
        answer: impl FnOnce(&LockState, &KernelView<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let copies = self.copies()?;
        let (_, text) = copies.newest().map_err(|damage| self.unreadable(damage))?;
        let state = self.read(text)?;
        let view = KernelView::of(self, None);
        let result = answer(&state, &view)?;
        view.check()?;
        Ok(result)
    }

    fn copies(&self) -> Result<Copies, StoreError> {
        Copies::read(&self.file).with_context(|| format!("cannot read {}", self.path))
    }

    /// Parses a record. One that was never written is that of a lock that was never used.
    fn read(&self, record: &[u8]) -> Result<LockState, StoreError> {
        match record {
            [] => Ok(LockState::default()),
            text => serde_json::from_slice(text).map_err(|_| self.unreadable(Damage::Unparsable).into()),
        }
    }

    fn unreadable(&self, damage: Damage) -> Unreadable {
        Unreadable { path: self.path.clone(), damage, remedy: self.access.remedy(&self.path) }
    }

    fn unlock_record<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        let unlocked = self.free_record();
        let result = result?;
        unlocked.with_context(|| format!("cannot unlock {}", self.path))?;
        Ok(result)
    }

    fn lock_record(&self) -> Result<(), StoreError> {
        let give_up_at = Moment::now() + RECORD_TIMEOUT;
        let mut tries = 0;
        while !self.take_record().with_context(|| format!("cannot lock {}", self.path))? {
            tries += 1;
            if Moment::now() >= give_up_at {
                return Err(anyhow!(
                    "{} has been in use for {}s; is a lockrun stopped?",
                    self.path,
                    RECORD_TIMEOUT.as_secs()
                ));
            }
            // Its owner may only be waiting for a processor.
            if tries < 20 {
                thread::yield_now();
            } else {
                thread::sleep(Duration::from_micros(200));
            }
        }
        Ok(())
    }
}
