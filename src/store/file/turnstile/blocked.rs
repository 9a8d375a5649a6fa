//! Turnstiles that do not turn: what to say of a lock that has room, but whose turnstile a claim cannot enter.

use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};

use super::{LOOK_AGAIN, LOOK_ANYWAY, PendingClaim, cannot_lock};
use crate::lock::holder::Holder;
use crate::store::file::answers::unrecorded;
use crate::store::file::lock_file::{LockFile, RECORD_TIMEOUT, Turnstile};
use crate::store::file::waiters;
use crate::store::{Acquired, Claim, Held, IfHeld, StoreError};
use crate::sys::clock::Moment;
use crate::sys::namespace::own_pid_namespace;
use crate::sys::signals;

/// More than the time in which the next run takes a lock that is free, even if the report of that was lost.
const HAND_OFF_MAX: Duration = Duration::from_secs(LOOK_ANYWAY.as_secs() + 1);

/// How a hand-off ended that a claim has watched.
enum HandOff {
    /// The lock is held, or no run waits for it any more.
    Over,
    /// The lock stayed free for [`HAND_OFF_MAX`].
    Stuck,
    /// A signal is pending that ends or stops this lockrun.
    Interrupted,
}

impl PendingClaim {
    /// Returns what to say of a lock that has room, but whose turnstile the claim cannot enter: the process at the
    /// turnstile, if it can be seen, or else the holder that was `found`; `None` if the claim should try again. For a
    /// claim that does not wait, a process that may stay there for ever is an error: such a claim must not be skipped
    /// in silence.
    pub(super) fn blocked_by(
        &self,
        turnstile: Turnstile,
        found: Held,
        claim: &Claim,
        if_held: IfHeld,
    ) -> Result<Option<Held>, StoreError> {
        let is_next = turnstile == Turnstile::Occupied;
        // The next run may need more room than this claim, and waits for that holder.
        if is_next && found.holder.is_some() {
            return Ok(Some(found));
        }
        if is_next && let Some(unrecorded) = unrecorded(&self.file)? {
            return Ok(Some(unrecorded.held));
        }
        let pid = waiters::at_turnstile(&self.file);
        let seen = || Held { holder: pid.map(Holder::of_process), ..Held::default() };
        if if_held != IfHeld::Leave || self.waits_at.is_some() {
            return Ok(Some(if pid.is_some() { seen() } else { found }));
        }
        if !is_next {
            return Err(blocked(&self.file, pid));
        }
        if pid.is_some_and(waiters::is_stopped) {
            bail!("{}: {} is next, but is stopped; continue it (kill -CONT) or end it", self.cannot_lock(), named(pid));
        }
        match self.watch_hand_off(claim)? {
            HandOff::Over => Ok(None),
            HandOff::Interrupted => Ok(Some(seen())),
            // If another is next by now, the lock was handed off between two looks.
            HandOff::Stuck if waiters::at_turnstile(&self.file) != pid => Ok(None),
            HandOff::Stuck => bail!(
                "{}: {} is next, but has not taken the free lock for {}s; if it is paused or frozen, continue it, or end it",
                self.cannot_lock(),
                named(pid),
                HAND_OFF_MAX.as_secs()
            ),
        }
    }

    /// Waits until the next run has taken the free lock, or has left the turnstile, but no longer than
    /// [`HAND_OFF_MAX`].
    fn watch_hand_off(&self, claim: &Claim) -> Result<HandOff, StoreError> {
        let give_up_at = Moment::now() + HAND_OFF_MAX;
        let mut pause = LOOK_AGAIN.0;
        while self.is_free_for_the_next(claim)? {
            if signals::are_to_be_obeyed() {
                return Ok(HandOff::Interrupted);
            }
            if Moment::now() >= give_up_at {
                return Ok(HandOff::Stuck);
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LOOK_AGAIN.1);
        }
        Ok(HandOff::Over)
    }

    /// Returns whether no run holds the lock, although one waits for it. A share or a slot that is left for this claim
    /// may be too little for the next one.
    fn is_free_for_the_next(&self, claim: &Claim) -> Result<bool, StoreError> {
        let is_waited_for = self.file.is_waited_for().with_context(|| self.cannot_lock())?;
        let is_free = self.file.taken_slot().with_context(|| self.cannot_lock())?.is_none();
        let names_nobody =
            || self.look(claim).map(|found| matches!(found, Acquired::Held(held) if held.holder.is_none()));
        Ok(is_waited_for && is_free && names_nobody()?)
    }
}

/// Returns the error that a process, with this `pid` if it can be seen, keeps the turnstile without being a run that
/// waits there.
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
    match pid {
        // 0 is the kernel's number for a process of another namespace, which newer kernels do not list at all.
        Some(pid @ 1..) => Holder::of_process(pid).to_string(),
        _ => format!("another process (of another user, or outside {})", own_pid_namespace()),
    }
}
