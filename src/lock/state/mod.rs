//! The rules of a lock, written once for every store that can keep a piece of JSON and change it atomically.
//!
//! A [`LockState`] is everything that a store keeps about one key. An operation takes the state, the request, and the
//! [`StoreView`] that the store knows at that moment. It changes the state and returns [`Applied`]: the answer, and
//! what the caller must do once the new state is stored. Nothing here reads a clock, waits, or draws a random number,
//! so a store may apply the operation again to a newer state whenever its compare-and-swap fails.
//!
//! Two kinds of stores use it. On a lease store each holder has a lease, and the waiters are part of the state. On the
//! file store the kernel holds a run's lock ([`StoreView::holds_slot`]) and queues the waiters; only a lock that is
//! acquired by hand or kept after its run has a lease.
//!
//! | rules of | are in |
//! |---|---|
//! | who gets the lock, slots, repeated requests | `acquire.rs` |
//! | which fence it gets | `fence.rs` |
//! | the queue: places, when a waiter looks, cancelling | `queue.rs` |
//! | whom a free lock is handed to | `hand_off.rs` |
//! | leases: expiry and renewal | `lease.rs` |
//! | whether a success makes a run unneeded | `once_per.rs` |
//! | the end of a run, release by hand, the last run | `release.rs` |
//! | revocation | `revoke.rs` |
//! | sequences | `sequence.rs` |
//! | status, pruning | `status.rs` |
//! | the answer to a waiter that has renewed its place, or read only the record | `wait_answer.rs` |

mod acquire;
mod fence;
mod hand_off;
mod lease;
mod once_per;
mod queue;
mod release;
mod revoke;
mod sequence;
mod status;
mod wait_answer;

#[cfg(test)]
mod histories;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::claim::Mode;
use super::ending::Ending;
use super::held::Held;
use super::holder::Holder;
use super::token::Token;

pub use acquire::{Ask, IfHeld};
pub use fence::FenceExhausted;
pub use lease::{LeaseRecord, UNKNOWN_EPOCH, millis};
pub use queue::{ASKS_PER_PLACE, Cancelled, LOOKERS, WaiterState};
pub use release::{Release, Retain};
pub use sequence::{Wanted, integer};
pub use wait_answer::{Ahead, Seen, look_again};

/// Everything that is kept about one key. Times are milliseconds of the store's clock, unless they are marked as Unix
/// time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LockState {
    /// The key, for stores that may name the state by its hash.
    pub key: String,
    /// The epoch of the store's clock in which the times below were read, see [`StoreView::epoch`]. Empty if none of
    /// them counts.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub epoch: String,
    /// The last fencing token issued.
    pub fence: u64,
    /// The holders, the longest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<HolderState>,
    /// The waiters, the next one first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waiters: Vec<WaiterState>,
    /// The run that ended last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<LastRun>,
    /// What has succeeded. A later run that failed does not hide it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub success: Option<Success>,
    /// The position of the key's sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<SequenceState>,
    /// Cancelled requests that may still be in flight.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cancelled: Vec<Cancelled>,
}

/// A holder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderState {
    /// Identifies its acquisition.
    pub token: Token,
    /// Its fencing token.
    pub fence: u64,
    /// Its slot.
    pub slot: u32,
    /// How it may share the lock.
    #[serde(default, skip_serializing_if = "Mode::is_exclusive")]
    pub mode: Mode,
    /// Its claim's [`Claim::once_per`](crate::lock::claim::Claim::once_per).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub once_per_ms: Option<u64>,
    /// The value of the key's sequence that it has reserved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// Who it is.
    pub who: Holder,
    /// When it acquired the lock.
    pub since_ms: u64,
    /// Its lease. Without one, it holds the lock for as long as [`StoreView::holds_slot`] says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseRecord>,
    /// What the lock is held for.
    #[serde(default, skip_serializing_if = "Purpose::is_run")]
    pub purpose: Purpose,
    /// Whether it was released by hand while its command runs: when the command ends, the lock is not retained.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_released: bool,
    /// Who has revoked its lease. It can no longer be renewed, and holds the lock until its command or its lease ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revoked_by: Option<Holder>,
    /// The request that obtained the lock, if there may be several under its token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<Token>,
}

/// What a lock is held for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// A command runs under the lock and depends on it.
    #[default]
    Run,
    /// The lock was acquired by hand.
    Hand,
    /// The run has ended and is recorded as the last one; the lock is kept.
    Kept,
    /// Only its lease is known, because the record of the lock was deleted: its command may still run. Such a lease
    /// cannot be renewed, and nobody holds the lock beside it.
    Unrecorded,
}

impl Purpose {
    // Serde requires a reference.
    #[allow(clippy::trivially_copy_pass_by_ref)]
    fn is_run(&self) -> bool {
        *self == Purpose::Run
    }
}

/// A value of a sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// The value.
    pub value: String,
    /// Its number of steps from the beginning of the sequence.
    pub place: u64,
}

/// The position of a sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceState {
    /// The last value used.
    pub last: String,
    /// Its number of steps from the beginning of the sequence.
    pub place: u64,
    /// The fence of the run that used it.
    pub fence: u64,
}

/// A run that has ended, or a lock acquired by hand that was released or revoked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastRun {
    /// The holder.
    pub who: Holder,
    /// When it acquired the lock, in Unix time.
    pub started_unix_ms: u64,
    /// When it released it, in Unix time.
    pub ended_unix_ms: u64,
    /// How the run ended; `None` for a lock acquired by hand, and for a run whose lock was broken at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ending: Option<Ending>,
}

/// What is known of the successful runs: those that exited with 0 on their own and held the lock until then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
// Each name has its unit.
#[allow(clippy::struct_field_names)]
pub struct Success {
    /// When the latest of them acquired the lock, in Unix time.
    pub began_unix_ms: u64,
    /// When the latest of those with a [`Claim::once_per`](crate::lock::claim::Claim::once_per) acquired it, in Unix
    /// time: they alone make others superfluous.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub once_began_unix_ms: Option<u64>,
    /// The latest end of a [`Claim::once_per`](crate::lock::claim::Claim::once_per) period of these runs, in Unix time.
    /// The key is not pruned before. A new claim does not use it: it goes by its own period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_unix_ms: Option<u64>,
}

/// A point in time by the store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds of the clock that measures leases, which never steps within one epoch.
    pub ms: u64,
    /// Milliseconds of Unix time, for fences and for people.
    pub unix_ms: u64,
}

impl Now {
    /// Returns the present time of a store that measures leases by Unix time.
    pub fn unix(ms: u64) -> Self {
        Now { ms, unix_ms: ms }
    }

    /// Returns how long it is until the store's clock shows `ms`; zero if it has.
    pub fn until(self, ms: u64) -> Duration {
        Duration::from_millis(ms.saturating_sub(self.ms))
    }

    /// Returns the Unix time at which the store's clock showed `ms`.
    pub fn unix_of(self, ms: u64) -> u64 {
        self.unix_ms.saturating_sub(self.ms.saturating_sub(ms))
    }
}

/// What a store knows, besides the state, at the moment of an operation.
pub trait StoreView {
    /// Returns the present time.
    fn now(&self) -> Now;

    /// Names the epoch of the store's clock, or returns [`UNKNOWN_EPOCH`]. Every time limit from another epoch has
    /// passed. A machine's boot clock, for example, restarts at each boot, and no process that held something before is
    /// alive. Called only if a time is at stake.
    fn epoch(&self) -> String {
        String::new()
    }

    /// Returns whether a process of this holder, which has no lease, still holds its slot.
    fn holds_slot(&self, _holder: &HolderState) -> bool {
        false
    }

    /// Takes a share of the lock, which the state allows. Returns `false` if that is not possible: a store that has
    /// lost its record may still know of a holder. Called before [`StoreView::take_slot`].
    fn take_share(&self) -> bool {
        true
    }

    /// Takes the slot, which is free as far as the state knows. Returns `false` if it is taken: a store that has lost
    /// its record may still know of a holder. Called last: after `true`, the slot belongs to the request.
    fn take_slot(&self, _slot: u32) -> bool {
        true
    }

    /// Returns the greatest fence that may have been issued for this key besides [`LockState::fence`]; 0: none is
    /// known.
    fn pruned_fence(&self) -> u64 {
        0
    }

    /// Returns how many waiters there are besides those in the state. Needed only if the number of waiters is limited.
    fn unread_waiters(&self) -> usize {
        0
    }

    /// Returns how many waiters one operation may take from the queue: those to which it hands the lock, and those that
    /// need it no more.
    fn hand_offs_max(&self) -> usize {
        usize::MAX
    }
}

/// The result of an operation. The caller stores the new state before it acts on any of this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied<T> {
    /// The answer.
    pub answer: T,
    /// The waiters to wake: in order, those to which this operation has handed the lock and those that need not wait
    /// any more; then those that must look sooner than they know. One that is not woken finds out when it asks again.
    pub woken: Vec<Token>,
    /// Whether more waiters could be taken from the queue than [`StoreView::hand_offs_max`] allows at once: then apply
    /// [`LockState::look`] to the new state.
    pub is_unfinished: bool,
    /// Whether the requester, which already held the lock, got a new lease. Its end may be the same as before.
    pub begins_lease: bool,
}

impl<T> Applied<T> {
    /// Returns an answer that requires no further action.
    pub fn only(answer: T) -> Self {
        Applied { answer, woken: Vec::new(), is_unfinished: false, begins_lease: false }
    }
}

impl LockState {
    /// Removes what has ended, and hands the lock off if it is free.
    pub fn look(&mut self, view: &impl StoreView) -> Applied<()> {
        let (now, before) = (view.now(), self.next_end());
        self.drop_ended(now, view);
        self.finish((), before, now, view)
    }

    /// Finishes an operation before which the next lease ended at `before`: hands off what is free, and returns
    /// `answer`.
    fn finish<T>(&mut self, answer: T, before: Option<u64>, now: Now, view: &impl StoreView) -> Applied<T> {
        let mut woken = Vec::new();
        self.hand_off(None, &mut woken, now, view);
        self.finish_with(answer, before, woken, view)
    }

    /// Finishes an operation without another hand-off; `woken` are the waiters that it has dealt with.
    fn finish_with<T>(
        &mut self,
        answer: T,
        before: Option<u64>,
        mut woken: Vec<Token>,
        view: &impl StoreView,
    ) -> Applied<T> {
        let has_times = self.holders.iter().any(|holder| holder.lease.is_some());
        if !has_times && self.waiters.is_empty() && self.cancelled.is_empty() {
            self.epoch.clear();
        }
        let is_unfinished = woken.len() >= view.hand_offs_max();
        woken.extend(self.to_notify_of_expiry(before));
        Applied { woken, is_unfinished, ..Applied::only(answer) }
    }

    /// Returns the index of the holder with this token.
    fn position(&self, token: &Token) -> Option<usize> {
        self.holders.iter().position(|holder| holder.token == *token)
    }

    /// Returns the number of holders.
    fn held(&self) -> u32 {
        u32::try_from(self.holders.len()).unwrap_or(u32::MAX)
    }
}

impl HolderState {
    /// Returns whether its lease can be renewed.
    pub fn is_renewable(&self) -> bool {
        self.revoked_by.is_none() && self.purpose != Purpose::Unrecorded
    }

    /// Returns the holder as others see it.
    pub fn held(&self, now: Now) -> Held {
        Held {
            holder: Some(self.who.clone()),
            since: Some(Duration::from_millis(now.ms.saturating_sub(self.since_ms))),
            expires_in: self.lease.and_then(|lease| lease.ends_ms).map(|ends_ms| now.until(ends_ms)),
            token: Some(self.token.clone()),
            purpose: self.purpose,
            is_revoked: self.revoked_by.is_some(),
            ..Held::default()
        }
    }
}
