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

    /// Returns whether those that are left are dead, and only wait to be reaped: by a debugger, for instance.
    fn are_dead(&self) -> bool;

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
    /// Whether [`Supervisor::is_newly_stuck`] has said so.
    reported_stuck: bool,
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
            reported_stuck: false,
        }
    }

    /// Ends `tree` at once, at `now`, because its own parent is dead.
    pub fn ending(tree: P, now: Moment) -> Self {
        let (kill_after, descendants) = (Duration::ZERO, Descendants::Kill);
        let (stop_at, lease, closing) = (None, None, None);
        let (unreported_kill, reported_stuck) = (false, false);
        let mut supervisor =
            Supervisor { tree, kill_after, descendants, stop_at, lease, closing, unreported_kill, reported_stuck };
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
                let kill_at = self.bounded(closing.kill_at);
                Some(closing.again_at.unwrap_or(kill_at))
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
        if self.closing.is_none() {
            if self.lease.is_some_and(|lease| now >= lease.term_at) {
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
            let pause = if closing.have_had_time(now) {
                KILL_STUCK_AGAIN
            } else {
                (end.since(now) * PAUSE_TO_ROUND).clamp(KILL_AGAIN.0, KILL_AGAIN.1)
            };
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
            let is_gone = self.tree.is_gone() || closing.have_had_time(now) && self.tree.are_dead();
            let is_over = is_gone || closing.have_had_time(now) && !self.holds(closing, now);
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
        let is_stuck = self.closing.is_some_and(|closing| closing.have_had_time(now) && self.holds(closing, now));
        is_stuck && !std::mem::replace(&mut self.reported_stuck, true)
    }

    /// Returns whether the lock is still held, and can be for as long as a process lives that cannot be killed.
    fn holds(&self, closing: Closing, now: Moment) -> bool {
        let may_hold = !matches!(closing.why, Why::Lost | Why::Unguarded);
        may_hold && self.lease.is_none_or(|lease| now < lease.term_at)
    }

    /// Returns `kill_at`, or the lease's own time for KILL if that is earlier.
    fn bounded(&self, kill_at: Moment) -> Moment {
        self.lease.map_or(kill_at, |lease| kill_at.min(lease.kill_at))
    }
}

impl Supervisor {
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
