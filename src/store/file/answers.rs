//! What the kernel adds to the answers of the rules ([`crate::lock::state`]).

use std::time::{Duration, SystemTime};

use anyhow::Context;

use super::kernel_view::KernelView;
use super::lock_file::{self, LockFile};
use super::{directory, waiters};
use crate::lock::holder::Holder;
use crate::lock::key::Key;
use crate::lock::state::{LockState, millis};
use crate::store::{Held, HolderStatus, KeyStatus, LivingHolder, Revoked, StoreError};

/// Adds to the answer to a revocation, from the holder with this `fence` or from all, what only the kernel knows: which
/// processes keep the lock held.
pub(super) fn revoked(mut revoked: Revoked, fence: Option<u64>, file: &LockFile) -> Result<Revoked, StoreError> {
    if revoked == Revoked::Free
        && let Some(unrecorded) = unrecorded(file)?
    {
        return Ok(match fence {
            Some(_) => Revoked::Others(vec![unrecorded.held]),
            None => Revoked::From {
                from: Vec::new(),
                living: vec![unrecorded],
                free_in: Duration::ZERO,
                may_run_unaware: false,
            },
        });
    }
    if let Revoked::From { living, .. } = &mut revoked {
        for it in living {
            let pid = it.held.holder.as_ref().map_or(0, |holder| holder.pid);
            it.pids = keepers(pid, it.slot, file);
        }
    }
    Ok(revoked)
}

/// Returns the holder of a lock that is held although its record names no holder, if there is one. The record was lost,
/// or lockrun was killed after it had recorded the end of its run and before it freed the slot, which a process that it
/// left behind keeps.
pub(super) fn unrecorded(file: &LockFile) -> Result<Option<LivingHolder>, StoreError> {
    Ok(taken_slot(file)?.map(|slot| {
        let pids = keepers(0, slot, file);
        let holder = pids.first().map(|pid| Holder::of_process(*pid));
        LivingHolder { held: Held { holder, ..Held::default() }, slot, pids }
    }))
}

fn taken_slot(file: &LockFile) -> Result<Option<u32>, StoreError> {
    file.taken_slot().with_context(|| format!("cannot look at {}", file.path()))
}

/// Returns when the file was last written, in milliseconds of Unix time; 0 if that is not known.
fn written_unix_ms(file: &LockFile) -> u64 {
    let written = file.file.metadata().and_then(|metadata| metadata.modified());
    written.ok().and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok()).map_or(0, millis)
}

/// Returns the living processes that keep a slot taken: lockrun, which had this pid, or if it is dead, all that have
/// inherited the slot's lock. Finds only processes that this user may inspect.
fn keepers(pid: u32, slot: u32, file: &LockFile) -> Vec<u32> {
    let pids = waiters::with_lock(file, lock_file::byte_of(slot));
    // The pid of a dead lockrun may have been reused: it counts only if that process has the lock.
    if pids.contains(&pid) { vec![pid] } else { pids }
}

/// Returns the key whose state is in the file of this `name`; `None` if the file is not that key's, or has no state
/// yet.
pub(super) fn key_in(state: &LockState, name: &str) -> Option<Key> {
    Key::new(state.key.as_ref()).ok().filter(|key| directory::file_name(key) == name)
}

/// As [`key_in`], but also returns the key of a lock that is held although its record was lost: the one that was
/// `asked` for, or the one that the name spells out.
pub(super) fn key_of(
    state: &LockState,
    name: &str,
    asked: Option<&Key>,
    file: &LockFile,
) -> Result<Option<Key>, StoreError> {
    if state.key.is_empty() && taken_slot(file)?.is_some() {
        return Ok(asked.cloned().or_else(|| directory::key_of(name)));
    }
    Ok(key_in(state, name))
}

/// Returns the status of one key, with the waiters that the kernel knows.
pub(super) fn status(
    key: Key,
    state: &LockState,
    view: &KernelView<'_>,
    file: &LockFile,
    waiters: &waiters::Waiters,
) -> Result<KeyStatus, StoreError> {
    let mut status = KeyStatus { waiters: waiters.of(file)?, ..state.status(key, view) };
    if status.holders.is_empty() {
        status.holders.extend(unrecorded(file)?.map(|it| HolderStatus {
            who: it.held.holder.unwrap_or_default(),
            // It has held the lock at least since then.
            since_ms: written_unix_ms(file).min(status.now_ms),
            fence: status.fence,
            ..HolderStatus::default()
        }));
    }
    Ok(status)
}
