//! What the guardian tells lockrun, and its renewer tells it, over socket pairs that keep messages whole and in order.
//!
//! A socket closes with the process that holds it, however that ends: that is how each learns of the other's death.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};

use super::supervisor::{Finished, Why};
use super::tree::Motion;
use crate::lock::ending::Ending;
use crate::lock::lease::Deadline;
use crate::sys::clock::Moment;

/// What the renewer tells the guardian's main thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RenewerMessage {
    /// The lease was renewed.
    Renewed(Deadline),
    /// The lease is lost: end COMMAND.
    Lost,
}

/// What the guardian tells lockrun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuardianMessage {
    /// The lock is ours, and COMMAND is about to begin; it is not ended for the lease's sake.
    Granted,
    /// The lease allows this, now. The first time, COMMAND is about to begin.
    Allowed(Deadline),
    /// COMMAND is executing, as this process.
    Started(i32),
    /// COMMAND could not be started: the lock is about to be released.
    NotStarted,
    /// COMMAND was stopped or continued.
    Moved(Motion),
    /// COMMAND has ended: the lock is about to be released.
    Finished(Finished),
    /// All is over, and nothing is left to be done: end so.
    Over(Ending),
}

/// One end of what connects lockrun and its guardian.
#[derive(Clone, Debug)]
pub(super) struct Link {
    /// Has the news. Nobody waits for it: so to tell something wakes nobody, where others wait for us.
    messages: Channel,
    /// Is waited for, and rung for news that cannot wait.
    bell: Channel,
}

/// One end of what connects the renewer and the guardian's main thread.
#[derive(Clone, Debug)]
pub(super) struct RenewerChannel(Channel);

/// One end of a socket pair.
#[derive(Clone, Debug)]
struct Channel(Arc<OwnedFd>);

/// A message: a number for its kind, and up to three more. Both ends are the same program.
type Frame = [u64; 4];

const MESSAGE: usize = size_of::<Frame>();

impl Link {
    /// Two connected ends.
    pub(super) fn pair() -> nix::Result<(Link, Link)> {
        let (messages, bell) = (Channel::pair()?, Channel::pair()?);
        Ok((Link { messages: messages.0, bell: bell.0 }, Link { messages: messages.1, bell: bell.1 }))
    }

    /// Tells lockrun something, which hears of it when it looks the next time. Never waits. Not for what comes again and again: what is
    /// unread at last fills the socket.
    pub(super) fn tell(&self, news: GuardianMessage) {
        self.messages.send(news.words());
    }

    /// The same, and lockrun is woken for it.
    pub(super) fn tell_now(&self, news: GuardianMessage) {
        self.tell(news);
        self.bell.send(Frame::default());
    }

    /// The next news, if there is any; an error if the guardian is gone. Never waits.
    pub(super) fn next_message(&self) -> nix::Result<Option<GuardianMessage>> {
        while let Ok(Some(_)) = self.bell.receive() {}
        self.messages.receive().map(|words| words.and_then(GuardianMessage::read))
    }

    /// Whether lockrun is gone, which tells nothing. Never waits.
    pub(super) fn is_closed(&self) -> bool {
        self.bell.receive().is_err()
    }
}

/// Readable when the bell was rung, and when the other end is gone.
impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.0.as_fd()
    }
}

impl RenewerChannel {
    /// Two connected ends.
    pub(super) fn pair() -> nix::Result<(RenewerChannel, RenewerChannel)> {
        Channel::pair().map(|(one, other)| (RenewerChannel(one), RenewerChannel(other)))
    }

    /// Tells the main thread something. Never waits.
    pub(super) fn order(&self, order: RenewerMessage) {
        self.0.send(order.words());
    }

    /// The next order, if there is one. Never waits.
    pub(super) fn next(&self) -> Option<RenewerMessage> {
        self.0.receive().ok().flatten().and_then(RenewerMessage::read)
    }
}

/// Readable when there is an order.
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

    fn send(&self, words: Frame) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        // A message is lost only if the other end is dead, which it will hear of, or has left hundreds unread: then it is
        // stopped, and what it does not hear of (a renewal) it makes up for by ending COMMAND.
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
        let mut words = Frame::default();
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(size_of::<u64>())) {
            *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        }
        Ok(Some(words))
    }
}

impl RenewerMessage {
    fn words(self) -> Frame {
        match self {
            RenewerMessage::Renewed(deadline) => words(1, deadline),
            RenewerMessage::Lost => [2, 0, 0, 0],
        }
    }

    fn read(words: Frame) -> Option<Self> {
        match words[0] {
            1 => Some(RenewerMessage::Renewed(deadline(words))),
            2 => Some(RenewerMessage::Lost),
            _ => None,
        }
    }
}

impl GuardianMessage {
    fn words(self) -> Frame {
        match self {
            GuardianMessage::Allowed(deadline) => words(1, deadline),
            GuardianMessage::Started(pid) => [2, pid.into_word(), 0, 0],
            GuardianMessage::Moved(Motion::Running) => [3, 0, 0, 0],
            GuardianMessage::Moved(Motion::Stopped { by_terminal }) => [3, 1, u64::from(by_terminal), 0],
            GuardianMessage::Over(ending) => [4, ending_word(Some(ending)), 0, 0],
            GuardianMessage::Granted => [5, 0, 0, 0],
            GuardianMessage::NotStarted => [7, 0, 0, 0],
            GuardianMessage::Finished(Finished { command, why, stuck }) => {
                let why = why.and_then(|why| WHYS.iter().position(|known| *known == why)).map_or(0, |at| at as u64 + 1);
                [6, ending_word(command), why, u64::from(stuck)]
            }
        }
    }

    fn read(words: Frame) -> Option<Self> {
        Some(match words[0] {
            1 => GuardianMessage::Allowed(deadline(words)),
            2 => GuardianMessage::Started(int(words[1])),
            3 if words[1] == 0 => GuardianMessage::Moved(Motion::Running),
            3 => GuardianMessage::Moved(Motion::Stopped { by_terminal: words[2] != 0 }),
            4 => GuardianMessage::Over(ending(words[1])?),
            5 => GuardianMessage::Granted,
            7 => GuardianMessage::NotStarted,
            6 => GuardianMessage::Finished(Finished {
                command: ending(words[1]),
                why: usize::try_from(words[2]).ok().and_then(|at| WHYS.get(at.checked_sub(1)?)).copied(),
                stuck: words[3] != 0,
            }),
            _ => return None,
        })
    }
}

/// The reasons, in the order in which they are numbered.
const WHYS: [Why; 5] = [Why::Lost, Why::TimedOut, Why::Orphaned, Why::Unguarded, Why::LeftBehind];

/// An ending as a word; none is 0.
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

fn words(kind: u64, deadline: Deadline) -> Frame {
    [kind, word(deadline.term_at), word(deadline.kill_at), word(deadline.horizon)]
}

fn deadline([_, term_at, kill_at, horizon]: Frame) -> Deadline {
    Deadline { term_at: moment(term_at), kill_at: moment(kill_at), horizon: moment(horizon) }
}

/// A moment as nanoseconds after boot, which fit for five hundred years.
fn word(moment: Moment) -> u64 {
    u64::try_from(moment.since_boot().as_nanos()).unwrap_or(u64::MAX)
}

fn moment(word: u64) -> Moment {
    Moment::from_boot(Duration::from_nanos(word))
}

/// The lower half of a word, as it was written.
fn int(word: u64) -> i32 {
    i32::from_ne_bytes(word.to_le_bytes()[..4].try_into().map(u32::from_le_bytes).unwrap_or_default().to_ne_bytes())
}

/// A C integer as the lower half of a word.
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
        for order in [RenewerMessage::Renewed(deadline), RenewerMessage::Lost] {
            one.order(order);
            assert_eq!(other.next(), Some(order));
        }
        assert_eq!(other.next(), None);
        let (one, other) = Link::pair().expect("sockets");
        let commands = [None, Some(Ending::Exited(255)), Some(Ending::Signaled(9))];
        let ends = commands.iter().flat_map(|command| {
            let whys = WHYS.iter().map(|why| Some(*why)).chain([None]);
            whys.map(|why| GuardianMessage::Finished(Finished { command: *command, why, stuck: true }))
        });
        let over = [Ending::Exited(0), Ending::Signaled(15)].map(GuardianMessage::Over);
        let starts = [
            GuardianMessage::Granted,
            GuardianMessage::Allowed(deadline),
            GuardianMessage::Started(i32::MAX),
            GuardianMessage::NotStarted,
        ];
        let motions = [Motion::Running, Motion::Stopped { by_terminal: true }, Motion::Stopped { by_terminal: false }];
        for news in ends.chain(over).chain(starts).chain(motions.map(GuardianMessage::Moved)) {
            other.tell(news);
            assert_eq!(one.next_message(), Ok(Some(news)));
        }
        assert_eq!(one.next_message(), Ok(None));
        let is_rung = || poll(&mut [PollFd::new(one.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(1);
        other.tell(GuardianMessage::NotStarted);
        assert!(!is_rung());
        other.tell_now(GuardianMessage::Granted);
        assert!(is_rung());
        assert_eq!(
            (one.next_message(), one.next_message()),
            (Ok(Some(GuardianMessage::NotStarted)), Ok(Some(GuardianMessage::Granted)))
        );
        assert!(!is_rung() && !other.is_closed() && !one.is_closed());
        drop(other);
        assert!(is_rung() && one.is_closed());
        assert_eq!(one.next_message(), Err(Errno::EPIPE));
    }
}
