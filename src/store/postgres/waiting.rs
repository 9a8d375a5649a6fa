//! Waiting in turn: a place in the lock's queue, and how a waiter hears that it was granted the lock.
//!
//! A waiter that has a session of its own listens on a channel of its own, and holds an advisory lock by which the others see that its
//! session lives. Behind a pooler that gives each transaction another session, neither would work: there a waiter reads its own row of
//! the queue ([`super::heartbeat`]), at most ten times and at least once a second.
//!
//! A waiter looks at the lock as a whole, by an `acquire`, when there is something to get: it was granted the lock, or a lease or a grant
//! has ended and nobody before it has noticed. Otherwise it only shows now and then that it is alive.

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

/// A waiter shows that it is alive this often, each at times of its own: at the earliest, and at the latest.
const HEARTBEAT: (Duration, Duration) = (Duration::from_secs(8), Duration::from_secs(12));

/// A heartbeat may come so much later than was said on a busy machine. Nobody waits for one in particular.
const SLACK: Duration = Duration::from_secs(1);

/// How long a waiter may take to claim the lock if it is not notified that it was granted it: it learns that by its next heartbeat. By then
/// those behind it have also been heard of, so none of them counts as one that has missed its turn to look.
pub(super) const UNNOTIFIED_CLAIM_WINDOW: Duration = HEARTBEAT.1.saturating_add(SLACK).saturating_add(SLACK);

/// So many waiters look when a lease or a grant ends, one after the other, so that it is noticed if the first of them are dead.
pub(super) const LOOKERS: usize = 8;

/// So many of the last waiters look after them: all of the first may be dead.
pub(super) const STAND_INS: usize = 2;

/// The time between two of them: long enough for a heartbeat and for the first half of a look, which keeps the next one from its look
/// until it is done.
const TURN: Duration = Duration::from_millis(60);

/// How often waiters look that are kept from a slot by those ahead of them, who leave it unused: all at the same times.
const BEAT: Duration = Duration::from_millis(800);

/// The next beat is not one that comes sooner than this: a look may be a little early for it.
const BEAT_MIN: Duration = Duration::from_millis(100);

/// How often a waiter reads its own row where it cannot listen: the first in the queue, how much less often each one behind it, and those
/// that come after the first [`LOOKERS`].
const POLL: (Duration, Duration, Duration) =
    (Duration::from_millis(100), Duration::from_millis(60), Duration::from_secs(1));

/// Our place in the queue: what we know since we last looked.
#[derive(Debug)]
pub(super) struct Place {
    /// Who held the lock.
    pub(super) seen: Option<Seen>,
    /// When to look at the lock in any case.
    look_at: Option<Moment>,
    /// When to see whether it is worth a look, and to show that we are alive.
    check_at: Moment,
    /// When to see whether a grant is claimed, and with how many waiters ahead: the one who asked us to knew which of them were alive.
    watch: Option<(Moment, usize)>,
    /// When to read our own row; `None`: we listen.
    poll_at: Option<Moment>,
}

/// When a waiter looks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// At the lock, in any case: it is kept from a free slot.
    within: Option<Duration>,
    /// At its own row, to see whether it is worth more.
    check_within: Duration,
    /// How often at its own row, if it does not listen.
    poll: Option<Duration>,
}

/// What a notification asks a waiter to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// To look at the lock after this time.
    Look(Duration),
    /// To show at once that it is alive.
    Show,
    /// To see after this time whether a grant has ended that nobody has claimed, as if so many others were ahead.
    Watch(Duration, usize),
}

impl Notice {
    /// Returns the notice as it is sent.
    pub(super) fn to_text(self) -> String {
        match self {
            Notice::Look(span) => format!("look {}", millis(span)),
            Notice::Show => "show".to_owned(),
            Notice::Watch(span, turn) => format!("watch {} {turn}", millis(span)),
        }
    }

    /// Returns what was sent. What cannot be read asks for a look at once.
    fn from_text(text: &str) -> Self {
        let span = |number: &str| number.parse().map(Duration::from_millis).unwrap_or_default();
        match text.split(' ').collect::<Vec<_>>()[..] {
            ["show"] => Notice::Show,
            ["watch", number, turn] => Notice::Watch(span(number), turn.parse().unwrap_or_default()),
            ["look", number] => Notice::Look(span(number)),
            _ => Notice::Look(Duration::ZERO),
        }
    }
}

impl Look {
    /// Returns when the waiter looks for which so many others are ahead, if the next lease or grant ends after `end_in`. One that is kept
    /// from a free slot looks at the next beat, after `beat_in`. The last ones look in any case.
    pub(super) fn in_turn(
        turn: usize,
        is_last: bool,
        end_in: Option<Duration>,
        beat_in: Option<Duration>,
        is_pooled: bool,
    ) -> Self {
        let looks = turn < LOOKERS || is_last && !is_pooled;
        let check_within = check_within(end_in.filter(|_| looks).map(|end_in| end_in + Look::turn(turn)));
        Look { within: beat_in, check_within, poll: is_pooled.then(|| poll_every(turn)) }
    }

    /// Returns how long after the end of a lease or a grant this one of those that look does so.
    pub(super) fn turn(turn: usize) -> Duration {
        Duration::from_millis(1) + TURN * u32::try_from(turn.min(LOOKERS)).unwrap_or(0)
    }

    /// Returns the time within which the waiter is heard of again, if it lives.
    pub(super) fn heard_within(&self) -> Duration {
        heard_within(self.within)
    }
}

/// Returns the time within which a waiter is heard of again that lives, and looks at the lock in any case after `look_in`.
fn heard_within(look_in: Option<Duration>) -> Duration {
    let heartbeat = HEARTBEAT.1 + SLACK;
    look_in.map_or(heartbeat, |look_in| look_in.min(heartbeat))
}

/// Returns the time after which the waiter checks, if its turn to look whether something has ended comes after `turn_in`, or never.
fn check_within(turn_in: Option<Duration>) -> Duration {
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

/// Returns how often the waiter reads its own row for which so many others are ahead.
fn poll_every(turn: usize) -> Duration {
    let (first, step, last) = POLL;
    if turn < LOOKERS { first + step * u32::try_from(turn).unwrap_or(0) } else { last }
}

impl Place {
    /// Returns what is known after another look, which has found this holder, if any, when a hold had ended last at `ended_unix_ms`.
    pub(super) fn after(before: Option<Self>, held: Option<&Held>, ended_unix_ms: u64, look: Look) -> Self {
        let now = Moment::now();
        let seen = Seen::after(before.and_then(|before| before.seen), held, ended_unix_ms);
        let look_at = look.within.map(|within| now + within);
        let (check_at, poll_at) = (now + look.check_within, look.poll.map(|poll| now + poll));
        Place { seen, look_at, check_at, watch: None, poll_at }
    }

    /// Notes what a notification asks for.
    fn note(&mut self, notice: Notice) {
        let now = Moment::now();
        match notice {
            Notice::Look(span) => {
                let at = now + span;
                self.look_at = Some(self.look_at.map_or(at, |look_at| look_at.min(at)));
            }
            Notice::Show => self.check_at = now,
            Notice::Watch(span, turn) => {
                self.check_at = self.check_at.min(now + span);
                self.watch = Some((now + span, turn));
            }
        }
    }

    /// Notes what was read of our own row.
    fn learn(&mut self, own: &OwnRow) {
        self.seen = Seen::after(self.seen.take(), own.held.as_ref(), own.ended_unix_ms);
        if self.poll_at.is_some() {
            let every = poll_every(own.turn);
            self.poll_at = Some(Moment::now() + own.turn_in(own.turn).map_or(every, |turn_in| turn_in.min(every)));
        }
    }

    /// Returns when to wake up if nothing happens before.
    fn wake_at(&self) -> Moment {
        [self.look_at, self.poll_at].into_iter().flatten().fold(self.check_at, Moment::min)
    }
}

/// Returns the channel on which a waiter listens whose session has this number: what [`CHANNEL_OF_SESSION`] is on the server.
pub(super) fn channel_of(session: i64) -> String {
    format!("lockrun_{session:x}")
}

/// The same, as an expression over a row of the waiters.
pub(super) const CHANNEL_OF_SESSION: &str = "'lockrun_' || to_hex(session)";

impl PostgresStore {
    /// Sleeps until it is worth a look at the lock, or until `until`.
    pub(super) fn sleep_in_queue(
        &mut self,
        claim: &Claim,
        until: Option<Moment>,
        waiter: &mut Waiter<'_>,
        observer: &mut dyn WaitObserver,
    ) -> Result<Wakeup, Failure> {
        let Some(mut place) = self.place.take() else { return Ok(Wakeup::TryAgain) };
        let wakeup = self.sleep_in_place(&mut place, claim, until, waiter, observer);
        self.place = Some(place);
        wakeup
    }

    fn sleep_in_place(
        &mut self,
        place: &mut Place,
        claim: &Claim,
        until: Option<Moment>,
        waiter: &mut Waiter<'_>,
        observer: &mut dyn WaitObserver,
    ) -> Result<Wakeup, Failure> {
        loop {
            // A notification may have come already, with an answer.
            if place.poll_at.is_none() {
                self.notices(&claim.token)?.into_iter().for_each(|notice| place.note(notice));
            }
            let wake_at = until.map_or(place.wake_at(), |until| until.min(place.wake_at()));
            let source = self.connection.as_ref().filter(|_| place.poll_at.is_none());
            match waiter.wait_for(source.map(Connection::as_fd), Some(wake_at), observer) {
                Ok(WakeReason::Signal(signal)) => return Ok(Wakeup::Signal(signal)),
                Ok(WakeReason::Time | WakeReason::Ready | WakeReason::Resumed) => {}
                Err(errno) => return Err(Failure::NoWait(errno)),
            }
            let now = Moment::now();
            if until.into_iter().chain(place.look_at).any(|at| at <= now) {
                return Ok(Wakeup::TryAgain);
            }
            if observer.is_stopped() {
                // Nobody is there who would want the lock.
                return Ok(Wakeup::TryAgain);
            }
            let is_worth_a_look = if place.check_at <= now {
                self.check(claim, place)?
            } else if place.poll_at.is_some_and(|at| at <= now) {
                let own = self.poll(claim)?;
                // One that is called, and may have to look from now on at each beat, finds out what it is to do.
                own.inspect(|own| place.learn(own)).is_none_or(|own| own.is_worth_a_look(own.turn) || own.is_called)
            } else {
                false
            };
            if is_worth_a_look {
                return Ok(Wakeup::TryAgain);
            }
        }
    }

    /// Shows that we are alive, if we stand in the queue, after a look for which the lock's row was not free in time. Where no session shows
    /// it, the others would count us as dead if that goes on. If it fails, too, the next look may do better.
    pub(super) fn show_after_vain_look(&mut self, claim: &Claim) {
        if self.place.is_some() {
            let _ = self.send_heartbeat(claim, heard_within(None));
        }
    }

    /// Shows that we are alive. Returns whether it is worth a look at the lock.
    fn check(&mut self, claim: &Claim, place: &mut Place) -> Result<bool, Failure> {
        let look_in = place.look_at.map(|look_at| look_at.since(Moment::now()));
        let Some(own) = self.send_heartbeat(claim, heard_within(look_in))? else { return Ok(true) };
        place.learn(&own);
        let now = Moment::now();
        // The server counts as ahead also those that have died and had no time to be missed.
        let watched = place.watch.take_if(|(at, _)| *at <= now).map(|(_, turn)| turn);
        let turn = watched.map_or(own.turn, |turn| turn.min(own.turn));
        // Behind a pooler it looks by itself.
        let looks = turn < LOOKERS || own.is_among_last() && place.poll_at.is_none();
        let check_in = check_within(own.turn_in(turn).filter(|_| looks));
        let watch_in = place.watch.map(|(at, _)| at.since(now));
        place.check_at = now + watch_in.map_or(check_in, |watch_in| watch_in.min(check_in));
        // One that was silent may have been passed over, and nobody tells it. What is free, and was granted to nobody, was so when all that
        // were asked seemed to be dead.
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
        let checks = |turn: usize, end_in: u64| look(turn, false, end_in).check_within;
        assert_eq!(checks(0, 3), seconds(3) + Duration::from_millis(1));
        assert_eq!(checks(2, 3), seconds(3) + Duration::from_millis(1) + TURN * 2);
        assert_eq!(look(5000, true, 3).check_within, seconds(3) + Look::turn(LOOKERS));
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
        for notice in [Notice::Look(seconds(7)), Notice::Show, Notice::Watch(seconds(3), 4)] {
            assert_eq!(Notice::from_text(&notice.to_text()), notice);
        }
        for other in ["", "x", "look", "watch 5", "look x"] {
            assert_eq!(Notice::from_text(other), Notice::Look(Duration::ZERO), "{other}");
        }
    }
}
