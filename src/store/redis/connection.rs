//! A connection to a Redis: requests with a deadline each.
//!
//! The redis crate writes the requests. The socket is ours, because the crate's own connection introduces itself in extra
//! round trips and bounds single reads instead of whole requests. The parser is ours, too, because the crate's bounds neither
//! the size of an answer nor, tightly enough, its depth.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::slice;

use redis::{Cmd, Value};

use super::failure::Failure;
use super::resp::{Answer, Answers, Unread};
use super::url::Server;
use crate::net::dial::dial;
use crate::net::stream::Stream;
use crate::net::tls::Tls;
use crate::sys::clock::Moment;

/// An open connection. It must be dropped after a failure: it is out of step.
pub(super) struct Connection {
    stream: Stream,
    answers: Answers,
    /// The introduction, until it is sent: it travels with the first request.
    introduction: Vec<Cmd>,
    /// The introduction, while its answers are outstanding.
    unanswered_introduction: Vec<Cmd>,
}

/// The answers to several requests.
pub(super) type Replies = Vec<Result<Value, Failure>>;

impl Connection {
    /// Connects to `server`, TLS included, and sends nothing yet.
    pub(super) fn open(server: &Server, tls: Option<&Tls>, deadline: Moment) -> Result<Self, Failure> {
        let stream = dial(&server.endpoint, tls, deadline).map_err(Failure::of_dial)?;
        Ok(Connection::over(stream, server))
    }

    /// Takes a stream to `server`, and sends nothing yet.
    pub(super) fn over(stream: Stream, server: &Server) -> Self {
        let mut introduction = Vec::new();
        if let Some(password) = &server.password {
            let mut auth = redis::cmd("AUTH");
            if let Some(user) = &server.user {
                auth.arg(user);
            }
            introduction.push(auth.arg(password).take());
        }
        if server.database != 0 {
            introduction.push(redis::cmd("SELECT").arg(server.database).take());
        }
        Connection { stream, answers: Answers::default(), introduction, unanswered_introduction: Vec::new() }
    }

    /// Sends `command`, and waits for the answer.
    pub(super) fn request(&mut self, command: &Cmd, deadline: Moment) -> Result<Value, Failure> {
        self.send(slice::from_ref(command), deadline)?;
        self.receive(command, deadline)
    }

    /// Sends all `commands` in one flight, and waits for their answers. Fails if one of them gets no answer; a rejection is
    /// an answer.
    pub(super) fn request_all(&mut self, commands: &[Cmd], deadline: Moment) -> Result<Replies, Failure> {
        self.send(commands, deadline)?;
        self.receive_all(commands, deadline)
    }

    /// Sends `commands` in one flight, preceded by our introduction if they are the first; does not wait for their answers.
    pub(super) fn send(&mut self, commands: &[Cmd], deadline: Moment) -> Result<(), Failure> {
        let introduction = std::mem::take(&mut self.introduction);
        let mut flight = Vec::new();
        for part in introduction.iter().chain(commands) {
            part.write_packed_command(&mut flight);
        }
        self.unanswered_introduction = introduction;
        self.stream.set_deadline(deadline);
        self.stream
            .write_all(&flight)
            .and_then(|()| self.stream.flush())
            .map_err(|error| Failure::of_stream(&error, "did not accept the request in time"))
    }

    /// Waits for the answers to `commands`, which were sent. Fails as [`Connection::request_all`] does.
    pub(super) fn receive_all(&mut self, commands: &[Cmd], deadline: Moment) -> Result<Replies, Failure> {
        let answer = |command| match self.receive(command, deadline) {
            Err(refused @ Failure::Refused { .. }) => Ok(Err(refused)),
            answer => answer.map(Ok),
        };
        commands.iter().map(answer).collect()
    }

    /// Waits for the answer to `command`, which was sent.
    pub(super) fn receive(&mut self, command: &Cmd, deadline: Moment) -> Result<Value, Failure> {
        self.stream.set_deadline(deadline);
        let mut refused = None;
        for step in std::mem::take(&mut self.unanswered_introduction) {
            if let Answer::Error(error) = self.answer()? {
                refused.get_or_insert(Failure::refused(&step, error));
            }
        }
        match (self.answer()?, refused) {
            (_, Some(refused)) => Err(refused),
            (Answer::Error(error), None) => Err(Failure::refused(command, error)),
            (Answer::Value(reply), None) => Ok(reply),
        }
    }

    fn answer(&mut self) -> Result<Answer, Failure> {
        self.answers.next(&mut self.stream).map_err(|unread| match unread {
            Unread::Io(error) => Failure::of_stream(&error, "did not answer in time"),
            Unread::Protocol => Failure::NoAnswer(
                "sent an answer that is not in Redis's protocol, or longer than anything that lockrun asks for",
            ),
        })
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
