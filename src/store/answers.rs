//! What a store is asked, and what it answers.

use std::fmt;
use std::time::Duration;

use super::StoreError;
use crate::lock::ending::Ending;
use crate::lock::holder::Holder;
use crate::lock::key::Key;
use crate::lock::state::{Purpose, Success};
use crate::lock::token::Token;
use crate::sys::clock::Moment;
use crate::text::duration;

/// A lock that is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The fencing token: greater than that of every earlier acquisition of the key.
    pub fence: u64,
    /// Which of the slots is ours, from 0.
    pub slot: u32,
    /// The moment at which the request left that acquired the lock, if it is held under a lease: that counts from then. `None`: the
    /// kernel holds it, for as long as lockrun or COMMAND lives.
    pub lease_from: Option<Moment>,
}

/// A lock that another holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Whose, as far as it is known.
    pub holder: Option<Holder>,
    /// How long it has been.
    pub since: Option<Duration>,
    /// How long its lease still runs, if it is a lease that ends.
    pub expires_in: Option<Duration>,
    /// For how long nobody is granted it yet, because another server has become the store's primary, to which a lock that was just
    /// acquired may not be known.
    pub withheld: Option<Duration>,
    /// Our place in the queue, from 0, where there is one.
    pub place: Option<u64>,
    /// Under which token. For comparing: who knows it can release the lock.
    pub token: Option<Token>,
}

/// Says the holder, as in `web-1 pid 4242 (deploy: ./report.sh) for 3m 12s`.
impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (None, Some(span)) = (&self.holder, self.withheld) {
            let span = duration::say(span);
            return write!(
                f,
                "an unknown run, or by none: its server has failed over to another one, so it is not granted for another {span}"
            );
        }
        let Some(holder) = &self.holder else { return f.write_str("a run that has left no name") };
        write!(f, "{holder} for {}", span(self.since))
    }
}

fn span(since: Option<Duration>) -> String {
    since.map_or_else(|| "an unknown time".into(), duration::say)
}

/// What to do with a claim if the lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfHeld {
    /// Join the queue, or stay in it.
    Queue {
        /// Unless so many wait already.
        max_waiting: Option<u32>,
        /// The moment at which it gives up; `None`: never. A store need not watch that.
        until: Option<Moment>,
    },
    /// Leave nothing in the store, nor in the queue.
    Leave,
}

/// The answer to a request for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tried {
    /// It is ours.
    Mine(Grant),
    /// Another holds it.
    Held(Held),
    /// Another holds it, and too many wait for it: the claim has not joined the queue.
    QueueFull(Held),
    /// It is not wanted: what [`Claim::once_per`](super::Claim::once_per) asks for is done. The claim has left the queue.
    Done(Done),
}

/// A run that has succeeded lately, so that another one is not wanted. Times are milliseconds of Unix time on the store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// When it began.
    pub began_ms: u64,
    /// When this was so.
    pub now_ms: u64,
}

/// What ended a waiter's sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wakeup {
    /// It is worth trying again.
    TryAgain,
    /// A signal of this number came, which would end lockrun.
    Signal(i32),
}

/// The answer to a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The lock is ours for another ttl.
    Mine,
    /// It is not ours any more. Another may hold it.
    NotMine(Option<Held>),
    /// It was revoked, by whom.
    Revoked(Holder),
}

/// What came of releasing a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Released {
    /// It is free.
    Free,
    /// It stays held, as was asked.
    Retained,
    /// It is free, but how the run ended could not be recorded, nor that it is to stay: for this reason.
    Unrecorded(String),
    /// It will be free when the command has ended that runs under it.
    WhenItEnds,
    /// It was not ours. Another may hold it.
    NotMine(Option<Held>),
}

/// What came of taking a lock from its holders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Revoked {
    /// There was nothing to take.
    Free,
    /// It is held, but not by the holder that was meant.
    Others(Vec<Held>),
    /// It was revoked where it could be.
    Taken {
        /// From these.
        from: Vec<Held>,
        /// It stays with these.
        living: Vec<Living>,
        /// It is free after this time at the latest.
        free_in: Duration,
        /// Whether a command that will not hear of the revocation may still run under it.
        untold: bool,
    },
}

/// A living process of this machine that holds a lock: the kernel lets nobody take it away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Living {
    /// Whose the lock is.
    pub held: Held,
    /// The processes that keep it held, as far as we may inspect them.
    pub pids: Vec<u32>,
}

/// What came of reserving a value of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// It is ours.
    Mine(Grant, String),
    /// Another has reserved it.
    Taken,
    /// There is no integer after this value, or it is none.
    NoNext(String),
    /// Nothing is reserved for this long yet, see [`Held::withheld`].
    Withheld(Duration),
    /// The last value is this one, not the one after which a value was wanted.
    Moved(Option<String>),
}

/// What is known of one key. Times are milliseconds of Unix time on the store's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyStatus {
    /// The key.
    pub key: Key,
    /// When this was so.
    pub now_ms: u64,
    /// The fencing token that was given out last.
    pub fence: u64,
    /// Who holds it, the longest first.
    pub holders: Vec<Holding>,
    /// Who waits for it, the next first, as far as the store knows the order.
    pub waiters: Vec<Waiting>,
    /// The last run, or lock taken by hand, that is over.
    pub last: Option<Past>,
    /// The run that began last of those that have ended with 0.
    pub success: Option<Success>,
    /// The last value of its sequence that was used, if it has one.
    pub value: Option<String>,
    /// For how long it is granted to nobody yet, see [`Held::withheld`].
    pub withheld: Option<Duration>,
}

impl KeyStatus {
    /// What is known of a key that was never used.
    pub fn never_used(key: Key) -> Self {
        let (holders, waiters) = (Vec::new(), Vec::new());
        KeyStatus { key, now_ms: 0, fence: 0, holders, waiters, last: None, success: None, value: None, withheld: None }
    }
}

/// A holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Who.
    pub who: Holder,
    /// Since when.
    pub since_ms: u64,
    /// How long the lease still runs, if it is one that ends.
    pub expires_in: Option<Duration>,
    /// The fencing token.
    pub fence: u64,
    /// The slot, from 0, if there are several.
    pub slot: Option<u32>,
    /// What the lock is held for.
    pub purpose: Purpose,
    /// Whether it shares the lock.
    pub is_shared: bool,
    /// The value of the sequence that it has reserved, if it has.
    pub value: Option<String>,
    /// Whether the lock was revoked, and is only held until the command is dead.
    pub revoked: bool,
    /// Under which token. For comparing: who knows it can release the lock.
    pub token: Option<Token>,
}

/// A waiter for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Who.
    pub who: Holder,
    /// Since when, where that is known.
    pub since_ms: Option<u64>,
}

/// A run that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Past {
    /// Whose it was.
    pub who: Holder,
    /// When it got the lock.
    pub started_ms: u64,
    /// When it released the lock.
    pub ended_ms: u64,
    /// How its command ended, if one was started.
    pub ending: Option<Ending>,
}

/// What was found among all keys.
#[derive(Debug)]
pub struct Listing<T> {
    /// What was wanted, in the order of the keys.
    pub found: Vec<T>,
    /// Why some keys could not be read, or not be changed as was wanted, and what to do, for each.
    pub unreadable: Vec<StoreError>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_named() {
        let holder = Holder { host: "web-1".into(), pid: 4242, user: "deploy".into(), command: "./report.sh".into() };
        let message = crate::report::message::held_by(
            &Key::new("nightly-report".as_ref()).expect("is a key"),
            &Held { holder: Some(holder), since: Some(Duration::from_secs(192)), ..Held::default() },
        );
        assert_eq!(message, "lock \"nightly-report\" is held by web-1 pid 4242 (deploy: ./report.sh) for 3m 12s");
    }
}
