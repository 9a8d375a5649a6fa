//! COMMAND's process tree, as seen by its parent: COMMAND and all processes that it started.
//!
//! The parent is a child subreaper: a descendant whose own parent has ended becomes its child, even after setsid(2) or
//! setpgid(2). So the tree is gone exactly when the parent has no child left, apart from
//! [inherited](super::inherited_children) ones.
//!
//! So, too, the tree is ended by killing the parent's own children again and again until there are none. That needs no
//! search for the others, which would miss processes that live for less time than it takes. The kernel lists the
//! children at once, however many other processes there are, and a child that is not reaped keeps its process id, so no
//! other process can be hit.

#![allow(unsafe_code)]

use std::collections::HashSet;
use std::ptr;
use std::time::Duration;

use libc::{c_int, pid_t};
use nix::errno::Errno;
use nix::sys::prctl;

use super::ending;
use super::inherited_children::{InheritedChildren, own_group_id};
use super::proc_access::ProcAccess;
use super::process::{self, Found, Process, own_pid};
use super::spawn::{self, Exec, Setup};
use super::supervisor::Processes;
use crate::lock::ending::Ending;
use crate::sys::children;
use crate::sys::clock::Moment;
use crate::sys::signals::{self, Missed};

/// The longest time for which children are killed that keep appearing, before this process looks at its messages and
/// signals again, and reaps the dead.
const KILLING_MAX: Duration = Duration::from_millis(20);

/// How many dead children are reaped at least, and for how long, before this process looks at its messages, signals and
/// deadlines again: others may die faster than they are reaped. If the last round of KILL took longer, for so long.
const REAPING: (usize, Duration) = (128, Duration::from_millis(5));

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

/// COMMAND's process tree.
#[derive(Debug)]
pub struct Tree {
    /// COMMAND's own process.
    command: pid_t,
    /// COMMAND's process group when it started: its own, or the one that it shares with lockrun.
    group: pid_t,
    /// COMMAND leads its own process group.
    own_group: bool,
    /// This process started COMMAND, so COMMAND's id is not reused until it is reaped here.
    own_child: bool,
    /// COMMAND's parent, if it is dying and has not been reaped here: until then COMMAND's processes are its
    /// descendants.
    dying_parent: Option<pid_t>,
    /// How COMMAND ended, once it was reaped.
    ended: Option<Ending>,
    /// Whether COMMAND is stopped, as last reported by the kernel.
    job_state: JobState,
    /// A change of `job_state` that [`Tree::take_job_state_change`] has not returned yet.
    unreported: Option<JobState>,
    /// No process of the tree is left.
    gone: bool,
    /// The signals that arrived before COMMAND was started.
    missed: Missed,
    /// The descendants that this process had before. They are left alone.
    inherited: InheritedChildren,
    access: ProcAccess,
    killing: Option<Killing>,
}

/// What [`Tree::reap`] has found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reaped {
    /// COMMAND has changed its state.
    heard_of_command: bool,
    /// Dead children may be left, so it must be called again.
    pub(super) is_behind: bool,
}

/// The state of the killing, from the first KILL on.
#[derive(Debug)]
struct Killing {
    /// The children that have got KILL and are not reaped yet.
    killed: HashSet<pid_t>,
    /// When to search for processes below those that do not die.
    search_at: Moment,
    /// How many processes to read then.
    search_limit: usize,
    /// Until then, dead children are not reaped while others live.
    reaps_at: Moment,
    /// How long the last round took.
    round: Duration,
    /// Whether to reap now.
    may_reap: bool,
}

/// What is found in a round of KILL.
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

/// Whether COMMAND runs or is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    Running,
    Stopped {
        /// By TSTP, TTIN or TTOU; otherwise by SIGSTOP, which a terminal never sends.
        by_terminal: bool,
    },
}

impl Tree {
    /// Makes this process a child subreaper and starts COMMAND.
    pub(super) fn start(exec: &mut Exec, setup: Setup, access: ProcAccess) -> Result<Self, spawn::Failure> {
        prctl::set_child_subreaper(true).map_err(spawn::Failure::Preparing)?;
        let inherited = InheritedChildren::note(setup.own_group, &access);
        let missed = Missed::until_now();
        let command = exec.spawn(setup)?;
        Ok(Tree {
            command,
            group: if setup.own_group { command } else { own_group_id() },
            own_group: setup.own_group,
            own_child: true,
            dying_parent: None,
            ended: None,
            job_state: JobState::Running,
            unreported: None,
            gone: false,
            missed,
            inherited,
            access,
            killing: None,
        })
    }

    /// Returns the tree of a COMMAND whose `parent`, a child of this process, is dying, so that its processes are
    /// becoming children of this one. `ended` is how COMMAND ended, if the parent reaped it: its id may belong to
    /// another process now.
    pub(super) fn adopt(
        parent: pid_t,
        command: pid_t,
        ended: Option<Ending>,
        own_group: bool,
        inherited: InheritedChildren,
        access: ProcAccess,
    ) -> Self {
        Tree {
            command,
            group: if own_group { command } else { own_group_id() },
            own_group,
            own_child: false,
            dying_parent: Some(parent),
            ended,
            job_state: JobState::Running,
            unreported: None,
            gone: false,
            missed: Missed::default(),
            inherited,
            access,
            killing: None,
        }
    }

    /// Returns COMMAND's process id.
    pub(super) fn command(&self) -> pid_t {
        self.command
    }

    /// Returns the signals that arrived before COMMAND was started, so that it has not got them from the terminal.
    pub(super) fn missed(&self) -> Missed {
        self.missed
    }

    /// Relays a signal that was sent to lockrun: to all of COMMAND's processes or to COMMAND alone, depending on the
    /// signal.
    ///
    /// Here, all of COMMAND's processes means those in its process group. If COMMAND shares lockrun's group, it means
    /// only COMMAND and its descendants in that group, because the group's other processes are not COMMAND's.
    ///
    /// Processes other than COMMAND and those in a group of its own get it if they are found until `until`.
    pub(super) fn forward(&mut self, signal: c_int, until: Moment) {
        if signal == libc::SIGCONT && !self.own_group && !self.wants_continuing() {
            return;
        }
        if !signals::FOR_ALL.contains(&signal) {
            self.signal_command(signal);
            return;
        }
        let is_meant = |process: &Process| process::group(process.pid) == self.group || process.pid == self.command;
        self.send(signal, until, is_meant);
    }

    /// Returns whether to relay a CONT that reached lockrun, if COMMAND shares lockrun's group. A shell's `fg`
    /// continues the whole group: then COMMAND has been continued already, and may even have been stopped again by the
    /// next Ctrl-Z, which a relayed CONT must not undo.
    fn wants_continuing(&mut self) -> bool {
        let was_stopped = matches!(self.job_state, JobState::Stopped { .. });
        was_stopped && !self.reap().heard_of_command
    }

    /// Sends `signal` to all processes that `is_meant` selects; it must select COMMAND's process group. Stopped
    /// processes also get CONT after TERM, and on a terminal after HUP, as the kernel does at a hang-up, and shells do.
    /// Processes other than COMMAND and those in a group of its own get it if they are found until `until`.
    fn send(&self, signal: c_int, until: Moment, is_meant: impl Fn(&Process) -> bool) {
        let continues = signal == libc::SIGTERM || signal == libc::SIGHUP && !self.own_group;
        let group_has_it = self.signal_group(signal);
        let is_in_group = |pid| process::group(pid) == self.group;
        let command_has_it = group_has_it && is_in_group(self.command) || self.signal_command(signal);
        if group_has_it && signal != libc::SIGTERM {
            return;
        }
        let send_to_others = || {
            let found = self.search(|| Moment::now() >= until);
            let meant: Vec<_> = found.processes.iter().filter(|it| !it.is_dead() && is_meant(it)).collect();
            let has_it = |pid| command_has_it && pid == self.command || group_has_it && is_in_group(pid);
            for process in meant.iter().filter(|it| !has_it(it.pid)) {
                process.signal(signal, &found.processes);
            }
            for process in meant.iter().filter(|it| continues && it.is_stopped()) {
                process.signal(libc::SIGCONT, &found.processes);
            }
            found.is_complete
        };
        let are_all_found = self.access.with_spare(send_to_others);
        if !are_all_found && continues && !self.signal_group(libc::SIGCONT) {
            self.signal_command(libc::SIGCONT);
        }
    }

    /// Reaps the children that have ended, COMMAND first, for about as long as [`REAPING`] says, unless the killing of
    /// others goes on, and records whether COMMAND was stopped or continued. Never waits.
    ///
    /// As every method that looks for processes, this must be called by the main thread, which is COMMAND's parent and
    /// inherits all orphans. Children of other threads (the getent that looks up the server's name) are neither reaped
    /// nor ended here, and do not count: those threads wait for them.
    pub(super) fn reap(&mut self) -> Reaped {
        let mut reaped = Reaped::default();
        if self.killing.as_ref().is_some_and(|killing| !killing.may_reap) {
            return reaped;
        }
        let round = self.killing.as_ref().map_or(Duration::ZERO, |killing| killing.round);
        let until = Moment::now() + REAPING.1.max(round);
        let mut count = 0;
        // Of COMMAND's own end this process must know before it decides whether to end it.
        let mut whom = if self.own_child && self.ended.is_none() { self.command } else { -1 };
        while count < REAPING.0 || Moment::now() < until {
            count += 1;
            let mut status = 0;
            let options = libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED | libc::__WNOTHREAD;
            // SAFETY: plain system call that writes one status.
            let pid = unsafe { libc::waitpid(whom, &raw mut status, options) };
            if whom != -1 && pid != whom {
                whom = -1;
                continue;
            }
            whom = -1;
            if let Some(killing) = &mut self.killing {
                killing.killed.remove(&pid);
            }
            match pid {
                0 => {
                    // Inherited children may outlive the tree; then only /proc shows whether COMMAND's
                    // processes are gone.
                    let may_be_gone = self.dying_parent.is_none() && (self.ended.is_some() || !self.own_child);
                    self.gone = may_be_gone && !self.inherited.is_empty() && self.has_only_inherited();
                    return reaped;
                }
                -1 if Errno::last() == Errno::EINTR => {}
                -1 => {
                    self.gone = true;
                    return reaped;
                }
                pid if Some(pid) == self.dying_parent => {
                    self.dying_parent = self.dying_parent.filter(|_| ending(status).is_none());
                }
                pid if pid != self.command || self.ended.is_some() => {}
                _ => {
                    reaped.heard_of_command = true;
                    let job_state = if libc::WIFSTOPPED(status) {
                        JobState::Stopped { by_terminal: signals::is_stop(libc::WSTOPSIG(status)) }
                    } else {
                        JobState::Running
                    };
                    if job_state != JobState::Running || job_state != self.job_state {
                        self.unreported = Some(job_state);
                    }
                    self.job_state = job_state;
                    self.ended = ending(status);
                }
            }
        }
        Reaped { is_behind: true, ..reaped }
    }

    /// Returns whether COMMAND runs or is stopped; `None` if that has not changed since the last call.
    pub(super) fn take_job_state_change(&mut self) -> Option<JobState> {
        self.unreported.take()
    }

    /// Sends `signal` to COMMAND's own process, if it has not been reaped. Returns whether it did.
    fn signal_command(&self, signal: c_int) -> bool {
        let reaches = self.own_child && self.ended.is_none();
        if reaches {
            // SAFETY: plain system call. The process is a child that is not reaped, so its id is not reused.
            unsafe { libc::kill(self.command, signal) };
        }
        reaches
    }

    /// Sends `signal` to COMMAND's whole process group in one call, which no fork can outrun, if COMMAND leads its own
    /// group. Returns whether it did.
    ///
    /// Does so only if a child of this process is in the group, COMMAND or an orphan: only this process reaps that
    /// child, and until then the group's id is not reused.
    fn signal_group(&self, signal: c_int) -> bool {
        // 0 stands for a COMMAND whose process id is not known; kill(2) would take it for this process's own group.
        let reaches = self.own_group && self.group > 0 && children::are_in(self.group);
        if reaches {
            // SAFETY: plain system call.
            unsafe { libc::kill(-self.group, signal) };
        }
        reaches
    }

    /// Returns the ids of the living processes, as far as /proc shows them.
    pub(super) fn living(&self) -> Vec<pid_t> {
        let found = self.access.with_spare(|| self.search(|| false)).processes;
        found.into_iter().filter(|process| !process.is_dead()).map(|process| process.pid).collect()
    }

    /// Sends KILL to every child of this process that may be COMMAND's and is not among the `killed`, and to those that
    /// it inherits meanwhile from others, until none is new, or until [`KILLING_MAX`] is over. Also returns whether there
    /// are more children than [`CHILDREN_MAX`].
    ///
    /// Each list is gone through to its end, however late it is by then: on a busy machine this process may get a
    /// processor so seldom that the time is always over. It is gone through from the newest child: that one may live
    /// for a millisecond, and thousands of dead ones may be listed before it.
    ///
    /// None of them is reaped meanwhile, so their ids stay theirs. That also keeps a limit on the user's processes
    /// (`ulimit -u`) used up: what forks as fast as it can comes to an end.
    fn kill_children(&self, killed: &mut HashSet<pid_t>) -> (Children, bool) {
        let until = Moment::now() + KILLING_MAX;
        loop {
            let Some(mut children) = self.access.children() else { return (Children::Unknown, false) };
            children.reverse();
            let mut is_any_new = false;
            for &pid in &children {
                if killed.contains(&pid) || !self.may_be_commands(pid) {
                    continue;
                }
                // SAFETY: a plain system call. The child has not been reaped, so its id is not reused. It fails for
                // another user's.
                if unsafe { libc::kill(pid, libc::SIGKILL) } == 0 {
                    is_any_new = true;
                    killed.insert(pid);
                }
            }
            if is_any_new && Moment::now() < until {
                continue;
            }
            let are_many = children.len() > CHILDREN_MAX;
            let has_ended = |&pid: &pid_t| !self.may_be_commands(pid) || children::has_ended(pid);
            let found = match is_any_new {
                true => Children::Appearing,
                // To look at many takes too long.
                false if !are_many && children.iter().all(has_ended) => Children::Dead,
                false => Children::Dying,
            };
            return (found, are_many);
        }
    }

    /// Sends KILL to the processes below those that do not die, or below the dying parent, of which it reads up to
    /// `limit`. To the children, too, if they were not killed. Returns whether all were found.
    fn kill_found(&self, are_children_killed: bool, limit: usize) -> bool {
        let me = own_pid();
        let mut reads = 0..limit;
        self.access.with_spare(|| {
            let Found { processes, is_complete } = self.search(|| reads.next().is_none());
            let is_left = |process: &&Process| !(process.is_dead() || are_children_killed && process.parent == me);
            for process in processes.iter().filter(is_left) {
                process.signal(libc::SIGKILL, &processes);
            }
            is_complete
        })
    }

    /// Returns whether the child `pid` may be COMMAND's. A dying parent counts, too: it may still be in lockrun's
    /// process group.
    fn may_be_commands(&self, pid: pid_t) -> bool {
        Some(pid) == self.dying_parent || !self.inherited.includes(pid)
    }

    /// Returns whether this process has no living child but inherited ones. Every living process of COMMAND is such a
    /// child, or below one.
    fn has_only_inherited(&self) -> bool {
        let is_dead = |pid| process::read(pid).is_some_and(Process::is_dead);
        let has_only =
            |children: Vec<pid_t>| children.into_iter().all(|pid| !self.may_be_commands(pid) || is_dead(pid));
        if let Some(has_only) = self.access.with_spare(|| self.access.children().map(has_only)) {
            return has_only;
        }
        let found = self.access.with_spare(|| self.search(|| false));
        found.is_complete && found.processes.into_iter().all(Process::is_dead)
    }

    /// Finds all descendants of this process that may be COMMAND's, but for its dead children, unless the search
    /// `is_over` before.
    fn search(&self, is_over: impl FnMut() -> bool) -> Found {
        let me = own_pid();
        let is_another_threads = |process: Process| process.parent == me && children::is_another_threads(process.pid);
        process::descendants(me, is_over, |process| is_another_threads(process) || !self.may_be_commands(process.pid))
    }
}

impl Processes for Tree {
    fn ended(&self) -> Option<Ending> {
        self.ended
    }

    fn is_gone(&self) -> bool {
        self.gone
    }

    /// Sends TERM to all processes, and CONT to the stopped ones, which would not handle TERM otherwise.
    fn terminate(&self, until: Moment) {
        self.send(libc::SIGTERM, until, |_| true);
    }

    fn kill(&mut self) -> bool {
        let began = Moment::now();
        let mut killing = self.killing.take().unwrap_or_else(|| Killing {
            killed: HashSet::new(),
            search_at: began + SEARCH_AFTER,
            search_limit: SEARCH_FIRST,
            reaps_at: began + REAP_AFTER,
            round: Duration::ZERO,
            may_reap: false,
        });
        // The whole group in one call, which no fork can outrun.
        self.signal_group(libc::SIGKILL);
        self.signal_command(libc::SIGKILL);
        // To recognise inherited children, files of /proc are read.
        let reads_proc = !self.inherited.is_empty();
        let killed = &mut killing.killed;
        let (found, are_many) =
            if reads_proc { self.access.with_spare(|| self.kill_children(killed)) } else { self.kill_children(killed) };
        killing.round = Moment::now().since(began).min(KILLING_MAX);
        // The others become children when those die: there is nothing to search for, unless that takes long.
        let now = Moment::now();
        let is_search_due = match found {
            Children::Unknown => true,
            Children::Dying => now >= killing.search_at,
            Children::Appearing => now >= killing.search_at.max(killing.reaps_at),
            Children::Dead => false,
        };
        if is_search_due {
            let is_complete = self.kill_found(found != Children::Unknown, killing.search_limit);
            if !is_complete {
                killing.search_limit = killing.search_limit.saturating_mul(2);
            }
            let end = Moment::now();
            killing.search_at = end + (end.since(now) * PAUSE_TO_SEARCH).max(SEARCH_AGAIN);
        }
        let are_dead = matches!(found, Children::Dead | Children::Unknown);
        // Many would become more and more, until the machine has no process id left.
        killing.may_reap = are_dead || are_many || now >= killing.reaps_at;
        self.killing = Some(killing);
        matches!(found, Children::Dying | Children::Unknown) && !are_many
    }
}

/// A child of this process that nothing else reaps. Dropping this kills and reaps it.
#[derive(Debug)]
pub struct Child(pub(super) pid_t);

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: plain system calls. The child has not been reaped, so its id is not reused; the status is not
        // requested.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            while libc::waitpid(self.0, ptr::null_mut(), 0) == -1 && Errno::last() == Errno::EINTR {}
        }
    }
}
