//! Waiting in turn: a place in the lock's queue, and how a waiter hears that it was granted the lock.
//!
//! A waiter that has a session of its own listens on a channel of its own, and holds an advisory lock by which the others see that its
//! session lives. Behind a pooler that gives each transaction another session, neither would work: there a waiter looks at its own
//! row of the queue, by one statement, at most ten times and at least once a second. It looks at the lock as a whole when a lease or a grant ends that
//! it may be the next to get, and from time to time in any case.

use std::os::fd::AsFd as _;
use std::time::Duration;

use sha1_smol::Sha1;

use super::PostgresStore;
use super::connection::{Batch, Connection};
use super::failure::Failure;
use crate::lock::token::Token;
use crate::store::seen::Seen;
use crate::store::{Claim, Wakeup};
use crate::sys::clock::Moment;
use crate::sys::wait::{WaitObserver, Waiter, WakeReason};

/// A waiter looks at the lock this often in any case.
const LOOK_EVERY: Duration = Duration::from_secs(12);

/// So many waiters look when a lease or a grant ends, one after the other, so that it is noticed if the first of them are dead.
const LOOKERS: usize = 8;

/// The time between two of them.
const STAGGER: Duration = Duration::from_millis(150);

/// How often a waiter looks at its own row where it cannot listen: the first in the queue, and all from the tenth on.
const POLL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Our place in the queue: what we know since we last looked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Who held the lock.
    pub(super) seen: Option<Seen>,
    /// When to look again if we are not woken.
    look_at: Moment,
    /// How often to look at our own row; `None`: we listen.
    poll: Option<Duration>,
}

/// When a waiter looks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// At the lock.
    pub(super) within: Duration,
    /// At its own row, if it does not listen.
    poll: Option<Duration>,
}

impl Look {
    /// Returns when the waiter looks that is so far from the head of the queue, if the next lease or grant ends after `end_in`.
    pub(super) fn at_place(place: usize, end_in: Option<Duration>, is_pooled: bool) -> Self {
        let turn = u32::try_from(place).unwrap_or(u32::MAX);
        let end = end_in.filter(|_| place < LOOKERS).map(|end_in| end_in + STAGGER * turn + Duration::from_millis(1));
        let within = end.map_or(LOOK_EVERY, |end| end.min(LOOK_EVERY));
        let poll = is_pooled.then(|| POLL.0.saturating_mul(turn.saturating_add(1)).min(POLL.1));
        Look { within, poll }
    }
}

impl Place {
    /// Returns what is known after another look, at `now_ms` on the server's clock, that found a holder with a lease of `ttl`, or none.
    pub(super) fn after(before: Option<Self>, found: bool, ttl: Option<Duration>, now_ms: u64, look: Look) -> Self {
        let seen = Seen::after(before.and_then(|before| before.seen), found, ttl, now_ms);
        let look_at = Moment::now() + look.within;
        // Nobody wakes us when the lease of a holder has passed that the store has forgotten.
        let over_at = seen.as_ref().and_then(Seen::over_at);
        Place { seen, look_at: over_at.map_or(look_at, |over_at| look_at.min(over_at)), poll: look.poll }
    }
}

/// Returns the channel on which the waiter with this token listens. The token is a secret, the channel is not.
pub(super) fn channel_of(token: &Token) -> String {
    format!("lockrun_{}", Sha1::from(token.as_str()).digest())
}

impl PostgresStore {
    /// Sleeps until we are woken, until the next look is due, or until `until`.
    pub(super) fn sleep_in_queue(
        &mut self,
        claim: &Claim,
        until: Option<Moment>,
        waiter: &mut Waiter<'_>,
        observer: &mut dyn WaitObserver,
    ) -> Result<Wakeup, Failure> {
        let Some(place) = self.place else { return Ok(Wakeup::TryAgain) };
        let until = until.map_or(place.look_at, |until| until.min(place.look_at));
        loop {
            // A notification may have come already, with an answer.
            if place.poll.is_none() && self.hears(&claim.token)? {
                return Ok(Wakeup::TryAgain);
            }
            let wake_at = place.poll.map_or(until, |poll| until.min(Moment::now() + poll));
            let source = self.connection.as_ref().filter(|_| place.poll.is_none());
            match waiter.wait_for(source.map(Connection::as_fd), Some(wake_at), observer) {
                Ok(WakeReason::Signal(signal)) => return Ok(Wakeup::Signal(signal)),
                Ok(WakeReason::Time) if wake_at >= until => return Ok(Wakeup::TryAgain),
                Ok(_) => {}
                Err(errno) => return Err(Failure::NoWait(errno)),
            }
            if place.poll.is_some() && self.is_granted(claim)? {
                return Ok(Wakeup::TryAgain);
            }
        }
    }

    /// Returns whether a notification for this token has come. Fails if this session does not listen for it.
    fn hears(&mut self, token: &Token) -> Result<bool, Failure> {
        let connection = self.connection.as_mut().filter(|connection| connection.listens_for.as_ref() == Some(token));
        Ok(connection.ok_or(Failure::Closed)?.notifications()?.contains(&channel_of(token)))
    }

    /// Looks at our row of the queue. Returns whether we were granted the lock, or have lost our place.
    fn is_granted(&mut self, claim: &Claim) -> Result<bool, Failure> {
        let deadline = Moment::now() + self.timeout;
        let mut batch = Batch::default();
        let statement = format!("SELECT is_granted FROM {} WHERE key = $1 AND token = $2", self.tables.waiters);
        batch.add(&statement, &[Some(claim.key.as_str()), Some(claim.token.as_str())]);
        let answers = self.connected(deadline)?.run(batch, deadline)?;
        let row = answers.first().and_then(|answer| answer.rows.first());
        Ok(row.is_none_or(|row| row.first() != Some(&Some("f".to_owned()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_waiters_look_when_something_ends() {
        let seconds = Duration::from_secs;
        assert_eq!(Look::at_place(0, Some(seconds(3)), false).within, seconds(3) + Duration::from_millis(1));
        assert_eq!(Look::at_place(2, Some(seconds(3)), false).within, seconds(3) + Duration::from_millis(301));
        assert_eq!(Look::at_place(8, Some(seconds(3)), false).within, LOOK_EVERY);
        assert_eq!(Look::at_place(0, Some(seconds(60)), false).within, LOOK_EVERY);
        assert_eq!(Look::at_place(0, None, true).poll, Some(POLL.0));
        assert_eq!(Look::at_place(5000, None, true).poll, Some(POLL.1));
    }
}
