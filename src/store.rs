//! Where locks live: the interface that every store keeps, and how one is chosen by its URL.

mod address;
pub mod file;
pub mod redis;

use std::fmt;
use std::time::Duration;

use uuid::Uuid;

pub use address::Address;

use crate::clock::Moment;
use crate::duration;
use crate::escape::escaped;
use crate::holder::Holder;
use crate::key::Key;
use crate::outcome::Ending;
use crate::supervise::interrupt::Ticking;
use crate::supervise::signals::Signals;

/// What a run asks of a store: this lock, under this token, for itself.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The lock's name.
    pub key: Key,
    /// A random name for this one acquisition. Every later change is checked against it.
    pub token: Uuid,
    /// How long a lease lasts from one renewal; `None`: it never expires.
    pub ttl: Option<Duration>,
    /// Who asks.
    pub holder: Holder,
}

/// A lock that is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The fencing token: greater than that of every earlier acquisition of the key.
    pub fence: u64,
    /// Who keeps the lock ours.
    pub custody: Custody,
}

/// Who keeps a lock ours, and so what happens to it when we die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Custody {
    /// The kernel, for as long as lockrun or COMMAND lives.
    Kernel,
    /// The store, until the lease runs out; the request that took it left at this moment.
    Lease(Moment),
}

/// A lock that is somebody else's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Whose, as far as it is known.
    pub holder: Option<Holder>,
    /// How long it has been.
    pub since: Option<Duration>,
    /// How long its lease still runs, if it is a lease that ends.
    pub expires_in: Option<Duration>,
    /// Our place in the queue, from 0, where there is one.
    pub place: Option<u64>,
}

/// Says the holder, as in `web-1 pid 4242 (deploy: ./report.sh) for 3m 12s`.
impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(holder) = &self.holder else { return f.write_str("a run that has left no name") };
        let (host, user) = (escaped(&holder.host), escaped(&holder.user));
        write!(f, "{host} pid {} ({user}: {}) for {}", holder.pid, escaped(&holder.command), span(self.since))
    }
}

fn span(since: Option<Duration>) -> String {
    since.map_or_else(|| "an unknown time".into(), duration::say)
}

/// The answer to a request for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// It is ours.
    Mine(Grant),
    /// It is somebody else's, and the patience is at its end.
    Held(Held),
    /// A signal of this number ended the wait. Nothing of ours is left in the store.
    Interrupted(i32),
}

/// The answer to a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The lock is ours for another ttl.
    Mine,
    /// It is not ours any more. It may be somebody else's.
    NotMine(Option<Held>),
}

/// How to wait for a lock that is held.
pub struct Wait<'a> {
    /// Until when; `None`: for ever.
    pub until: Option<Moment>,
    /// The signals, some of which end the wait.
    pub signals: &'a Signals,
    /// Who is told how the wait goes.
    pub watcher: &'a mut dyn Watcher,
}

/// Somebody who looks on while lockrun waits.
pub trait Watcher: Ticking {
    /// The lock is held, and we wait: called when the wait begins, and whenever the store tells something newer.
    fn waiting(&mut self, held: &Held);

    /// The lock has been granted to us, and our claim of it is on its way: what takes time may be done while it is.
    fn claiming(&mut self) {}

    /// The claim was in vain, or its answer was not heard.
    fn not_yet(&mut self) {}
}

/// What is kept about the last run of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastRun {
    /// How COMMAND ended; `None` if it was never started.
    pub ending: Option<Ending>,
}

/// The store did not do what it was asked, or did not answer: what failed, on what, and what to do.
pub type StoreError = anyhow::Error;

/// A store of locks.
///
/// An error from [`Store::acquire`] or [`Store::renew`] means that the outcome is unknown: it may have been done. `acquire`
/// cleans up after itself by the token as well as it can.
pub trait Store: Send {
    /// Takes the lock; if it is held, waits for it as `wait` says, or not at all. While it waits, a signal that would end
    /// lockrun ends the wait.
    fn acquire(&mut self, claim: &Claim, wait: Option<Wait<'_>>) -> Result<Acquired, StoreError>;

    /// Prolongs the lease by the claim's ttl from now. Never creates a lock that is not there.
    fn renew(&mut self, claim: &Claim) -> Result<Renewed, StoreError>;

    /// Lets go of the lock, and writes down the run. Does nothing if the lock is not ours.
    ///
    /// Others may have the lock at once. What is left to do for them can wait a moment: [`Store::settle`] does it.
    fn release(&mut self, claim: &Claim, last: LastRun) -> Result<(), StoreError>;

    /// Does what a release has left to be done later, if anything. If it fails, nobody waits for ever.
    fn settle(&mut self, _claim: &Claim) {}
}

/// Opens the store at `address`. Connects to nothing yet. `timeout` bounds every single request. On failure says what is
/// wrong with the files that the address names.
pub fn open(address: Address, timeout: Duration) -> Result<Box<dyn Store>, String> {
    Ok(match address {
        Address::File(directory) => Box::new(file::FileStore::new(directory)),
        Address::Redis(server) => Box::new(redis::RedisStore::new(*server, timeout)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_named() {
        let holder = Holder { host: "web-1".into(), pid: 4242, user: "deploy".into(), command: "./report.sh".into() };
        let message = crate::report::held(
            &Key::new("nightly-report".as_ref()).expect("is a key"),
            &Held { holder: Some(holder), since: Some(Duration::from_secs(192)), ..Held::default() },
        );
        assert_eq!(message, "lock \"nightly-report\" is held by web-1 pid 4242 (deploy: ./report.sh) for 3m 12s");
    }
}
