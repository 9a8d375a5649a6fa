//! One server of a panel, and the connection to it.

use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollTimeout, poll};
use redis::Cmd;

use crate::net::dial::{Dialing, Progress};
use crate::net::resolve::too_slow;
use crate::net::tls::Tls;
use crate::store::redis::connection::{Connection, Replies};
use crate::store::redis::failure::Failure;
use crate::store::redis::url::Server;
use crate::sys::clock::Moment;
use crate::sys::wait::readable;

/// How long the rest of an answer may take once its beginning has come, and how old an unanswered question may be when
/// the next one is asked. After this time, the servers that were left aside are asked, too.
pub(super) const SILENCE_MAX: Duration = Duration::from_millis(250);

/// A server that is asked the same as the others of its panel.
pub(super) struct Voter {
    pub(super) server: Server,
    /// What TLS needs, if it is used.
    tls: Option<Tls>,
    connection: ConnectionState,
    /// The questions that it has not answered yet; only while its connection is open.
    unanswered: Option<Unanswered>,
    /// Where it stands in the present round.
    round_state: RoundState,
    /// Whether it has ever answered.
    has_answered: bool,
    /// Why it has not answered, if it failed last.
    pub(super) failure: Option<Failure>,
}

enum ConnectionState {
    Closed,
    Dialing(Box<Dialing>),
    Open(Connection),
}

struct Unanswered {
    questions: Arc<Vec<Cmd>>,
    since: Moment,
}

/// Where a member stands in the present round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoundState {
    /// It is not asked while the others are enough.
    NotAsked,
    /// It is to be asked as soon as it is connected and it owes no earlier answer.
    ToAsk,
    /// It was asked.
    Asked,
    /// It has answered, or failed.
    Done,
}

impl Voter {
    /// Takes the server, which is reached with `tls` if it is used, without connecting.
    pub(super) fn new(server: Server, tls: Option<Tls>) -> Self {
        Voter {
            server,
            tls,
            connection: ConnectionState::Closed,
            unanswered: None,
            round_state: RoundState::NotAsked,
            has_answered: false,
            failure: None,
        }
    }

    /// Returns whether it is connected, and owes no answer.
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.connection, ConnectionState::Open(_)) && self.unanswered.is_none()
    }

    /// Returns whether it failed last, and is not being connected to.
    pub(super) fn is_away(&self) -> bool {
        matches!(self.connection, ConnectionState::Closed) && self.failure.is_some()
    }

    /// Returns whether it is left aside in the present round.
    pub(super) fn is_left_aside(&self) -> bool {
        self.round_state == RoundState::NotAsked
    }

    /// Leaves it aside in a round that begins.
    pub(super) fn leave_aside(&mut self) {
        self.round_state = RoundState::NotAsked;
    }

    /// Has it take part in the round: asks it the questions, as soon as it can be asked.
    pub(super) fn take_part(&mut self, questions: &Arc<Vec<Cmd>>, deadline: Moment) {
        self.round_state = RoundState::ToAsk;
        self.ask(questions, deadline);
    }

    /// Reads an answer to an earlier question, if it has come. Drops a connection that was closed, that owes an answer
    /// for too long, or that could not be made in the time of an earlier request.
    pub(super) fn catch_up(&mut self, deadline: Moment) {
        let connection = match &mut self.connection {
            ConnectionState::Closed => return,
            ConnectionState::Dialing(dialing) if dialing.is_late() => return self.connection = ConnectionState::Closed,
            ConnectionState::Dialing(dialing) => return dialing.set_deadline(deadline),
            ConnectionState::Open(connection) => connection,
        };
        let has_come = is_readable(connection);
        match &self.unanswered {
            Some(unanswered) if has_come => {
                match connection.receive_all(&unanswered.questions, deadline.min(Moment::now() + SILENCE_MAX)) {
                    Ok(_) => self.unanswered = None,
                    Err(failure) => self.fail(failure),
                }
            }
            Some(unanswered) if Moment::now().since(unanswered.since) > SILENCE_MAX => self.fail(Failure::Silent),
            // Nothing was asked, so this is the end of the stream.
            None if has_come => self.connection = ConnectionState::Closed,
            _ => {}
        }
    }

    /// Sends the questions if it is to be asked and can be; begins to connect if it is not connected.
    fn ask(&mut self, questions: &Arc<Vec<Cmd>>, deadline: Moment) {
        if self.round_state != RoundState::ToAsk {
            return;
        }
        if matches!(self.connection, ConnectionState::Closed) {
            match Dialing::start(&self.server.endpoint, deadline) {
                Ok(dialing) => self.connection = ConnectionState::Dialing(Box::new(dialing)),
                Err(error) => self.fail(Failure::of_dial(&error, &self.server)),
            }
        }
        let (ConnectionState::Open(connection), None) = (&mut self.connection, &self.unanswered) else { return };
        match connection.send(questions, deadline) {
            Ok(()) => {
                self.unanswered = Some(Unanswered { questions: Arc::clone(questions), since: Moment::now() });
                self.round_state = RoundState::Asked;
            }
            Err(failure) => self.fail(failure),
        }
    }

    /// Returns whether it still takes part in the round.
    fn is_awaited(&self) -> bool {
        matches!(self.round_state, RoundState::ToAsk | RoundState::Asked)
    }

    /// Returns the event to wait for before [`Voter::go_on`], if it takes part in the round.
    pub(super) fn awaits(&self) -> Option<PollFd<'_>> {
        match &self.connection {
            _ if !self.is_awaited() => None,
            ConnectionState::Closed => None,
            ConnectionState::Dialing(dialing) => Some(dialing.awaits()),
            ConnectionState::Open(connection) => Some(readable(connection)),
        }
    }

    /// Returns when a connection in progress needs attention.
    pub(super) fn due(&self) -> Option<Moment> {
        match &self.connection {
            ConnectionState::Dialing(dialing) if self.is_awaited() => Some(dialing.due()),
            _ => None,
        }
    }

    /// Does what can be done without waiting. If an answer to the questions has come, returns what `read` makes of it.
    pub(super) fn go_on<V>(
        &mut self,
        questions: &Arc<Vec<Cmd>>,
        deadline: Moment,
        read: &mut impl FnMut(&Server, Replies) -> Result<V, Failure>,
    ) -> Option<V> {
        if !self.is_awaited() {
            return None;
        }
        match std::mem::replace(&mut self.connection, ConnectionState::Closed) {
            ConnectionState::Closed => {}
            ConnectionState::Dialing(dialing) => {
                match dialing.go_on(self.tls.as_ref()) {
                    Ok(Progress::Pending(dialing)) => self.connection = ConnectionState::Dialing(Box::new(dialing)),
                    Ok(Progress::Done(stream)) => {
                        self.connection = ConnectionState::Open(Connection::over(stream, &self.server));
                    }
                    Err(error) => self.fail(Failure::of_dial(&error, &self.server)),
                }
                self.ask(questions, deadline);
            }
            ConnectionState::Open(connection) if !is_readable(&connection) => {
                self.connection = ConnectionState::Open(connection);
            }
            ConnectionState::Open(mut connection) => {
                let asked =
                    self.unanswered.take().map_or_else(|| Arc::clone(questions), |unanswered| unanswered.questions);
                let replies = connection.receive_all(&asked, deadline.min(Moment::now() + SILENCE_MAX));
                self.connection = ConnectionState::Open(connection);
                self.has_answered |= matches!(replies, Ok(_) | Err(Failure::Rejected(_)));
                let is_answer = self.round_state == RoundState::Asked;
                match replies.and_then(|replies| is_answer.then(|| read(&self.server, replies)).transpose()) {
                    Ok(Some(answer)) => {
                        (self.round_state, self.failure) = (RoundState::Done, None);
                        return Some(answer);
                    }
                    // That was the answer to an earlier question.
                    Ok(None) => self.ask(questions, deadline),
                    Err(failure) => self.fail(failure),
                }
            }
        }
        None
    }

    /// Ends the child process that looks up its name, if it still runs.
    pub(super) fn end_look_up(&mut self) {
        if matches!(&self.connection, ConnectionState::Dialing(dialing) if dialing.is_looking_up()) {
            self.fail(Failure::of_dial(&too_slow(), &self.server));
        }
    }

    /// Ends its part in the round, whose time is over.
    pub(super) fn give_up(&mut self) {
        if !self.is_awaited() {
            return;
        }
        match std::mem::replace(&mut self.connection, ConnectionState::Closed) {
            ConnectionState::Open(_) => self.fail(Failure::Silent),
            ConnectionState::Dialing(mut dialing) => {
                // So that it says which step was too slow.
                dialing.set_deadline(Moment::now());
                let error = dialing.go_on(self.tls.as_ref()).err();
                let error = error.unwrap_or_else(|| std::io::ErrorKind::TimedOut.into());
                self.fail(Failure::of_dial(&error, &self.server));
            }
            ConnectionState::Closed => {}
        }
    }

    fn fail(&mut self, failure: Failure) {
        self.connection = ConnectionState::Closed;
        self.unanswered = None;
        self.round_state = RoundState::Done;
        self.failure = Some(match failure {
            Failure::Closed if !self.has_answered => Failure::HungUp,
            failure => failure,
        });
    }
}

fn is_readable(connection: &Connection) -> bool {
    poll(&mut [readable(connection)], PollTimeout::ZERO).is_ok_and(|count| count > 0)
}
