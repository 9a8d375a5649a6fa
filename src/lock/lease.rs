//! The arithmetic of a lease: when to renew, when COMMAND must end, and what a reply changes.
//!
//! Pure: nothing here reads a clock or sends anything.
//!
//! A request sent at `sent_at` and granted keeps the lock, by the store's clock, until at least `sent_at + ttl`: the
//! store began to count when the request arrived, which was later. Our clock may drift from the store's by up to 1 %,
//! so the lock is certainly ours until
//!
//! ```text
//! H = sent_at + ttl - ttl / 100 - 10 ms
//! ```
//!
//! KILL is sent a little before H, so that the command's processes are dead by then, and TERM `kill_after` before KILL.

use std::time::Duration;

use super::state::ASKS_PER_PLACE;
use crate::sys::clock::Moment;
use crate::text::duration;

/// How long a lease lasts after each renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// This long.
    Lasts(Duration),
    /// It never expires.
    None,
}

impl Ttl {
    /// Returns the length, or `None` if the lease never expires.
    pub fn length(self) -> Option<Duration> {
        match self {
            Ttl::Lasts(span) => Some(span),
            Ttl::None => None,
        }
    }

    /// Returns the longer of this and `span`.
    pub fn at_least(self, span: Duration) -> Self {
        match self {
            Ttl::Lasts(length) => Ttl::Lasts(length.max(span)),
            Ttl::None => Ttl::None,
        }
    }
}

/// Two clocks may drift apart by up to one part in this many.
const DRIFT: u32 = 100;

/// Subtracted from every lease in addition to the drift, for the resolution of clocks and timers.
const CLOCK_SLACK: Duration = Duration::from_millis(10);

/// The shortest pause after a renewal without a reply.
const RETRY_MIN: Duration = Duration::from_millis(20);

/// The time spans of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long the store keeps the lock after one renewal.
    pub ttl: Duration,
    /// The time from one renewal to the next.
    pub renew_every: Duration,
    /// How long COMMAND has between TERM and KILL.
    pub kill_after: Duration,
    /// The longest time that one request to the store may take.
    pub store_timeout: Duration,
}

/// The moments by which COMMAND must have received TERM, must have received KILL, and must be dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// TERM is sent at this moment at the latest.
    pub term_at: Moment,
    /// KILL is sent at this moment at the latest.
    pub kill_at: Moment,
    /// H: the last moment at which the lock is certainly ours.
    pub horizon: Moment,
}

impl Deadline {
    /// Returns the deadline after KILL was sent: the next KILL is due half-way to H. If the first one missed a process
    /// and its sender has been stopped since, another process sends the next one and needs the remaining time.
    pub fn after_kill(self) -> Self {
        let kill_at = self.kill_at + self.horizon.since(self.kill_at) / 2;
        Deadline { term_at: kill_at, kill_at, horizon: self.horizon }
    }
}

impl Terms {
    /// Checks that these spans work together: a renewal that fails slowly, followed by the end of COMMAND, must fit
    /// into the lease. The error shows the inequality that does not hold.
    pub fn check(&self) -> Result<(), String> {
        let sum = self.renew_every.saturating_add(self.kill_after).saturating_add(self.store_timeout);
        if sum < self.ttl {
            let boot = Moment::from_boot(Duration::ZERO);
            let usable = self.deadline(boot).term_at.since(boot);
            if usable > self.store_timeout.saturating_add(self.retry_after()) {
                return Ok(());
            }
            let margins = self.ttl.saturating_sub(self.deadline(boot).kill_at.since(boot));
            return Err(format!(
                "--kill-after {} + --store-timeout {} + {} for clocks and killing leave no time to renew within --ttl {}; \
                 use a longer --ttl or shorter others",
                duration::say_finely(self.kill_after),
                duration::say_finely(self.store_timeout),
                duration::say_finely(margins),
                duration::say_finely(self.ttl)
            ));
        }
        Err(format!(
            "--renew-every {} + --kill-after {} + --store-timeout {} = {} is not below --ttl {}: \
             if the lease could not be renewed, the command could not be stopped in time; use a longer --ttl or shorter others",
            duration::say_finely(self.renew_every),
            duration::say_finely(self.kill_after),
            duration::say_finely(self.store_timeout),
            duration::say_finely(sum),
            duration::say_finely(self.ttl)
        ))
    }

    /// Returns the terms of the lease of a waiter to which the lock was handed. It is as long as the waiter's `place`
    /// in the queue, and is renewed no later than the place would have been.
    pub fn after_hand_off(self, place: Duration) -> Self {
        Terms { ttl: place, renew_every: self.renew_every.min(place / ASKS_PER_PLACE), ..self }
    }

    /// Returns whether so much is left at `now` of the lease that was granted to a request sent at `sent_at`, that a
    /// renewal can be answered before TERM is due. Otherwise the lease must be renewed before COMMAND starts.
    pub fn leave_time_to_renew(&self, sent_at: Moment, now: Moment) -> bool {
        now + self.store_timeout < self.deadline(sent_at).term_at
    }

    /// Returns the deadline of a grant whose request was sent at `sent_at`.
    pub fn deadline(&self, sent_at: Moment) -> Deadline {
        let horizon = sent_at + self.ttl.saturating_sub(self.ttl / DRIFT).saturating_sub(CLOCK_SLACK);
        let kill_at = horizon.before(self.kill_margin());
        Deadline { term_at: kill_at.before(self.kill_after), kill_at, horizon }
    }

    /// Returns how long before H to send KILL. On an overloaded machine, the sender and each process that dies may have
    /// to wait tenths of a second for a processor.
    fn kill_margin(&self) -> Duration {
        (self.ttl / 8).min(Duration::from_secs(1))
    }

    /// Returns when to renew a lease whose last granted request was sent at `sent_at`: after `renew_every`, but early
    /// enough that the slowest possible request ends before TERM is due.
    fn renew_at(&self, sent_at: Moment) -> Moment {
        let latest = self.deadline(sent_at).term_at.before(self.store_timeout).max(sent_at);
        (sent_at + self.renew_every).min(latest)
    }

    /// Returns the pause after a renewal without a reply: short compared with the lease, but not a busy loop.
    fn retry_after(&self) -> Duration {
        (self.renew_every / 8).clamp(RETRY_MIN, Duration::from_secs(1))
    }
}

/// The store's reply to a renewal, as far as the lease is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewalAnswer {
    /// The lock is ours for another ttl.
    Mine,
    /// The lock is no longer ours. Final.
    NotMine,
    /// No reply, or an unclear one: the renewal may or may not have taken effect.
    Unknown,
}

/// What the renewer must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Sleep until this moment.
    Sleep(Moment),
    /// Send a renewal.
    Renew,
    /// Stop COMMAND: the lease is lost, or another attempt to renew would leave too little time to stop it.
    Stop,
}

/// A lease, held or lost.
#[derive(Clone, Debug)]
pub struct LocalLease {
    terms: Terms,
    deadline: Deadline,
    renew_at: Moment,
    lost: bool,
}

impl LocalLease {
    /// Returns the lease granted to a request sent at `sent_at`. Its first length is that of `first`; from the first
    /// renewal on it is that of `terms`. The two differ after a hand-off: see [`Terms::after_hand_off`]. If the first
    /// one is shorter, it is renewed at once.
    pub fn granted(terms: Terms, first: Terms, sent_at: Moment) -> Self {
        let renew_at = if first.ttl < terms.ttl { sent_at } else { first.renew_at(sent_at) };
        LocalLease { terms, deadline: first.deadline(sent_at), renew_at, lost: false }
    }

    /// Returns what to do at `now`. After the first `Stop`, it always returns `Stop`.
    pub fn due(&mut self, now: Moment) -> Due {
        self.lost |= now >= self.deadline.term_at;
        if self.lost {
            Due::Stop
        } else if now >= self.renew_at {
            Due::Renew
        } else {
            Due::Sleep(self.renew_at.min(self.deadline.term_at))
        }
    }

    /// Returns when to try again after a renewal without a reply, which was given up at `now`. The pauses become
    /// shorter as TERM comes closer: a store that answers again at the last moment still saves COMMAND.
    fn retry_at(&self, now: Moment) -> Moment {
        let left = self.deadline.term_at.since(now);
        now + self.terms.retry_after().min((left / 2).max(RETRY_MIN))
    }

    /// Returns when TERM is due unless the lease is renewed.
    pub fn term_at(&self) -> Moment {
        self.deadline.term_at
    }

    /// Records the reply, received at `now`, to the renewal sent at `sent_at`. Returns the new deadline if the reply
    /// moved it. A reply that arrives once TERM is due is too late.
    pub fn answered(&mut self, sent_at: Moment, answer: RenewalAnswer, now: Moment) -> Option<Deadline> {
        if self.due(now) == Due::Stop {
            return None;
        }
        match answer {
            RenewalAnswer::NotMine => self.lost = true,
            RenewalAnswer::Unknown => self.renew_at = self.retry_at(now),
            RenewalAnswer::Mine => {
                let deadline = self.terms.deadline(sent_at);
                if deadline.horizon > self.deadline.horizon {
                    self.deadline = deadline;
                    // If a renewal takes longer than the time between renewals, pause before the next one.
                    self.renew_at = self.terms.renew_at(sent_at).max(now + self.terms.retry_after());
                    return Some(deadline);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn at(since_boot: u64) -> Moment {
        Moment::from_boot(millis(since_boot))
    }

    /// A ttl of 30 s, with the defaults derived from it.
    fn terms() -> Terms {
        Terms {
            ttl: millis(30_000),
            renew_every: millis(10_000),
            kill_after: millis(10_000),
            store_timeout: millis(5_000),
        }
    }

    #[test]
    fn a_grant_is_counted_from_before_its_request_left() {
        let deadline = terms().deadline(at(1_000));
        assert_eq!(deadline.horizon, at(1_000 + 30_000 - 300 - 10));
        assert_eq!(deadline.kill_at, deadline.horizon.before(millis(1_000)));
        assert_eq!(deadline.term_at, deadline.kill_at.before(millis(10_000)));
    }

    #[test]
    fn kill_is_due_an_eighth_of_the_lease_before_h_or_a_second() {
        for (ttl, margin) in [(1_000, 125), (4_000, 500), (8_000, 1_000), (80_000, 1_000)] {
            let deadline = Terms { ttl: millis(ttl), ..terms() }.deadline(at(0));
            assert_eq!(deadline.horizon.since(deadline.kill_at), millis(margin), "--ttl of {ttl} ms");
        }
    }

    #[test]
    fn the_next_kill_leaves_time_until_h() {
        let deadline = terms().deadline(at(0));
        let next = deadline.after_kill();
        assert_eq!(next.horizon, deadline.horizon);
        assert_eq!(next.kill_at, deadline.horizon.before(millis(500)));
    }

    #[test]
    fn what_is_due_follows_the_clock() {
        let mut lease = LocalLease::granted(terms(), terms(), at(0));
        assert_eq!(lease.due(at(0)), Due::Sleep(at(10_000)));
        assert_eq!(lease.due(at(9_999)), Due::Sleep(at(10_000)));
        assert_eq!(lease.due(at(10_000)), Due::Renew);
        assert_eq!(lease.due(at(18_689)), Due::Renew);
        assert_eq!(lease.due(at(18_690)), Due::Stop);
    }

    #[test]
    fn an_answer_moves_the_deadline_by_when_its_request_left() {
        let mut lease = LocalLease::granted(terms(), terms(), at(0));
        assert_eq!(lease.answered(at(10_000), RenewalAnswer::Mine, at(14_000)), Some(terms().deadline(at(10_000))));
        assert_eq!(lease.due(at(14_000)), Due::Sleep(at(20_000)));
    }

    #[test]
    fn no_answer_is_tried_again_until_it_is_time_for_term() {
        let mut lease = LocalLease::granted(terms(), terms(), at(0));
        assert_eq!(lease.answered(at(10_000), RenewalAnswer::Unknown, at(15_000)), None);
        assert_eq!(lease.due(at(15_000)), Due::Sleep(at(16_000)));
        assert_eq!(lease.due(at(16_000)), Due::Renew);
        assert_eq!(lease.answered(at(16_000), RenewalAnswer::Mine, at(16_001)), Some(terms().deadline(at(16_000))));
    }

    #[test]
    fn without_an_answer_it_is_tried_more_often_before_term_and_given_up_when_term_is_due() {
        let mut lease = LocalLease::granted(terms(), terms(), at(0));
        let mut attempts = Vec::new();
        let mut now = at(17_000);
        while lease.due(now) != Due::Stop {
            attempts.push(now);
            lease.answered(now, RenewalAnswer::Unknown, now);
            match lease.due(now) {
                Due::Sleep(until) => now = until,
                due => panic!("{due:?} without a pause"),
            }
        }
        let before_term: Vec<u128> = attempts.iter().map(|attempt| at(18_690).since(*attempt).as_millis()).collect();
        assert_eq!(before_term, [1_690, 845, 422, 211, 105, 52, 26, 6]);
        assert_eq!(now, at(18_690), "not later than TERM");
    }

    #[test]
    fn a_store_slower_than_the_renewals_is_not_asked_without_a_pause() {
        let hasty = Terms { renew_every: millis(300), ..terms() };
        let mut lease = LocalLease::granted(hasty, hasty, at(0));
        assert!(lease.answered(at(300), RenewalAnswer::Mine, at(2_000)).is_some());
        assert_eq!(lease.due(at(2_000)), Due::Sleep(at(2_000) + hasty.renew_every / 8));
    }

    #[test]
    fn not_ours_is_final() {
        let mut lease = LocalLease::granted(terms(), terms(), at(0));
        assert_eq!(lease.answered(at(10_000), RenewalAnswer::NotMine, at(10_001)), None);
        assert_eq!(lease.due(at(10_001)), Due::Stop);
        assert_eq!(lease.answered(at(10_002), RenewalAnswer::Mine, at(10_003)), None);
        assert_eq!(lease.due(at(10_003)), Due::Stop);
    }

    #[test]
    fn an_answer_when_term_is_due_rescues_nothing() {
        let mut lease = LocalLease::granted(terms(), terms(), at(0));
        assert_eq!(lease.answered(at(15_000), RenewalAnswer::Mine, at(18_690)), None);
        assert_eq!(lease.due(at(18_690)), Due::Stop);
    }

    #[test]
    fn a_lease_that_was_a_place_is_renewed_when_the_place_would_have_been_or_at_once_if_it_is_too_short() {
        let mut lease = LocalLease::granted(terms(), terms().after_hand_off(millis(30_000)), at(0));
        assert_eq!(lease.due(at(5_000)), Due::Sleep(at(10_000)));
        let long = Terms { ttl: millis(600_000), renew_every: millis(200_000), ..terms() };
        let place = long.after_hand_off(millis(30_000));
        assert_eq!((place.ttl, place.renew_every), (millis(30_000), millis(10_000)));
        let mut lease = LocalLease::granted(long, place, at(0));
        assert_eq!(lease.due(at(5_000)), Due::Renew);
        assert_eq!(lease.due(place.deadline(at(0)).term_at), Due::Stop);
        let mut renewed = LocalLease::granted(long, place, at(0));
        assert_eq!(renewed.answered(at(5_000), RenewalAnswer::Mine, at(5_001)), Some(long.deadline(at(5_000))));
        assert!(place.leave_time_to_renew(at(0), at(13_689)) && !place.leave_time_to_renew(at(0), at(13_690)));
    }

    #[test]
    fn lengths_that_cannot_work_together_are_refused_by_name() {
        assert_eq!(terms().check(), Ok(()));
        let bad = Terms { renew_every: millis(15_000), ..terms() };
        let why = bad.check().expect_err("is refused");
        assert!(why.contains("--renew-every 15s + --kill-after 10s + --store-timeout 5s = 30s"), "{why}");
        assert!(why.contains("--ttl 30s"), "{why}");
    }

    #[test]
    fn a_late_renewal_is_moved_before_term() {
        let tight = Terms { renew_every: millis(14_900), ..terms() };
        assert_eq!(tight.check(), Ok(()));
        let mut lease = LocalLease::granted(tight, tight, at(0));
        assert_eq!(lease.due(at(0)), Due::Sleep(at(13_690)));
    }

    /// An event in the life of a lease.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// Time passes.
        Pass(Duration),
        /// A renewal is sent.
        Send,
        /// The reply to the oldest renewal in flight arrives.
        Arrive(RenewalAnswer),
    }

    fn step() -> impl Strategy<Value = Step> {
        let answer = prop_oneof![6 => Just(RenewalAnswer::Mine), 3 => Just(RenewalAnswer::Unknown), 1 => Just(RenewalAnswer::NotMine)];
        prop_oneof![
            (0u64..12_000).prop_map(|span| Step::Pass(millis(span))),
            (0u64..500).prop_map(|span| Step::Pass(millis(span))),
            Just(Step::Send),
            answer.prop_map(Step::Arrive),
        ]
    }

    fn any_terms() -> impl Strategy<Value = Terms> {
        (1_000u64..100_000, 1u64..100, 0u64..100, 1u64..100)
            .prop_map(|(ttl, renew, kill, timeout)| {
                let part = |share: u64| millis(ttl * share / 100);
                Terms {
                    ttl: millis(ttl),
                    renew_every: part(renew),
                    kill_after: part(kill),
                    store_timeout: part(timeout),
                }
            })
            .prop_filter("are refused", |terms| terms.check().is_ok())
    }

    proptest! {
        /// For every order of requests, replies, errors and time: COMMAND may run only before the H of a request that
        /// was answered "mine" in time, H is that request's own `sent_at` plus the lease less the margins, and a lost
        /// lease stays lost.
        #[test]
        fn no_history_lets_the_command_live_past_h(terms in any_terms(), steps in prop::collection::vec(step(), 1..60)) {
            let granted_at = at(5_000);
            let h = |sent_at: Moment| (sent_at + terms.ttl).before(terms.ttl / 100 + millis(10));
            let mut now = granted_at;
            let mut on_their_way = std::collections::VecDeque::new();
            let mut proven = granted_at;
            let mut lost = false;
            let mut lease = LocalLease::granted(terms, terms, granted_at);
            prop_assert!(matches!(lease.due(granted_at), Due::Sleep(_)), "terms that are accepted can be kept");
            for step in steps {
                match step {
                    Step::Pass(span) => now = now + span,
                    Step::Send => on_their_way.push_back(now),
                    Step::Arrive(answer) => {
                        let Some(sent_at) = on_their_way.pop_front() else { continue };
                        let before = lease.deadline;
                        let may_run = lease.due(now) != Due::Stop;
                        let moved = lease.answered(sent_at, answer, now);
                        if answer == RenewalAnswer::Mine && may_run {
                            proven = proven.max(sent_at);
                        } else {
                            prop_assert_eq!(moved, None, "only an answer in time moves H");
                        }
                        prop_assert!(lease.deadline.horizon >= before.horizon, "H never goes back");
                        lost |= may_run && answer == RenewalAnswer::NotMine;
                    }
                }
                prop_assert_eq!(lease.deadline.horizon, h(proven), "H is counted from its own request");
                prop_assert!(lease.deadline.term_at + terms.kill_after <= lease.deadline.kill_at);
                prop_assert!(lease.deadline.kill_at < lease.deadline.horizon);
                lost |= now >= lease.deadline.term_at;
                let due = lease.due(now);
                prop_assert_eq!(due == Due::Stop, lost, "a lost lease stays lost, one that is not is kept");
                if let Due::Sleep(until) = due {
                    prop_assert!(until > now, "a sleep ends");
                    if on_their_way.is_empty() && proven == granted_at {
                        let latest = lease.deadline.term_at.before(terms.store_timeout).max(granted_at);
                        prop_assert!(until <= latest.max(now + millis(1_000)), "a renewal is in time");
                    }
                }
            }
        }
    }
}
