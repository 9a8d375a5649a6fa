//! A connection to PostgreSQL: batches of statements with one deadline each, and notifications.
//!
//! The postgres-protocol crate encodes the messages and the authentication. The socket is ours, so that one deadline
//! bounds a whole request, connecting included, and a wait for a notification also ends on a signal.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{self, DataRowBody, Message, NotificationResponseBody};
use uuid::Uuid;

use super::batch::{Batch, Prepared};
use super::failure::Failure;
use super::server_error::{ServerError, is_of_unconfirmed_commit};
use crate::net::stream::{NO_WAIT, Stream};
use crate::store::record_limit;
use crate::sys::clock::Moment;

/// The longest answer to a request that is read, in bytes, unless the request is a page of a listing. All that the
/// server sends counts, such as notices. The longest is a record with a hundred waiters, of at most some kilobytes
/// each.
const ANSWER_MAX: usize = record_limit::BYTES + (1 << 20);

/// An open connection.
// Each is a fact of its own about the session.
#[allow(clippy::struct_excessive_bools)]
pub(super) struct Connection {
    stream: Stream,
    input: BytesMut,
    /// Notifications that arrived between the answers.
    notifications: Vec<Notification>,
    /// The server process that serves us, as the server, or a pooler in front of it, named it at login.
    pub(super) process: i32,
    /// Whether the server has sent anything since the current operation began or the connection was opened.
    pub(super) has_spoken: bool,
    /// How many bytes have come since the last request was sent, and how many more the rows among them take in memory.
    received: usize,
    /// How many more bytes a listing may take, if the last request was a page of one.
    listing_left: Option<usize>,
    /// How many commits the server has reported as not confirmed by a standby.
    unconfirmed: u64,
    /// Whether a transaction is open, as the server last reported.
    transaction: Transaction,
    /// Whether it is out of step: closed, or an answer may still come.
    pub(super) is_broken: bool,
    /// Whether the server, being a standby, has rejected a transaction that writes.
    pub(super) is_known_standby: bool,
    /// The index of the host that it leads to.
    pub(super) host: usize,
    /// The channel of this session: no other one listens on it.
    pub(super) channel: String,
    /// Whether the session listens on it.
    pub(super) listens: bool,
    /// The statements that the session has prepared.
    pub(super) prepared: Prepared,
}

/// Whether a transaction is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transaction {
    None,
    Open,
    /// One is open that can only be rolled back.
    Failed,
}

/// A notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Notification {
    /// Its channel.
    pub(super) channel: String,
    /// Its payload.
    pub(super) message: String,
}

/// A row of an answer, as text; `None` is null.
pub(super) type Row = Vec<Option<String>>;

/// The answer to one statement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    /// The rows.
    pub(super) rows: Vec<Row>,
    /// The command tag, such as `UPDATE 1`.
    pub(super) tag: String,
    /// Whether a transaction was open after that.
    pub(super) in_transaction: bool,
    /// Whether the server warned that no standby has confirmed the commit.
    pub(super) is_unconfirmed: bool,
}

impl Connection {
    /// Takes over a stream, before anything has been sent.
    pub(super) fn over(stream: Stream) -> Self {
        let channel = format!("lockrun_{}", Uuid::new_v4().simple());
        Connection {
            stream,
            input: BytesMut::new(),
            notifications: Vec::new(),
            process: 0,
            has_spoken: false,
            received: 0,
            listing_left: None,
            unconfirmed: 0,
            transaction: Transaction::None,
            is_broken: false,
            is_known_standby: false,
            host: 0,
            prepared: Prepared::none(&channel),
            channel,
            listens: false,
        }
    }

    /// Sends the batch at once and returns the answers to its statements in order, without that of a transaction's
    /// beginning. Fails with the first error, after which the transaction can only be rolled back. After any other
    /// failure the connection is broken.
    pub(super) fn run(&mut self, batch: &Batch, deadline: Moment) -> Result<Vec<Answer>, Failure> {
        if self.transaction == Transaction::Failed {
            self.roll_back(deadline)?;
        }
        self.exchange(batch, deadline)
    }

    /// Rolls the transaction back.
    pub(super) fn roll_back(&mut self, deadline: Moment) -> Result<(), Failure> {
        let mut end = Batch::default();
        end.add("ROLLBACK", &[]);
        self.exchange(&end, deadline).map(|_| ())
    }

    /// Returns whether a transaction is open that may still be committed.
    pub(super) fn is_in_transaction(&self) -> bool {
        self.transaction == Transaction::Open
    }

    /// Returns whether a transaction is open that can only be rolled back.
    pub(super) fn is_in_failed_transaction(&self) -> bool {
        self.transaction == Transaction::Failed && !self.is_broken
    }

    fn exchange(&mut self, batch: &Batch, deadline: Moment) -> Result<Vec<Answer>, Failure> {
        let answers = self.try_exchange(batch, deadline);
        self.is_broken |= answers.as_ref().is_err_and(Failure::is_out_of_step);
        self.is_known_standby |= answers.as_ref().is_err_and(Failure::is_of_standby);
        match answers {
            Err(Failure::Rejected(rejection)) if rejection.is_of_missing_statement() && !self.prepared.is_empty() => {
                self.prepared.forget();
                Err(Failure::Rejected(rejection.of_lost_statement()))
            }
            answers => answers,
        }
    }

    fn try_exchange(&mut self, batch: &Batch, deadline: Moment) -> Result<Vec<Answer>, Failure> {
        let messages = batch.encode(&self.prepared);
        let messages = messages.map_err(|_| Failure::UnexpectedReply("a statement that cannot be sent"))?;
        self.send(&messages, deadline)?;
        self.listing_left = batch.listing_left;
        let mut answers = Vec::with_capacity(batch.len());
        let mut rejection: Option<ServerError> = None;
        for at in 0..batch.len() {
            match self.answer().map_err(|failure| failure.after(rejection.as_ref()))? {
                Ok(answer) => answers.push(answer),
                Err(refused) if at == 0 && batch.writes => rejection = rejection.or(Some(refused.of_begin())),
                Err(refused) => rejection = rejection.or(Some(refused)),
            }
        }
        if let Some(preparation) = &batch.preparation {
            match self.answer() {
                Ok(Ok(_)) => self.prepared.note(preparation),
                // Each statement is sent as a whole.
                Ok(Err(_)) => {}
                // The statements have their answers, and a commit must not be taken for one without.
                Err(_) => self.is_broken = true,
            }
        }
        match rejection {
            Some(rejection) => Err(Failure::Rejected(rejection)),
            None => Ok(answers.split_off(usize::from(batch.begins))),
        }
    }

    /// Reads the answer to one statement.
    fn answer(&mut self) -> Result<Result<Answer, ServerError>, Failure> {
        let mut answer = Ok(Answer::default());
        let unconfirmed = self.unconfirmed;
        loop {
            match self.next().map_err(|failure| failure.after(answer.as_ref().err()))? {
                Message::DataRow(row) => {
                    let row = read_row(&row)?;
                    self.received += size_of::<Row>() + row.len() * size_of::<Option<String>>();
                    if let Ok(answer) = &mut answer {
                        answer.rows.push(row);
                    }
                }
                Message::CommandComplete(body) => {
                    let tag = body.tag().map_err(|error| Failure::of_stream(&error))?.to_owned();
                    if let Ok(answer) = &mut answer {
                        answer.tag = tag;
                    }
                }
                Message::ErrorResponse(body) => {
                    let rejection = ServerError::read(body.fields()).in_session();
                    if rejection.is_fatal() {
                        return Err(Failure::Rejected(rejection));
                    }
                    answer = Err(rejection);
                }
                Message::ReadyForQuery(body) => {
                    self.transaction = match body.status() {
                        b'T' => Transaction::Open,
                        b'E' => Transaction::Failed,
                        _ => Transaction::None,
                    };
                    if let Ok(answer) = &mut answer {
                        answer.in_transaction = self.is_in_transaction();
                        answer.is_unconfirmed = self.unconfirmed > unconfirmed;
                    }
                    return Ok(answer);
                }
                Message::ParseComplete | Message::BindComplete | Message::NoData | Message::EmptyQueryResponse => {}
                _ => return Err(Failure::UnexpectedReply("an answer to something else")),
            }
        }
    }

    /// Asks whether the server is a standby.
    pub(super) fn is_in_recovery(&mut self, deadline: Moment) -> Result<bool, Failure> {
        let mut batch = Batch::default();
        batch.add("SELECT pg_catalog.pg_is_in_recovery()", &[]);
        let answers = self.run(&batch, deadline)?;
        Ok(answers.first().and_then(|answer| answer.rows.first()?.first()?.as_deref()) == Some("t"))
    }

    /// Sends messages. Their answers may come until the `deadline`.
    pub(super) fn send(&mut self, messages: &[u8], deadline: Moment) -> Result<(), Failure> {
        (self.received, self.listing_left) = (0, None);
        self.stream.set_deadline(deadline);
        let sent = self.stream.write_all(messages).and_then(|()| self.stream.flush());
        sent.map_err(|error| Failure::of_stream(&error))
    }

    /// Returns the next message that belongs to an answer. Keeps notifications, and counts notices of a commit that no
    /// standby has confirmed.
    pub(super) fn next(&mut self) -> Result<Message, Failure> {
        loop {
            match self.next_of_any_kind()? {
                Message::NotificationResponse(body) => self.keep(&body),
                Message::NoticeResponse(body) => self.unconfirmed += u64::from(is_of_unconfirmed_commit(body.fields())),
                Message::ParameterStatus(_) => {}
                message => return Ok(message),
            }
        }
    }

    /// Returns the next message, whatever it is.
    pub(super) fn next_of_any_kind(&mut self) -> Result<Message, Failure> {
        loop {
            if let Some(message) = self.take_message()? {
                return Ok(message);
            }
            self.read_more().map_err(|failure| match failure {
                Failure::Silent if self.has_spoken => Failure::Slow,
                failure => failure,
            })?;
        }
    }

    /// Returns the next message, if all of it has been read.
    fn take_message(&mut self) -> Result<Option<Message>, Failure> {
        let header = backend::Header::parse(&self.input).map_err(|error| Failure::of_stream(&error))?;
        if header.is_some_and(|header| usize::try_from(header.len()).is_ok_and(|length| length > self.answer_max())) {
            return Err(self.too_long());
        }
        Message::parse(&mut self.input).map_err(|_| Failure::UnexpectedReply("a message that is not in its protocol"))
    }

    /// Returns how long the answer to the last request may be, in bytes.
    fn answer_max(&self) -> usize {
        self.listing_left.unwrap_or(ANSWER_MAX)
    }

    /// Returns the failure of an answer that is longer.
    fn too_long(&self) -> Failure {
        match self.listing_left {
            Some(_) => Failure::ListingTooLong,
            None => Failure::UnexpectedReply("it is longer than anything that lockrun asks for"),
        }
    }

    /// Reads what has arrived, or waits for more until the stream's deadline.
    fn read_more(&mut self) -> Result<(), Failure> {
        let mut part = [0; 8192];
        match self.stream.read(&mut part) {
            Ok(0) => Err(Failure::Closed),
            Ok(length) => {
                self.has_spoken = true;
                self.received += length;
                if self.received > self.answer_max() {
                    return Err(self.too_long());
                }
                self.input.extend_from_slice(&part[..length]);
                Ok(())
            }
            Err(error) => Err(Failure::of_stream(&error)),
        }
    }

    /// Returns the notifications that have arrived, without waiting. If an error or an answer has arrived, the
    /// connection counts as closed: nothing was asked, and the next request learns the server's state on a new
    /// connection.
    pub(super) fn notifications(&mut self) -> Result<Vec<Notification>, Failure> {
        let read = self.read_notifications();
        self.is_broken |= read.is_err();
        read.map(|()| std::mem::take(&mut self.notifications)).map_err(|_| Failure::Closed)
    }

    fn read_notifications(&mut self) -> Result<(), Failure> {
        (self.received, self.listing_left) = (0, None);
        self.stream.set_deadline(NO_WAIT);
        loop {
            while let Some(message) = self.take_message()? {
                match message {
                    Message::NotificationResponse(body) => self.keep(&body),
                    Message::NoticeResponse(_) | Message::ParameterStatus(_) => {}
                    Message::ErrorResponse(body) => return Err(Failure::Rejected(ServerError::read(body.fields()))),
                    _ => return Err(Failure::UnexpectedReply("an answer to nothing")),
                }
            }
            match self.read_more() {
                Err(Failure::Silent) => return Ok(()),
                read => read?,
            }
        }
    }

    /// Keeps a notification if it is text. Otherwise it is not lockrun's: every role of the database can send one.
    fn keep(&mut self, body: &NotificationResponseBody) {
        if let (Ok(channel), Ok(message)) = (body.channel(), body.message()) {
            self.notifications.push(Notification { channel: channel.to_owned(), message: message.to_owned() });
        }
    }
}

impl Connection {
    /// Returns the data to which authentication can be bound: see [`Stream::server_end_point`].
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
        let part =
            range.map(|range| bytes.get(range).ok_or(Failure::UnexpectedReply("a row that is cut off"))).transpose()?;
        let text = part.map(|part| std::str::from_utf8(part).map(str::to_owned)).transpose();
        text.map_err(|_| Failure::UnexpectedReply("text that is not UTF-8"))
    };
    let mut ranges = row.ranges();
    let mut values = Vec::new();
    while let Some(range) = ranges.next().map_err(|error| Failure::of_stream(&error))? {
        values.push(value(range)?);
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::time::Duration;

    use nix::poll::PollFlags;

    use super::*;
    use crate::net::dial::dial;
    use crate::net::endpoint::Endpoint;
    use crate::net::stream::await_ready;

    /// Returns a connection and the server's end of it.
    fn connect() -> (Connection, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        let endpoint = Endpoint::Tcp { host: "127.0.0.1".into(), port, tls: None };
        let stream = dial(&endpoint, None, Moment::now() + Duration::from_secs(10)).expect("it listens");
        let (server, _) = listener.accept().expect("it has connected");
        (Connection::over(stream), server)
    }

    /// A message of the server.
    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).expect("is short").to_be_bytes();
        [&[kind][..], &length, body].concat()
    }

    fn notification(channel: &[u8], text: &[u8]) -> Vec<u8> {
        message(b'A', &[&[0; 4], channel, &[0], text, &[0]].concat())
    }

    /// Returns the notifications in these bytes of the server.
    fn hear(sent: &[u8]) -> Result<Vec<String>, Failure> {
        const LAST: &str = "last";
        let (mut connection, mut server) = connect();
        server.write_all(&[sent, &notification(b"c", LAST.as_bytes())].concat()).expect("it is taken");
        let mut heard = Vec::new();
        while heard.last().is_none_or(|last| last != LAST) {
            await_ready(&connection, PollFlags::POLLIN, Moment::now() + Duration::from_mins(1)).expect("they arrive");
            heard.extend(connection.notifications()?.into_iter().map(|it| it.message));
        }
        heard.pop();
        Ok(heard)
    }

    #[test]
    fn notifications_that_are_no_text_are_ignored() {
        let sent = [notification(b"c", b"\xff"), notification(b"\xff", b"x"), notification(b"c", b"look 7")].concat();
        assert_eq!(hear(&sent).expect("nothing is wrong"), ["look 7"]);
    }

    #[test]
    fn an_answer_that_arrived_by_the_deadline_counts() {
        let (mut connection, mut server) = connect();
        connection.send(b"", Moment::now()).expect("nothing is to be sent");
        server.write_all(&message(b'1', b"")).expect("it is taken");
        await_ready(&connection, PollFlags::POLLIN, Moment::now() + Duration::from_mins(1)).expect("it arrives");
        assert!(matches!(connection.next(), Ok(Message::ParseComplete)));
        assert!(matches!(connection.next(), Err(Failure::Slow)));
    }

    #[test]
    fn a_server_that_never_stops_sending_does_not_outlast_the_deadline() {
        let (mut connection, mut server) = connect();
        connection.send(b"", Moment::now()).expect("nothing is to be sent");
        let notice = message(b'N', b"SNOTICE\0\0").repeat(100);
        let sender = std::thread::spawn(move || while server.write_all(&notice).is_ok() {});
        assert!(matches!(connection.next(), Err(Failure::Slow | Failure::Silent)));
        drop(connection);
        sender.join().expect("it has ended");
    }

    #[test]
    fn anything_else_that_comes_unasked_closes_the_connection() {
        let error = message(b'E', b"SERROR\0VERROR\0C42P17\0Mno\0\0");
        let too_long = [&[b'D'][..], &u32::MAX.to_be_bytes()].concat();
        for sent in [error, message(b'Z', b"I"), message(b'?', b""), too_long] {
            assert!(matches!(hear(&sent), Err(Failure::Closed)), "{sent:?}");
        }
    }
}
