//! What lockrun knows from the guardian's messages: when to take over, and what is left to do.
//!
//! Pure: its only input is the messages.

use libc::pid_t;

use super::backchannel::GuardianMessage;
use super::watchdog;
use crate::lock::lease::Deadline;
use crate::supervise::supervisor::Finished;
use crate::sys::clock::Moment;

/// The guardian's progress, as last reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It waits for the lock, or releases it because COMMAND could not be started.
    Waiting,
    /// The lock was acquired, and COMMAND may have started.
    Granted,
    /// COMMAND runs, with this process id.
    Running(pid_t),
    /// COMMAND, which had this process id, has ended, and processes that it left behind are waited for.
    AwaitingDescendants(pid_t),
    /// COMMAND has ended, and nothing is waited for.
    Finished(Finished),
}

/// The guardian's progress, and the deadline by which it must have ended COMMAND.
#[derive(Debug)]
pub struct Oversight {
    stage: Stage,
    /// The deadline of the lease, if it ends COMMAND.
    deadline: Option<Deadline>,
}

impl Oversight {
    /// Returns the state for a guardian that has just been forked.
    pub fn new() -> Self {
        Oversight { stage: Stage::Waiting, deadline: None }
    }

    /// Returns the guardian's progress.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Records a message from the guardian.
    pub fn note(&mut self, message: GuardianMessage) {
        match message {
            GuardianMessage::Granted => self.stage = Stage::Granted,
            GuardianMessage::LeasedUntil(deadline) => {
                self.deadline = Some(deadline);
                if self.stage == Stage::Waiting {
                    self.stage = Stage::Granted;
                }
            }
            GuardianMessage::Started(command) => self.stage = Stage::Running(command),
            GuardianMessage::AwaitingDescendants => {
                if let Stage::Running(command) = self.stage {
                    self.stage = Stage::AwaitingDescendants(command);
                }
            }
            GuardianMessage::NotStarted => *self = Oversight::new(),
            GuardianMessage::Finished(finished) => {
                *self = Oversight { stage: Stage::Finished(finished), deadline: None };
            }
            GuardianMessage::JobStateChanged(_) | GuardianMessage::Over(_) => {}
        }
    }

    /// Returns when to take over if the guardian has not reported by then that nothing is left to end, because it is stopped or hangs.
    pub fn takes_over_at(&self) -> Option<Moment> {
        let may_run = matches!(self.stage, Stage::Granted | Stage::Running(_) | Stage::AwaitingDescendants(_));
        self.deadline.filter(|_| may_run).map(watchdog::fires_at)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::lock::lease::Terms;

    fn at(seconds: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(seconds))
    }

    fn deadline(sent_at: Moment) -> Deadline {
        let second = Duration::from_secs(1);
        Terms { ttl: 30 * second, renew_every: 10 * second, kill_after: 10 * second, store_timeout: 5 * second }
            .deadline(sent_at)
    }

    #[test]
    fn a_command_that_may_run_is_taken_over_shortly_after_its_guardian_should_have_killed_it() {
        let mut oversight = Oversight::new();
        assert_eq!((oversight.stage(), oversight.takes_over_at()), (Stage::Waiting, None));
        oversight.note(GuardianMessage::LeasedUntil(deadline(at(0))));
        assert_eq!(oversight.stage(), Stage::Granted);
        oversight.note(GuardianMessage::Started(7));
        oversight.note(GuardianMessage::LeasedUntil(deadline(at(10))));
        assert_eq!(oversight.stage(), Stage::Running(7));
        assert_eq!(oversight.takes_over_at(), Some(watchdog::fires_at(deadline(at(10)))));
        oversight.note(GuardianMessage::AwaitingDescendants);
        oversight.note(GuardianMessage::LeasedUntil(deadline(at(20))));
        assert_eq!(oversight.stage(), Stage::AwaitingDescendants(7));
        assert_eq!(oversight.takes_over_at(), Some(watchdog::fires_at(deadline(at(20)))));
    }

    #[test]
    fn a_command_that_has_ended_or_was_not_started_is_not_taken_over() {
        let finished = Finished { command: None, why: None, stuck: false };
        for (message, stage) in [
            (GuardianMessage::NotStarted, Stage::Waiting),
            (GuardianMessage::Finished(finished), Stage::Finished(finished)),
        ] {
            let mut oversight = Oversight::new();
            oversight.note(GuardianMessage::LeasedUntil(deadline(at(0))));
            oversight.note(message);
            assert_eq!((oversight.stage(), oversight.takes_over_at()), (stage, None));
        }
    }

    #[test]
    fn a_lease_that_does_not_end_the_command_has_no_time_for_taking_over() {
        let mut oversight = Oversight::new();
        oversight.note(GuardianMessage::Granted);
        assert_eq!((oversight.stage(), oversight.takes_over_at()), (Stage::Granted, None));
    }
}
