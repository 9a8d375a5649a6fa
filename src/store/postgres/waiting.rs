//! Waiting in turn: a place in the lock's queue, and how a waiter learns that it was granted the lock.
//!
//! A waiter that has a session of its own listens on a channel of its own, and holds an advisory lock that shows the others that its
//! session lives. Behind a pooler that gives each transaction another session, neither would work: there a waiter reads its own row of the
//! queue ([`super::heartbeat`]), between once and ten times a second.
//!
//! A waiter looks at the lock itself, by an `acquire`, when it may get it: it was granted the lock, or a lease or a grant has ended and no
//! waiter ahead of it has noticed. Otherwise it only sends heartbeats.

use std::os::fd::AsFd as _;
use std::time::Duration;

use uuid::Uuid;

use super::PostgresStore;
use super::connection::Connection;
use super::failure::Failure;
use super::heartbeat::OwnRow;
use crate::lock::state::{Held, Seen, millis};
use crate::lock::token::Token;
use crate::store::{Claim, Wakeup};
use crate::sys::clock::Moment;
use crate::sys::wait::{WaitObserver, Waiter, WakeReason};

/// The shortest and the longest time between two heartbeats of a waiter; each time is random, so that the waiters' heartbeats spread.
const HEARTBEAT: (Duration, Duration) = (Duration::from_secs(8), Duration::from_secs(12));

/// How late a heartbeat may be on a busy machine. No one waits for a particular one.
const SLACK: Duration = Duration::from_secs(1);

/// How long a waiter may take to claim the lock if it is not notified of the grant: it learns of it with its next heartbeat. By then the
/// waiters behind it have been heard from, too, so none of them counts as having missed its turn to look.
pub(super) const UNNOTIFIED_CLAIM_WINDOW: Duration = HEARTBEAT.1.saturating_add(SLACK).saturating_add(SLACK);

/// How many waiters look when a lease or a grant ends, one after the other, so that the end is noticed even if the first of them are dead.
pub(super) const LOOKERS: usize = 8;

/// How many of the last waiters look after them, in case all of the first are dead.
pub(super) const STAND_INS: usize = 2;

/// The time between two of their looks: long enough for a heartbeat and the first round trip of a look, which makes the next waiter's look
/// wait until it is done.
const TURN: Duration = Duration::from_millis(60);

/// How often waiters look that are kept from a slot by waiters ahead of them that leave it unused. They all look at the same times.
const BEAT: Duration = Duration::from_millis(800);

/// A beat that comes sooner than this does not count as the next one: a look may be a little early for its beat.
const BEAT_MIN: Duration = Duration::from_millis(100);

/// The time between two reads of its own row by a waiter that cannot listen: for the first in the queue, how much more for each one behind
/// it, and for those after the first [`LOOKERS`].
const POLL: (Duration, Duration, Duration) =
    (Duration::from_millis(100), Duration::from_millis(60), Duration::from_secs(1));

/// The state of our wait in the queue: what we have learned since we joined it.
#[derive(Debug)]
pub(super) struct WaitState {
    /// Who held the lock.
    pub(super) seen: Option<Seen>,
    /// When to look at the lock in any case.
    look_at: Option<Moment>,
    /// When to send a heartbeat, and to see whether a look is worthwhile.
    heartbeat_at: Moment,
    /// When to see whether a lease or a grant has ended, and with how many waiters ahead: the sender of the notice knew which of them were
    /// alive.
    watch: Option<(Moment, usize)>,
    /// When to read our own row; `None`: we listen.
    poll_at: Option<Moment>,
    /// Whether we wait without a connection, and open one only to show that we are alive and to read our own row.
    gives_up_connection: bool,
}

/// When a waiter looks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// At the lock, in any case: it was granted the lock, or is kept from a free slot.
    within: Option<Duration>,
    /// To send a heartbeat, which shows whether a look at the lock is worthwhile.
    heartbeat_within: Duration,
    /// How often it reads its own row, if it does not listen.
    poll: Option<Duration>,
    /// Whether it waits without a connection.
    pub(super) gives_up_connection: bool,
}

/// What a notification asks a waiter to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// To look at the lock after this time.
    Look(Duration),
    /// To show at once that it is alive.
    ShowAlive,
    /// To see after this time whether a lease or an unclaimed grant has ended, as if this many others were ahead.
    Watch(Duration, usize),
}

impl Notice {
    /// Returns the notice as it is sent.
    pub(super) fn to_text(self) -> String {
        match self {
            Notice::Look(span) => format!("look {}", millis(span)),
            Notice::ShowAlive => "show".to_owned(),
            Notice::Watch(span, turn) => format!("watch {} {turn}", millis(span)),
        }
    }

    /// Returns the notice that was sent. One that cannot be read asks for a look at once.
    fn from_text(text: &str) -> Self {
        let span = |number: &str| number.parse().map(Duration::from_millis).unwrap_or_default();
        match text.split(' ').collect::<Vec<_>>()[..] {
            ["show"] => Notice::ShowAlive,
            ["watch", number, turn] => Notice::Watch(span(number), turn.parse().unwrap_or_default()),
            ["look", number] => Notice::Look(span(number)),
            _ => Notice::Look(Duration::ZERO),
        }
    }
}

impl Look {
    /// Returns when a waiter with `turn` others ahead looks, if the next lease or grant ends after `end_in`. In any case it looks after
    /// `beat_in`, if given: at the next beat, or at once. The last waiter looks at that end whatever its `turn`, unless it `is_pooled`.
    pub(super) fn in_turn(
        turn: usize,
        is_last: bool,
        end_in: Option<Duration>,
        beat_in: Option<Duration>,
        is_pooled: bool,
    ) -> Self {
        let looks = turn < LOOKERS || is_last && !is_pooled;
        let heartbeat_within = heartbeat_within(end_in.filter(|_| looks).map(|end_in| end_in + Look::turn(turn)));
        Look {
            within: beat_in,
            heartbeat_within,
            poll: is_pooled.then(|| poll_every(turn)),
            gives_up_connection: false,
        }
    }

    /// Returns how long after the end of a lease or a grant a waiter with `turn` others ahead looks.
    pub(super) fn turn(turn: usize) -> Duration {
        Duration::from_millis(1) + TURN * u32::try_from(turn.min(LOOKERS)).unwrap_or(0)
    }

    /// Returns the time within which the waiter is heard from again, if it lives.
    pub(super) fn heard_within(&self) -> Duration {
        heard_within(self.within)
    }
}

/// Returns the time within which a living waiter is heard from again, if it looks at the lock in any case after `look_in`.
fn heard_within(look_in: Option<Duration>) -> Duration {
    let heartbeat = HEARTBEAT.1 + SLACK;
    look_in.map_or(heartbeat, |look_in| look_in.min(heartbeat))
}

/// Returns the time until the waiter's next heartbeat: random, but at most `turn_in`, its turn to look whether something has ended.
fn heartbeat_within(turn_in: Option<Duration>) -> Duration {
    let (least, most) = HEARTBEAT;
    let spread = millis(most.saturating_sub(least)) + 1;
    let heartbeat = least + Duration::from_millis(Uuid::new_v4().as_u64_pair().1 % spread);
    turn_in.map_or(heartbeat, |turn_in| turn_in.min(heartbeat))
}

/// Returns the time from `now_ms`, of the server's clock, to the next beat.
pub(super) fn beat_in(now_ms: u64) -> Duration {
    let (beat, min) = (millis(BEAT), millis(BEAT_MIN));
    Duration::from_millis(min + (beat - (now_ms + min) % beat) % beat)
}

/// Returns how often a waiter with `turn` others ahead reads its own row.
fn poll_every(turn: usize) -> Duration {
    let (first, step, last) = POLL;
    if turn < LOOKERS { first + step * u32::try_from(turn).unwrap_or(0) } else { last }
}

impl WaitState {
    /// Returns the state after another look, which found the holder `held`, if any, and that the last hold ended at `ended_unix_ms`.
    pub(super) fn after(before: Option<Self>, held: Option<&Held>, ended_unix_ms: u64, look: Look) -> Self {
        let now = Moment::now();
        let seen = Seen::after(before.and_then(|before| before.seen), held, ended_unix_ms);
        let look_at = look.within.map(|within| now + within);
        let (heartbeat_at, poll_at) = (now + look.heartbeat_within, look.poll.map(|poll| now + poll));
        WaitState { seen, look_at, heartbeat_at, watch: None, poll_at, gives_up_connection: look.gives_up_connection }
    }

    /// Returns whether we wait without a connection.
    pub(super) fn gives_up_connection(&self) -> bool {
        self.gives_up_connection
    }

    /// Notes what a notification asks for.
    fn note(&mut self, notice: Notice) {
        let now = Moment::now();
        match notice {
            Notice::Look(span) => {
                let at = now + span;
                self.look_at = Some(self.look_at.map_or(at, |look_at| look_at.min(at)));
            }
            Notice::ShowAlive => self.heartbeat_at = now,
            Notice::Watch(span, turn) => {
                self.heartbeat_at = self.heartbeat_at.min(now + span);
                self.watch = Some((now + span, turn));
            }
        }
    }

    /// Notes what our own row says.
    fn learn(&mut self, own: &OwnRow) {
        self.seen = Seen::after(self.seen.take(), own.held.as_ref(), own.ended_unix_ms);
        if self.poll_at.is_some() {
            // To log in ten times a second would cost the server more than a connection.
            let every = if self.gives_up_connection { POLL.2 } else { poll_every(own.turn) };
            self.poll_at = Some(Moment::now() + own.turn_in(own.turn).map_or(every, |turn_in| turn_in.min(every)));
        }
    }

    /// Returns when to wake up if nothing happens first.
    fn wake_at(&self) -> Moment {
        [self.look_at, self.poll_at].into_iter().flatten().fold(self.heartbeat_at, Moment::min)
    }
}

/// Returns the channel on which the waiter with this session number listens, as [`CHANNEL_OF_SESSION`] does on the server.
pub(super) fn channel_of(session: i64) -> String {
    format!("lockrun_{session:x}")
}

/// The same, as an expression over a row of the waiters.
pub(super) const CHANNEL_OF_SESSION: &str = "'lockrun_' || to_hex(session)";

impl PostgresStore {
    /// Sleeps until a look at the lock is worthwhile, or until `until`.
    pub(super) fn sleep_in_queue(
        &mut self,
        claim: &Claim,
        until: Option<Moment>,
        waiter: &mut Waiter<'_>,
        observer: &mut dyn WaitObserver,
    ) -> Result<Wakeup, Failure> {
        let Some(mut wait) = self.wait.take() else { return Ok(Wakeup::TryAgain) };
        let wakeup = self.sleep_until_worthwhile(&mut wait, claim, until, waiter, observer);
        self.wait = Some(wait);
        wakeup
    }

    fn sleep_until_worthwhile(
        &mut self,
        wait: &mut WaitState,
        claim: &Claim,
        until: Option<Moment>,
        waiter: &mut Waiter<'_>,
        observer: &mut dyn WaitObserver,
    ) -> Result<Wakeup, Failure> {
        loop {
            // A notification may already have come with an answer.
            if wait.poll_at.is_none() {
                self.notices(&claim.token)?.into_iter().for_each(|notice| wait.note(notice));
            }
            let wake_at = until.map_or(wait.wake_at(), |until| until.min(wait.wake_at()));
            let source = self.connection.as_ref().filter(|_| wait.poll_at.is_none());
            match waiter.wait_for(source.map(Connection::as_fd), Some(wake_at), observer) {
                Ok(WakeReason::Signal(signal)) => return Ok(Wakeup::Signal(signal)),
                Ok(WakeReason::Time | WakeReason::Ready | WakeReason::Resumed) => {}
                Err(errno) => return Err(Failure::NoWait(errno)),
            }
            let now = Moment::now();
            if until.into_iter().chain(wait.look_at).any(|at| at <= now) {
                return Ok(Wakeup::TryAgain);
            }
            if observer.is_stopped() {
                // lockrun is stopped: nothing must be acquired for it.
                return Ok(Wakeup::TryAgain);
            }
            let is_worth_a_look = if wait.heartbeat_at <= now {
                self.send_heartbeat_and_check(claim, wait)?
            } else if wait.poll_at.is_some_and(|at| at <= now) {
                let own = self.poll(claim)?;
                // A waiter that is called may have to look at each beat from now on; a look shows it.
                own.inspect(|own| wait.learn(own)).is_none_or(|own| own.is_worth_a_look(own.turn) || own.is_called)
            } else {
                false
            };
            if wait.gives_up_connection && !is_worth_a_look {
                self.connection = None;
            }
            if is_worth_a_look {
                return Ok(Wakeup::TryAgain);
            }
        }
    }

    /// Sends a heartbeat, if we are in the queue, after a look that did not get the lock's row in time. If that goes on, the others would
    /// otherwise count us as dead where no session shows that we live. If this fails, too, the next look may succeed.
    pub(super) fn send_heartbeat_after_failed_look(&mut self, claim: &Claim) {
        if self.wait.is_some() {
            let _ = self.send_heartbeat(claim, heard_within(None));
        }
    }

    /// Sends a heartbeat. Returns whether a look at the lock is worthwhile.
    fn send_heartbeat_and_check(&mut self, claim: &Claim, wait: &mut WaitState) -> Result<bool, Failure> {
        let look_in = wait.look_at.map(|look_at| look_at.since(Moment::now()));
        let Some(own) = self.send_heartbeat(claim, heard_within(look_in))? else { return Ok(true) };
        wait.learn(&own);
        let now = Moment::now();
        // The server's count includes waiters that have died too recently to be missed.
        let watched = wait.watch.take_if(|(at, _)| *at <= now).map(|(_, turn)| turn);
        let turn = watched.map_or(own.turn, |turn| turn.min(own.turn));
        // Behind a pooler, the waiter finds that out when it polls its row.
        let looks = turn < LOOKERS || own.is_among_last() && wait.poll_at.is_none();
        let heartbeat_in = heartbeat_within(own.turn_in(turn).filter(|_| looks));
        let watch_in = wait.watch.map(|(at, _)| at.since(now));
        wait.heartbeat_at = now + watch_in.map_or(heartbeat_in, |watch_in| watch_in.min(heartbeat_in));
        // A waiter that was silent may have been passed over, and no one notifies it. If the lock is free and granted to no waiter, all
        // that were asked seemed to be dead.
        Ok(own.is_worth_a_look(turn) || (own.was_silent || own.is_free()) && turn < LOOKERS)
    }

    /// Returns what notifications have asked this waiter to do. Fails if the session does not listen for it.
    fn notices(&mut self, token: &Token) -> Result<Vec<Notice>, Failure> {
        let connection = self.connection.as_mut().filter(|connection| connection.listens_for.as_ref() == Some(token));
        let connection = connection.ok_or(Failure::Closed)?;
        let channel = channel_of(connection.session);
        let notifications = connection.notifications()?;
        let ours = notifications.iter().filter(|notification| notification.channel == channel);
        Ok(ours.map(|notification| Notice::from_text(&notification.message)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_first_waiters_look_when_something_ends() {
        let look =
            |turn: usize, is_last: bool, end_in: u64| Look::in_turn(turn, is_last, Some(seconds(end_in)), None, false);
        let checks = |turn: usize, end_in: u64| look(turn, false, end_in).heartbeat_within;
        assert_eq!(checks(0, 3), seconds(3) + Duration::from_millis(1));
        assert_eq!(checks(2, 3), seconds(3) + Duration::from_millis(1) + TURN * 2);
        assert_eq!(look(5000, true, 3).heartbeat_within, seconds(3) + Look::turn(LOOKERS));
        for late in [checks(LOOKERS, 3), checks(0, 60)] {
            assert!((HEARTBEAT.0..=HEARTBEAT.1).contains(&late), "{late:?}");
        }
        assert_eq!(Look::in_turn(0, false, None, None, true).poll, Some(POLL.0));
        assert_eq!(Look::in_turn(5000, false, None, None, true).poll, Some(POLL.2));
    }

    #[test]
    fn beats_are_at_the_same_times_for_all() {
        for now_ms in 1_800_000_000_000..1_800_000_000_000 + 2 * millis(BEAT) {
            let span = beat_in(now_ms);
            assert!(
                BEAT_MIN <= span && span < BEAT_MIN + BEAT && (now_ms + millis(span)).is_multiple_of(millis(BEAT)),
                "{span:?}"
            );
        }
    }

    #[test]
    fn a_channel_is_named_as_the_server_names_it() {
        // to_hex(bigint) writes the two's complement.
        for (session, name) in [(26, "lockrun_1a"), (-1, "lockrun_ffffffffffffffff")] {
            assert_eq!(channel_of(session), name);
        }
    }

    #[test]
    fn notices_are_read_as_they_are_sent() {
        for notice in [Notice::Look(seconds(7)), Notice::ShowAlive, Notice::Watch(seconds(3), 4)] {
            assert_eq!(Notice::from_text(&notice.to_text()), notice);
        }
        for other in ["", "x", "look", "watch 5", "look x"] {
            assert_eq!(Notice::from_text(other), Notice::Look(Duration::ZERO), "{other}");
        }
    }
}
