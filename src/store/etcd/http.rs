//! HTTP/1.1 as etcd's gateway speaks it: several requests in one flight, answered in order.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};

use super::failure::Failure;
use crate::net::dial::dial;
use crate::net::endpoint::Endpoint;
use crate::net::stream::{NO_WAIT, Stream};
use crate::net::tls::Tls;
use crate::sys::clock::Moment;

/// The longest head of an answer, and the longest line that frames a chunk: far more than etcd sends.
const HEAD_MAX: usize = 32 * 1024;

/// The most bytes of an ordinary answer, from its status line to its last chunk. etcd takes at most 1.5 MiB in a
/// request, so the record of a lock fits, in base64, with the first waiters.
const ANSWER_MAX: usize = 3 << 20;

/// The same for an answer that lists every waiter of a lock, of which there may be thousands.
const LONG_ANSWER_MAX: usize = 16 << 20;

/// How much is read at once.
const PART: usize = 16 * 1024;

const TOO_LONG: Failure = Failure::UnexpectedReply("an answer that is too long");

/// What a member says at the end of a watch.
const CANCELED: &str = "\"canceled\":true";

/// The most header fields of an answer.
const FIELDS_MAX: usize = 64;

/// A request: the path, and the body in JSON.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) path: &'static str,
    pub(super) body: String,
    /// Whether it asks for every waiter of a lock.
    pub(super) asks_for_all: bool,
}

impl Request {
    /// Returns the same request, which asks for every waiter of a lock if `all`.
    pub(super) fn for_all(self, all: bool) -> Self {
        Request { asks_for_all: all, ..self }
    }
}

/// An answer.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: u16,
    /// What the member's clock showed, in seconds of Unix time.
    pub(super) date: Option<u64>,
    pub(super) body: Vec<u8>,
    /// Whether the connection is closed after it. Requests that were sent after this one are not carried out.
    pub(super) is_last: bool,
}

/// A connection to a member.
pub(super) struct Connection {
    stream: Stream,
    host: String,
    /// What was read and not used yet.
    buffer: Vec<u8>,
    /// How many more bytes the answers to the present flight may take.
    budget: usize,
}

/// What the head of an answer says.
#[derive(Clone, Copy)]
struct Head {
    status: u16,
    date: Option<u64>,
    length: Length,
    is_last: bool,
}

/// How long a body is.
#[derive(Clone, Copy)]
enum Length {
    Known(usize),
    Chunked,
}

impl Connection {
    /// Connects to a member.
    pub(super) fn open(member: &Endpoint, tls: Option<&Tls>, deadline: Moment) -> io::Result<Self> {
        let stream = dial(member, tls, deadline)?;
        Ok(Connection { stream, host: member.to_string(), buffer: Vec::new(), budget: 0 })
    }

    /// Sends the requests in one flight, with the token of a log-in.
    pub(super) fn send(&mut self, requests: &[Request], token: Option<&str>, deadline: Moment) -> Result<(), Failure> {
        self.stream.set_deadline(deadline);
        // Small answers leave what they do not need to the others, so this many bytes serve the whole flight.
        self.budget = if requests.iter().any(|it| it.asks_for_all) { LONG_ANSWER_MAX } else { ANSWER_MAX };
        let mut flight = String::new();
        for Request { path, body, .. } in requests {
            let authorization = token.map(|token| format!("Authorization: {token}\r\n")).unwrap_or_default();
            let (host, length) = (&self.host, body.len());
            flight.extend([
                format!("POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"),
                format!("{authorization}Content-Length: {length}\r\n\r\n{body}"),
            ]);
        }
        let sent = self.stream.write_all(flight.as_bytes()).and_then(|()| self.stream.flush());
        sent.map_err(|error| Failure::of_stream(&error))
    }

    /// Reads the next answer.
    pub(super) fn receive(&mut self, deadline: Moment) -> Result<Response, Failure> {
        self.stream.set_deadline(deadline);
        let head = self.head()?;
        self.body(head)
    }

    /// Reads the body of an answer with this head.
    fn body(&mut self, head: Head) -> Result<Response, Failure> {
        let Head { status, date, length, is_last } = head;
        let body = match length {
            // Not read in vain.
            Length::Known(length) if length > self.budget + self.buffer.len() => return Err(TOO_LONG),
            Length::Known(length) => self.take(length)?,
            Length::Chunked => self.chunks()?,
        };
        Ok(Response { status, date, body, is_last })
    }

    /// Starts a stream of answers, such as a watch, and reads until `sign` has come. [`Connection::drain`] reads what
    /// follows.
    pub(super) fn start_stream(
        &mut self,
        request: Request,
        token: Option<&str>,
        sign: &str,
        deadline: Moment,
    ) -> Result<(), Failure> {
        self.send(&[request], token, deadline)?;
        let head = self.head()?;
        if head.status != 200 {
            let refused = self.body(head)?;
            return Err(Failure::of_response(&refused).unwrap_or(Failure::UnexpectedReply("no watch")));
        }
        while !contains(&self.buffer, sign) {
            if self.buffer.len() > HEAD_MAX {
                return Err(Failure::UnexpectedReply("no watch"));
            }
            self.more()?;
        }
        if contains(&self.buffer, CANCELED) { Err(Failure::Closed) } else { Ok(()) }
    }

    /// Reads what has arrived on a stream and was not read yet, without waiting. Returns it, HTTP's framing included,
    /// and whether the stream goes on.
    pub(super) fn drain(&mut self) -> (Vec<u8>, bool) {
        self.stream.set_deadline(NO_WAIT);
        self.budget = ANSWER_MAX;
        let goes_on = loop {
            match self.more() {
                Ok(()) => {}
                Err(Failure::Silent) => break !contains(&self.buffer, CANCELED),
                Err(_) => break false,
            }
        };
        (std::mem::take(&mut self.buffer), goes_on)
    }

    /// Reads the head of an answer.
    fn head(&mut self) -> Result<Head, Failure> {
        loop {
            let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
            let mut head = httparse::Response::new(&mut fields);
            match head.parse(&self.buffer) {
                Ok(httparse::Status::Complete(end)) => {
                    let field = |name: &str| {
                        let field = head.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name))?;
                        std::str::from_utf8(field.value).ok()
                    };
                    let status = head.code.unwrap_or_default();
                    let date = field("Date").and_then(unix_time);
                    let length = match (field("Transfer-Encoding"), field("Content-Length")) {
                        (Some(coding), _) if coding.eq_ignore_ascii_case("chunked") => Length::Chunked,
                        (None, Some(length)) => Length::Known(
                            length.parse().map_err(|_| Failure::UnexpectedReply("a length that is no number"))?,
                        ),
                        _ => return Err(Failure::UnexpectedReply("an answer of unknown length")),
                    };
                    let is_last = field("Connection").is_some_and(|field| field.eq_ignore_ascii_case("close"));
                    self.buffer.drain(..end);
                    return Ok(Head { status, date, length, is_last });
                }
                Ok(httparse::Status::Partial) if self.buffer.len() <= HEAD_MAX => {}
                _ => return Err(Failure::UnexpectedReply("what it answers is not HTTP")),
            }
            self.more()?;
        }
    }

    /// Reads a chunked body.
    fn chunks(&mut self) -> Result<Vec<u8>, Failure> {
        let mut body = Vec::new();
        loop {
            let (start, length) = loop {
                match httparse::parse_chunk_size(&self.buffer) {
                    Ok(httparse::Status::Complete((start, length))) => break (start, length),
                    Ok(httparse::Status::Partial) if self.buffer.len() <= HEAD_MAX => {}
                    _ => return Err(Failure::UnexpectedReply("a chunk that cannot be read")),
                }
                self.more()?;
            };
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if length > self.budget + self.buffer.len() {
                return Err(TOO_LONG);
            }
            self.buffer.drain(..start);
            if length == 0 {
                self.skip_trailer()?;
                return Ok(body);
            }
            body.extend(self.take(length)?);
            if self.take(2)? != b"\r\n" {
                return Err(Failure::UnexpectedReply("a chunk that cannot be read"));
            }
        }
    }

    /// Skips the fields that may follow the last chunk, and the empty line after them.
    fn skip_trailer(&mut self) -> Result<(), Failure> {
        let mut length = 0;
        loop {
            while !self.buffer.contains(&b'\n') {
                if self.buffer.len() > HEAD_MAX {
                    return Err(TOO_LONG);
                }
                self.more()?;
            }
            let end = self.buffer.iter().position(|byte| *byte == b'\n').unwrap_or(0);
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            length += line.len();
            if matches!(&line[..], b"\r\n" | b"\n") {
                return Ok(());
            }
            if length > HEAD_MAX {
                return Err(TOO_LONG);
            }
        }
    }

    /// Takes `length` bytes, reading as necessary.
    fn take(&mut self, length: usize) -> Result<Vec<u8>, Failure> {
        while self.buffer.len() < length {
            self.more()?;
        }
        let rest = self.buffer.split_off(length);
        Ok(std::mem::replace(&mut self.buffer, rest))
    }

    /// Reads some more. Every byte counts, whatever it belongs to.
    fn more(&mut self) -> Result<(), Failure> {
        let mut part = [0; PART];
        match self.stream.read(&mut part) {
            Ok(0) => Err(Failure::Closed),
            Ok(length) => {
                self.budget = self.budget.checked_sub(length).ok_or(TOO_LONG)?;
                self.buffer.extend_from_slice(&part[..length]);
                Ok(())
            }
            Err(error) => Err(Failure::of_stream(&error)),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

/// Reads a date as HTTP writes it, such as `Sun, 06 Nov 1994 08:49:37 GMT`.
fn unix_time(date: &str) -> Option<u64> {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let mut parts = date.split_ascii_whitespace().skip(1);
    let (day, month, year, time) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let month = u64::try_from(MONTHS.find(month)? / 3).ok()? + 1;
    let (day, year): (u64, u64) = (day.parse().ok()?, year.parse().ok()?);
    if !(1..=31).contains(&day) || !(1970..=9999).contains(&year) {
        return None;
    }
    // Years that begin with March have their leap day at the end.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    let mut clock = time.split(':').map(|number| number.parse::<u64>().ok());
    let (hours, minutes, seconds) = (clock.next()??, clock.next()??, clock.next()??);
    // The last is a leap second.
    if hours > 23 || minutes > 59 || seconds > 60 {
        return None;
    }
    // From the first of March of the year 0 to 1970.
    Some(days.checked_sub(719_468)? * 86_400 + hours * 3600 + minutes * 60 + seconds)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::net::scripted;

    #[test]
    fn a_line_that_does_not_end_is_not_read_to_its_end() {
        let endless = "x".repeat(3 * HEAD_MAX);
        for start in [
            "",
            "HTTP/1.1 200 OK\r\nX: ",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
        ] {
            let member = Endpoint::Tcp { host: "h".into(), port: 1, tls: None };
            let deadline = Moment::now() + Duration::from_mins(1);
            let received = scripted::with([format!("{start}{endless}").into_bytes()], || {
                Connection::open(&member, None, deadline).expect("is open").receive(deadline)
            });
            assert!(matches!(received, Err(Failure::UnexpectedReply(_))), "{start:?}: {received:?}");
        }
    }

    #[test]
    fn dates_are_read() {
        for (date, seconds) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(784_111_777)),
            ("Thu, 29 Feb 2024 23:59:59 GMT", Some(1_709_251_199)),
            ("Mon, 23 Nov 2026 09:40:07 GMT", Some(1_795_426_807)),
            ("", None),
            ("Sun, 06 Xxx 1994 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 08:49 GMT", None),
            ("Sun, 06 Nov 1994 24:00:00 GMT", None),
            ("Sun, 06 Nov 1994 18446744073709551615:59:59 GMT", None),
        ] {
            assert_eq!(unix_time(date), seconds, "{date}");
        }
    }
}
