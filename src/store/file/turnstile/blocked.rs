//! Turnstiles that do not turn: what to say of a lock that has room, but whose turnstile a claim cannot enter.

use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};

use super::{LOOK_AGAIN, LOOK_ANYWAY, PendingClaim, cannot_lock};
use crate::lock::holder::Holder;
use crate::store::file::lock_file::{LockFile, RECORD_TIMEOUT, Turnstile};
use crate::store::file::waiters;
use crate::store::{Claim, Held, IfHeld, StoreError};
use crate::sys::clock::Moment;

/// More than the time in which the next run takes a lock that is free, even if the report of that was lost.
const HAND_OFF_MAX: Duration = Duration::from_secs(LOOK_ANYWAY.as_secs() + 1);

impl PendingClaim {
    /// Returns what to say of a lock that has room, but whose turnstile the claim cannot enter: the process at the turnstile, if it can be
    /// seen, or else the holder that was `found`; `None` if the claim should try again. For a claim that does not wait, a process that may
    /// stay there for ever is an error: such a claim must not be skipped in silence.
    pub(super) fn blocked_by(
        &self,
        turnstile: Turnstile,
        found: Held,
        claim: &Claim,
        if_held: IfHeld,
    ) -> Result<Option<Held>, StoreError> {
        let is_next = turnstile == Turnstile::Occupied;
        if is_next && found.holder.is_some() {
            // The next run may need more room than this claim, and waits for that holder.
            return Ok(Some(found));
        }
        let pid = waiters::at_turnstile(&self.file);
        if if_held != IfHeld::Leave || self.waits_at.is_some() {
            let process = pid.map(Holder::of_process);
            return Ok(Some(if process.is_some() { Held { holder: process, ..Held::default() } } else { found }));
        }
        if !is_next {
            return Err(blocked(&self.file, pid));
        }
        let is_stopped = pid.is_some_and(waiters::is_stopped);
        if !is_stopped && self.is_handed_off(claim, pid)? {
            return Ok(None);
        }
        let why = if is_stopped {
            "but is stopped; continue it (kill -CONT) or end it".to_owned()
        } else {
            let span = HAND_OFF_MAX.as_secs();
            format!("but has not taken the free lock for {span}s; if it is paused or frozen, continue it, or end it")
        };
        bail!("{}: {} is next, {why}", self.cannot_lock(), named(pid));
    }

    /// Waits until the process `next` at the turnstile has taken the free lock, or has left the turnstile, but no longer than
    /// [`HAND_OFF_MAX`]. Returns whether it has.
    fn is_handed_off(&self, claim: &Claim, next: Option<u32>) -> Result<bool, StoreError> {
        let give_up_at = Moment::now() + HAND_OFF_MAX;
        let mut pause = LOOK_AGAIN.0;
        while self.file.is_waited_for().with_context(|| self.cannot_lock())? && self.has_room(claim)? {
            if Moment::now() >= give_up_at {
                // If another is next by now, the lock was handed off between two looks.
                return Ok(waiters::at_turnstile(&self.file) != next);
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LOOK_AGAIN.1);
        }
        Ok(true)
    }
}

/// Returns the error that a process, with this `pid` if it can be seen, keeps the turnstile without being a run that waits there.
pub(in crate::store::file) fn blocked(file: &LockFile, pid: Option<u32>) -> StoreError {
    anyhow!(
        "{}: {} has had flock(2) on it for {}s; end that, or if it is a lockrun that is stopped, continue it; other programs, such as \
         flock(1), must not lock lockrun's files",
        cannot_lock(file),
        named(pid),
        RECORD_TIMEOUT.as_secs()
    )
}

/// Describes a process, if it can be seen.
fn named(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| Holder::of_process(pid).to_string())
}
