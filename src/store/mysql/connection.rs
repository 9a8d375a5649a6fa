//! A connection to MySQL or MariaDB: statements that are sent together, with one deadline for all of them.
//!
//! The mysql_common crate encodes the packets, and hashes the password. The socket is ours, so that one deadline bounds
//! a whole request, connecting included; the mysql crate has a time-out for each read instead, which a server that
//! sends a byte at a time never reaches.

use std::io::{Read, Write};

use bytes::{Buf as _, BytesMut};
use mysql_common::constants::{CapabilityFlags, Command, StatusFlags};
use mysql_common::io::ParseBuf;
use mysql_common::packets::{CommonOkPacket, ErrPacket, OkPacketDeserializer};

use super::failure::{Failure, ServerError};
use crate::net::stream::{NO_WAIT, Stream};
use crate::store::record_limit;
use crate::sys::clock::Moment;

/// What we ask of a server, and need: several statements in one request, and the count of the rows that a statement has
/// found, whether it has changed them or not.
pub(super) const CAPABILITIES: CapabilityFlags = CapabilityFlags::CLIENT_PROTOCOL_41
    .union(CapabilityFlags::CLIENT_SECURE_CONNECTION)
    .union(CapabilityFlags::CLIENT_PLUGIN_AUTH)
    .union(CapabilityFlags::CLIENT_CONNECT_WITH_DB)
    .union(CapabilityFlags::CLIENT_TRANSACTIONS)
    .union(CapabilityFlags::CLIENT_FOUND_ROWS)
    .union(CapabilityFlags::CLIENT_MULTI_STATEMENTS)
    .union(CapabilityFlags::CLIENT_MULTI_RESULTS);

/// The first byte of an error message.
pub(super) const ERROR: u8 = 0xff;

/// The statement that lets a session be idle again, which has begun a transaction.
pub(super) const MAY_BE_IDLE: &str = "SET SESSION wait_timeout = DEFAULT";

const TOO_LONG: Failure = Failure::UnexpectedReply("it is longer than anything that lockrun asks for");

/// The longest answer to a request that is read, in bytes, unless the request is a page of a listing.
const ANSWER_MAX: usize = record_limit::BYTES + (1 << 20);

/// The longest packet of a login: one that a server of another kind seems to begin may be much longer.
const LOGIN_MAX: usize = 1 << 16;

/// The length from which on a packet would be continued in the next one. None of ours is as long: the longest record
/// has twice as many digits as bytes.
const PACKET_MAX: usize = (1 << 24) - 1;
const _: () = assert!(2 * record_limit::BYTES + (1 << 20) < PACKET_MAX && ANSWER_MAX < PACKET_MAX);

/// An open connection.
// Each is a fact of its own about the session.
#[allow(clippy::struct_excessive_bools)]
pub(super) struct Connection {
    stream: Stream,
    input: BytesMut,
    /// The number of the next packet, in either direction.
    sequence: u8,
    /// How many bytes may come in answer to the last request, and how many of them there may be in a packet.
    answer_left: usize,
    packet_max: usize,
    /// Whether the server has sent anything since the last request was answered.
    has_spoken: bool,
    /// Whether the server has sent an error that answers nothing: it ends the session.
    has_hung_up: bool,
    /// Whether a transaction is open, as the server last reported.
    pub(super) is_in_transaction: bool,
    /// Whether it is out of step: closed, or an answer may still come.
    pub(super) is_broken: bool,
    /// Whether the engine of the tables was checked.
    pub(super) has_checked_tables: bool,
    /// The index of the host that it leads to.
    pub(super) host: usize,
}

/// A row of an answer, as text; `None` is null.
pub(super) type Row = Vec<Option<String>>;

/// The answer to one statement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) rows: Vec<Row>,
    /// How many rows a statement that changes them has found.
    pub(super) affected: u64,
    /// Whether a transaction was open after that.
    pub(super) in_transaction: bool,
    /// Whether another answer follows.
    has_next: bool,
}

impl Answer {
    /// Returns the only row, which has so many columns.
    pub(super) fn row<const COLUMNS: usize>(&self) -> Result<&[Option<String>; COLUMNS], Failure> {
        self.rows.first().and_then(|row| row.as_slice().try_into().ok()).ok_or(Failure::INCOMPLETE)
    }
}

/// Statements that are sent together. The server carries out one after the other, and none after one that fails.
#[derive(Default)]
pub(super) struct Batch(Vec<String>);

impl Batch {
    /// Returns statements outside of a transaction of ours, the first of them this one, whatever the settings of the
    /// session are. The first answer is that to our own settings.
    pub(super) fn outside(statement: impl Into<String>) -> Self {
        let mut batch = Batch::default();
        batch.add("SET SESSION autocommit = 1, SESSION completion_type = 'NO_CHAIN'");
        batch.add(statement);
        batch
    }

    /// Adds a statement. Returns the index of its answer.
    pub(super) fn add(&mut self, statement: impl Into<String>) -> usize {
        self.0.push(statement.into());
        self.0.len() - 1
    }
}

impl Connection {
    /// Takes over a stream, before anything was sent or read.
    pub(super) fn over(stream: Stream) -> Self {
        Connection {
            stream,
            input: BytesMut::new(),
            sequence: 0,
            answer_left: ANSWER_MAX,
            packet_max: LOGIN_MAX,
            has_spoken: false,
            has_hung_up: false,
            is_in_transaction: false,
            is_broken: false,
            has_checked_tables: false,
            host: 0,
        }
    }

    /// Sends the statements and returns their answers in order. After a rejection a transaction may be open. After any
    /// other failure the connection is broken.
    pub(super) fn run(&mut self, batch: &Batch, deadline: Moment) -> Result<Vec<Answer>, Failure> {
        self.run_page(batch, ANSWER_MAX, deadline)
    }

    /// Does the same, for answers of so many bytes at most.
    pub(super) fn run_page(&mut self, batch: &Batch, most: usize, deadline: Moment) -> Result<Vec<Answer>, Failure> {
        let answers = match self.exchange(batch, most, deadline) {
            Err(Failure::Rejected(_)) if self.has_hung_up => Err(Failure::Closed),
            Err(Failure::UnexpectedReply(_)) if self.answer_left == 0 && most != ANSWER_MAX => {
                Err(Failure::ListingTooLong)
            }
            answers => answers,
        };
        let is_answered = matches!(answers, Ok(_) | Err(Failure::Rejected(_)));
        self.has_spoken &= !is_answered;
        self.is_broken |= !is_answered || answers.as_ref().is_err_and(Failure::is_closed);
        answers
    }

    fn exchange(&mut self, batch: &Batch, most: usize, deadline: Moment) -> Result<Vec<Answer>, Failure> {
        let mut request = vec![Command::COM_QUERY as u8];
        request.extend_from_slice(batch.0.join(";").as_bytes());
        (self.sequence, self.packet_max) = (0, PACKET_MAX);
        self.send(&request, deadline)?;
        self.answer_left = most;
        let mut answers: Vec<Answer> = Vec::with_capacity(batch.0.len());
        while answers.len() < batch.0.len() {
            if answers.last().is_some_and(|answer| !answer.has_next) {
                return Err(Failure::UnexpectedReply("answers are missing"));
            }
            let answer = self.answer(answers.len())?;
            answers.push(answer);
        }
        match answers.last() {
            Some(Answer { has_next: true, .. }) => {
                Err(Failure::UnexpectedReply("there are more answers than statements"))
            }
            _ => Ok(answers),
        }
    }

    /// Ends the open transaction, if there is one, without effect.
    pub(super) fn roll_back(&mut self, deadline: Moment) -> Result<(), Failure> {
        if self.is_in_transaction {
            let mut batch = Batch::default();
            batch.add("ROLLBACK AND NO CHAIN NO RELEASE");
            batch.add(MAY_BE_IDLE);
            self.run(&batch, deadline)?;
        }
        Ok(())
    }

    /// Reads the answer to the statement with this index.
    fn answer(&mut self, at: usize) -> Result<Answer, Failure> {
        const STRANGE: Failure = Failure::UnexpectedReply("an answer that is not in its protocol");
        let first = self.packet()?;
        match first.first() {
            Some(0x00) => {
                let ok: OkPacketDeserializer<'_, CommonOkPacket> =
                    ParseBuf(&first).parse(CAPABILITIES).map_err(|_| STRANGE)?;
                let ok = ok.into_inner();
                let mut answer = self.end(ok.status_flags());
                answer.affected = ok.affected_rows();
                return Ok(answer);
            }
            Some(&ERROR) => return Err(rejection(&first, at)),
            // A request for a file of ours.
            Some(0xfb) | None => return Err(STRANGE),
            Some(_) => {}
        }
        // The definitions of the columns, and what ends them.
        while !is_end(&self.packet()?) {}
        let mut rows = Vec::new();
        loop {
            let packet = self.packet()?;
            match packet.first() {
                Some(&ERROR) => return Err(rejection(&packet, at)),
                _ if is_end(&packet) => {
                    let flags = u16::from_le_bytes([packet[3], packet[4]]);
                    return Ok(Answer { rows, ..self.end(StatusFlags::from_bits_truncate(flags)) });
                }
                _ => {
                    let row = read_row(&packet).ok_or(STRANGE)?;
                    let size = size_of::<Row>() + row.len() * size_of::<Option<String>>();
                    self.answer_left = self.answer_left.saturating_sub(size);
                    if self.answer_left == 0 {
                        return Err(TOO_LONG);
                    }
                    rows.push(row);
                }
            }
        }
    }

    /// Returns an answer that ends with these flags, and notes whether a transaction is open.
    fn end(&mut self, flags: StatusFlags) -> Answer {
        self.is_in_transaction = flags.contains(StatusFlags::SERVER_STATUS_IN_TRANS);
        let has_next = flags.contains(StatusFlags::SERVER_MORE_RESULTS_EXISTS);
        Answer { has_next, in_transaction: self.is_in_transaction, ..Answer::default() }
    }

    /// Sends a packet. Its answer may come until the `deadline`.
    pub(super) fn send(&mut self, packet: &[u8], deadline: Moment) -> Result<(), Failure> {
        const TOO_LONG: Failure = Failure::UnexpectedReply("a request that is too long");
        let length = u32::try_from(packet.len()).ok().filter(|_| packet.len() < PACKET_MAX).ok_or(TOO_LONG)?;
        let mut message = length.to_le_bytes();
        message[3] = self.sequence;
        self.sequence = self.sequence.wrapping_add(1);
        self.answer_left = ANSWER_MAX;
        self.stream.set_deadline(deadline);
        let sent = self.stream.write_all(&[&message, packet].concat()).and_then(|()| self.stream.flush());
        sent.map_err(|error| Failure::of_stream(&error))
    }

    /// Returns the next packet. Its length in three bytes and its number are in front of it. An error may come unasked,
    /// with a number of its own: the server ends the session with it.
    pub(super) fn packet(&mut self) -> Result<Vec<u8>, Failure> {
        const BROKEN: Failure = Failure::UnexpectedReply("a broken packet");
        loop {
            if let Some([a, b, c, sequence]) = self.input.first_chunk().copied() {
                let length = usize::from(a) | usize::from(b) << 8 | usize::from(c) << 16;
                if length >= self.packet_max || length == 0 {
                    return Err(BROKEN);
                }
                if self.input.len() >= 4 + length {
                    self.input.advance(4);
                    let packet = self.input.split_to(length).to_vec();
                    let is_error = packet.first() == Some(&ERROR);
                    if sequence != self.sequence && !is_error {
                        return Err(BROKEN);
                    }
                    self.has_hung_up |= sequence != self.sequence;
                    self.sequence = sequence.wrapping_add(1);
                    return Ok(packet);
                }
            }
            self.read_more()?;
        }
    }

    /// Waits for more, until the stream's deadline.
    fn read_more(&mut self) -> Result<(), Failure> {
        let mut part = [0; 8192];
        match self.stream.read(&mut part) {
            Ok(0) => Err(Failure::Closed),
            Ok(length) => {
                self.has_spoken = true;
                self.answer_left = self.answer_left.saturating_sub(length);
                if self.answer_left == 0 {
                    return Err(TOO_LONG);
                }
                self.input.extend_from_slice(&part[..length]);
                Ok(())
            }
            Err(error) => Err(match Failure::of_stream(&error) {
                Failure::Silent if self.has_spoken => Failure::Slow,
                failure => failure,
            }),
        }
    }

    /// Takes leave of the server, which would otherwise log that the connection was aborted.
    pub(super) fn quit(mut self) {
        if !self.is_broken && !self.is_in_transaction {
            self.sequence = 0;
            let _ = self.send(&[Command::COM_QUIT as u8], NO_WAIT);
        }
    }

    /// Returns the connection with this stream in the place of its own, once the server has agreed to TLS. Fails if the
    /// server has sent anything in clear that has not been read.
    pub(super) fn upgraded(self, upgrade: impl FnOnce(Stream) -> Result<Stream, Failure>) -> Result<Self, Failure> {
        if !self.input.is_empty() {
            return Err(Failure::UnexpectedReply("it goes on in clear although TLS was agreed"));
        }
        Ok(Connection { stream: upgrade(self.stream)?, ..self })
    }
}

/// Returns whether a packet ends the definitions of columns, or the rows.
fn is_end(packet: &[u8]) -> bool {
    packet.first() == Some(&0xfe) && packet.len() == 5
}

/// Reads an error message, in answer to the statement with this index. Before its greeting a server leaves the SQLSTATE
/// out.
pub(super) fn rejection(packet: &[u8], at: usize) -> Failure {
    let has_state = packet.get(3) == Some(&b'#');
    let without = CAPABILITIES.difference(CapabilityFlags::CLIENT_PROTOCOL_41);
    match ParseBuf(packet).parse::<ErrPacket<'_>>(if has_state { CAPABILITIES } else { without }) {
        Ok(ErrPacket::Error(error)) => {
            Failure::Rejected(ServerError { code: error.error_code(), message: error.message_str().into_owned(), at })
        }
        _ => Failure::UnexpectedReply("an error message that cannot be read"),
    }
}

/// Reads a row: each value has its length in front, and null is a byte of its own.
fn read_row(packet: &[u8]) -> Option<Row> {
    let (mut rest, mut row) = (ParseBuf(packet), Vec::new());
    while !rest.is_empty() {
        if rest.0[0] == 0xfb {
            rest.skip(1);
            row.push(None);
        } else {
            row.push(Some(String::from_utf8_lossy(rest.checked_eat_lenenc_str()?).into_owned()));
        }
    }
    Some(row)
}
