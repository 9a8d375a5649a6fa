//! Converts the answers of the rules ([`crate::lock::state`]) to the store's.

use super::facts::KernelFacts;
use super::lock_file::{self, LockFile};
use super::{directory, waiters};
use crate::lock::key::Key;
use crate::lock::state::{self, LockState, Now};
use crate::store::from_state;
use crate::store::{Grant, KeyStatus, Revoked, StoreError};
use crate::sys::clock::Moment;

/// Returns the grant of a lock that was acquired just now; under a lease if it is `leased`.
pub(super) fn grant(fence: u64, slot: u32, leased: bool) -> Grant {
    let lease_from = if leased { Some(Moment::now()) } else { None };
    Grant { fence, slot, lease_from }
}

/// Returns the answer to a revocation.
pub(super) fn revoked(revoked: state::Revoked, file: &LockFile, now: Now) -> Revoked {
    from_state::revoked(revoked, now, |living| keepers(living.held.who.pid, living.slot, file))
}

/// Returns the living processes that keep a slot taken: lockrun, which had this pid, or if it is dead, all that have inherited the slot's
/// lock. Finds only processes that this user may inspect.
fn keepers(pid: u32, slot: u32, file: &LockFile) -> Vec<u32> {
    let pids = waiters::with_lock(file, lock_file::byte_of(slot));
    // The pid of a dead lockrun may have been reused: it counts only if that process has the lock.
    if pids.contains(&pid) { vec![pid] } else { pids }
}

/// Returns the key whose state is in the file of this `name`; `None` if the file is not that key's, or has no state yet.
pub(super) fn key_in(state: &LockState, name: &str) -> Option<Key> {
    Key::new(state.key.as_ref()).ok().filter(|key| directory::file_name(key) == name)
}

/// Returns the status of one key, with the waiters that the kernel knows.
pub(super) fn status(
    key: Key,
    state: &LockState,
    facts: &KernelFacts<'_>,
    file: &LockFile,
    waiters: &waiters::Waiters,
) -> Result<KeyStatus, StoreError> {
    Ok(KeyStatus { waiters: waiters.of(file)?, ..from_state::status(key, state, facts) })
}
