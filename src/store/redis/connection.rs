//! A connection to a Redis: requests with a deadline each.
//!
//! The redis crate writes the requests. The socket is ours, because the crate's own connection introduces itself in
//! extra round trips and bounds single reads instead of whole requests. The parser is ours, too, because the crate's
//! bounds neither the size of an answer nor, tightly enough, its depth.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::slice;

use redis::{Cmd, Value};

use super::failure::Failure;
use super::resp::{Answer, Answers, ORDINARY, Unread};
use super::url::Server;
use crate::net::dial::dial;
use crate::net::stream::Stream;
use crate::net::tls::Tls;
use crate::sys::clock::Moment;

/// An open connection. It must be dropped after a failure: it is out of step.
pub(super) struct Connection {
    stream: Stream,
    answers: Answers,
    /// How many bytes the rest of a listing may take, while one is read; otherwise each answer is an ordinary one.
    pub(super) listing_left: Option<usize>,
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
        let stream = dial(&server.endpoint, tls, deadline).map_err(|error| Failure::of_dial(&error, server))?;
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
        Connection {
            stream,
            answers: Answers::default(),
            listing_left: None,
            introduction,
            unanswered_introduction: Vec::new(),
        }
    }

    /// Sends `command`, and waits for the answer.
    pub(super) fn request(&mut self, command: &Cmd, deadline: Moment) -> Result<Value, Failure> {
        self.send(slice::from_ref(command), deadline)?;
        self.receive(command, deadline)
    }

    /// Sends all `commands` in one flight, and waits for their answers. Returns them up to the first that does not
    /// arrive, and then why; a rejection is an answer.
    pub(super) fn request_all(&mut self, commands: &[Cmd], deadline: Moment) -> Replies {
        if let Err(unsent) = self.send(commands, deadline) {
            return vec![Err(unsent)];
        }
        let mut replies = Replies::with_capacity(commands.len());
        for command in commands {
            let answer = self.receive(command, deadline);
            let has_arrived = matches!(answer, Ok(_) | Err(Failure::Rejected(_)));
            replies.push(answer);
            if !has_arrived {
                break;
            }
        }
        replies
    }

    /// Sends `commands` in one flight, preceded by our introduction if they are the first; does not wait for their
    /// answers.
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
            .map_err(|error| Failure::of_connection(&error))
    }

    /// Waits for the answers to `commands`, which were sent. Fails if one of them gets no answer; a rejection is an
    /// answer.
    pub(super) fn receive_all(&mut self, commands: &[Cmd], deadline: Moment) -> Result<Replies, Failure> {
        let mut replies = Replies::with_capacity(commands.len());
        for command in commands {
            match self.receive(command, deadline) {
                Err(refused @ Failure::Rejected(_)) => replies.push(Err(refused)),
                Err(unread) => return Err(unread_after(replies.pop().and_then(Result::err), unread)),
                Ok(reply) => replies.push(Ok(reply)),
            }
        }
        Ok(replies)
    }

    /// Waits for the answer to `command`, which was sent. If the server has rejected our introduction, fails for that
    /// reason, whatever it answers to the command.
    pub(super) fn receive(&mut self, command: &Cmd, deadline: Moment) -> Result<Value, Failure> {
        self.stream.set_deadline(deadline);
        let mut rejection: Option<Failure> = None;
        for step in std::mem::take(&mut self.unanswered_introduction) {
            match self.answer_to(&step) {
                Ok(_) => {}
                Err(refused @ Failure::Rejected(_)) => rejection = rejection.or(Some(refused)),
                Err(unread) => return Err(unread_after(rejection, unread)),
            }
        }
        let outcome = self.answer_to(command);
        match rejection {
            None => outcome,
            Some(rejection) => Err(rejection.followed_by(outcome)),
        }
    }

    /// Reads the next answer, which is the one to `command`.
    fn answer_to(&mut self, command: &Cmd) -> Result<Value, Failure> {
        let answer = self.answers.next(&mut self.stream, self.listing_left.unwrap_or(ORDINARY));
        if let Some(left) = &mut self.listing_left {
            *left = left.saturating_sub(self.answers.spent());
        }
        match answer {
            Ok(Answer::Value(reply)) => Ok(reply),
            Ok(Answer::Error(error)) => Err(Failure::refused(command, error)),
            Err(Unread::Io(error)) => Err(Failure::of_connection(&error)),
            Err(Unread::TooLong) if self.listing_left.is_some() => Err(Failure::ListingTooLong),
            Err(Unread::TooLong) => Err(Failure::too_long(command)),
            Err(Unread::Protocol) => Err(Failure::not_redis()),
        }
    }
}

/// Returns why an answer could not be read after this `rejection`. A server that accepts no more clients says so once,
/// and closes the connection.
fn unread_after(rejection: Option<Failure>, unread: Failure) -> Failure {
    match rejection {
        None => unread,
        Some(rejection) => rejection.followed_by(Err(unread)),
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::net::scripted;
    use crate::store::{Address, Claim, IfHeld};

    #[test]
    fn a_rejection_says_whether_the_request_may_have_run() {
        const MINE: &str = "*5\r\n:1\r\n$1\r\n7\r\n:0\r\n$0\r\n\r\n$0\r\n";
        // The answers to AUTH, SELECT and the script.
        for (answers, why, never_sent) in [
            (&["-WRONGPASS no", "-NOAUTH no", "-NOAUTH no"][..], "rejects AUTH: WRONGPASS", true),
            (&["-WRONGPASS no", "-NOAUTH no", "-ERR Protocol error: unauthenticated bulk length"], "AUTH", true),
            // A password that the server does not want.
            (&["-ERR called without any password", "+OK", MINE], "rejects AUTH", false),
            // A server without AUTH: it is open to everybody.
            (&["-ERR unknown command 'AUTH'", "+OK", MINE], "rejects AUTH", false),
            (&["-ERR unknown command 'AUTH'", "+OK"], "closed the connection", false),
            (&["-ERR unknown command 'AUTH'", "+OK", "-NOPERM User default"], "rejects AUTH", true),
            (&["-ERR unknown command 'AUTH'", "-NOAUTH no", "-NOAUTH no"], "rejects AUTH", true),
            (&["+OK", "-NOPERM User a may not run 'select'"], "closed the connection", false),
            (&["+OK", "-NOAUTH no"], "requires a password", true),
            (&["+OK", "-ERR DB index", "-ERR DB index script: 0, on @user_script:1."], "rejects SELECT", true),
            (&["-DENIED protected mode"], "DENIED", true),
            (&["-ERR max number of clients reached"], "max number", true),
            (&["-WRONGPASS no"], "closed the connection", false),
            (&["+OK", "+OK", "-NOPERM User a may not run 'eval'"], "NOPERM", true),
            (&["+OK", "+OK", "-NOPERM User a may not run 'zadd' script: 0, on @user_script:9."], "NOPERM", false),
            (&["+OK", "+OK", "-OOM no script: 0, on @user_script:9."], "OOM", false),
            // A server of another kind.
            (&["-ERR called without any password", "-ERR unknown command", "-ERR unknown command"], "EVAL", true),
        ] {
            let mut store =
                Address::parse("redis://:pw@h/3").expect("is a URL").open(Duration::from_secs(1)).expect("opens");
            let lines = answers;
            let answers: String = lines.iter().flat_map(|answer| [*answer, "\r\n"]).collect();
            // A server that is full is asked again.
            let failed = scripted::with(std::iter::repeat_n(answers.into_bytes(), 50), || {
                store.try_acquire(&Claim::example(), IfHeld::Leave).expect_err("it is rejected")
            });
            assert!(failed.error.to_string().contains(why), "{lines:?}: {:#}", failed.error);
            assert_eq!(failed.never_sent, never_sent, "{lines:?}: {:#}", failed.error);
        }
    }
}
