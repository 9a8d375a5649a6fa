//! COMMAND's process tree, as seen by its parent: COMMAND and all processes that it started.
//!
//! The parent is a child subreaper: a descendant whose own parent has ended becomes its child, even after setsid(2) or
//! setpgid(2). So the tree is gone exactly when the parent has no child left, apart from
//! [inherited](super::inherited_children) ones.
//!
//! How it is killed: see [`super::killing`].

#![allow(unsafe_code)]

use std::time::Duration;

use libc::{c_int, pid_t};
use nix::errno::Errno;
use nix::sys::prctl;

use super::ending;
use super::inherited_children::{InheritedChildren, own_group_id};
use super::killing::Killing;
use super::proc_access::ProcAccess;
use super::process::{self, Found, Process, own_pid};
use super::spawn::{self, Exec, Setup};
use super::supervisor::Processes;
use crate::lock::ending::Ending;
use crate::sys::children;
use crate::sys::clock::Moment;
use crate::sys::signals::{self, Missed};

/// How many dead children are reaped at least, and for how long, before this process looks at its messages, signals and
/// deadlines again: others may die faster than they are reaped. If the last round of KILL took longer, for so long.
const REAPING: (usize, Duration) = (128, Duration::from_millis(5));

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
    pub(super) access: ProcAccess,
    killing: Option<Killing>,
}

/// Which of COMMAND's processes a signal is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recipients {
    /// Those in its process group.
    Group,
    /// All of them.
    All,
}

/// What [`Tree::reap`] has found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reaped {
    /// COMMAND has changed its state.
    heard_of_command: bool,
    /// Dead children may be left, so it must be called again.
    pub(super) is_behind: bool,
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
    /// only COMMAND and its descendants in that group, because the group's other processes are not COMMAND's. When
    /// COMMAND has ended, INT, QUIT and TERM go to all that it left behind, in whatever group: otherwise a run that
    /// waits for a daemon could not be ended.
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
        let ends_the_rest = matches!(signal, libc::SIGINT | libc::SIGQUIT | libc::SIGTERM);
        if ends_the_rest {
            // COMMAND may have ended just now.
            self.reap();
        }
        let whom = if ends_the_rest && self.ended.is_some() { Recipients::All } else { Recipients::Group };
        self.send(signal, until, whom);
    }

    /// Returns whether to relay a CONT that reached lockrun, if COMMAND shares lockrun's group. A shell's `fg`
    /// continues the whole group: then COMMAND has been continued already, and may even have been stopped again by the
    /// next Ctrl-Z, which a relayed CONT must not undo.
    fn wants_continuing(&mut self) -> bool {
        let was_stopped = matches!(self.job_state, JobState::Stopped { .. });
        was_stopped && !self.reap().heard_of_command
    }

    /// Sends `signal` to these processes. Stopped ones also get CONT after TERM, and on a terminal after HUP, as the
    /// kernel does at a hang-up, and shells do. Processes other than COMMAND and those in a group of its own get it if
    /// they are found until `until`.
    fn send(&self, signal: c_int, until: Moment, whom: Recipients) {
        let continues = signal == libc::SIGTERM || signal == libc::SIGHUP && !self.own_group;
        let group_has_it = self.signal_group(signal);
        let is_in_group = |pid| process::group(pid) == self.group;
        let command_has_it = group_has_it && is_in_group(self.command) || self.signal_command(signal);
        if group_has_it && signal != libc::SIGTERM && whom == Recipients::Group {
            return;
        }
        let is_meant =
            |process: &Process| whom == Recipients::All || is_in_group(process.pid) || process.pid == self.command;
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
        if self.killing.as_ref().is_some_and(|killing| !killing.may_reap()) {
            return reaped;
        }
        let round = self.killing.as_ref().map_or(Duration::ZERO, Killing::last_round);
        let until = Moment::now() + REAPING.1.max(round);
        // Of COMMAND's own end this process must know before it decides whether to end it.
        if self.own_child && self.ended.is_none() {
            reaped.heard_of_command = matches!(take_change(self.command), Ok(Some(change)) if self.note(change));
        }
        let mut count = 0;
        while count < REAPING.0 || Moment::now() < until {
            count += 1;
            match take_change(-1) {
                Ok(Some(change)) => reaped.heard_of_command |= self.note(change),
                Ok(None) => {
                    // Inherited children may outlive the tree; then only /proc shows whether COMMAND's
                    // processes are gone.
                    let may_be_gone = self.dying_parent.is_none() && (self.ended.is_some() || !self.own_child);
                    self.gone = may_be_gone && self.has_inherited() && self.has_only_inherited();
                    return reaped;
                }
                Err(Errno::EINTR) => {}
                Err(_) => {
                    self.gone = true;
                    return reaped;
                }
            }
        }
        Reaped { is_behind: true, ..reaped }
    }

    /// Notes that a child has ended, and so was reaped, or was stopped or continued. Returns whether it is COMMAND.
    fn note(&mut self, (pid, status): (pid_t, c_int)) -> bool {
        if let Some(killing) = &mut self.killing {
            killing.forget(pid);
        }
        if Some(pid) == self.dying_parent {
            self.dying_parent = self.dying_parent.filter(|_| ending(status).is_none());
            return false;
        }
        if pid != self.command || self.ended.is_some() {
            return false;
        }
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
        true
    }

    /// Returns whether COMMAND runs or is stopped; `None` if that has not changed since the last call.
    pub(super) fn take_job_state_change(&mut self) -> Option<JobState> {
        self.unreported.take()
    }

    /// Sends `signal` to COMMAND's own process, if it has not been reaped. Returns whether it did.
    pub(super) fn signal_command(&self, signal: c_int) -> bool {
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
    pub(super) fn signal_group(&self, signal: c_int) -> bool {
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

    /// Returns whether the child `pid` may be COMMAND's. A dying parent counts, too: it may still be in lockrun's
    /// process group.
    pub(super) fn may_be_commands(&self, pid: pid_t) -> bool {
        Some(pid) == self.dying_parent || !self.inherited.includes(pid)
    }

    /// Returns whether this process had descendants before COMMAND.
    pub(super) fn has_inherited(&self) -> bool {
        !self.inherited.is_empty()
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
    pub(super) fn search(&self, is_over: impl FnMut() -> bool) -> Found {
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
        self.send(libc::SIGTERM, until, Recipients::All);
    }

    fn kill(&mut self) -> bool {
        let mut killing = self.killing.take().unwrap_or_else(Killing::begin);
        let waits = killing.round(self);
        self.killing = Some(killing);
        waits
    }
}

/// Returns a child whose state has changed, with its status as wait(2) encodes it, and reaps it if it has ended; `None`
/// if there is none. Never waits. `whom` is its process id, or -1 for any child of this thread. Fails with `ECHILD` if
/// there is no such child.
fn take_change(whom: pid_t) -> nix::Result<Option<(pid_t, c_int)>> {
    let mut status = 0;
    let options = libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED | libc::__WNOTHREAD;
    // SAFETY: plain system call that writes one status.
    let pid = Errno::result(unsafe { libc::waitpid(whom, &raw mut status, options) })?;
    Ok((pid != 0).then_some((pid, status)))
}
