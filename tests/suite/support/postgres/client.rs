//! A minimal client of PostgreSQL for the tests: one statement, its rows as text. It can only log in without a
//! password.

use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::support::LONG;

/// A row; `None` is null.
pub(super) type Row = Vec<Option<String>>;

trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

/// Returns rows as text, one line per row.
pub(super) fn lines(rows: &[Row]) -> String {
    let line = |row: &Row| row.iter().map(|value| value.as_deref().unwrap_or_default()).collect::<Vec<_>>().join("|");
    rows.iter().map(|row| line(row) + "\n").collect()
}

/// A connection as the user `postgres`.
pub(crate) struct Client(BufReader<Box<dyn Stream>>);

impl Client {
    /// Connects over the socket in this directory, to the database `postgres`.
    pub(super) fn local(directory: &Path, port: u16) -> io::Result<Self> {
        let stream = UnixStream::connect(directory.join(format!(".s.PGSQL.{port}")))?;
        stream.set_read_timeout(Some(LONG))?;
        Self::over(Box::new(stream), "postgres")
    }

    /// Connects over the loopback interface, to this database.
    pub(super) fn at(port: u16, database: &str) -> io::Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(LONG))?;
        Self::over(Box::new(stream), database)
    }

    fn over(stream: Box<dyn Stream>, database: &str) -> io::Result<Self> {
        let mut client = Self(BufReader::new(stream));
        let mut message = 196_608_u32.to_be_bytes().to_vec();
        for word in ["user", "postgres", "database", database, "application_name", "suite", ""] {
            message.extend(word.bytes().chain([0]));
        }
        client.send(None, &message)?;
        client.rows()?;
        Ok(client)
    }

    /// Runs a statement. Returns its rows.
    pub(super) fn ask(&mut self, statement: &str) -> io::Result<Vec<Row>> {
        self.send(Some(b'Q'), format!("{statement}\0").as_bytes())?;
        self.rows()
    }

    fn send(&mut self, kind: Option<u8>, body: &[u8]) -> io::Result<()> {
        let length = u32::try_from(body.len() + 4).expect("a short message").to_be_bytes();
        let message: Vec<u8> = kind.into_iter().chain(length).chain(body.iter().copied()).collect();
        self.0.get_mut().write_all(&message)
    }

    /// Reads until the server is ready for the next statement.
    fn rows(&mut self) -> io::Result<Vec<Row>> {
        let (mut rows, mut error) = (Vec::new(), None);
        loop {
            let (kind, body) = match self.message() {
                // A server that ends a session sends the reason, then closes the connection.
                Err(end) if end.kind() == ErrorKind::UnexpectedEof => return Err(error.unwrap_or(end)),
                message => message?,
            };
            match kind {
                b'D' => rows.push(row(&body)),
                b'E' => error = Some(io::Error::other(String::from_utf8_lossy(&body).replace('\0', " "))),
                b'R' if body != [0; 4] => return Err(io::Error::other("it wants a password")),
                b'Z' => return error.map_or(Ok(rows), Err),
                _ => {}
            }
        }
    }

    fn message(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut head = [0; 5];
        self.0.read_exact(&mut head)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let mut body = vec![0; length.saturating_sub(4) as usize];
        self.0.read_exact(&mut body)?;
        Ok((head[0], body))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The Terminate message.
        let _ = self.send(Some(b'X'), &[]);
    }
}

/// Reads a row. It consists of the number of columns, then the length and the text of each; null has the length -1.
fn row(body: &[u8]) -> Row {
    let mut rest = &body[2..];
    let mut columns = Vec::new();
    while let Some((length, behind)) = rest.split_first_chunk::<4>() {
        let length = usize::try_from(i32::from_be_bytes(*length)).ok();
        let (text, behind) = behind.split_at(length.unwrap_or(0));
        columns.push(length.map(|_| String::from_utf8_lossy(text).into_owned()));
        rest = behind;
    }
    columns
}
