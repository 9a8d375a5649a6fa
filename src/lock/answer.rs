//! The answers to requests about a lock, from the rules in [`crate::lock::state`] up to the messages.

use std::time::Duration;

use crate::lock::claim::Claim;
use crate::lock::held::Held;
use crate::lock::holder::Holder;
use crate::lock::lease::Terms;
use crate::sys::clock::Moment;

/// A lock that we hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The fencing token: greater than that of every earlier acquisition of the key.
    pub fence: u64,
    /// Our slot, from 0.
    pub slot: u32,
    /// When the request that acquired the lock was sent, if it is held by a lease: the lease counts from then. `None`:
    /// the kernel holds the lock for as long as lockrun or COMMAND lives.
    pub lease_from: Option<Moment>,
    /// Whether that lease is as long as the claim's [place](Claim::place) in the queue, because the lock was handed to
    /// it there; otherwise it is as long as the claim's ttl.
    pub by_hand_off: bool,
}

impl Grant {
    /// Returns the terms of the lease until its first renewal, for a `claim` whose lease has these `terms` from then
    /// on.
    pub fn first_terms(&self, terms: Terms, claim: &Claim) -> Terms {
        if self.by_hand_off { terms.after_hand_off(claim.place()) } else { terms }
    }
}

/// The answer to a request for a lock, and how acquiring one has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// We hold it.
    Mine(Grant),
    /// Other runs hold the lock, or are ahead in the queue.
    Held(Held),
    /// The same, and the claim did not join the queue: too many already wait, or its token already holds the lock in
    /// another mode.
    NotQueued(Held),
    /// The lock is not needed: a run has succeeded within [`Claim::once_per`]. The claim has left the queue.
    NotNeeded(RecentSuccess),
    /// A signal with this number ended the wait. No store answers this.
    Interrupted(i32),
}

/// A recent successful run, because of which no other is needed. Times are milliseconds of Unix time on the store's
/// clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecentSuccess {
    /// When it began.
    pub began_ms: u64,
    /// The time of the answer.
    pub now_ms: u64,
}

/// The answer to a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// We hold the lock for another ttl.
    Mine,
    /// We no longer hold it. Another run may. Final.
    NotMine(Option<Held>),
    /// It was revoked, by this caller. Final.
    Revoked(Holder),
}

/// The answer to a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Released {
    /// The lock is free.
    Free,
    /// The lock stays held, as requested.
    Retained,
    /// The lock is free, but for this reason the store could not record how the run ended, nor retain the lock.
    Unrecorded(String),
    /// The lock will be free when the command under it ends.
    WhenItEnds,
    /// We did not hold the lock, or no longer. Another run may.
    NotMine(Option<Held>),
}

/// The answer to a revocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Revoked {
    /// The lock had no holder.
    Free,
    /// The lock is held, but not under the given fence.
    Others(Vec<Held>),
    /// The lock was revoked from every holder that can lose it.
    From {
        /// The holders that have lost it, or will.
        from: Vec<Held>,
        /// The holders that keep it.
        living: Vec<LivingHolder>,
        /// It is free after this time at the latest, if no holder keeps it.
        free_in: Duration,
        /// Whether a command that will not learn of the revocation may still run under it.
        may_run_unaware: bool,
    },
}

/// A holder whose living process on this machine holds the lock: the kernel does not let it be revoked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LivingHolder {
    /// The holder.
    pub held: Held,
    /// Its slot.
    pub slot: u32,
    /// The processes that keep it held, as far as we may see them. The store adds them: the rules know of no process.
    pub pids: Vec<u32>,
}

/// The answer to a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// We hold it.
    Mine(Grant, String),
    /// Another run has reserved the value.
    Taken,
    /// This value is not an integer, or the next one would be out of range.
    NoNext(String),
    /// Nothing can be reserved for this long, see [`Held::withheld`].
    Withheld(Duration),
    /// The last value is this one, not the one from which the request started.
    LastChanged(Option<String>),
}
