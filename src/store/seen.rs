//! What a waiter remembers of the holder that it waits for: should the store lose its data, that one's command may still run.

use std::time::Duration;

use crate::sys::clock::Moment;

/// The holder that a waiter has seen when it last looked. If the store forgets it, its command may still run: until it hears
/// that its lock is gone, or for as long as its lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// How long its lease lasts.
    pub(super) ttl: Duration,
    /// When that look was, in milliseconds of Unix time on the store's clock.
    pub(super) at_ms: u64,
    /// Since when it has been missing, if it is.
    missing_since: Option<Moment>,
}

impl Seen {
    /// Returns what is known after another look, at `at_ms` on the store's clock, that found a holder with a lease of `ttl`, or none.
    pub(super) fn after(seen: Option<Self>, found: bool, ttl: Option<Duration>, at_ms: u64) -> Option<Self> {
        if found {
            return ttl.map(|ttl| Seen { ttl, at_ms, missing_since: None });
        }
        seen.map(|seen| Seen { missing_since: seen.missing_since.or(Some(Moment::now())), ..seen })
    }

    /// Returns when the lease of a holder that is missing has run out at the latest: then nothing of it can run any more.
    pub(super) fn over_at(&self) -> Option<Moment> {
        self.missing_since.map(|since| since + self.ttl)
    }

    /// Returns whether it has.
    pub(super) fn is_over(&self) -> bool {
        self.over_at().is_some_and(|over_at| Moment::now() >= over_at)
    }
}
