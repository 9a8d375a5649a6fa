//! When to end COMMAND, and when it counts as ended: the rules for COMMAND's parent, whichever process that is.

use std::time::Duration;

use libc::c_int;

use super::tree::{Motion, Tree};
use super::{Descendants, Launch};
use crate::lock::ending::Ending;
use crate::lock::lease::Deadline;
use crate::sys::clock::Moment;
use crate::sys::signals::Missed;

/// The least and the greatest pause between two rounds of KILL, for processes that were forked during the last round.
const KILL_AGAIN: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(50));

/// Between those, a pause lasts this many times as long as the round before it: the killed processes need processor time to die, and
/// lockrun and its guardian have priority over them.
const PAUSE_TO_ROUND: u32 = 3;

/// The pause between two rounds of KILL for processes that are stuck.
const KILL_STUCK_AGAIN: Duration = Duration::from_secs(1);

/// How long after the first KILL the remaining processes count as stuck. A process that can die takes less time, even if it has to wait
/// for a processor first. While the lock can be held, they are waited for nevertheless: they may still be at work.
const GIVE_UP: Duration = Duration::from_secs(20);

/// Why lockrun or its guardian ended COMMAND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The lease was lost, or expired.
    Lost,
    /// Its `--max-runtime` has passed.
    TimedOut,
    /// lockrun was killed.
    Orphaned,
    /// The guardian was killed.
    Unguarded,
    /// COMMAND itself had ended, and `--descendants kill` ended the processes that it left behind.
    LeftBehind,
}

/// How COMMAND and its processes ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// How COMMAND's own process ended; `None` if it could not be killed, or another process reaped it.
    pub command: Option<Ending>,
    /// Why it was ended, if it did not end by itself.
    pub why: Option<Why>,
    /// Some processes had to be killed and could not be.
    pub stuck: bool,
}

/// COMMAND's processes, as far as the rules ask about them and act on them.
pub trait Processes {
    /// Returns how COMMAND ended, if it has.
    fn ended(&self) -> Option<Ending>;

    /// Returns whether no process is left.
    fn is_gone(&self) -> bool;

    /// Sends TERM to all processes.
    fn terminate(&self);

    /// Sends KILL to all processes. Those forked meanwhile may have been missed: repeat it until none is left.
    fn kill(&self);
}

/// The state of COMMAND's parent: a machine whose inputs are the time and events.
#[derive(Debug)]
pub struct Supervisor<P = Tree> {
    tree: P,
    kill_after: Duration,
    descendants: Descendants,
    stop_at: Option<Moment>,
    lease: Option<Deadline>,
    closing: Option<Closing>,
    /// KILL was sent, and [`Supervisor::has_killed`] has not said so yet.
    unreported_kill: bool,
    /// The lease is lost, or over.
    is_lost: bool,
    /// Some processes cannot be killed, and the lock is held for them. [`Supervisor::is_newly_stuck`] has said so.
    is_stuck: bool,
}

/// COMMAND is being ended.
#[derive(Clone, Copy, Debug)]
struct Closing {
    why: Why,
    /// KILL is sent then, and repeatedly after.
    kill_at: Moment,
    /// The next round of KILL, after the first.
    again_at: Option<Moment>,
    give_up_at: Moment,
}

impl Closing {
    /// Returns whether the processes have had the time to die.
    fn have_had_time(self, now: Moment) -> bool {
        self.again_at.is_some() && now >= self.give_up_at
    }
}

impl<P: Processes> Supervisor<P> {
    /// Supervises `tree`, started at `now`, according to `launch`; under a lease if there is a deadline.
    pub fn new(tree: P, launch: &Launch, lease: Option<Deadline>, now: Moment) -> Self {
        Supervisor {
            tree,
            kill_after: launch.kill_after,
            descendants: launch.descendants,
            stop_at: launch.max_runtime.map(|span| now + span),
            lease,
            closing: None,
            unreported_kill: false,
            is_lost: false,
            is_stuck: false,
        }
    }

    /// Ends `tree` at once, at `now`, because its own parent is dead.
    pub fn ending(tree: P, now: Moment) -> Self {
        let (kill_after, descendants) = (Duration::ZERO, Descendants::Kill);
        let (stop_at, lease, closing) = (None, None, None);
        let (unreported_kill, is_lost, is_stuck) = (false, false, false);
        let mut supervisor =
            Supervisor { tree, kill_after, descendants, stop_at, lease, closing, unreported_kill, is_lost, is_stuck };
        supervisor.end(Why::Unguarded, now);
        supervisor
    }

    /// Records the new deadline of a renewed lease.
    pub fn renewed(&mut self, deadline: Deadline) {
        self.lease = Some(deadline);
    }

    /// Returns when to call [`Self::proceed`] next, if nothing happens before.
    pub fn wakes_at(&self) -> Option<Moment> {
        match &self.closing {
            Some(closing) => {
                let next = closing.again_at.unwrap_or(self.bounded(closing.kill_at));
                let lapses_at = self.lease.filter(|_| self.is_stuck).map(|lease| lease.term_at);
                lapses_at.into_iter().chain([next]).min()
            }
            None => self.lease.map(|lease| lease.term_at).into_iter().chain(self.stop_at).min(),
        }
    }

    /// Does what is due at `now`. Returns how everything ended, once it has.
    pub fn proceed(&mut self, now: Moment) -> Option<Finished> {
        // A COMMAND that has ended by itself in time counts as such.
        self.finished(now).or_else(|| {
            self.tick(now);
            self.finished(now)
        })
    }

    fn tick(&mut self, now: Moment) {
        self.is_lost |= self.lease.is_some_and(|lease| now >= lease.term_at);
        if self.closing.is_none() {
            if self.is_lost {
                self.end(Why::Lost, now);
            } else if self.stop_at.is_some_and(|stop_at| now >= stop_at) {
                self.end(Why::TimedOut, now);
            }
        }
        let Some(closing) = self.closing else { return };
        if now >= closing.again_at.unwrap_or(self.bounded(closing.kill_at)) {
            self.tree.kill();
            self.unreported_kill |= closing.again_at.is_none();
            let give_up_at = closing.again_at.map_or(now + GIVE_UP, |_| closing.give_up_at);
            let end = Moment::now();
            let pause = (end.since(now) * PAUSE_TO_ROUND).clamp(KILL_AGAIN.0, KILL_AGAIN.1);
            let pause = if closing.have_had_time(now) { pause.max(KILL_STUCK_AGAIN) } else { pause };
            let again_at = Some(end + pause);
            self.closing = Some(Closing { again_at, give_up_at, ..closing });
        }
    }

    /// Returns the deadline of the lease, if there is one, once KILL was sent for the first time since the last call.
    pub fn has_killed(&mut self) -> Option<Deadline> {
        let has_killed = std::mem::take(&mut self.unreported_kill);
        self.lease.filter(|_| has_killed)
    }

    /// Begins to end everything: TERM now, KILL `kill_after` later, and before the lease is over; if lockrun or the
    /// guardian is dead, KILL at once.
    pub fn end(&mut self, why: Why, now: Moment) {
        self.is_lost |= why == Why::Lost;
        if self.closing.is_some() && !matches!(why, Why::Orphaned | Why::Unguarded) {
            return;
        }
        let kill_at = match why {
            Why::Orphaned | Why::Unguarded => now,
            _ => now + self.kill_after,
        };
        if kill_at > now {
            self.tree.terminate();
        }
        self.closing = Some(Closing { why, kill_at, again_at: None, give_up_at: kill_at + GIVE_UP });
    }

    /// Returns how everything ended, once it has. May begin to end the processes that COMMAND left behind.
    fn finished(&mut self, now: Moment) -> Option<Finished> {
        let command = self.tree.ended();
        if let Some(closing) = self.closing {
            let is_gone = self.tree.is_gone();
            let is_over = is_gone || closing.have_had_time(now) && !self.holds(closing);
            return is_over.then_some(Finished { command, why: Some(closing.why), stuck: !is_gone });
        }
        command?;
        let over = match self.descendants {
            Descendants::Leave => true,
            Descendants::Wait | Descendants::Kill => self.tree.is_gone(),
        };
        if over {
            return Some(Finished { command, why: None, stuck: false });
        }
        if self.descendants == Descendants::Kill {
            self.end(Why::LeftBehind, now);
        }
        None
    }

    /// Returns, once, whether some processes cannot be killed, for which the lock stays held.
    pub fn is_newly_stuck(&mut self, now: Moment) -> bool {
        let is_stuck = self.closing.is_some_and(|closing| closing.have_had_time(now) && self.holds(closing));
        is_stuck && !std::mem::replace(&mut self.is_stuck, true)
    }

    /// Returns whether the lock is still held, and stays so for the processes that are left. What COMMAND leaves behind holds nothing unless that
    /// is asked for.
    fn holds(&self, closing: Closing) -> bool {
        let can_hold = !self.is_lost && closing.why != Why::Unguarded;
        can_hold && (self.tree.ended().is_none() || self.descendants != Descendants::Leave)
    }

    /// Returns `kill_at`, or the lease's own time for KILL if that is earlier.
    fn bounded(&self, kill_at: Moment) -> Moment {
        self.lease.map_or(kill_at, |lease| kill_at.min(lease.kill_at))
    }
}

impl Supervisor {
    /// Returns whether COMMAND is being ended.
    pub(super) fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// Returns the ids of the processes that live, as far as /proc shows them.
    pub(super) fn living(&self) -> Vec<libc::pid_t> {
        self.tree.living()
    }

    /// Returns the signals that had come before COMMAND was started, and that it therefore has not got from the terminal.
    pub(super) fn missed(&self) -> Missed {
        self.tree.missed()
    }

    /// Relays a signal that was sent to lockrun.
    pub(super) fn forward(&mut self, signal: c_int) {
        self.tree.forward(signal);
    }

    /// Reaps children that have ended or stopped. Returns whether COMMAND runs or is stopped, if that has changed.
    pub(super) fn reap(&mut self) -> Option<Motion> {
        self.tree.reap();
        self.tree.has_moved()
    }

    /// Leaves the remaining processes alone.
    pub(super) fn dismiss(&self) {
        self.tree.dismiss();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::lock::lease::Terms;

    /// COMMAND alone, which cannot be killed.
    struct Unkillable(Cell<Option<Ending>>);

    impl Processes for Unkillable {
        fn ended(&self) -> Option<Ending> {
            self.0.get()
        }

        fn is_gone(&self) -> bool {
            false
        }

        fn terminate(&self) {}

        fn kill(&self) {}
    }

    fn at(seconds: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(seconds))
    }

    fn deadline(sent_at: u64) -> Deadline {
        let second = Duration::from_secs(1);
        let terms = Terms { ttl: 30 * second, renew_every: 10 * second, kill_after: second, store_timeout: 5 * second };
        terms.deadline(at(sent_at))
    }

    /// A supervisor whose COMMAND may run for a second, and its end as of each of these seconds.
    fn supervisor(descendants: Descendants) -> Supervisor<Unkillable> {
        let launch = Launch {
            argv: Vec::new(),
            env: Vec::new(),
            kill_after: Duration::from_secs(1),
            max_runtime: Some(Duration::from_secs(1)),
            descendants,
        };
        Supervisor::new(Unkillable(Cell::new(None)), &launch, Some(deadline(0)), at(0))
    }

    /// Lets it work from one second to another, with renewals or without. Returns when it ended, and how.
    fn works(
        supervisor: &mut Supervisor<Unkillable>,
        seconds: std::ops::Range<u64>,
        renews: bool,
    ) -> Option<(u64, Finished)> {
        seconds.into_iter().find_map(|second| {
            if renews {
                supervisor.renewed(deadline(second));
            }
            supervisor.proceed(at(second)).map(|finished| (second, finished))
        })
    }

    #[test]
    fn the_lock_is_held_for_what_cannot_be_killed() {
        let mut its = supervisor(Descendants::Leave);
        assert_eq!(works(&mut its, 0..20, true), None);
        assert!(!its.is_newly_stuck(at(20)));
        assert_eq!(works(&mut its, 20..1000, true), None);
        assert!(its.is_newly_stuck(at(1000)) && !its.is_newly_stuck(at(1000)));
        // The next round is after the end of the lease, if that is not renewed.
        assert!(its.wakes_at().is_some_and(|wakes_at| wakes_at <= deadline(999).term_at));
        let (ended, finished) = works(&mut its, 1000..1100, false).expect("the lease lapses");
        assert!(at(ended) >= deadline(999).term_at && at(ended - 1) < deadline(999).term_at, "{ended}");
        assert_eq!((finished.why, finished.stuck), (Some(Why::TimedOut), true));
    }

    #[test]
    fn a_lock_that_is_lost_is_not_held() {
        for orphaned in [false, true] {
            let mut its = supervisor(Descendants::Leave);
            assert_eq!(works(&mut its, 0..5, true), None);
            its.end(Why::Lost, at(5));
            if orphaned {
                its.end(Why::Orphaned, at(5));
            }
            let (ended, finished) = works(&mut its, 5..100, true).expect("it is given up");
            assert!(ended < 30 && finished.stuck, "{ended} {finished:?}");
        }
    }

    #[test]
    fn what_is_left_behind_holds_nothing_unless_it_is_waited_for() {
        for (descendants, holds) in [(Descendants::Leave, false), (Descendants::Wait, true), (Descendants::Kill, true)]
        {
            let mut its = supervisor(descendants);
            assert_eq!(works(&mut its, 0..5, true), None);
            its.tree.0.set(Some(Ending::Exited(0)));
            assert_eq!(works(&mut its, 5..100, true).is_none(), holds, "{descendants:?}");
        }
    }
}
