//! A connection to PostgreSQL: batches of statements with one deadline each, and notifications.
//!
//! The messages, and the authentication, are the postgres-protocol crate's. The socket is ours: a request is bounded as a whole,
//! connecting included, and a wait for a notification also hears signals.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{DataRowBody, Message};
use postgres_protocol::message::{backend, frontend};
use uuid::Uuid;

use super::failure::{Failure, Refusal};
use crate::lock::token::Token;
use crate::net::stream::Stream;
use crate::sys::clock::Moment;

/// The longest answer that is read, in bytes. The longest that lockrun asks for is the list of all locks.
const ANSWER_MAX: usize = 64 << 20;

const TOO_LONG: Failure = Failure::Strange("it is longer than anything that lockrun asks for");

/// An open connection. After a failure other than [`Failure::Refused`] it is out of step, and must be dropped.
pub(super) struct Connection {
    stream: Stream,
    input: BytesMut,
    /// The channels of the notifications that came between the answers.
    notifications: Vec<String>,
    /// The process that serves us, as the server, or a pooler in front of it, has introduced it.
    pub(super) process: i32,
    /// Whether a transaction is open that has failed.
    has_failed_transaction: bool,
    /// The advisory lock that this session holds while it listens: a number of its own.
    pub(super) session: i64,
    /// The token for which this session listens.
    pub(super) listens_for: Option<Token>,
}

/// A row of an answer, as text; `None` is null.
pub(super) type Row = Vec<Option<String>>;

/// The answer to one statement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    /// The rows.
    pub(super) rows: Vec<Row>,
    /// How many rows it has changed.
    pub(super) changed: u64,
}

/// Statements that travel together. If one is refused, those after it are not carried out.
#[derive(Default)]
pub(super) struct Batch {
    messages: BytesMut,
    length: usize,
    /// A statement that cannot be sent at all.
    failure: Option<io::Error>,
}

impl Batch {
    /// Returns how many statements it has.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Adds a statement with its parameters, which are text.
    ///
    /// It is prepared without a name, so it needs nothing that an earlier transaction has left in the session: a pooler may give each
    /// one another session.
    pub(super) fn add(&mut self, statement: &str, parameters: &[Option<&str>]) {
        let buffer = &mut self.messages;
        let parsed = frontend::parse("", statement, [], buffer);
        let put = |value: Option<&str>, buffer: &mut BytesMut| match value {
            Some(text) => {
                buffer.extend_from_slice(text.as_bytes());
                Ok(postgres_protocol::IsNull::No)
            }
            None => Ok(postgres_protocol::IsNull::Yes),
        };
        let bound =
            frontend::bind("", "", [], parameters.iter().copied(), put, [], buffer).map_err(|error| match error {
                frontend::BindError::Conversion(error) => io::Error::other(error),
                frontend::BindError::Serialization(error) => error,
            });
        let executed = frontend::execute("", 0, buffer);
        self.length += 1;
        let added = parsed.and(bound).and(executed);
        self.failure = self.failure.take().or(added.err());
    }
}

impl Connection {
    /// Takes over a stream, before anything has been sent.
    pub(super) fn over(stream: Stream) -> Self {
        Connection {
            stream,
            input: BytesMut::new(),
            notifications: Vec::new(),
            process: 0,
            has_failed_transaction: false,
            session: Uuid::new_v4().as_u64_pair().0.cast_signed(),
            listens_for: None,
        }
    }

    /// Sends the batch in one flight, and returns the answers to its statements, in their order.
    ///
    /// If a statement is refused, the transaction that is open is over.
    pub(super) fn run(&mut self, batch: Batch, deadline: Moment) -> Result<Vec<Answer>, Failure> {
        if self.has_failed_transaction {
            let mut end = Batch::default();
            end.add("ROLLBACK", &[]);
            self.exchange(end, deadline)?;
        }
        self.exchange(batch, deadline)
    }

    fn exchange(&mut self, mut batch: Batch, deadline: Moment) -> Result<Vec<Answer>, Failure> {
        if batch.failure.is_some() {
            return Err(Failure::Strange("a statement that cannot be sent"));
        }
        frontend::sync(&mut batch.messages);
        self.send(&batch.messages, deadline)?;
        let mut answers = Vec::with_capacity(batch.length);
        let mut rows = Vec::new();
        let mut refusal = None;
        let mut length = 0;
        loop {
            match self.next(deadline)? {
                Message::DataRow(row) => {
                    length += row.buffer().len();
                    if length > ANSWER_MAX {
                        return Err(TOO_LONG);
                    }
                    rows.push(read_row(&row)?);
                }
                Message::CommandComplete(body) => {
                    let tag = body.tag().map_err(|error| Failure::of_stream(&error))?;
                    let changed = tag.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0);
                    answers.push(Answer { rows: std::mem::take(&mut rows), changed });
                }
                Message::ErrorResponse(body) => {
                    let read = Refusal::read(body.fields());
                    if read.is_fatal() {
                        return Err(Failure::Refused(read));
                    }
                    refusal = refusal.or(Some(read));
                }
                Message::ReadyForQuery(body) => {
                    self.has_failed_transaction = body.status() == b'E';
                    break;
                }
                Message::ParseComplete | Message::BindComplete | Message::NoData | Message::EmptyQueryResponse => {}
                _ => return Err(Failure::Strange("an answer to something else")),
            }
        }
        match refusal {
            Some(refusal) => Err(Failure::Refused(refusal)),
            None if answers.len() == batch.length => Ok(answers),
            None => Err(Failure::Strange("too few answers")),
        }
    }

    /// Sends messages.
    pub(super) fn send(&mut self, messages: &[u8], deadline: Moment) -> Result<(), Failure> {
        self.stream.set_deadline(deadline);
        let sent = self.stream.write_all(messages).and_then(|()| self.stream.flush());
        sent.map_err(|error| Failure::of_stream(&error))
    }

    /// Returns the next message that answers something. Notifications are kept, notices are dropped.
    pub(super) fn next(&mut self, deadline: Moment) -> Result<Message, Failure> {
        loop {
            match self.next_of_any_kind(deadline)? {
                Message::NotificationResponse(body) => {
                    let channel = body.channel().map_err(|error| Failure::of_stream(&error))?.to_owned();
                    self.notifications.push(channel);
                }
                Message::NoticeResponse(_) | Message::ParameterStatus(_) => {}
                message => return Ok(message),
            }
        }
    }

    /// Returns the next message, whatever it is.
    pub(super) fn next_of_any_kind(&mut self, deadline: Moment) -> Result<Message, Failure> {
        loop {
            if let Some(message) = self.take_message()? {
                return Ok(message);
            }
            self.read_more(deadline)?;
        }
    }

    /// Returns the next message that has been read as a whole.
    fn take_message(&mut self) -> Result<Option<Message>, Failure> {
        let header = backend::Header::parse(&self.input).map_err(|error| Failure::of_stream(&error))?;
        if header.is_some_and(|header| usize::try_from(header.len()).is_ok_and(|length| length > ANSWER_MAX)) {
            return Err(TOO_LONG);
        }
        Message::parse(&mut self.input).map_err(|_| Failure::Strange("a message that is not in its protocol"))
    }

    /// Reads what has come, or waits for it.
    fn read_more(&mut self, deadline: Moment) -> Result<(), Failure> {
        self.stream.set_deadline(deadline);
        let mut part = [0; 8192];
        match self.stream.read(&mut part) {
            Ok(0) => Err(Failure::Closed),
            Ok(length) => {
                self.input.extend_from_slice(&part[..length]);
                Ok(())
            }
            Err(error) => Err(Failure::of_stream(&error)),
        }
    }

    /// Returns the channels of the notifications that have come, waiting for none.
    pub(super) fn notifications(&mut self) -> Result<Vec<String>, Failure> {
        // The deadline is over: only what is there already is read.
        match self.next(Moment::from_boot(Duration::ZERO)) {
            Ok(Message::ErrorResponse(body)) => Err(Failure::Refused(Refusal::read(body.fields()))),
            Ok(_) => Err(Failure::Strange("an answer to nothing")),
            Err(Failure::Silent) => Ok(std::mem::take(&mut self.notifications)),
            Err(failure) => Err(failure),
        }
    }
}

impl Connection {
    /// Returns what authentication is bound to, if the connection is encrypted: see [`Stream::server_end_point`].
    pub(super) fn server_end_point(&self) -> Option<Vec<u8>> {
        self.stream.server_end_point()
    }

    /// Returns whether the connection is encrypted.
    pub(super) fn is_encrypted(&self) -> bool {
        matches!(self.stream, Stream::Tls(_))
    }
}

/// Readable when a notification may have come.
impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn read_row(row: &DataRowBody) -> Result<Row, Failure> {
    let bytes = row.buffer();
    let value = |range: Option<std::ops::Range<usize>>| {
        let part = range.map(|range| bytes.get(range).ok_or(Failure::Strange("a row that is cut off"))).transpose()?;
        let text = part.map(|part| std::str::from_utf8(part).map(str::to_owned)).transpose();
        text.map_err(|_| Failure::Strange("text that is not UTF-8"))
    };
    let mut ranges = row.ranges();
    let mut values = Vec::new();
    while let Some(range) = ranges.next().map_err(|error| Failure::of_stream(&error))? {
        values.push(value(range)?);
    }
    Ok(values)
}
