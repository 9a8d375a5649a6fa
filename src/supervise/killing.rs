//! How the parent kills COMMAND's tree: it kills its own children again and again until there are none.
//!
//! That needs no search for the other processes, which would miss those that live for less time than it takes: when a
//! process dies, its children become the parent's. The kernel lists the children at once, however many other processes
//! there are, and a child that is not reaped keeps its process id, so no other process can be hit.
//!
//! The others are searched for only if the children cannot be listed, or do not die, or new ones appear for seconds.

#![allow(unsafe_code)]

use std::collections::HashSet;
use std::time::Duration;

use libc::pid_t;

use super::process::{Found, Process, own_pid};
use super::tree::Tree;
use crate::sys::children;
use crate::sys::clock::Moment;

/// The longest time for which children are killed that keep appearing, before this process looks at its messages and
/// signals again, and reaps the dead.
const ROUND_MAX: Duration = Duration::from_millis(20);

/// How long after the first KILL to search for processes below those that do not die.
const SEARCH_AFTER: Duration = Duration::from_millis(20);

/// How many processes to read in the first such search: below a dying parent there may be thousands of dead ones. Each
/// search that has not found all is followed by one that reads twice as many, so that in the end all are found.
const SEARCH_FIRST: usize = 256;

/// The pause between two such searches lasts this many times as long as the search, and at least [`SEARCH_AGAIN`].
const PAUSE_TO_SEARCH: u32 = 3;

/// The shortest pause between two such searches.
const SEARCH_AGAIN: Duration = Duration::from_millis(50);

/// How long after the first KILL dead children are reaped at the latest, although others do not die.
const REAP_AFTER: Duration = Duration::from_secs(5);

/// If there are more children than this, the dead ones are reaped although others do not die.
const CHILDREN_MAX: usize = 1024;

/// The state of the killing, from the first KILL on.
#[derive(Debug)]
pub(super) struct Killing {
    /// The children that have got KILL and are not reaped yet.
    killed: HashSet<pid_t>,
    /// When to search for processes below those that do not die.
    search_at: Moment,
    /// How many processes to read then.
    search_limit: usize,
    /// Until then, dead children are not reaped while others live.
    reaps_at: Moment,
    /// How long the last round took.
    last_round: Duration,
    may_reap: bool,
}

/// What a round of KILL has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Children {
    /// New ones kept appearing.
    Appearing,
    /// All of them are dead, so only they themselves are left to be reaped.
    Dead,
    /// All have got KILL, and some may not be dead yet.
    Dying,
    /// The kernel does not list them.
    Unknown,
}

impl Killing {
    /// Returns the state before the first KILL.
    pub(super) fn begin() -> Self {
        let now = Moment::now();
        Killing {
            killed: HashSet::new(),
            search_at: now + SEARCH_AFTER,
            search_limit: SEARCH_FIRST,
            reaps_at: now + REAP_AFTER,
            last_round: Duration::ZERO,
            may_reap: false,
        }
    }

    /// Returns whether dead children may be reaped before the next round.
    pub(super) fn may_reap(&self) -> bool {
        self.may_reap
    }

    /// Returns how long the last round took: zero before the first one, [`ROUND_MAX`] at most.
    pub(super) fn last_round(&self) -> Duration {
        self.last_round
    }

    /// Notes that the child `pid` was reaped, or changed its state, so that a child with this id gets KILL again.
    pub(super) fn forget(&mut self, pid: pid_t) {
        self.killed.remove(&pid);
    }

    /// Sends KILL to all processes of the `tree` that it can reach now. Returns whether to wait before the next round,
    /// until the processes have died: not if more of them kept appearing, only dead ones are left, or there are more than
    /// [`CHILDREN_MAX`].
    pub(super) fn round(&mut self, tree: &Tree) -> bool {
        let began = Moment::now();
        // The whole group in one call, which no fork can outrun.
        tree.signal_group(libc::SIGKILL);
        tree.signal_command(libc::SIGKILL);
        // To recognise inherited children, files of /proc are read.
        let (found, are_many) = if tree.has_inherited() {
            tree.access.with_spare(|| self.kill_children(tree))
        } else {
            self.kill_children(tree)
        };
        self.last_round = Moment::now().since(began).min(ROUND_MAX);
        // The others become children when those die: there is nothing to search for, unless that takes long.
        let now = Moment::now();
        let is_search_due = match found {
            Children::Unknown => true,
            Children::Dying => now >= self.search_at,
            Children::Appearing => now >= self.search_at.max(self.reaps_at),
            Children::Dead => false,
        };
        if is_search_due {
            let is_complete = kill_found(tree, found != Children::Unknown, self.search_limit);
            if !is_complete {
                self.search_limit = self.search_limit.saturating_mul(2);
            }
            let end = Moment::now();
            self.search_at = end + (end.since(now) * PAUSE_TO_SEARCH).max(SEARCH_AGAIN);
        }
        let are_dead = matches!(found, Children::Dead | Children::Unknown);
        // Many would become more and more, until the machine has no process id left.
        self.may_reap = are_dead || are_many || now >= self.reaps_at;
        matches!(found, Children::Dying | Children::Unknown) && !are_many
    }

    /// Sends KILL to every child of this process that may be COMMAND's and has not got it, and to those that it
    /// inherits meanwhile from others, until none is new, or until [`ROUND_MAX`] is over. Also returns whether there are
    /// more children than [`CHILDREN_MAX`].
    ///
    /// Each list is gone through to its end, however late it is by then: on a busy machine this process may get a
    /// processor so seldom that the time is always over. It is gone through from the newest child: that one may live
    /// for a millisecond, and thousands of dead ones may be listed before it.
    ///
    /// None of them is reaped meanwhile, so their ids stay theirs. That also keeps a limit on the user's processes
    /// (`ulimit -u`) used up: what forks as fast as it can comes to an end.
    fn kill_children(&mut self, tree: &Tree) -> (Children, bool) {
        let until = Moment::now() + ROUND_MAX;
        loop {
            let Some(mut children) = tree.access.children() else { return (Children::Unknown, false) };
            children.reverse();
            let mut is_any_new = false;
            for &pid in &children {
                if self.killed.contains(&pid) || !tree.may_be_commands(pid) {
                    continue;
                }
                // SAFETY: a plain system call. The child has not been reaped, so its id is not reused. It fails for
                // another user's.
                if unsafe { libc::kill(pid, libc::SIGKILL) } == 0 {
                    is_any_new = true;
                    self.killed.insert(pid);
                }
            }
            if is_any_new && Moment::now() < until {
                continue;
            }
            let are_many = children.len() > CHILDREN_MAX;
            let has_ended = |&pid: &pid_t| !tree.may_be_commands(pid) || children::has_ended(pid);
            let found = match is_any_new {
                true => Children::Appearing,
                // To look at many takes too long.
                false if !are_many && children.iter().all(has_ended) => Children::Dead,
                false => Children::Dying,
            };
            return (found, are_many);
        }
    }
}

/// Sends KILL to the processes below those that do not die, or below the dying parent, of which it reads up to `limit`.
/// To the children, too, if they were not killed. Returns whether all were found.
fn kill_found(tree: &Tree, are_children_killed: bool, limit: usize) -> bool {
    let me = own_pid();
    let mut reads = 0..limit;
    tree.access.with_spare(|| {
        let Found { processes, is_complete } = tree.search(|| reads.next().is_none());
        let is_left = |process: &&Process| !(process.is_dead() || are_children_killed && process.parent == me);
        for process in processes.iter().filter(is_left) {
            process.signal(libc::SIGKILL, &processes);
        }
        is_complete
    })
}
