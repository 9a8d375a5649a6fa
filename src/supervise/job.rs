//! Job control: which signals lockrun relays to COMMAND, and when lockrun stops because COMMAND stopped.

use std::time::Duration;

use libc::c_int;
use nix::unistd::{getpid, getsid};

use super::tree::JobState;
use crate::sys::clock::Moment;
use crate::sys::signals::{self, Caught, Missed, Signals};

/// How long after a request to stop (Ctrl-Z) a stop of COMMAND counts as its effect: a program may have to restore the
/// terminal first. The request must not stay pending for ever, because COMMAND may ignore it: a much later SIGSTOP
/// comes from another process, which will continue COMMAND alone. If COMMAND stops later than this, the next Ctrl-Z
/// takes effect at once.
const TAKES_EFFECT_WITHIN: Duration = Duration::from_secs(10);

/// The state of a run as a shell's job.
#[derive(Debug)]
pub(super) struct JobControl {
    has_terminal: bool,
    leads_session: bool,
    /// The last request to stop, if lockrun has neither stopped nor been continued since.
    requested_at: Option<Moment>,
    command: JobState,
    /// Whether `command` has changed since the last call of [`JobControl::must_stop`].
    has_changed: bool,
    /// The signals that arrived before COMMAND, or the guardian, existed.
    missed: Missed,
}

impl JobControl {
    /// Returns the state of a run whose COMMAND, or guardian, has `missed` these signals.
    pub(super) fn new(has_terminal: bool, missed: Missed) -> Self {
        let leads_session = getsid(None) == Ok(getpid());
        JobControl {
            has_terminal,
            leads_session,
            requested_at: None,
            command: JobState::Running,
            has_changed: false,
            missed,
        }
    }

    /// Reads the pending signals, and returns those to relay to COMMAND.
    pub(super) fn take_pending(&mut self, signals: &Signals) -> Vec<c_int> {
        let now = Moment::now();
        std::iter::from_fn(|| signals.next()).filter_map(|caught| self.take(caught, now)).collect()
    }

    /// Handles one signal, and returns it if it must be relayed. COMMAND shares lockrun's process group on a terminal,
    /// so it gets the terminal's signals itself, with two exceptions: at a hang-up the kernel sends HUP to the
    /// session's leader alone, and COMMAND has not got the signals that arrived before it existed.
    fn take(&mut self, caught: Caught, now: Moment) -> Option<c_int> {
        let Caught { signal, sent } = caught;
        if signal == libc::SIGCONT {
            self.requested_at = None;
        } else if signals::is_stop(signal) {
            self.requested_at = Some(now);
        }
        let is_for_leader = self.leads_session && signal == libc::SIGHUP;
        let was_missed = self.missed.take(signal);
        let has_reached_command =
            !sent && !was_missed && self.has_terminal && signals::is_sent_by_terminals(signal) && !is_for_leader;
        (!has_reached_command).then_some(signal)
    }

    /// Records that COMMAND had ended by `ended_at`, and that processes that it left behind are waited for. A request
    /// to stop from before then was COMMAND's to obey, and is forgotten.
    pub(super) fn awaits_descendants(&mut self, ended_at: Moment) {
        self.requested_at = self.requested_at.filter(|at| *at >= ended_at);
    }

    /// Records that COMMAND was stopped or continued.
    pub(super) fn state_changed(&mut self, command: JobState) {
        self.command = command;
        self.has_changed = true;
    }

    /// Returns whether lockrun must stop now because COMMAND has stopped.
    ///
    /// With a request to stop, any stop of COMMAND counts, whichever came first: a program may catch TSTP and then stop
    /// itself by SIGSTOP. On a terminal, a stop by TSTP, TTIN or TTOU counts even without a request: the shell waits
    /// for lockrun, and shows its prompt only when lockrun stops. A SIGSTOP without a request does not count: its
    /// sender will continue COMMAND alone.
    ///
    /// Calls `is_stopped` last, to ask whether COMMAND is stopped at this moment: [`JobControl::state_changed`] may
    /// have been called late.
    pub(super) fn must_stop(&mut self, now: Moment, is_stopped: impl FnOnce() -> bool) -> bool {
        let has_changed = std::mem::take(&mut self.has_changed);
        let JobState::Stopped { by_terminal } = self.command else { return false };
        let must_stop = (self.is_requested(now) || has_changed && by_terminal && self.has_terminal) && is_stopped();
        if must_stop {
            self.requested_at = None;
        }
        must_stop
    }

    /// Returns whether lockrun must stop now, at a time when there is no COMMAND whose stop to wait for: it has not
    /// started, or it has ended and processes that it left behind are waited for. Each request counts once.
    pub(super) fn must_stop_without_command(&mut self, now: Moment) -> bool {
        let must_stop = self.is_requested(now);
        self.requested_at = None;
        must_stop
    }

    /// Returns whether there is a request to stop that can still take effect.
    fn is_requested(&self, now: Moment) -> bool {
        self.requested_at.is_some_and(|at| now.since(at) < TAKES_EFFECT_WITHIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TSTP: Caught = Caught { signal: libc::SIGTSTP, sent: false };
    const BY_STOP: JobState = JobState::Stopped { by_terminal: false };
    const BY_TERMINAL: JobState = JobState::Stopped { by_terminal: true };

    fn at(seconds: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(100 + seconds))
    }

    fn job(has_terminal: bool) -> JobControl {
        JobControl { leads_session: false, ..JobControl::new(has_terminal, Missed::default()) }
    }

    #[test]
    fn after_ctrl_z_any_stop_counts_in_either_order() {
        for has_terminal in [true, false] {
            for (stop, requested_first) in
                [(BY_STOP, true), (BY_STOP, false), (BY_TERMINAL, true), (BY_TERMINAL, false)]
            {
                let mut job = job(has_terminal);
                if requested_first {
                    job.take(TSTP, at(0));
                    assert!(!job.must_stop(at(0), || true), "COMMAND goes on");
                    job.state_changed(stop);
                } else {
                    job.state_changed(stop);
                    let at_once = has_terminal && stop == BY_TERMINAL;
                    assert_eq!(job.must_stop(at(0), || true), at_once);
                    job.take(TSTP, at(1));
                }
                assert!(
                    job.must_stop(at(2), || true),
                    "{stop:?}, on a terminal: {has_terminal}, requested first: {requested_first}"
                );
                assert!(!job.must_stop(at(2), || true), "once");
            }
        }
    }

    #[test]
    fn a_ctrl_z_that_was_not_obeyed_is_forgotten() {
        let mut late = job(true);
        late.take(TSTP, at(0));
        late.state_changed(BY_STOP);
        assert!(!late.must_stop(at(1), || false), "it goes on already");
        assert!(!late.must_stop(at(11), || true));
        late.take(TSTP, at(12));
        assert!(late.must_stop(at(12), || true), "the next one counts");
        let mut continued = job(true);
        continued.take(TSTP, at(0));
        continued.take(Caught { signal: libc::SIGCONT, sent: true }, at(1));
        continued.state_changed(BY_STOP);
        assert!(!continued.must_stop(at(1), || true));
        let mut over = job(true);
        over.state_changed(BY_STOP);
        assert!(!over.must_stop(at(0), || true), "there was no request");
        over.state_changed(JobState::Running);
        over.take(TSTP, at(1));
        assert!(!over.must_stop(at(1), || true), "COMMAND goes on");
    }

    #[test]
    fn without_a_command_a_request_counts_at_once_and_once() {
        let mut job = job(true);
        assert!(!job.must_stop_without_command(at(0)), "there was no request");
        job.take(TSTP, at(1));
        assert!(job.must_stop_without_command(at(2)));
        assert!(!job.must_stop_without_command(at(2)), "once");
    }

    #[test]
    fn a_request_from_before_the_end_of_command_does_not_stop_the_wait_for_descendants() {
        let mut job = job(true);
        job.take(TSTP, at(0));
        assert!(!job.must_stop(at(0), || true), "COMMAND goes on");
        job.awaits_descendants(at(2));
        assert!(!job.must_stop_without_command(at(2)));
        job.take(TSTP, at(3));
        job.awaits_descendants(at(2));
        assert!(job.must_stop_without_command(at(4)), "COMMAND had ended, which lockrun learnt late");
    }

    #[test]
    fn what_came_before_command_is_relayed_once() {
        // Blocked in this thread alone, which ends with the test.
        signals::set_mask(&signals::full_set()).expect("signals can be blocked");
        nix::sys::signal::raise(nix::sys::signal::SIGINT).expect("it is this thread");
        let mut job = JobControl { leads_session: false, ..JobControl::new(true, Missed::until_now()) };
        let [int, quit] = [libc::SIGINT, libc::SIGQUIT].map(|signal| Caught { signal, sent: false });
        assert_eq!(job.take(quit, at(0)), None, "COMMAND has it");
        assert_eq!(job.take(int, at(0)), Some(libc::SIGINT));
        assert_eq!(job.take(int, at(0)), None, "COMMAND has the next one");
    }

    #[test]
    fn a_hang_up_is_passed_on_by_the_leader_of_the_session() {
        let kernels = |signal| Caught { signal, sent: false };
        for leads_session in [true, false] {
            let mut job = JobControl { leads_session, ..JobControl::new(true, Missed::default()) };
            assert_eq!(job.take(kernels(libc::SIGHUP), at(0)), leads_session.then_some(libc::SIGHUP));
            assert_eq!(job.take(Caught { signal: libc::SIGHUP, sent: true }, at(0)), Some(libc::SIGHUP));
            assert_eq!(job.take(kernels(libc::SIGINT), at(0)), None, "COMMAND has it");
        }
    }
}
