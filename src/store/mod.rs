//! Where locks live: the interface that every store keeps, and how one is chosen by its URL.
//!
//! A store only answers: each method is one request. How a run waits for a lock that is held, sits out an outage and cancels what it
//! has asked for is written once, in [`crate::run::wait`].

mod address;
mod answers;
pub mod diagnostic;
mod error;
mod etcd;
mod file;
mod from_state;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod postgres;
mod redis;
mod url;

use std::time::Duration;

pub use address::{Address, schemes};
pub use answers::*;
pub use error::{RequestError, StoreError, Trouble, left_for_ever};

pub use crate::lock::claim::{Claim, Mode};
pub use crate::lock::state::{Release, Retain, Wanted, integer};

use crate::lock::holder::Holder;
use crate::lock::key::Key;
use crate::lock::lease::Ttl;
use crate::lock::token::Token;
use crate::store::diagnostic::Diagnostic;
use crate::sys::clock::Moment;
use crate::sys::wait::{WaitObserver, Waiter};

/// The kinds of stores. One more is a folder of its own, and a line here.
static KINDS: [Kind; 4] = [file::KIND, redis::KIND, postgres::KIND, etcd::KIND];

/// A kind of store.
struct Kind {
    /// What its URLs begin with, as messages spell it.
    schemes: &'static [&'static str],
    /// The parameters that its URLs may have. None of them is a secret.
    parameters: &'static [&'static str],
    /// Whether its locks are leases, which run out if they are not renewed.
    has_leases: bool,
    /// Reads a URL that begins with one of the schemes. Connects to nothing and opens nothing. On failure returns what is wrong with
    /// the URL, to be said after it, without its password.
    parse: fn(url: &str) -> Result<Box<dyn Location>, String>,
}

/// Where a store of one kind is.
trait Location: Send + Sync {
    /// Opens the store, see [`Address::open`].
    fn open(&self, timeout: Duration) -> Result<Box<dyn Backend>, String>;

    /// Returns the SQL of the store's tables, see [`Address::schema`].
    fn schema(&self) -> Option<String> {
        None
    }
}

/// A store of locks.
///
/// The time is the store's own wherever it matters to a lock. No request takes longer than the timeout with which the store was opened.
/// An error means that the outcome is unknown: what was asked for may have been done.
pub trait Store: Send {
    /// Asks for the lock, once. If it is held, the claim joins or leaves the queue as `if_held` says. To ask again under the same token
    /// is to be safe, whatever the answer was.
    ///
    /// After an error the claim may hold the lock all the same, or stand in the queue: see [`RequestError::left_nothing`].
    fn try_acquire(&mut self, claim: &Claim, if_held: IfHeld) -> Result<Tried, RequestError>;

    /// Sleeps, in the queue that the claim has joined by its last try, until it is worth trying again, until `until`, or until a signal
    /// comes that would end lockrun. The `waiter` waits on a descriptor or in a system call for it, and lets the `observer` look on.
    fn sleep(
        &mut self,
        claim: &Claim,
        until: Option<Moment>,
        waiter: &mut Waiter<'_>,
        observer: &mut dyn WaitObserver,
    ) -> Result<Wakeup, RequestError>;

    /// Prolongs the lease by `ttl` from now (`None`: by as long as it was taken for). Never creates a lock that is not there.
    fn renew(&mut self, key: &Key, token: &Token, ttl: Option<Ttl>) -> Result<Renewed, StoreError>;

    /// The same for a run, whose COMMAND works under the lock. If this arrives when the run is over, what it lets stay is not changed. A
    /// store in which late requests do nothing anyway has nothing to add.
    fn renew_run(&mut self, key: &Key, token: &Token, ttl: Ttl) -> Result<Renewed, StoreError> {
        self.renew(key, token, Some(ttl))
    }

    /// Releases the lock, or lets it stay as `how` says, and writes down who had it. Does nothing if the lock is not ours.
    fn release(&mut self, key: &Key, token: &Token, how: Release) -> Result<Released, StoreError>;

    /// Cancels a claim: leaves the queue, and drops the lock if this very request obtained it; what its token held before stays. Requests
    /// of the claim that may still be on their way get nothing when they arrive: those that this store has sent and that were not
    /// answered, and with `in_flight` also those of another process. Returns whether the store has confirmed it; if not, something of
    /// the claim may be left there.
    fn cancel(&mut self, claim: &Claim, in_flight: bool) -> bool;

    /// Another process has made requests for the claim that this store is about to release, and they may still be on their way: they are to
    /// get nothing when they arrive. A store in which late requests get nothing anyway has nothing to do.
    fn expect_late_requests(&mut self) {}

    /// Returns what is known of `key`, or of every key that is held, waited for or has been held; in the order of their names. For a
    /// `key` that cannot be read this is an error; among all of them it is listed as unreadable beside the others.
    fn list(&mut self, key: Option<&Key>) -> Result<Listing<KeyStatus>, StoreError>;

    /// Takes the lock from its holders, or from the one with this `fence`, as `by` wants: it cannot renew it any more. Where a
    /// command runs under it, the lock is free only when that has ended, which a holder that hears of it sees to, or with its
    /// lease; or, if it must be so, `now`.
    fn revoke(&mut self, key: &Key, fence: Option<u64>, by: &Holder, now: bool) -> Result<Revoked, StoreError>;
}

/// A store that counts: it keeps a sequence of values under a key.
pub trait Sequences {
    /// Reserves a value of the key's sequence for the claim, as a lease like that of a lock, that nobody else has reserved. When a
    /// run that has used its value is released, that becomes the last one, unless one that comes after it in the sequence has.
    ///
    /// After an error a value may be reserved all the same: see [`RequestError::left_nothing`].
    fn reserve(&mut self, claim: &Claim, wanted: &Wanted) -> Result<Reserved, RequestError>;
}

/// A store from which old keys can be removed.
pub trait Prune {
    /// Removes `key`, or all keys, if they are free and have not been held for `unused_for`, or only finds them. Returns their names.
    fn prune(&mut self, key: Option<&Key>, unused_for: Duration, really: bool) -> Result<Listing<Key>, StoreError>;
}

/// A store that can tell how fit it is for locks.
pub trait Diagnose {
    /// Looks for what would make locks there unsafe or slow, by really taking one among others. What was tried is cleaned up;
    /// returns at least one diagnostic.
    fn diagnose(&mut self) -> Vec<Diagnostic>;
}

/// Everything that lockrun can ask of a store.
pub trait Backend: Store + Sequences + Prune + Diagnose {}

impl<T: Store + Sequences + Prune + Diagnose> Backend for T {}
