//! The places of the runs that wait for a lock, so that a run can count the others and join them in one step: each run
//! locks one byte of the lock file for as long as it waits. If it dies, the kernel frees its place.

use anyhow::Context;
use nix::errno::Errno;
use uuid::Uuid;

use super::lock_file::LockFile;
use crate::store::StoreError;

/// The first place, far behind the slots, and the number of places: so many that two runs hardly ever choose the same
/// one.
const FIRST: i64 = 1 << 42;
const COUNT: i64 = 1 << 40;

impl LockFile {
    /// Takes a place, unless `max` other runs already have one. Returns its byte.
    pub(super) fn take_place(&self, max: Option<u32>) -> Result<Option<i64>, StoreError> {
        let Some(max) = max else { return self.take_any_place().map(Some) };
        // With the record locked, so that no other run with a limit joins between counting and taking.
        self.with_record_locked(|| {
            let is_full = self.places_taken(max).with_context(|| format!("cannot look at {}", self.path()))? >= max;
            if is_full { Ok(None) } else { self.take_any_place().map(Some) }
        })
    }

    fn take_any_place(&self) -> Result<i64, StoreError> {
        loop {
            let (random, _) = Uuid::new_v4().as_u64_pair();
            let place = FIRST + random.cast_signed().rem_euclid(COUNT);
            if self.take(place).with_context(|| format!("cannot lock {}", self.path()))? {
                return Ok(place);
            }
        }
    }

    /// Counts the places that other runs have, up to `most`.
    fn places_taken(&self, most: u32) -> Result<u32, Errno> {
        let mut found = 0;
        let mut ranges = vec![(FIRST, FIRST + COUNT)];
        while found < most
            && let Some((start, end)) = ranges.pop()
        {
            // The kernel names one of the locks in the range; others may be on either side of it.
            if let Some(lock) = self.conflict(start..end, libc::F_WRLCK)? {
                found += 1;
                let sides = [(start, lock.l_start), (lock.l_start + 1, end)];
                ranges.extend(sides.into_iter().filter(|(start, end)| start < end));
            }
        }
        Ok(found)
    }
}
