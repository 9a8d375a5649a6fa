//! Reports that COMMAND was not started, or how it ended.

use std::sync::Arc;
use std::thread;

use libc::pid_t;
use nix::errno::Errno;

use super::Run;
use super::command_not_found;
use super::outcome::Outcome;
use super::start::NotStarted;
use crate::cli::Subcommand;
use crate::lock::ending::Ending;
use crate::report::event::{Event, Reason};
use crate::supervise::{Finished, StartFailure, StopReason, why_not_executed};
use crate::sys::wait::why_no_timer;
use crate::text::escape::{escaped, is_plain_word};

/// The most stuck processes that a message names.
const STUCK_NAMED: usize = 5;

impl Run<'_> {
    /// Returns the outcome of a run whose COMMAND was not started under the lock.
    pub(super) fn outcome_unstarted(&self, why: NotStarted) -> Outcome {
        match why {
            NotStarted::Interrupted(signal) => Outcome::terminated_by(signal),
            NotStarted::Failed(failure) => self.outcome_of_failure(failure),
        }
    }

    /// Returns the outcome of a run whose COMMAND cannot be started.
    fn outcome_of_failure(&self, failure: StartFailure) -> Outcome {
        match failure {
            StartFailure::NotFound if why_not_executed(&self.plan.argv[0]).is_none() => Outcome::NotFound,
            StartFailure::NotFound | StartFailure::CannotExecute(_) => Outcome::CannotExecute,
            StartFailure::TooLate => Outcome::StoreFailed,
            StartFailure::Orphaned | StartFailure::NoTimer(_) | StartFailure::Preparing(_) => Outcome::Failed,
        }
    }

    /// Reports why COMMAND was not started under the lock.
    pub(super) fn report_not_started(&self, why: NotStarted) {
        match why {
            NotStarted::Interrupted(signal) => self.reporter.report(Event::Interrupted(signal)),
            NotStarted::Failed(failure) => {
                self.report_failure(failure);
            }
        }
    }

    /// Reports why COMMAND cannot be started. Returns the run's outcome.
    pub(super) fn report_failure(&self, failure: StartFailure) -> Outcome {
        let program = self.program();
        let why = match failure {
            StartFailure::NotFound => match why_not_executed(&self.plan.argv[0]) {
                Some(why) => format!("cannot run {program}: {}", escaped(&why)),
                None => format!("cannot run {program}: not found{}", self.meant()),
            },
            StartFailure::CannotExecute(errno) => {
                let why = command_not_found::why_forbidden(&self.plan.argv[0], errno);
                format!("cannot run {program}: {}", why.unwrap_or(errno.desc()))
            }
            StartFailure::TooLate => format!(
                "the lock \"{}\" was acquired, but too little of its lease was left to start the command",
                self.key()
            ),
            StartFailure::Orphaned => "lockrun itself was killed; the command was not started".to_owned(),
            StartFailure::NoTimer(errno) => {
                let why = why_no_timer(errno);
                format!("cannot create the timer that ends {program} with its lease: {why}")
            }
            StartFailure::Preparing(errno) => {
                format!("cannot start a process for {program}: {}", why_no_process(errno))
            }
        };
        self.reporter.report(Event::Failed { why: &why });
        self.outcome_of_failure(failure)
    }

    /// Reports that some of COMMAND's processes cannot be killed, and that lockrun waits for them. `pids` are their
    /// ids, as far as known.
    pub(super) fn report_stuck(&self, pids: &[pid_t]) {
        let pids: Vec<String> = pids.iter().take(STUCK_NAMED).map(pid_t::to_string).collect();
        let named = if pids.is_empty() { String::new() } else { format!(" (process {})", pids.join(", ")) };
        let why = format!(
            "some of the command's processes cannot be killed{named}; the lock stays held until they have ended: end them, as root if need be"
        );
        let reporter = Arc::clone(&self.reporter);
        // In a thread: a standard error that is not read must not delay the supervision of COMMAND. If no thread can be
        // created, nothing is reported.
        let _ = thread::Builder::new().spawn(move || reporter.report(Event::Failed { why: &why }));
    }

    /// Returns the events that report the loss of the lease for the reason `lost`, if there is one, and how COMMAND
    /// ended.
    pub(super) fn end_events<'e>(
        &self,
        finished: Finished,
        lost: Option<&'e str>,
    ) -> impl Iterator<Item = Event<'e>> + Clone + use<'e> {
        let reason = match finished.why {
            Some(StopReason::Lost) => Some(Reason::Lost),
            Some(StopReason::TimedOut) => Some(Reason::TimedOut {
                limit: self.plan.max_runtime.unwrap_or_default(),
                // With `--kill-after 0` there was no TERM.
                was_killed: finished.command == Some(Ending::Signaled(libc::SIGKILL))
                    && !self.plan.terms.kill_after.is_zero(),
            }),
            Some(StopReason::Unguarded) => Some(Reason::Unguarded),
            Some(StopReason::Orphaned) => Some(Reason::Orphaned),
            Some(StopReason::LeftBehind) | None => None,
        };
        let lost = lost.map(|why| Event::Lost { why, stops: finished.why == Some(StopReason::Lost) });
        lost.into_iter().chain(reason.map(Event::Killed)).chain([Event::Finished(finished.command)])
    }

    /// Returns a hint at what the user most likely meant by a program that does not exist, beginning with a semicolon;
    /// or nothing.
    fn meant(&self) -> String {
        let Some(program) = self.plan.argv.first() else { return String::new() };
        let alone = self.plan.argv.len() == 1;
        let own = Subcommand::named(program).filter(|_| alone).map(Subcommand::name);
        own.map(|name| format!("; lockrun's own {name} is written first: lockrun {name} --key {}", self.key()))
            .or_else(|| Some(format!("; {}", command_not_found::meant_by(&program.to_string_lossy(), alone)?)))
            .or_else(|| Some(format!("; {}", command_not_found::path(program)?)))
            .unwrap_or_default()
    }

    /// Returns the program for messages. What may be the address of a store is not repeated.
    pub(super) fn program(&self) -> String {
        let program = self.plan.argv[0].to_string_lossy();
        if is_plain_word(&program) { escaped(&program) } else { "the command".to_owned() }
    }

    /// Returns the lock's name, escaped for messages.
    pub(super) fn key(&self) -> String {
        escaped(self.plan.key.as_str())
    }
}

/// Returns why no process, or thread, could be created, and what to do about it.
pub(super) fn why_no_process(errno: Errno) -> &'static str {
    match errno {
        Errno::EAGAIN => "too many processes; raise the limit of this user (ulimit -u) or of the cgroup (pids.max)",
        errno => errno.desc(),
    }
}
