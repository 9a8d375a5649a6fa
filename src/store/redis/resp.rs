//! A parser of Redis's protocol (RESP2), within bounds.
//!
//! Answers are read on several threads, one of which has a small stack (renewal), and may come from a server that is
//! not a Redis. So the depth of an answer, the length of a line and the memory of an answer are bounded, and no memory
//! is reserved for a length that was only announced. An answer that is deeper or longer than any that lockrun asks for,
//! or not RESP2, is rejected; the connection is then out of step.

use std::io::{self, Read};

use redis::Value;

/// The greatest depth of arrays within arrays. What lockrun asks for is at most 4 deep.
const DEPTH_MAX: usize = 8;

/// The longest line, its end included: a number, a simple string or an error.
const LINE_MAX: usize = 64 * 1024;

/// The most that one answer may take, in bytes, unless it lists locks, holders or waiters.
pub(super) const ORDINARY: usize = 1024 * 1024;

/// How much is read at a time.
const CHUNK: usize = 4096;

/// An answer of a server.
#[derive(Debug, PartialEq)]
pub(super) enum Answer {
    /// A value with no error in it.
    Value(Value),
    /// An error, in the server's words.
    Error(String),
}

/// Why no answer could be read.
#[derive(Debug)]
pub(super) enum Unread {
    /// The stream failed, or ended.
    Io(io::Error),
    /// The input is not RESP2, or is deeper than any answer.
    Protocol,
    /// The answer takes more than it may.
    TooLong,
}

/// Reads answers from a stream, one after the other, and keeps what follows an answer for the next. It is out of step
/// after a failure.
#[derive(Default)]
pub(super) struct Answers {
    /// What was read from the stream, and how much of it has been used.
    buffer: Vec<u8>,
    done: usize,
    /// How many bytes the present answer may take, and how many it has taken: those that were sent, and what its values
    /// need beside them.
    most: usize,
    spent: usize,
}

impl Answers {
    /// Reads the next answer from `stream`, which may take so many bytes at `most`.
    pub(super) fn next(&mut self, stream: &mut impl Read, most: usize) -> Result<Answer, Unread> {
        (self.most, self.spent) = (most, 0);
        let (kind, line) = self.line(stream)?;
        match kind {
            b'-' => Ok(Answer::Error(line)),
            _ => self.value(stream, kind, &line, 1).map(Answer::Value),
        }
    }

    /// Returns how many bytes the last answer took.
    pub(super) fn spent(&self) -> usize {
        self.spent
    }

    /// Reads the value that begins with a `line` of this `kind`, at `depth` in its answer.
    fn value(&mut self, stream: &mut impl Read, kind: u8, line: &str, depth: usize) -> Result<Value, Unread> {
        let number = || line.parse::<i64>().map_err(|_| Unread::Protocol);
        match kind {
            b'+' if line == "OK" => Ok(Value::Okay),
            b'+' => Ok(Value::SimpleString(line.to_owned())),
            b':' => number().map(Value::Int),
            b'$' | b'*' if number()? < 0 => Ok(Value::Nil),
            b'$' => self.bulk(stream, length(number()?)?).map(Value::BulkString),
            b'*' if depth < DEPTH_MAX => {
                let mut elements = Vec::new();
                for _ in 0..number()? {
                    let (kind, line) = self.line(stream)?;
                    elements.push(self.value(stream, kind, &line, depth + 1)?);
                }
                Ok(Value::Array(elements))
            }
            _ => Err(Unread::Protocol),
        }
    }

    /// Reads a line. Returns its first character and the rest.
    fn line(&mut self, stream: &mut impl Read) -> Result<(u8, String), Unread> {
        let mut searched = 0;
        let end = loop {
            let unread = &self.buffer[self.done..];
            if let Some(at) = unread[searched..].windows(2).position(|two| two == b"\r\n") {
                break searched + at;
            }
            if unread.len() >= LINE_MAX {
                return Err(Unread::Protocol);
            }
            searched = unread.len().saturating_sub(1);
            self.fill(stream, CHUNK)?;
        };
        // A value takes memory beside its text.
        self.spend(end + 2 + size_of::<Value>())?;
        let line = self.take(end);
        self.take(2);
        match line.split_first() {
            // An error may quote what the server was sent, cut inside a character.
            Some((b'-', error)) => Ok((b'-', String::from_utf8_lossy(error).into_owned())),
            Some((kind, rest)) => Ok((*kind, str::from_utf8(rest).map_err(|_| Unread::Protocol)?.to_owned())),
            None => Err(Unread::Protocol),
        }
    }

    /// Reads `length` bytes, and the end of line after them.
    fn bulk(&mut self, stream: &mut impl Read, length: usize) -> Result<Vec<u8>, Unread> {
        self.spend(length.saturating_add(2))?;
        while self.buffer.len() - self.done < length + 2 {
            let missing = length + 2 - (self.buffer.len() - self.done);
            self.fill(stream, missing.clamp(CHUNK, 16 * CHUNK))?;
        }
        let bytes = self.take(length);
        if self.take(2) == b"\r\n" { Ok(bytes) } else { Err(Unread::Protocol) }
    }

    fn spend(&mut self, bytes: usize) -> Result<(), Unread> {
        self.spent = self.spent.saturating_add(bytes);
        if self.spent > self.most { Err(Unread::TooLong) } else { Ok(()) }
    }

    /// Reads what has arrived, at most `most` bytes.
    fn fill(&mut self, stream: &mut impl Read, most: usize) -> Result<(), Unread> {
        self.buffer.drain(..self.done);
        self.done = 0;
        let before = self.buffer.len();
        self.buffer.resize(before + most, 0);
        let read = stream.read(&mut self.buffer[before..]);
        self.buffer.truncate(before + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => Err(Unread::Io(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => Ok(()),
            Err(error) => Err(Unread::Io(error)),
        }
    }

    /// Removes and returns the next `count` bytes, which must be buffered.
    fn take(&mut self, count: usize) -> Vec<u8> {
        let bytes = self.buffer[self.done..self.done + count].to_vec();
        self.done += count;
        bytes
    }
}

fn length(number: i64) -> Result<usize, Unread> {
    usize::try_from(number).map_err(|_| Unread::Protocol)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream that returns one byte at a time.
    struct Trickle<'a>(&'a [u8]);

    impl Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = buffer.len().min(1);
            (&mut self.0).take(1).read(&mut buffer[..count])
        }
    }

    /// Reads the next answer, with the usual bounds.
    fn next(answers: &mut Answers, stream: &mut impl Read) -> Result<Answer, Unread> {
        answers.next(stream, ORDINARY)
    }

    fn read(bytes: &[u8]) -> Result<Answer, Unread> {
        next(&mut Answers::default(), &mut &*bytes)
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn every_kind_of_answer_is_read() {
        for (bytes, value) in [
            (&b"+OK\r\n"[..], Value::Okay),
            (b"+PONG\r\n", Value::SimpleString("PONG".into())),
            (b":-42\r\n", Value::Int(-42)),
            (b"$-1\r\n", Value::Nil),
            (b"*-1\r\n", Value::Nil),
            (b"$0\r\n\r\n", bulk("")),
            (b"$4\r\na\r\nb\r\n", bulk("a\r\nb")),
            (b"*0\r\n", Value::Array(Vec::new())),
            (
                b"*3\r\n:1\r\n*1\r\n$1\r\nx\r\n$-1\r\n",
                Value::Array(vec![Value::Int(1), Value::Array(vec![bulk("x")]), Value::Nil]),
            ),
        ] {
            let text = String::from_utf8_lossy(bytes);
            assert_eq!(read(bytes).expect("is read"), Answer::Value(value.clone()), "{text:?}");
            let slowly = next(&mut Answers::default(), &mut Trickle(bytes));
            assert_eq!(slowly.expect("is read"), Answer::Value(value), "{text:?}");
            for cut in 0..bytes.len() {
                assert!(matches!(read(&bytes[..cut]), Err(Unread::Io(_))), "{text:?} cut after {cut}");
            }
        }
        assert_eq!(read(b"-ERR it's\r\n").expect("is read"), Answer::Error("ERR it's".into()));
        // A quotation that was cut inside a character.
        let cut = read(b"-ERR unknown command 'x', with args beginning with: '\xd0\xb6\xd0' \r\n").expect("is read");
        let error = "ERR unknown command 'x', with args beginning with: '\u{436}\u{fffd}' ";
        assert_eq!(cut, Answer::Error(error.into()));
    }

    #[test]
    fn answers_follow_each_other() {
        let mut answers = Answers::default();
        let mut stream = &b":1\r\n$2\r\nab\r\n-NO\r\n"[..];
        assert_eq!(next(&mut answers, &mut stream).expect("is read"), Answer::Value(Value::Int(1)));
        assert_eq!(next(&mut answers, &mut stream).expect("is read"), Answer::Value(bulk("ab")));
        assert_eq!(next(&mut answers, &mut stream).expect("is read"), Answer::Error("NO".into()));
        assert!(matches!(next(&mut answers, &mut stream), Err(Unread::Io(_))));
    }

    #[test]
    fn what_is_beyond_the_bounds_is_refused_before_it_has_come() {
        let deep = "*1\r\n".repeat(DEPTH_MAX);
        let nested = "*1\r\n".repeat(DEPTH_MAX - 1) + ":1\r\n";
        assert!(read(nested.as_bytes()).is_ok());
        for bytes in [
            &deep,
            &"*1\r\n".repeat(100_000),
            "$9223372036854775808\r\n",
            &"x".repeat(LINE_MAX),
            &format!("+{}", "x".repeat(LINE_MAX)),
        ] {
            assert!(matches!(read(bytes.as_bytes()), Err(Unread::Protocol)), "{:?}", &bytes[..bytes.len().min(40)]);
        }
        for bytes in [
            &format!("${ORDINARY}\r\n"),
            "$2147483647\r\n",
            "$9223372036854775807\r\n",
            &("*1000000000\r\n".to_owned() + &":1\r\n".repeat(ORDINARY / size_of::<Value>())),
            &("*1000000000\r\n".to_owned() + &"$0\r\n\r\n".repeat(ORDINARY / size_of::<Value>())),
        ] {
            assert!(matches!(read(bytes.as_bytes()), Err(Unread::TooLong)), "{:?}", &bytes[..bytes.len().min(40)]);
        }
        // The rest may still come, and no memory is reserved for it.
        assert!(matches!(read(b"*1000000000\r\n"), Err(Unread::Io(_))));
    }

    #[test]
    fn another_protocol_is_refused() {
        for bytes in [
            &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
            b"\x15\x03\x01\x00\x02\x02\x46\r\n",
            b"\xff\r\n",
            b"\r\n",
            b"%1\r\n",
            b":x\r\n",
            b":\r\n",
            b"$1\r\nxyz",
            b"*1\r\n-ERR\r\n",
        ] {
            assert!(matches!(read(bytes), Err(Unread::Protocol)), "{:?}", String::from_utf8_lossy(bytes));
        }
    }
}
