//! A minimal client of Redis for the tests: one request, one reply.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::deadline::LONG;

/// A server's reply.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Reply {
    Nil,
    Number(i64),
    Text(String),
    List(Vec<Reply>),
    Error(String),
}

impl Reply {
    #[track_caller]
    pub(crate) fn number(&self) -> i64 {
        match self {
            Self::Number(number) => *number,
            Self::Text(text) => text.parse().expect("a number"),
            other => panic!("no number: {other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            other => panic!("no text: {other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn list(&self) -> &[Reply] {
        match self {
            Self::List(list) => list,
            other => panic!("no list: {other:?}"),
        }
    }

    /// Returns the texts of a list, sorted.
    #[track_caller]
    pub(crate) fn texts(&self) -> Vec<String> {
        let mut texts = self.words();
        texts.sort();
        texts
    }

    /// Returns the texts of a list, in their order.
    #[track_caller]
    pub(crate) fn words(&self) -> Vec<String> {
        self.list().iter().map(|one| one.text().to_owned()).collect()
    }
}

/// A connection to a server's socket.
pub(crate) struct Client(BufReader<UnixStream>);

impl Client {
    pub(crate) fn connect(socket: &Path) -> std::io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(LONG))?;
        Ok(Self(BufReader::new(stream)))
    }

    pub(crate) fn ask(&mut self, words: &[&str]) -> std::io::Result<Reply> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            write!(request, "${}\r\n{word}\r\n", word.len()).expect("a string grows");
        }
        self.0.get_mut().write_all(request.as_bytes())?;
        self.reply()
    }

    pub(crate) fn reply(&mut self) -> std::io::Result<Reply> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let rest = line[1..].trim_end();
        let length = || rest.parse::<i64>().expect("a length");
        Ok(match line.as_bytes()[0] {
            b'+' => Reply::Text(rest.to_owned()),
            b'-' => Reply::Error(rest.to_owned()),
            b':' => Reply::Number(length()),
            b'$' | b'*' if length() < 0 => Reply::Nil,
            b'$' => self.bulk(usize::try_from(length()).expect("a length"))?,
            b'*' => Reply::List((0..length()).map(|_| self.reply()).collect::<Result<_, _>>()?),
            other => panic!("no reply of Redis begins with {other}"),
        })
    }

    fn bulk(&mut self, length: usize) -> std::io::Result<Reply> {
        let mut bytes = vec![0; length + 2];
        self.0.read_exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(Reply::Text(String::from_utf8_lossy(&bytes).into_owned()))
    }
}
