//! What lockrun knows from the guardian's messages: when to take over, and what is left to do.
//!
//! Pure: its only input is the messages.

use libc::pid_t;

use super::backchannel::GuardianMessage;
use super::watchdog;
use crate::lock::ending::Ending;
use crate::lock::lease::Deadline;
use crate::lock::milestones::Milestones;
use crate::supervise::supervisor::Finished;
use crate::sys::clock::Moment;

/// The guardian's progress, as last reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// It waits for the lock, or releases it because COMMAND could not be started.
    #[default]
    Waiting,
    /// The lock was acquired, and COMMAND may have started.
    Granted,
    /// COMMAND runs, with this process id.
    Running(pid_t),
    /// COMMAND has ended, and processes that it left behind are waited for.
    AwaitingDescendants {
        /// The process id that COMMAND had. Its process group may still have it.
        command: pid_t,
        /// How COMMAND ended.
        ended: Ending,
    },
    /// COMMAND has ended, and nothing is waited for.
    Finished(Finished),
}

/// The guardian's progress, and the deadline by which it must have ended COMMAND.
#[derive(Debug, Default)]
pub struct Oversight {
    stage: Stage,
    milestones: Milestones,
    /// The deadline of the lease, if it ends COMMAND.
    deadline: Option<Deadline>,
}

impl Oversight {
    /// Returns the state for a guardian that has just been forked.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the guardian's progress.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Returns how far the run has come.
    pub fn milestones(&self) -> Milestones {
        self.milestones
    }

    /// Records a message from the guardian.
    pub fn note(&mut self, message: GuardianMessage) {
        match message {
            GuardianMessage::Acquired(acquisition) => self.milestones.acquisition = Some(acquisition),
            GuardianMessage::Granted => self.stage = Stage::Granted,
            GuardianMessage::LeasedUntil(deadline) => {
                self.deadline = Some(deadline);
                if self.stage == Stage::Waiting {
                    self.stage = Stage::Granted;
                }
            }
            GuardianMessage::Started { command, at } => {
                self.stage = Stage::Running(command);
                self.milestones.started_at = Some(at);
            }
            GuardianMessage::AwaitingDescendants { command: ended, .. } => {
                if let Stage::Running(command) = self.stage {
                    self.stage = Stage::AwaitingDescendants { command, ended };
                }
            }
            GuardianMessage::NotStarted => self.enter_without_deadline(Stage::Waiting),
            GuardianMessage::Finished(finished) => self.enter_without_deadline(Stage::Finished(finished)),
            GuardianMessage::JobStateChanged(_) | GuardianMessage::Over(_) => {}
        }
    }

    /// Enters a stage in which there is no COMMAND, or none any more, that the deadline would have to end.
    fn enter_without_deadline(&mut self, stage: Stage) {
        (self.stage, self.deadline) = (stage, None);
    }

    /// Returns when to take over if the guardian has not reported by then that nothing is left to end, because it is stopped or hangs.
    pub fn takes_over_at(&self) -> Option<Moment> {
        let may_run = matches!(self.stage, Stage::Granted | Stage::Running(_) | Stage::AwaitingDescendants { .. });
        self.deadline.filter(|_| may_run).map(watchdog::fires_at)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::lock::lease::Terms;
    use crate::lock::milestones::Acquisition;

    fn at(seconds: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(seconds))
    }

    const ACQUISITION: Acquisition = Acquisition { at: Moment::from_boot(Duration::ZERO), fence: 1, slot: Some(0) };

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
        oversight.note(GuardianMessage::Started { command: 7, at: at(1) });
        oversight.note(GuardianMessage::LeasedUntil(deadline(at(10))));
        assert_eq!(oversight.stage(), Stage::Running(7));
        assert_eq!(oversight.takes_over_at(), Some(watchdog::fires_at(deadline(at(10)))));
        oversight.note(GuardianMessage::AwaitingDescendants { command: Ending::Exited(3), ended_at: at(15) });
        oversight.note(GuardianMessage::LeasedUntil(deadline(at(20))));
        assert_eq!(oversight.stage(), Stage::AwaitingDescendants { command: 7, ended: Ending::Exited(3) });
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
            oversight.note(GuardianMessage::Acquired(ACQUISITION));
            oversight.note(GuardianMessage::LeasedUntil(deadline(at(0))));
            oversight.note(message);
            assert_eq!((oversight.stage(), oversight.takes_over_at()), (stage, None));
            assert_eq!(oversight.milestones().acquisition, Some(ACQUISITION), "what is still reported names its fence");
        }
    }

    #[test]
    fn a_lease_that_does_not_end_the_command_has_no_time_for_taking_over() {
        let mut oversight = Oversight::new();
        oversight.note(GuardianMessage::Granted);
        assert_eq!((oversight.stage(), oversight.takes_over_at()), (Stage::Granted, None));
    }
}
