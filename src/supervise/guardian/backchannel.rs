//! What the guardian reports to lockrun. Nothing is lost and the guardian never waits, however long lockrun does not
//! run: a debugger may hold it.
//!
//! * Most reports are messages in a pipe. Each message is sent at most once in a run, and the pipe has room for all of
//!   them.
//! * Of what may change any number of times only the latest counts, and the kernel keeps that one value: COMMAND's job
//!   state is the value of the bell, an eventfd; the deadline of the lease is a timer that both processes have open
//!   (see [`super::watchdog`]).
//!
//! An end of the pipe is closed when its process ends, however that happens: so lockrun and the guardian learn of each
//! other's death.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::{pipe2, read, write};
use serde::{Deserialize, Serialize};

use crate::lock::ending::Ending;
use crate::lock::milestones::Acquisition;
use crate::supervise::supervisor::Finished;
use crate::supervise::tree::JobState;
use crate::sys::clock::Moment;

/// A message from the guardian to lockrun. Each is sent at most once in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GuardianMessage {
    /// The lock was acquired: what the events that lockrun reports need, if it takes over.
    Acquired(Acquisition),
    /// The lock was acquired, and COMMAND is about to start.
    Granted,
    /// COMMAND is executing.
    Started {
        /// Its process id.
        command: i32,
        /// When it was started.
        at: Moment,
    },
    /// COMMAND could not be started: the lock is about to be released.
    NotStarted,
    /// COMMAND has ended, and processes that it left behind are waited for.
    AwaitingDescendants {
        /// How COMMAND ended.
        command: Ending,
        /// A moment just before COMMAND was reaped.
        ended_at: Moment,
    },
    /// COMMAND has ended: the lock is about to be released.
    Finished(Finished),
    /// The run is over: lockrun must end in this way.
    Over(Ending),
}

/// The guardian's end.
#[derive(Clone, Debug)]
pub(super) struct Sender {
    /// The messages, as JSON. lockrun does not wait for the pipe to become readable, so sending does not wake it while
    /// waiters wait for the guardian.
    messages: Arc<OwnedFd>,
    bell: Arc<EventFd>,
}

/// lockrun's end.
#[derive(Debug)]
pub(super) struct Receiver {
    messages: OwnedFd,
    /// Readable when lockrun is to look at the messages, or COMMAND's job state has changed.
    bell: Arc<EventFd>,
}

/// More bytes than all messages of a run have. A pipe has room for at least `PIPE_BUF`, which is more.
const ROOM: usize = 1024;

/// The values of the bell, other than 0: what lockrun has not read yet.
mod bell {
    /// Nothing but messages.
    pub const MESSAGES: u64 = 1;
    pub const RUNNING: u64 = 2;
    pub const STOPPED: u64 = 3;
    pub const STOPPED_BY_TERMINAL: u64 = 4;
}

/// Creates two connected ends.
pub(super) fn pair() -> nix::Result<(Sender, Receiver)> {
    let (reading, writing) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
    let receiver = Receiver { messages: reading, bell: Arc::clone(&bell) };
    Ok((Sender { messages: Arc::new(writing), bell }, receiver))
}

impl Sender {
    /// Sends lockrun a message, which it reads when it next wakes.
    pub(super) fn send(&self, message: GuardianMessage) {
        let message = serde_json::to_vec(&message).unwrap_or_default();
        // So few bytes are written whole or not at all; and not at all only if lockrun is dead, which the guardian
        // notices. (The kernel then also sends PIPE, which is blocked or ignored.)
        let _ = write(&*self.messages, &message);
    }

    /// Sends lockrun a message and wakes it.
    pub(super) fn send_now(&self, message: GuardianMessage) {
        self.send(message);
        self.ring(None);
    }

    /// Wakes lockrun, and reports to it that COMMAND was stopped or continued.
    pub(super) fn send_job_state(&self, job_state: JobState) {
        self.ring(Some(job_state));
    }

    /// Replaces the value of the bell, but not an unread job state by none. Must be called by one thread only.
    fn ring(&self, job_state: Option<JobState>) {
        // Reading sets the value to 0. Whether lockrun or this reads it first, the new value follows. Neither call can
        // fail in another way.
        let unread = self.bell.read().unwrap_or(0);
        let _ = self.bell.write(match job_state {
            None => unread.max(bell::MESSAGES),
            Some(JobState::Running) => bell::RUNNING,
            Some(JobState::Stopped { by_terminal: false }) => bell::STOPPED,
            Some(JobState::Stopped { by_terminal: true }) => bell::STOPPED_BY_TERMINAL,
        });
    }

    /// Returns whether lockrun is gone. Never waits.
    pub(super) fn is_closed(&self) -> bool {
        is_closed(&self.messages)
    }
}

/// poll(2) reports an error once lockrun is gone, and never that this is readable.
impl AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.messages.as_fd()
    }
}

impl Receiver {
    /// Returns COMMAND's job state, if it has changed since the last call. Until the bell rings again, it is not
    /// readable. Never waits.
    pub(super) fn job_state(&self) -> Option<JobState> {
        match self.bell.read().ok()? {
            bell::RUNNING => Some(JobState::Running),
            bell::STOPPED => Some(JobState::Stopped { by_terminal: false }),
            bell::STOPPED_BY_TERMINAL => Some(JobState::Stopped { by_terminal: true }),
            _ => None,
        }
    }

    /// Returns the messages since the last call. Never waits.
    pub(super) fn messages(&self) -> Vec<GuardianMessage> {
        let mut bytes = [0; ROOM];
        let length = read(&self.messages, &mut bytes).unwrap_or(0);
        serde_json::Deserializer::from_slice(&bytes[..length]).into_iter().map_while(Result::ok).collect()
    }

    /// Returns whether the guardian is gone. There may still be messages. Never waits.
    pub(super) fn is_closed(&self) -> bool {
        is_closed(&self.messages)
    }

    /// Returns the entries for poll(2) that wait for the bell, and for the end of the guardian.
    pub(super) fn waited_for(&self) -> [PollFd<'_>; 2] {
        [PollFd::new(self.bell.as_fd(), PollFlags::POLLIN), PollFd::new(self.messages.as_fd(), PollFlags::empty())]
    }
}

/// Returns whether the other end of a pipe is closed.
fn is_closed(end: &OwnedFd) -> bool {
    // Asked for nothing, poll(2) reports this alone.
    poll(&mut [PollFd::new(end.as_fd(), PollFlags::empty())], PollTimeout::ZERO) == Ok(1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::supervise::supervisor::StopReason;

    fn wakes(receiver: &Receiver) -> bool {
        poll(&mut receiver.waited_for(), PollTimeout::ZERO) != Ok(0)
    }

    /// The longest message of each kind.
    fn longest() -> [GuardianMessage; 7] {
        let at = Moment::from_boot(Duration::MAX);
        let ending = Ending::Signaled(i32::MIN);
        [
            GuardianMessage::Acquired(Acquisition { at, fence: u64::MAX, slot: Some(u32::MAX) }),
            GuardianMessage::Granted,
            GuardianMessage::Started { command: i32::MIN, at },
            GuardianMessage::NotStarted,
            GuardianMessage::AwaitingDescendants { command: ending, ended_at: at },
            GuardianMessage::Finished(Finished {
                command: Some(ending),
                why: Some(StopReason::LeftBehind),
                stuck: false,
            }),
            GuardianMessage::Over(ending),
        ]
    }

    #[test]
    fn all_messages_of_a_run_arrive_as_they_were_sent_however_late_they_are_read() {
        let (sender, receiver) = pair().expect("descriptors");
        let all = longest();
        for message in &all {
            sender.send(*message);
        }
        assert!(!wakes(&receiver), "it reads them when it next wakes");
        assert_eq!(receiver.messages(), all);
        assert_eq!(receiver.messages(), []);
        for why in [StopReason::Lost, StopReason::TimedOut, StopReason::Orphaned, StopReason::Unguarded] {
            let message = GuardianMessage::Finished(Finished { command: None, why: Some(why), stuck: true });
            sender.send_now(message);
            assert!(wakes(&receiver));
            assert_eq!((receiver.job_state(), receiver.messages()), (None, vec![message]));
            assert!(!wakes(&receiver));
        }
    }

    #[test]
    fn the_latest_job_state_is_read_however_many_there_were() {
        let (sender, receiver) = pair().expect("descriptors");
        let by = |by_terminal| JobState::Stopped { by_terminal };
        for last in [by(true), JobState::Running, by(false)] {
            for _ in 0..10_000 {
                sender.send_job_state(JobState::Running);
                sender.send_job_state(by(false));
            }
            sender.send_job_state(last);
            assert!(wakes(&receiver));
            sender.send_now(GuardianMessage::Granted);
            assert_eq!(receiver.job_state(), Some(last), "a message does not replace it");
            assert_eq!(receiver.job_state(), None, "it has not changed since");
            assert_eq!(receiver.messages(), [GuardianMessage::Granted]);
            assert!(!wakes(&receiver));
        }
    }

    #[test]
    fn each_side_notices_the_end_of_the_other() {
        let (sender, receiver) = pair().expect("descriptors");
        assert!(!sender.is_closed() && !receiver.is_closed());
        sender.send(GuardianMessage::NotStarted);
        drop(sender);
        assert!(wakes(&receiver) && receiver.is_closed());
        assert_eq!(receiver.messages(), [GuardianMessage::NotStarted], "the last message is still there");
        let (sender, receiver) = pair().expect("descriptors");
        drop(receiver);
        assert!(sender.is_closed());
        sender.send_now(GuardianMessage::NotStarted);
    }
}
