//! What lockrun knows from the guardian's messages: what is left to do if it has to take over.
//!
//! Pure: its only input is the messages.

use libc::pid_t;

use super::backchannel::GuardianMessage;
use crate::lock::ending::Ending;
use crate::lock::milestones::Milestones;
use crate::supervise::supervisor::Finished;

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

impl Stage {
    /// Returns whether COMMAND, or something that it left behind and that is waited for, may be alive.
    pub fn command_may_live(self) -> bool {
        matches!(self, Stage::Granted | Stage::Running(_) | Stage::AwaitingDescendants { .. })
    }
}

/// The guardian's progress.
#[derive(Debug, Default)]
pub struct GuardianState {
    stage: Stage,
    milestones: Milestones,
}

impl GuardianState {
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
            GuardianMessage::Started { command, at } => {
                self.stage = Stage::Running(command);
                self.milestones.started_at = Some(at);
            }
            GuardianMessage::AwaitingDescendants { command: ended, .. } => {
                if let Stage::Running(command) = self.stage {
                    self.stage = Stage::AwaitingDescendants { command, ended };
                }
            }
            GuardianMessage::NotStarted => self.stage = Stage::Waiting,
            GuardianMessage::Finished(finished) => self.stage = Stage::Finished(finished),
            GuardianMessage::Over(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::lock::milestones::Acquisition;
    use crate::sys::clock::Moment;

    const BOOT: Moment = Moment::from_boot(Duration::ZERO);

    const ACQUISITION: Acquisition = Acquisition { at: BOOT, fence: 1, slot: Some(0) };

    #[test]
    fn the_command_may_live_from_the_grant_until_it_has_ended_or_was_not_started() {
        let finished = Finished { command: None, why: None, stuck: false };
        let left = GuardianMessage::AwaitingDescendants { command: Ending::Exited(3), ended_at: BOOT };
        for (message, stage) in [
            (GuardianMessage::NotStarted, Stage::Waiting),
            (GuardianMessage::Finished(finished), Stage::Finished(finished)),
        ] {
            let mut state = GuardianState::new();
            assert!(!state.stage().command_may_live());
            for (before, stage) in [
                (GuardianMessage::Acquired(ACQUISITION), Stage::Waiting),
                (GuardianMessage::Granted, Stage::Granted),
                (GuardianMessage::Started { command: 7, at: BOOT }, Stage::Running(7)),
                (left, Stage::AwaitingDescendants { command: 7, ended: Ending::Exited(3) }),
            ] {
                state.note(before);
                assert_eq!(state.stage(), stage);
                assert_eq!(state.stage().command_may_live(), stage != Stage::Waiting);
            }
            state.note(message);
            assert_eq!((state.stage(), state.stage().command_may_live()), (stage, false));
            let milestones = Milestones { acquisition: Some(ACQUISITION), started_at: Some(BOOT) };
            assert_eq!(state.milestones(), milestones, "what is still reported has its fence and its times");
        }
    }
}
