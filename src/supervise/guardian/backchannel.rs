//! Messages from the guardian to lockrun, and from the renewer to the guardian's main thread, over socket pairs that keep messages
//! whole and in order.
//!
//! A socket closes when its process ends, however that happens: so lockrun and the guardian learn of each other's death.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};

use crate::lock::ending::Ending;
use crate::lock::lease::Deadline;
use crate::lock::milestones::Acquisition;
use crate::supervise::supervisor::{Finished, StopReason};
use crate::supervise::tree::JobState;
use crate::sys::clock::Moment;

/// A message from the renewer to the guardian's main thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RenewerMessage {
    /// The lease was renewed.
    Renewed(Deadline),
    /// The lease is lost: end COMMAND.
    Lost,
}

/// A message from the guardian to lockrun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardianMessage {
    /// The lock was acquired: what the events that lockrun reports need, if it takes over.
    Acquired(Acquisition),
    /// The lock was acquired, and COMMAND is about to start. The lease does not end COMMAND.
    Granted,
    /// The lease now has this deadline, which ends COMMAND. The first such message means that COMMAND is about to start.
    LeasedUntil(Deadline),
    /// COMMAND is executing.
    Started {
        /// Its process id.
        command: i32,
        /// When it was started.
        at: Moment,
    },
    /// COMMAND could not be started: the lock is about to be released.
    NotStarted,
    /// COMMAND was stopped or continued.
    JobStateChanged(JobState),
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

/// One end of the connection between lockrun and its guardian.
#[derive(Clone, Debug)]
pub(super) struct Link {
    /// Carries the messages. No process polls it, so sending does not wake lockrun while waiters wait for the guardian.
    messages: Channel,
    /// Polled. Rung after urgent messages, and carries changes of COMMAND's job state: there may be many of these while lockrun is stopped,
    /// and here they do not take the room of a message.
    bell: Channel,
}

/// One end of the connection between the renewer and the guardian's main thread.
#[derive(Clone, Debug)]
pub(super) struct RenewerChannel(Channel);

/// One end of a socket pair.
#[derive(Clone, Debug)]
struct Channel(Arc<OwnedFd>);

/// A message: a number for its kind, and up to three more. Both ends are the same program, so it has the native byte order.
pub(super) type Frame = [u64; 4];

const MESSAGE: usize = size_of::<Frame>();

/// The first number of each message.
mod code {
    pub const RENEWED: u64 = 1;
    pub const LOST: u64 = 2;

    pub const GRANTED: u64 = 1;
    pub const LEASED_UNTIL: u64 = 2;
    pub const STARTED: u64 = 3;
    pub const NOT_STARTED: u64 = 4;
    pub const JOB_STATE_CHANGED: u64 = 5;
    pub const AWAITING_DESCENDANTS: u64 = 6;
    pub const FINISHED: u64 = 7;
    pub const OVER: u64 = 8;
    pub const ACQUIRED: u64 = 9;
}

impl Link {
    /// Creates two connected ends.
    pub(super) fn pair() -> nix::Result<(Link, Link)> {
        let (messages, bell) = (Channel::pair()?, Channel::pair()?);
        Ok((Link { messages: messages.0, bell: bell.0 }, Link { messages: messages.1, bell: bell.1 }))
    }

    /// Sends lockrun a message, which it reads when it next wakes. Never waits.
    pub(super) fn send(&self, message: GuardianMessage) {
        self.messages.send(message.encode());
    }

    /// Sends lockrun a message and wakes it.
    pub(super) fn send_now(&self, message: GuardianMessage) {
        self.send(message);
        self.bell.send(Frame::default());
    }

    /// Wakes lockrun, and reports to it that COMMAND was stopped or continued.
    pub(super) fn send_job_state(&self, job_state: JobState) {
        self.bell.send(GuardianMessage::JobStateChanged(job_state).encode());
    }

    /// Returns the next message, if there is one; an error if the guardian is gone. Never waits.
    pub(super) fn next_message(&self) -> nix::Result<Option<GuardianMessage>> {
        while let Ok(Some(frame)) = self.bell.receive() {
            if let Some(job_state) = GuardianMessage::decode(frame) {
                return Ok(Some(job_state));
            }
        }
        self.messages.receive().map(|frame| frame.and_then(GuardianMessage::decode))
    }

    /// Returns whether lockrun is gone. (It sends no messages, so only a closed socket can be found here.) Never waits.
    pub(super) fn is_closed(&self) -> bool {
        self.bell.receive().is_err()
    }
}

/// Becomes readable when the bell is rung, and when the other end is gone.
impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.0.as_fd()
    }
}

impl RenewerChannel {
    /// Creates two connected ends.
    pub(super) fn pair() -> nix::Result<(RenewerChannel, RenewerChannel)> {
        Channel::pair().map(|(one, other)| (RenewerChannel(one), RenewerChannel(other)))
    }

    /// Sends the main thread a message. Never waits.
    pub(super) fn send(&self, message: RenewerMessage) {
        self.0.send(message.encode());
    }

    /// Returns the next message, if there is one. Never waits.
    pub(super) fn next(&self) -> Option<RenewerMessage> {
        self.0.receive().ok().flatten().and_then(RenewerMessage::decode)
    }
}

/// Becomes readable when there is a message.
impl AsFd for RenewerChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}

impl Channel {
    fn pair() -> nix::Result<(Channel, Channel)> {
        let (one, other) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        Ok((Channel(Arc::new(one)), Channel(Arc::new(other))))
    }

    fn send(&self, frame: Frame) {
        let bytes: Vec<u8> = frame.iter().flat_map(|word| word.to_ne_bytes()).collect();
        // A message is lost only if the receiver is dead, which the sender will notice, or has left hundreds of messages unread. For a
        // lockrun that is stopped, the lease is not renewed while COMMAND runs. If it hangs, the lost message is most likely a renewal,
        // without which COMMAND is ended: safe.
        let _ = send(self.0.as_raw_fd(), &bytes, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
    }

    fn receive(&self) -> nix::Result<Option<Frame>> {
        let mut bytes = [0; MESSAGE];
        loop {
            match recv(self.0.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
                Ok(MESSAGE) => break,
                Ok(0) => return Err(Errno::EPIPE),
                Ok(_) | Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        let mut frame = Frame::default();
        for (word, bytes) in frame.iter_mut().zip(bytes.chunks_exact(size_of::<u64>())) {
            *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        }
        Ok(Some(frame))
    }
}

impl RenewerMessage {
    pub(super) fn encode(self) -> Frame {
        match self {
            RenewerMessage::Renewed(deadline) => deadline_frame(code::RENEWED, deadline),
            RenewerMessage::Lost => [code::LOST, 0, 0, 0],
        }
    }

    pub(super) fn decode(frame: Frame) -> Option<Self> {
        match frame[0] {
            code::RENEWED => Some(RenewerMessage::Renewed(deadline(frame))),
            code::LOST => Some(RenewerMessage::Lost),
            _ => None,
        }
    }
}

impl GuardianMessage {
    pub(super) fn encode(self) -> Frame {
        match self {
            GuardianMessage::LeasedUntil(deadline) => deadline_frame(code::LEASED_UNTIL, deadline),
            GuardianMessage::Started { command, at } => [code::STARTED, command.into_word(), word(at), 0],
            GuardianMessage::JobStateChanged(JobState::Running) => [code::JOB_STATE_CHANGED, 0, 0, 0],
            GuardianMessage::JobStateChanged(JobState::Stopped { by_terminal }) => {
                [code::JOB_STATE_CHANGED, 1, u64::from(by_terminal), 0]
            }
            GuardianMessage::Over(ending) => [code::OVER, ending_word(Some(ending)), 0, 0],
            GuardianMessage::Acquired(Acquisition { at, fence, slot }) => {
                [code::ACQUIRED, word(at), fence, slot.map_or(0, |slot| u64::from(slot) + 1)]
            }
            GuardianMessage::Granted => [code::GRANTED, 0, 0, 0],
            GuardianMessage::NotStarted => [code::NOT_STARTED, 0, 0, 0],
            GuardianMessage::AwaitingDescendants { command, ended_at } => {
                [code::AWAITING_DESCENDANTS, ending_word(Some(command)), word(ended_at), 0]
            }
            GuardianMessage::Finished(Finished { command, why, stuck }) => {
                let why = why
                    .and_then(|why| STOP_REASONS.iter().position(|known| *known == why))
                    .map_or(0, |at| at as u64 + 1);
                [code::FINISHED, ending_word(command), why, u64::from(stuck)]
            }
        }
    }

    pub(super) fn decode(frame: Frame) -> Option<Self> {
        Some(match frame[0] {
            code::LEASED_UNTIL => GuardianMessage::LeasedUntil(deadline(frame)),
            code::STARTED => GuardianMessage::Started { command: int(frame[1]), at: moment(frame[2]) },
            code::JOB_STATE_CHANGED if frame[1] == 0 => GuardianMessage::JobStateChanged(JobState::Running),
            code::JOB_STATE_CHANGED => {
                GuardianMessage::JobStateChanged(JobState::Stopped { by_terminal: frame[2] != 0 })
            }
            code::OVER => GuardianMessage::Over(ending(frame[1])?),
            code::ACQUIRED => GuardianMessage::Acquired(Acquisition {
                at: moment(frame[1]),
                fence: frame[2],
                slot: frame[3].checked_sub(1).and_then(|slot| u32::try_from(slot).ok()),
            }),
            code::GRANTED => GuardianMessage::Granted,
            code::NOT_STARTED => GuardianMessage::NotStarted,
            code::AWAITING_DESCENDANTS => {
                GuardianMessage::AwaitingDescendants { command: ending(frame[1])?, ended_at: moment(frame[2]) }
            }
            code::FINISHED => GuardianMessage::Finished(Finished {
                command: ending(frame[1]),
                why: usize::try_from(frame[2]).ok().and_then(|at| STOP_REASONS.get(at.checked_sub(1)?)).copied(),
                stuck: frame[3] != 0,
            }),
            _ => return None,
        })
    }
}

/// The reasons, in the order of their numbers in a message.
const STOP_REASONS: [StopReason; 5] =
    [StopReason::Lost, StopReason::TimedOut, StopReason::Orphaned, StopReason::Unguarded, StopReason::LeftBehind];

/// Encodes an ending; 0 stands for none.
fn ending_word(ending: Option<Ending>) -> u64 {
    match ending {
        None => 0,
        Some(Ending::Exited(status)) => 1 << 32 | u64::from(status),
        Some(Ending::Signaled(signal)) => 2 << 32 | signal.into_word(),
    }
}

fn ending(word: u64) -> Option<Ending> {
    match word >> 32 {
        0 => None,
        1 => Some(Ending::Exited(u8::try_from(int(word)).unwrap_or(u8::MAX))),
        _ => Some(Ending::Signaled(int(word))),
    }
}

fn deadline_frame(kind: u64, deadline: Deadline) -> Frame {
    [kind, word(deadline.term_at), word(deadline.kill_at), word(deadline.horizon)]
}

fn deadline([_, term_at, kill_at, horizon]: Frame) -> Deadline {
    Deadline { term_at: moment(term_at), kill_at: moment(kill_at), horizon: moment(horizon) }
}

/// Encodes a moment as nanoseconds after boot, which fit for five hundred years.
fn word(moment: Moment) -> u64 {
    u64::try_from(moment.since_boot().as_nanos()).unwrap_or(u64::MAX)
}

fn moment(word: u64) -> Moment {
    Moment::from_boot(Duration::from_nanos(word))
}

/// Decodes the integer in the lower half of a word.
fn int(word: u64) -> i32 {
    i32::from_ne_bytes(word.to_le_bytes()[..4].try_into().map(u32::from_le_bytes).unwrap_or_default().to_ne_bytes())
}

/// Conversion of a C integer into the lower half of a word.
trait IntoWord {
    fn into_word(self) -> u64;
}

impl IntoWord for i32 {
    fn into_word(self) -> u64 {
        u64::from(self.cast_unsigned())
    }
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    #[test]
    fn every_message_arrives_as_it_was_sent() {
        let (one, other) = RenewerChannel::pair().expect("sockets");
        let at = |millis| Moment::from_boot(Duration::from_millis(millis));
        let deadline = Deadline { term_at: at(1), kill_at: at(2), horizon: at(3) };
        for message in [RenewerMessage::Renewed(deadline), RenewerMessage::Lost] {
            one.send(message);
            assert_eq!(other.next(), Some(message));
        }
        assert_eq!(other.next(), None);
        let (one, other) = Link::pair().expect("sockets");
        let commands = [None, Some(Ending::Exited(255)), Some(Ending::Signaled(9))];
        let ends = commands.iter().flat_map(|command| {
            let reasons = STOP_REASONS.iter().map(|why| Some(*why)).chain([None]);
            reasons.map(|why| GuardianMessage::Finished(Finished { command: *command, why, stuck: true }))
        });
        let over = [Ending::Exited(0), Ending::Signaled(15)].map(GuardianMessage::Over);
        let starts = [
            GuardianMessage::Acquired(Acquisition { at: at(4), fence: u64::MAX, slot: None }),
            GuardianMessage::Acquired(Acquisition { at: at(4), fence: 0, slot: Some(u32::MAX) }),
            GuardianMessage::Granted,
            GuardianMessage::LeasedUntil(deadline),
            GuardianMessage::Started { command: i32::MAX, at: at(5) },
            GuardianMessage::NotStarted,
            GuardianMessage::AwaitingDescendants { command: Ending::Exited(0), ended_at: at(6) },
        ];
        let job_states =
            [JobState::Running, JobState::Stopped { by_terminal: true }, JobState::Stopped { by_terminal: false }];
        for message in ends.chain(over).chain(starts).chain(job_states.map(GuardianMessage::JobStateChanged)) {
            other.send(message);
            assert_eq!(one.next_message(), Ok(Some(message)));
        }
        assert_eq!(one.next_message(), Ok(None));
        let is_rung = || poll(&mut [PollFd::new(one.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(1);
        other.send(GuardianMessage::NotStarted);
        assert!(!is_rung());
        other.send_now(GuardianMessage::Granted);
        assert!(is_rung());
        assert_eq!(
            (one.next_message(), one.next_message()),
            (Ok(Some(GuardianMessage::NotStarted)), Ok(Some(GuardianMessage::Granted)))
        );
        assert!(!is_rung() && !other.is_closed() && !one.is_closed());
        let last = GuardianMessage::NotStarted;
        for _ in 0..10_000 {
            other.send_job_state(JobState::Running);
        }
        assert!(is_rung());
        other.send(last);
        let job_state = Ok(Some(GuardianMessage::JobStateChanged(JobState::Running)));
        let after_them = std::iter::from_fn(|| Some(one.next_message())).find(|message| *message != job_state);
        assert_eq!(after_them, Some(Ok(Some(last))), "no number of job states takes its room");
        drop(other);
        assert!(is_rung() && one.is_closed());
        assert_eq!(one.next_message(), Err(Errno::EPIPE));
    }
}
