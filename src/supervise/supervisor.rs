//! When to end COMMAND, and when it counts as ended: the rules for COMMAND's parent, whether that is lockrun or the
//! guardian.

use std::time::Duration;

use libc::c_int;
use serde::{Deserialize, Serialize};

use super::tree::{JobState, Tree};
use super::{Descendants, Launch};
use crate::lock::ending::Ending;
use crate::lock::lease::Deadline;
use crate::sys::clock::Moment;
use crate::sys::signals::Missed;

/// The shortest and the longest pause between two rounds of KILL. Only when a killed process has died can those be
/// killed that it leaves behind.
const KILL_AGAIN: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Within these limits, a pause lasts this many times as long as the round before it: the killed processes need
/// processor time to die, and lockrun and its guardian have priority over them.
const PAUSE_TO_ROUND: u32 = 3;

/// The pause between two rounds of KILL for stuck processes.
const KILL_STUCK_AGAIN: Duration = Duration::from_secs(1);

/// How long after the first KILL the remaining processes count as stuck. A process that can die does so sooner, even if
/// it has to wait for a processor first. While the lock can be held, lockrun still waits for stuck processes: they may
/// still be at work.
const GIVE_UP: Duration = Duration::from_secs(20);

/// The longest time that relaying a signal may take.
const RELAY: Duration = Duration::from_secs(1);

/// Why lockrun or its guardian ended COMMAND.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopReason {
    /// The lease was lost, or expired.
    Lost,
    /// The `--max-runtime` was exceeded.
    TimedOut,
    /// lockrun was killed.
    Orphaned,
    /// The guardian was killed.
    Unguarded,
    /// COMMAND itself had ended, and `--descendants kill` ended the processes that it left behind.
    LeftBehind,
}

/// How COMMAND and its processes ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// How COMMAND's own process ended; `None` if it could not be killed, or another process reaped it.
    pub command: Option<Ending>,
    /// Why processes were ended; `None` if COMMAND ended by itself and left none to end.
    pub why: Option<StopReason>,
    /// Whether some processes could not be killed.
    pub stuck: bool,
}

/// COMMAND's processes, as the rules see them.
pub trait Processes {
    /// Returns how COMMAND ended, if it has.
    fn ended(&self) -> Option<Ending>;

    /// Returns whether no process is left.
    fn is_gone(&self) -> bool;

    /// Sends TERM to all processes that are found until `until`.
    fn terminate(&self, until: Moment);

    /// Sends KILL to all processes that it can reach now; it must be repeated until none is left. Returns whether to
    /// wait before that, until the processes have died: not if more of them kept appearing, or only dead ones are left.
    fn kill(&mut self) -> bool;
}

/// The rules and their state: a machine whose inputs are the time and events.
#[derive(Debug)]
pub struct Supervisor<P = Tree> {
    tree: P,
    kill_after: Duration,
    descendants: Descendants,
    stop_at: Option<Moment>,
    lease: Option<Deadline>,
    /// The lease was lost or has expired: the remaining processes no longer hold the lock.
    is_lost: bool,
    stage: StopStage,
    /// The first KILL was sent, and [`Supervisor::take_unreported_kill`] has not reported it yet.
    unreported_kill: bool,
    /// When to reap more children that have ended.
    reap_at: Option<Moment>,
    /// [`Supervisor::is_newly_stuck`] has reported that some processes are stuck.
    has_reported_stuck: bool,
}

/// How far the ending of COMMAND's processes has come. Each stage follows the one before it; when lockrun or its
/// guardian is found dead, the ending starts again with KILL at once. Once begun, it is over when no process is left,
/// or only stuck ones that do not hold the lock.
#[derive(Clone, Copy, Debug)]
enum StopStage {
    /// Nothing ends them.
    Running,
    /// TERM was sent. KILL is sent at `kill_at`, or earlier if the lease demands it.
    Terminating { why: StopReason, kill_at: Moment },
    /// KILL was sent, and is sent again at `again_at`. Processes that remain at `stuck_at` count as stuck.
    Killing { why: StopReason, again_at: Moment, stuck_at: Moment },
    /// The remaining processes cannot be killed. KILL is still repeated, at `again_at`.
    Stuck { why: StopReason, again_at: Moment },
}

impl<P: Processes> Supervisor<P> {
    /// Supervises `tree`, started at `now`, according to `launch`. `lease` is the deadline of a lease that ends
    /// COMMAND, if there is one.
    pub fn new(tree: P, launch: &Launch, lease: Option<Deadline>, now: Moment) -> Self {
        Supervisor {
            tree,
            kill_after: launch.kill_after,
            descendants: launch.descendants,
            stop_at: launch.max_runtime.map(|span| now + span),
            lease,
            is_lost: false,
            stage: StopStage::Running,
            unreported_kill: false,
            reap_at: None,
            has_reported_stuck: false,
        }
    }

    /// Ends `tree` at once, at `now`, because COMMAND's parent, the guardian, is dead.
    pub fn ending(tree: P, now: Moment) -> Self {
        let mut supervisor = Supervisor {
            tree,
            kill_after: Duration::ZERO,
            descendants: Descendants::Kill,
            stop_at: None,
            lease: None,
            is_lost: false,
            stage: StopStage::Running,
            unreported_kill: false,
            reap_at: None,
            has_reported_stuck: false,
        };
        supervisor.end(StopReason::Unguarded, now);
        supervisor
    }

    /// Records the new deadline of a renewed lease.
    pub fn renewed(&mut self, deadline: Deadline) {
        self.lease = Some(deadline);
    }

    /// Returns when to call [`Self::proceed`] next, if nothing happens until then.
    pub fn wakes_at(&self) -> Option<Moment> {
        if self.reap_at.is_some() {
            return self.reap_at;
        }
        let lapses_at = self.lease.map(|lease| lease.term_at);
        match self.stage {
            StopStage::Running => lapses_at.into_iter().chain(self.stop_at).min(),
            StopStage::Terminating { kill_at, .. } => Some(self.bounded(kill_at)),
            StopStage::Killing { again_at, .. } => Some(again_at),
            StopStage::Stuck { again_at, .. } => lapses_at.into_iter().chain([again_at]).min(),
        }
    }

    /// Does what is due at `now`. Once everything has ended, returns how.
    pub fn proceed(&mut self, now: Moment) -> Option<Finished> {
        if let StopStage::Killing { why, again_at, stuck_at } = self.stage
            && now >= stuck_at
        {
            self.stage = StopStage::Stuck { why, again_at };
        }
        // First of all: a COMMAND that has already ended by itself must not be reported as ended by the clock.
        self.finished(now).or_else(|| {
            self.tick(now);
            self.finished(now)
        })
    }

    fn tick(&mut self, now: Moment) {
        self.is_lost |= self.lease.is_some_and(|lease| now >= lease.term_at);
        if matches!(self.stage, StopStage::Running) {
            if self.is_lost {
                self.end(StopReason::Lost, now);
            } else if self.stop_at.is_some_and(|stop_at| now >= stop_at) {
                self.end(StopReason::TimedOut, now);
            }
        }
        match self.stage {
            StopStage::Terminating { why, kill_at } if now >= self.bounded(kill_at) => {
                let again_at = self.kill(now, KILL_AGAIN.0);
                self.stage = StopStage::Killing { why, again_at, stuck_at: now + GIVE_UP };
                self.unreported_kill = true;
            }
            StopStage::Killing { why, again_at, stuck_at } if now >= again_at => {
                let again_at = self.kill(now, KILL_AGAIN.0);
                self.stage = StopStage::Killing { why, again_at, stuck_at };
            }
            StopStage::Stuck { why, again_at } if now >= again_at => {
                let again_at = self.kill(now, KILL_STUCK_AGAIN);
                self.stage = StopStage::Stuck { why, again_at };
            }
            _ => {}
        }
    }

    /// Sends a round of KILL, which begins at `now`. Returns when the next one is due: after a pause of `least` or
    /// more, or at once.
    fn kill(&mut self, now: Moment, least: Duration) -> Moment {
        let is_to_pause = self.tree.kill();
        let end = Moment::now();
        if !is_to_pause {
            return end;
        }
        end + (end.since(now) * PAUSE_TO_ROUND).min(KILL_AGAIN.1).max(least)
    }

    /// Returns the deadline of the lease, if there is one, when KILL has begun since the last call. Repeated rounds do
    /// not count.
    pub fn take_unreported_kill(&mut self) -> Option<Deadline> {
        let take_unreported_kill = std::mem::take(&mut self.unreported_kill);
        self.lease.filter(|_| take_unreported_kill)
    }

    /// Begins to end everything: TERM now, and KILL `kill_after` later, or earlier if the lease demands it. If lockrun
    /// or the guardian is dead, KILL is due at once, even if the ending has begun already.
    pub fn end(&mut self, why: StopReason, now: Moment) {
        self.is_lost |= why == StopReason::Lost;
        let kill_at = match why {
            StopReason::Orphaned | StopReason::Unguarded => now,
            _ if self.is_ending_command() => return,
            _ => now + self.kill_after,
        };
        if kill_at > now {
            self.tree.terminate(self.search_until(now, kill_at));
        }
        self.stage = StopStage::Terminating { why, kill_at };
    }

    /// Once everything has ended, returns how. May begin to end the processes that COMMAND left behind.
    fn finished(&mut self, now: Moment) -> Option<Finished> {
        let command = self.tree.ended();
        let (why, is_waited_for) = match self.stage {
            StopStage::Running => return self.finished_by_itself(command?, now),
            StopStage::Terminating { why, .. } | StopStage::Killing { why, .. } => (why, true),
            StopStage::Stuck { why, .. } => (why, self.holds(why)),
        };
        let is_gone = self.tree.is_gone();
        (is_gone || !is_waited_for).then_some(Finished { command, why: Some(why), stuck: !is_gone })
    }

    /// Does the same for a COMMAND that ended by itself.
    fn finished_by_itself(&mut self, command: Ending, now: Moment) -> Option<Finished> {
        if self.descendants == Descendants::Leave || self.tree.is_gone() {
            return Some(Finished { command: Some(command), why: None, stuck: false });
        }
        // Those that are left may all be dead, and not reaped yet.
        if self.descendants == Descendants::Kill && self.reap_at.is_none() {
            self.end(StopReason::LeftBehind, now);
        }
        None
    }

    /// Returns `true` once when processes that hold the lock turn out to be stuck.
    pub fn is_newly_stuck(&mut self) -> bool {
        let is_stuck = matches!(self.stage, StopStage::Stuck { why, .. } if self.holds(why));
        is_stuck && !std::mem::replace(&mut self.has_reported_stuck, true)
    }

    /// Returns whether the remaining processes keep the lock held. Those that COMMAND left behind do so only with
    /// [`Descendants::Wait`] or [`Descendants::Kill`].
    fn holds(&self, why: StopReason) -> bool {
        let can_hold = !self.is_lost && why != StopReason::Unguarded;
        can_hold && (self.tree.ended().is_none() || self.descendants != Descendants::Leave)
    }

    /// Returns how COMMAND has ended by itself, if it has, and processes that it left behind are waited for.
    pub(super) fn awaits_descendants(&self) -> Option<Ending> {
        self.tree.ended().filter(|_| matches!(self.stage, StopStage::Running))
    }

    /// Returns whether COMMAND is being ended.
    pub(super) fn is_ending_command(&self) -> bool {
        !matches!(self.stage, StopStage::Running)
    }

    /// Returns `kill_at`, or the lease's own time for KILL if that is earlier.
    fn bounded(&self, kill_at: Moment) -> Moment {
        self.lease.map_or(kill_at, |lease| kill_at.min(lease.kill_at))
    }

    /// Returns until when to search for processes to signal, from `now` on, if all must be done at `at`, or when the
    /// lease demands KILL. The other half of the time is for signalling them.
    fn search_until(&self, now: Moment, at: Moment) -> Moment {
        now + self.bounded(at).since(now) / 2
    }
}

impl Supervisor {
    /// Returns the ids of the living processes, as far as /proc shows them.
    pub(super) fn living(&self) -> Vec<libc::pid_t> {
        self.tree.living()
    }

    /// Returns the signals that arrived before COMMAND was started, so that it has not got them from the terminal.
    pub(super) fn missed(&self) -> Missed {
        self.tree.missed()
    }

    /// Relays a signal that was sent to lockrun.
    pub(super) fn forward(&mut self, signal: c_int) {
        let now = Moment::now();
        self.tree.forward(signal, self.search_until(now, now + RELAY));
    }

    /// Reaps children that have ended, and notes those that have stopped. Returns whether COMMAND runs or is stopped,
    /// if that has changed.
    pub(super) fn reap(&mut self) -> Option<JobState> {
        self.reap_at = self.tree.reap().is_behind.then(Moment::now);
        self.tree.take_job_state_change()
    }
}

#[cfg(test)]
mod tests;
