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
use super::batch::{Batch, SNAPSHOT};
use super::connection::Connection;
use super::failure::Failure;
use crate::lock::token::Token;
use crate::store::seen::Seen;
use crate::store::{Claim, Wakeup};
use crate::sys::clock::Moment;
use crate::sys::wait::{WaitObserver, Waiter, WakeReason};

/// A waiter looks at the lock this often in any case.
const LOOK_EVERY: Duration = Duration::from_secs(12);

/// So many waiters look when a lease or a grant ends, one after the other, so that it is noticed if the first of them are dead.
pub(super) const LOOKERS: usize = 8;

/// The time between two of them: long enough for two round trips and a commit.
const TURN: Duration = Duration::from_millis(100);

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
    /// Returns when the waiter looks for which so many others are ahead, if the next lease or grant ends after `end_in`.
    pub(super) fn in_turn(turn: usize, end_in: Option<Duration>, is_pooled: bool) -> Self {
        let end = end_in.filter(|_| turn < LOOKERS).map(|end_in| end_in + Look::turn(turn));
        Look { within: end.map_or(LOOK_EVERY, |end| end.min(LOOK_EVERY)), poll: is_pooled.then(|| poll_at(turn)) }
    }

    /// Returns how long after the end of a lease or a grant this one of those that look does so.
    pub(super) fn turn(turn: usize) -> Duration {
        Duration::from_millis(1) + TURN * u32::try_from(turn).unwrap_or(u32::MAX)
    }
}

/// Returns how often the waiter looks at its own row for which so many others are ahead.
fn poll_at(turn: usize) -> Duration {
    POLL.0.saturating_mul(u32::try_from(turn).unwrap_or(u32::MAX).saturating_add(1)).min(POLL.1)
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
        let Some(Place { look_at, poll: is_pooled, .. }) = self.place else { return Ok(Wakeup::TryAgain) };
        let mut look_at = until.map_or(look_at, |until| until.min(look_at));
        let mut poll = is_pooled;
        loop {
            // A notification may have come already, with an answer.
            if poll.is_none() {
                look_at =
                    self.asked_to_look_within(&claim.token)?.map_or(look_at, |span| look_at.min(Moment::now() + span));
            }
            let wake_at = poll.map_or(look_at, |poll| look_at.min(Moment::now() + poll));
            let source = self.connection.as_ref().filter(|_| poll.is_none());
            match waiter.wait_for(source.map(Connection::as_fd), Some(wake_at), observer) {
                Ok(WakeReason::Signal(signal)) => return Ok(Wakeup::Signal(signal)),
                Ok(WakeReason::Time) if wake_at >= look_at => return Ok(Wakeup::TryAgain),
                Ok(_) => {}
                Err(errno) => return Err(Failure::NoWait(errno)),
            }
            if poll.is_some() {
                match self.poll(claim)? {
                    None => return Ok(Wakeup::TryAgain),
                    Some(Polled { turn, grant_ends_in }) => {
                        let end = grant_ends_in
                            .filter(|_| turn < LOOKERS)
                            .map(|span| Moment::now() + span + Look::turn(turn));
                        look_at = end.map_or(look_at, |end| look_at.min(end));
                        poll = Some(poll_at(turn));
                    }
                }
            }
        }
    }

    /// Returns the shortest span within which a notification has asked this waiter to look. Fails if the session does not listen for it.
    fn asked_to_look_within(&mut self, token: &Token) -> Result<Option<Duration>, Failure> {
        let connection = self.connection.as_mut().filter(|connection| connection.listens_for.as_ref() == Some(token));
        let notifications = connection.ok_or(Failure::Closed)?.notifications()?;
        let channel = channel_of(token);
        let ours = notifications.iter().filter(|notification| notification.channel == channel);
        Ok(ours.map(|notification| Duration::from_millis(notification.message.parse().unwrap_or(0))).min())
    }

    /// Looks at our row of the queue. Returns nothing if it is worth asking for the lock: it was granted, or we have lost our place.
    fn poll(&mut self, claim: &Claim) -> Result<Option<Polled>, Failure> {
        let deadline = Moment::now() + self.timeout;
        let waiters = &self.tables.waiters;
        let mut batch = Batch::transaction(SNAPSHOT, deadline);
        batch.add(
            &format!(
                "SELECT own.is_granted, \
                 (SELECT count(*) FROM (SELECT FROM {waiters} WHERE key = $1 AND place < own.place LIMIT {LOOKERS}) AS ahead), \
                 (SELECT min((waiter->'grant'->>'ends_ms')::bigint) FROM {waiters} WHERE key = $1 AND is_granted) \
                  - (extract(epoch FROM clock_timestamp()) * 1000)::bigint \
                 FROM {waiters} AS own WHERE own.key = $1 AND own.token = $2"
            ),
            &[Some(claim.key.as_str()), Some(claim.token.as_str())],
        );
        batch.add("COMMIT", &[]);
        let answers = match self.connected(deadline)?.run(batch, deadline) {
            Err(Failure::Refused(refusal)) if refusal.lacks_tables() => return Ok(None),
            answers => answers?,
        };
        let Some(row) = answers.first().and_then(|answer| answer.rows.first()) else { return Ok(None) };
        let [Some(is_granted), Some(turn), grant_ends_in] = &row[..] else {
            return Err(Failure::Strange("an answer lacks columns"));
        };
        let span = |text: &String| Duration::from_millis(u64::try_from(text.parse().unwrap_or(0_i64)).unwrap_or(0));
        let polled = Polled { turn: turn.parse().unwrap_or(LOOKERS), grant_ends_in: grant_ends_in.as_ref().map(span) };
        Ok((is_granted == "f").then_some(polled))
    }
}

/// What a waiter learns from its row of the queue.
struct Polled {
    /// How many are ahead, [`LOOKERS`] at most.
    turn: usize,
    /// In how long the grant ends that is to be claimed first.
    grant_ends_in: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_waiters_look_when_something_ends() {
        let seconds = Duration::from_secs;
        assert_eq!(Look::in_turn(0, Some(seconds(3)), false).within, seconds(3) + Duration::from_millis(1));
        assert_eq!(Look::in_turn(2, Some(seconds(3)), false).within, seconds(3) + Duration::from_millis(201));
        assert_eq!(Look::in_turn(LOOKERS, Some(seconds(3)), false).within, LOOK_EVERY);
        assert_eq!(Look::in_turn(0, Some(seconds(60)), false).within, LOOK_EVERY);
        assert_eq!(Look::in_turn(0, None, true).poll, Some(POLL.0));
        assert_eq!(Look::in_turn(5000, None, true).poll, Some(POLL.1));
    }
}
