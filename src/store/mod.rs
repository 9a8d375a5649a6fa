//! Where locks live: the interface of every store, and how a URL selects one.
//!
//! A store only answers: each method is one request. [`crate::run::wait`] implements, for all stores, how a run waits
//! for a held lock, sits out an outage, and cancels its claim.

mod address;
mod answers;
pub mod diagnostic;
mod encryption;
mod engine;
mod error;
mod etcd;
mod failure;
mod file;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod hosts;
mod listing_limit;
mod mysql;
mod password_file;
mod postgres;
mod record_limit;
mod redis;
mod url;

use std::time::Duration;

pub use address::{Address, schemes};
pub use answers::*;
pub use error::{RequestError, RetryClass, StoreError, left_behind};

pub use crate::lock::answer::*;
pub use crate::lock::claim::{Claim, Mode};
pub use crate::lock::held::Held;
pub use crate::lock::key_status::*;
pub use crate::lock::state::{IfHeld, Release, Retain, Wanted, integer};

use crate::lock::holder::Holder;
use crate::lock::key::Key;
use crate::lock::lease::Ttl;
use crate::lock::token::Token;
use crate::store::diagnostic::Diagnostic;
use crate::sys::clock::Moment;
use crate::sys::wait::{WaitObserver, Waiter};

/// The kinds of stores. To add one, add a folder and a line here.
static KINDS: [Kind; 5] = [file::KIND, redis::KIND, postgres::KIND, mysql::KIND, etcd::KIND];

/// A kind of store.
struct Kind {
    /// The beginnings of its URLs, as messages spell them.
    schemes: &'static [&'static str],
    /// The parameters that its URLs may have and whose values are no secrets.
    parameters: &'static [&'static str],
    /// Whether its locks are leases, which expire unless they are renewed.
    has_leases: bool,
    /// Parses a URL that begins with one of the schemes. Connects to nothing and opens nothing. The error says what is
    /// wrong, without the password, and is printed after the URL.
    parse: fn(url: &str) -> Result<Box<dyn Location>, String>,
}

/// The address of a store of one kind.
trait Location: Send + Sync {
    /// Opens the store, see [`Address::open`].
    fn open(&self, timeout: Duration) -> Result<Box<dyn Backend>, String>;

    /// Returns how messages name the store, if its URL does not say where it is.
    fn name(&self) -> Option<String> {
        None
    }

    /// Returns the SQL of the store's tables, see [`Address::schema`].
    fn schema(&self) -> Option<String> {
        None
    }
}

/// A store of locks.
///
/// Everything that matters to a lock goes by the store's own clock. No request takes longer than the timeout with which
/// the store was opened. After an error the outcome is unknown: the request may have taken effect.
pub trait Store: Send {
    /// Requests the lock, once. If it is held, the claim joins or leaves the queue as `if_held` says. A claim that
    /// waits already renews its place by that: see [`Claim::place`]. Repeating the request under the same token must
    /// be safe, whatever the answer was.
    ///
    /// The answer that the claim waits promises: from then on, until `Claim::place` after this request was sent, the
    /// claim waits or holds the lock, whatever happens.
    ///
    /// After an error the claim may hold the lock all the same, or be in the queue: see [`RequestError::never_sent`].
    fn try_acquire(&mut self, claim: &Claim, if_held: IfHeld) -> Result<Acquired, RequestError>;

    /// Sleeps in the queue that the claim joined by its last try: until the store wakes it, until `until` (`None`: for
    /// ever), or until a signal arrives that would end lockrun. It waits through the `waiter`, on a descriptor or in a
    /// system call, and lets the `observer` look on.
    fn await_turn(
        &mut self,
        claim: &Claim,
        until: Option<Moment>,
        waiter: &mut Waiter<'_>,
        observer: &mut dyn WaitObserver,
    ) -> Result<Wakeup, RequestError>;

    /// Renews the lease for `ttl` from now, or if that is `None`, for its own length. Never creates a lock.
    fn renew(&mut self, key: &Key, token: &Token, ttl: Option<Ttl>) -> Result<Renewed, StoreError>;

    /// As [`Store::renew`], for a run whose COMMAND works under the lock. If the request arrives after the end of the
    /// run, it does not change the lease of a retained lock. A store on which late requests have no effect anyway need
    /// not override this.
    fn renew_run(&mut self, key: &Key, token: &Token, ttl: Ttl) -> Result<Renewed, StoreError> {
        self.renew(key, token, Some(ttl))
    }

    /// Announces that COMMAND has started, so that the store can prepare the release while the run has nothing else to
    /// do. Whether that succeeds changes nothing but how long the release takes. It must return by `until`, and soon: a
    /// release waits for it. A store that releases in one request need not override this.
    fn prepare_release(&mut self, _key: &Key, _token: &Token, _until: Moment) {}

    /// Releases or retains the lock as `how` says, and records the run. If we no longer hold it, other holders stay
    /// untouched, and the end of the run is recorded as far as the store still knows of it.
    fn release(&mut self, key: &Key, token: &Token, how: Release) -> Result<Released, StoreError>;

    /// Cancels a claim: leaves the queue, and drops the lock if this very request obtained it; what its token held
    /// before stays. Requests of the claim that are still in flight have no effect when they arrive: those sent by this
    /// store that got no reply, and with `in_flight` also those of another process. Returns whether the store has
    /// confirmed it; if not, something of the claim may be left there.
    fn cancel(&mut self, claim: &Claim, in_flight: bool) -> bool;

    /// Announces that another process has sent requests for the claim that this store is about to release, and that
    /// they may still be in flight: they must have no effect when they arrive. A store on which late requests have no
    /// effect anyway need not override this.
    fn expect_late_requests(&mut self) {}

    /// Returns the status of `key`, or of every key that is held, waited for or has been held, in the order of their
    /// names. If a given `key` cannot be read, fails; in the list of all keys, such a key is reported as unreadable.
    fn list(&mut self, key: Option<&Key>) -> Result<Listing<KeyStatus>, StoreError>;

    /// Revokes the lock, on behalf of `by`, from all its holders or from the one with this `fence`: the lease can no
    /// longer be renewed. If a command runs under the lock, it is free when that command has ended, which a holder that
    /// learns of the revocation sees to, or when the lease expires; with `now` it is free at once. A request that
    /// arrives late takes nothing from those that have acquired the lock since.
    fn revoke(&mut self, key: &Key, fence: Option<u64>, by: &Holder, now: bool) -> Result<Revoked, StoreError>;
}

/// A store that keeps a sequence of values under a key.
pub trait Sequences {
    /// Reserves an unreserved value of the key's sequence for the claim, by a lease like a lock's. When a run that has
    /// used its value is released, that value becomes the last one, unless one further along in the sequence already
    /// is.
    ///
    /// After an error a value may be reserved all the same: see [`RequestError::never_sent`].
    fn reserve(&mut self, claim: &Claim, wanted: &Wanted) -> Result<Reserved, RequestError>;
}

/// A store from which old keys can be removed.
pub trait Prune {
    /// Removes `key`, or all keys, if they are free and have been unused for `unused_for`; unless `really`, only finds
    /// them. Returns their names.
    fn prune(&mut self, key: Option<&Key>, unused_for: Duration, really: bool) -> Result<Listing<Key>, StoreError>;

    /// Forgets that a run of `key` has succeeded because of which no other is wanted ([`Claim::once_per`]). Returns
    /// whether that was known.
    fn forget_success(&mut self, key: &Key) -> Result<bool, StoreError>;
}

/// A store that can diagnose itself.
pub trait Diagnose {
    /// Looks for what would make locks in this store unsafe or slow, among other things by acquiring one. Cleans up
    /// after the trial. Returns at least one diagnostic.
    fn diagnose(&mut self) -> Vec<Diagnostic>;
}

/// All capabilities of a store.
pub trait Backend: Store + Sequences + Prune + Diagnose {}

impl<T: Store + Sequences + Prune + Diagnose> Backend for T {}
