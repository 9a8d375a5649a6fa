//! What lockrun and its guardian tell each other, over a socket pair that keeps messages whole and in order.
//!
//! The socket closes with the process that holds it, however that ends: that is how each learns of the other's death.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};

use super::Granted;
use super::spawn::Failure;
use super::supervisor::{Finished, Why};
use crate::clock::Moment;
use crate::lease::Deadline;
use crate::outcome::Ending;

/// What lockrun tells the guardian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The lock is ours: start COMMAND. If it is a lease that ends, this is what it allows.
    Start { granted: Granted, deadline: Option<Deadline>, ends_command: bool },
    /// The lease was renewed.
    Renewed(Deadline),
    /// The lease is lost: end COMMAND.
    Lost,
    /// Pass this signal on.
    Forward(i32),
}

/// What the guardian tells lockrun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// COMMAND is executing, as this process.
    Started(i32),
    /// COMMAND could not be started.
    NotStarted(Failure),
    /// COMMAND was stopped.
    Stopped,
    /// All is over.
    Finished(Finished),
}

/// One end of the socket pair.
#[derive(Clone, Debug)]
pub(super) struct Link(Arc<OwnedFd>);

/// A message: a number for its kind, and up to five more. Both ends are the same program.
type Words = [u64; 6];

const MESSAGE: usize = size_of::<Words>();

impl Link {
    /// Two connected ends.
    pub(super) fn pair() -> nix::Result<(Link, Link)> {
        let (one, other) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        Ok((Link(Arc::new(one)), Link(Arc::new(other))))
    }

    /// Tells the guardian something. Never waits: one that does not listen is dealt with when the time comes.
    pub(super) fn order(&self, order: Order) {
        self.send(order.words());
    }

    /// Tells lockrun something. Never waits.
    pub(super) fn tell(&self, news: News) {
        self.send(news.words());
    }

    /// The next order, if there is one; an error if lockrun is gone.
    pub(super) fn next_order(&self) -> nix::Result<Option<Order>> {
        self.receive(MsgFlags::MSG_DONTWAIT).map(|words| words.and_then(Order::read))
    }

    /// Waits for the next order; an error if lockrun is gone.
    pub(super) fn await_order(&self) -> nix::Result<Option<Order>> {
        self.receive(MsgFlags::empty()).map(|words| words.and_then(Order::read))
    }

    /// The next news, if there is any; an error if the guardian is gone.
    pub(super) fn next_news(&self) -> nix::Result<Option<News>> {
        self.receive(MsgFlags::MSG_DONTWAIT).map(|words| words.and_then(News::read))
    }

    fn send(&self, words: Words) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        // A message is lost only if the other end is dead, which it will hear of, or has left hundreds unread: then it is
        // stopped, and what it does not hear of (a renewal) it makes up for by ending COMMAND.
        let _ = send(self.0.as_raw_fd(), &bytes, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
    }

    fn receive(&self, flags: MsgFlags) -> nix::Result<Option<Words>> {
        let mut bytes = [0; MESSAGE];
        loop {
            match recv(self.0.as_raw_fd(), &mut bytes, flags) {
                Ok(MESSAGE) => break,
                Ok(0) => return Err(Errno::EPIPE),
                Ok(_) | Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        let mut words = Words::default();
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(size_of::<u64>())) {
            *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        }
        Ok(Some(words))
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Order {
    fn words(self) -> Words {
        match self {
            Order::Renewed(deadline) => deadline_words(1, deadline, [0; 2]),
            Order::Lost => [2, 0, 0, 0, 0, 0],
            Order::Forward(signal) => [3, signal.into_word(), 0, 0, 0, 0],
            Order::Start { granted: Granted { fence, slot }, deadline, ends_command } => {
                // No slot is 0, the first one 1.
                let granted = [fence, slot.map_or(0, |slot| u64::from(slot) + 1)];
                let kind = if ends_command { 4 } else { 6 };
                deadline
                    .map_or([5, 0, 0, 0, granted[0], granted[1]], |deadline| deadline_words(kind, deadline, granted))
            }
        }
    }

    fn read([kind, a, b, c, fence, slot]: Words) -> Option<Self> {
        let deadline = Deadline { term_at: moment(a), kill_at: moment(b), horizon: moment(c) };
        let granted = Granted { fence, slot: slot.checked_sub(1).and_then(|slot| u32::try_from(slot).ok()) };
        Some(match kind {
            1 => Order::Renewed(deadline),
            2 => Order::Lost,
            3 => Order::Forward(int(a)),
            4 | 6 => Order::Start { granted, deadline: Some(deadline), ends_command: kind == 4 },
            5 => Order::Start { granted, deadline: None, ends_command: false },
            _ => return None,
        })
    }
}

impl News {
    fn words(self) -> Words {
        match self {
            News::Started(pid) => [1, pid.into_word(), 0, 0, 0, 0],
            News::NotStarted(Failure::NotFound) => [2, 0, 0, 0, 0, 0],
            News::NotStarted(Failure::TooLate) => [2, 3, 0, 0, 0, 0],
            News::NotStarted(Failure::CannotExecute(errno)) => [2, 1, (errno as i32).into_word(), 0, 0, 0],
            News::NotStarted(Failure::Preparing(errno)) => [2, 2, (errno as i32).into_word(), 0, 0, 0],
            News::Stopped => [3, 0, 0, 0, 0, 0],
            News::Finished(Finished { command, why, stuck }) => {
                let command = match command {
                    None => 0,
                    Some(Ending::Exited(status)) => 1 << 32 | u64::from(status),
                    Some(Ending::Signaled(signal)) => 2 << 32 | signal.into_word(),
                };
                let why = why.and_then(|why| WHYS.iter().position(|known| *known == why)).map_or(0, |at| at as u64 + 1);
                [4, command, why, u64::from(stuck), 0, 0]
            }
        }
    }

    fn read([kind, a, b, c, ..]: Words) -> Option<Self> {
        Some(match (kind, a) {
            (1, _) => News::Started(int(a)),
            (2, 0) => News::NotStarted(Failure::NotFound),
            (2, 3) => News::NotStarted(Failure::TooLate),
            (2, 1) => News::NotStarted(Failure::CannotExecute(Errno::from_raw(int(b)))),
            (2, _) => News::NotStarted(Failure::Preparing(Errno::from_raw(int(b)))),
            (3, _) => News::Stopped,
            (4, _) => News::Finished(Finished {
                command: match a >> 32 {
                    0 => None,
                    1 => Some(Ending::Exited(u8::try_from(int(a)).unwrap_or(u8::MAX))),
                    _ => Some(Ending::Signaled(int(a))),
                },
                why: usize::try_from(b).ok().and_then(|at| WHYS.get(at.checked_sub(1)?)).copied(),
                stuck: c != 0,
            }),
            _ => return None,
        })
    }
}

/// The reasons, in the order in which they are numbered.
const WHYS: [Why; 5] = [Why::Lost, Why::TimedOut, Why::Orphaned, Why::Unguarded, Why::LeftBehind];

fn deadline_words(kind: u64, deadline: Deadline, [fence, slot]: [u64; 2]) -> Words {
    [kind, word(deadline.term_at), word(deadline.kill_at), word(deadline.horizon), fence, slot]
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
    use super::*;

    #[test]
    fn every_message_arrives_as_it_was_sent() {
        let (one, other) = Link::pair().expect("sockets");
        let at = |millis| Moment::from_boot(Duration::from_millis(millis));
        let deadline = Deadline { term_at: at(1), kill_at: at(2), horizon: at(3) };
        let starts = [(Some(deadline), None, true), (Some(deadline), Some(0), false), (None, Some(u32::MAX), false)];
        let starts = starts.map(|(deadline, slot, ends_command)| Order::Start {
            granted: Granted { fence: u64::MAX, slot },
            deadline,
            ends_command,
        });
        for order in [Order::Renewed(deadline), Order::Lost, Order::Forward(15)].into_iter().chain(starts) {
            one.order(order);
            assert_eq!(other.next_order(), Ok(Some(order)));
        }
        let commands = [None, Some(Ending::Exited(255)), Some(Ending::Signaled(9))];
        let ends = commands.iter().flat_map(|command| {
            WHYS.iter().map(|why| Some(*why)).chain([None]).map(|why| Finished { command: *command, why, stuck: true })
        });
        let failures = [
            Failure::TooLate,
            Failure::NotFound,
            Failure::CannotExecute(Errno::EACCES),
            Failure::Preparing(Errno::EAGAIN),
        ];
        for news in ends
            .map(News::Finished)
            .chain(failures.map(News::NotStarted))
            .chain([News::Started(i32::MAX), News::Stopped])
        {
            other.tell(news);
            assert_eq!(one.next_news(), Ok(Some(news)));
        }
        assert_eq!(one.next_news(), Ok(None));
        drop(other);
        assert_eq!(one.next_news(), Err(Errno::EPIPE));
    }
}
