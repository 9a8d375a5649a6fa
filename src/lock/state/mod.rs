//! The rules of a lock, once, for every store that can keep a piece of JSON and change it atomically.
//!
//! A [`LockState`] is all that is kept of one key. An operation takes the state, what is asked, and the [`Facts`] that the store
//! knows at that moment; it changes the state and returns [`Applied`]: the answer, and what the caller must do once the new state
//! is stored. Nothing here reads a clock, waits, or draws a random number, so a store may apply an operation again to a newer
//! state whenever its compare-and-swap fails.
//!
//! Two kinds of stores use it. On a lease store each holder has a lease and the waiters stand in the state. On files the kernel
//! holds the lock of a run ([`Facts::holds_slot`]) and queues the waiters; only what is held by hand has a lease.
//!
//! | rules of | are in |
//! |---|---|
//! | who gets the lock, slots, repeated requests | `acquire.rs` |
//! | which fence it gets | `fence.rs` |
//! | the queue, grants, hand-off, cancelling | `queue.rs` |
//! | leases: expiry and renewal | `lease.rs` |
//! | the end of a run, release by hand, the last run | `release.rs` |
//! | revocation | `revoke.rs` |
//! | sequences | `sequence.rs` |
//! | status, pruning | `status.rs` |

mod acquire;
mod fence;
mod lease;
mod queue;
mod release;
mod revoke;
mod sequence;
mod status;

#[cfg(test)]
mod histories;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use super::ending::Ending;
use super::holder::Holder;
use super::token::Token;

pub use acquire::{Acquired, Ask, OnHeld, Seen};
pub use fence::FenceExhausted;
pub use lease::{Lease, Renewed, millis};
pub use queue::{Cancelled, WaiterState};
pub use release::{Release, Released, Retain};
pub use revoke::{Living, Revoked};
pub use sequence::{Reserved, Wanted, integer};

/// All that is kept of one key. Times are milliseconds of the store's clock, unless they are said to be Unix time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LockState {
    /// The key, for stores that may name the state by a hash of it.
    pub key: String,
    /// In which life of the store's clock the times below were read, see [`Facts::epoch`]; empty while there are none that count.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub epoch: String,
    /// The fencing token that was given out last.
    pub fence: u64,
    /// Who holds the lock, the longest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<HolderState>,
    /// Who waits for it, the next waiter first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waiters: Vec<WaiterState>,
    /// The last run that has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<LastRun>,
    /// When a hold ended that is not recorded as the last run, in Unix time: one that was cancelled, a run of which nothing else was known any
    /// more, a kept lock; of a lease that has run out, a time no later than its end. 0 if none has since that run, unless the end of that was
    /// no later than the one before it by the clock: then this is.
    #[serde(skip_serializing_if = "is_zero")]
    pub lost_unix_ms: u64,
    /// What has succeeded; a later run that failed does not hide it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub success: Option<Success>,
    /// Where the key's sequence has got to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<SequenceState>,
    /// Requests that were cancelled while they may still be on their way.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cancelled: Vec<Cancelled>,
}

/// A holder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderState {
    /// The name of its acquisition.
    pub token: Token,
    /// Its fencing token.
    pub fence: u64,
    /// Which of the slots it has.
    pub slot: u32,
    /// Whether there are several slots, as far as it has said: otherwise its slot means nothing to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_slots: bool,
    /// Whether it shares the lock with others that do.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_shared: bool,
    /// Its claim's [`Claim::once_per`](crate::lock::claim::Claim::once_per).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub once_per_ms: Option<u64>,
    /// What it has reserved of the key's sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// Who it is.
    pub who: Holder,
    /// Since when it holds the lock.
    pub since_ms: u64,
    /// Until when it does. Without a lease, for as long as [`Facts::holds_slot`] says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// What the lock is held for.
    #[serde(default, skip_serializing_if = "Purpose::is_run")]
    pub purpose: Purpose,
    /// It was released by hand while its command runs: when that ends, the lock is not kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_released: bool,
    /// Who has revoked its lease. It cannot be renewed any more, and holds the lock until its command or its lease has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revoked_by: Option<Holder>,
    /// Which request under its token has obtained the lock, where there may be several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<Token>,
}

/// What a lock is held for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// A command runs under it, and counts on it.
    #[default]
    Run,
    /// It was acquired by hand.
    Hand,
    /// Its run has ended and is recorded as the last one; the lock is kept.
    Kept,
    /// The store had forgotten it, and a waiter that had seen a command run under it put it back: that may still run. It cannot be renewed,
    /// as its lockrun was told that the lock is not its own, or will be; and nobody holds the lock beside it.
    Forgotten,
}

impl Purpose {
    // Serde wants a reference.
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
    /// How many steps it is from the beginning of the sequence.
    pub place: u64,
}

/// Where a sequence has got to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceState {
    /// The value that was used last.
    pub last: String,
    /// How many steps it is from the beginning of the sequence.
    pub place: u64,
    /// The fence of the run that used it.
    pub fence: u64,
}

/// A run that has ended, or a lock acquired by hand that was released or revoked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastRun {
    /// Whose it was.
    pub who: Holder,
    /// When it acquired the lock, in Unix time.
    pub started_unix_ms: u64,
    /// When it released it, in Unix time.
    pub ended_unix_ms: u64,
    /// How its command ended, if one was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ending: Option<Ending>,
}

/// What the runs have achieved that have ended with 0 by themselves, and had the lock until then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Success {
    /// When the last of them acquired the lock, in Unix time.
    pub began_unix_ms: u64,
    /// Until when nothing more is to be done, as those of them have said that have a
    /// [`Claim::once_per`](crate::lock::claim::Claim::once_per), in Unix time. Another run decides by its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_unix_ms: Option<u64>,
}

/// A point in time, as a store tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds of the clock that leases are measured by, which never steps within one epoch.
    pub ms: u64,
    /// Milliseconds of Unix time, for fences and for people.
    pub unix_ms: u64,
}

impl Now {
    /// Returns the present time of a store that measures leases by Unix time.
    pub fn unix(ms: u64) -> Self {
        Now { ms, unix_ms: ms }
    }

    /// Returns the Unix time at which the store's clock showed `ms`.
    pub fn unix_of(self, ms: u64) -> u64 {
        self.unix_ms.saturating_sub(self.ms.saturating_sub(ms))
    }
}

/// What the store knows of a waiter's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It will hear of a grant.
    Listening,
    /// It may be cut off or stopped: it keeps its place, and the others pass it by.
    Silent,
    /// It is dead, or has been silent for so long that it counts as dead.
    Gone,
}

/// What a store knows beside the state at the moment of an operation.
pub trait Facts {
    /// Returns the present time.
    fn now(&self) -> Now;

    /// Names the life of the store's clock. Whatever was to end by a time of another life has ended: a machine's boot clock, for
    /// one, starts anew, and no process that held something then is alive. Asked only if a time is at stake.
    fn epoch(&self) -> String {
        String::new()
    }

    /// Returns whether a process of this holder, which has no lease, still has its slot.
    fn holds_slot(&self, _holder: &HolderState) -> bool {
        false
    }

    /// Takes a share of the lock, which the state allows. Returns `false` if that is not possible: a store whose record was lost may know
    /// better. Called before [`Facts::take_slot`].
    fn take_share(&self) -> bool {
        true
    }

    /// Takes the slot, which is free as far as the state knows. Returns `false` if it is not: a store whose record was lost may
    /// know better. Called last of all: if it returns `true`, the slot goes to the request.
    fn take_slot(&self, _slot: u32) -> bool {
        true
    }

    /// Returns how many waiters may have a grant that they have not claimed yet. Each claim makes room for another grant.
    fn grants_max(&self) -> usize {
        usize::MAX
    }

    /// Returns whether a waiter is alive and listening.
    fn presence(&self, _waiter: &WaiterState) -> Presence {
        Presence::Listening
    }
}

/// What came of an operation. The caller stores the new state before it does anything of this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied<T> {
    /// The answer.
    pub answer: T,
    /// The waiters to which the lock was granted by this operation, in their order: wake them, so that they claim it. A waiter
    /// that is not woken loses its grant after [`queue::CLAIM_WINDOW_MS`], but not its place.
    pub granted: Vec<Token>,
    /// When a lease or a grant ends next. Some process must look at the lock then, by any operation, or nobody gets what is free.
    pub look_at_ms: Option<u64>,
    /// Whether the lease of the one that asks, which held the lock already, began anew; its end may be the same as before.
    pub begins_lease: bool,
}

impl<T> Applied<T> {
    /// Returns an answer after which there is nothing to do.
    pub fn only(answer: T) -> Self {
        Applied { answer, granted: Vec::new(), look_at_ms: None, begins_lease: false }
    }
}

/// A holder as others see it: also a waiter to which the lock was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Who it is.
    pub who: Holder,
    /// Since when it holds the lock.
    pub since_ms: u64,
    /// When its lease ends, if it has one that does.
    pub ends_ms: Option<u64>,
    /// The length of its lease, if that ends and is known.
    pub ttl_ms: Option<u64>,
    /// What it holds the lock for.
    pub purpose: Purpose,
    /// Whether nobody can hold the lock beside it: it neither shares it nor has one of several slots.
    pub is_alone: bool,
    /// Its fencing token; 0: it has none yet.
    pub fence: u64,
    /// Its token. For comparing: it is a secret.
    pub token: Token,
}

impl LockState {
    /// Finishes an operation: hands off what is free.
    fn applied<T>(&mut self, answer: T, now: Now, facts: &impl Facts) -> Applied<T> {
        let granted = self.hand_off(now, facts);
        self.unchanged(answer, granted)
    }

    fn unchanged<T>(&mut self, answer: T, granted: Vec<Token>) -> Applied<T> {
        let has_times = self.holders.iter().any(|holder| holder.lease.is_some());
        if !has_times && self.waiters.is_empty() && self.cancelled.is_empty() {
            self.epoch.clear();
        }
        Applied { granted, look_at_ms: self.next_end(), ..Applied::only(answer) }
    }

    /// Returns where the holder with this token stands.
    fn position(&self, token: &Token) -> Option<usize> {
        self.holders.iter().position(|holder| holder.token == *token)
    }

    /// Returns how many hold the lock or were granted it.
    fn held(&self) -> u32 {
        let granted = self.waiters.iter().filter(|waiter| waiter.grant.is_some()).count();
        u32::try_from(self.holders.len() + granted).unwrap_or(u32::MAX)
    }
}

impl HolderState {
    /// Returns whether its lease can be renewed.
    pub fn is_renewable(&self) -> bool {
        self.revoked_by.is_none() && self.purpose != Purpose::Forgotten
    }

    /// Returns the holder as others see it.
    pub fn held(&self) -> Held {
        let lease = self.lease.as_ref();
        Held {
            who: self.who.clone(),
            since_ms: self.since_ms,
            ends_ms: lease.and_then(|lease| lease.ends_ms),
            ttl_ms: lease.and_then(|lease| lease.ttl_ms),
            purpose: self.purpose,
            is_alone: !self.is_shared && !self.has_slots,
            fence: self.fence,
            token: self.token.clone(),
        }
    }
}

// Serde wants a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}
