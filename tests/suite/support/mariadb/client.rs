//! A minimal client of MariaDB for the tests: one statement, its rows as text. It can only log in without a password.

use std::io::{self, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::support::LONG;

/// A row; `None` is null.
pub(super) type Row = Vec<Option<String>>;

/// CLIENT_LONG_PASSWORD, CLIENT_CONNECT_WITH_DB, CLIENT_PROTOCOL_41, CLIENT_TRANSACTIONS, CLIENT_SECURE_CONNECTION.
const CAPABILITIES: u32 = 0x1 | 0x8 | 0x200 | 0x2000 | 0x8000;

/// A connection as the user `root`.
pub(super) struct Client(BufReader<UnixStream>);

impl Client {
    /// Connects over the socket at this path, to this database.
    pub(super) fn connect(socket: &Path, database: &str) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(LONG))?;
        let mut client = Self(BufReader::new(stream));
        let (_, greeting) = client.packet()?;
        check(&greeting)?;
        let mut response = CAPABILITIES.to_le_bytes().to_vec();
        response.extend((1_u32 << 24).to_le_bytes());
        // utf8mb4, and 23 bytes that are reserved.
        response.push(45);
        response.extend([0; 23]);
        response.extend(b"root\0\0");
        response.extend(database.bytes().chain([0]));
        client.send(1, &response)?;
        let (number, mut answer) = client.packet()?;
        if answer.first() == Some(&0xfe) {
            client.send(number + 1, &[])?;
            answer = client.packet()?.1;
        }
        check(&answer)?;
        Ok(client)
    }

    /// Runs a statement. Returns its rows.
    pub(super) fn ask(&mut self, statement: &str) -> io::Result<Vec<Row>> {
        self.send(0, &[b"\x03", statement.as_bytes()].concat())?;
        let (_, first) = self.packet()?;
        check(&first)?;
        if first.first() == Some(&0) {
            return Ok(Vec::new());
        }
        while !is_end(&self.packet()?.1) {}
        let mut rows = Vec::new();
        loop {
            let (_, packet) = self.packet()?;
            check(&packet)?;
            if is_end(&packet) {
                return Ok(rows);
            }
            rows.push(row(&packet));
        }
    }

    fn send(&mut self, number: u8, body: &[u8]) -> io::Result<()> {
        let length = u32::try_from(body.len()).expect("a short packet").to_le_bytes();
        self.0.get_mut().write_all(&[&length[..3], &[number], body].concat())
    }

    fn packet(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut head = [0; 4];
        self.0.read_exact(&mut head)?;
        let mut body = vec![0; u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize];
        self.0.read_exact(&mut body)?;
        Ok((head[3], body))
    }
}

/// Fails if a packet is an error message.
fn check(packet: &[u8]) -> io::Result<()> {
    match packet {
        [0xff, low, high, text @ ..] => {
            let code = u16::from_le_bytes([*low, *high]);
            Err(io::Error::other(format!("error {code}: {}", String::from_utf8_lossy(text))))
        }
        _ => Ok(()),
    }
}

fn is_end(packet: &[u8]) -> bool {
    packet.first() == Some(&0xfe) && packet.len() == 5
}

/// Reads a row: the length of each value in front of it.
fn row(packet: &[u8]) -> Row {
    let (mut rest, mut row) = (packet, Vec::new());
    while let [first, behind @ ..] = rest {
        let bytes = match first {
            0xfb => {
                row.push(None);
                rest = behind;
                continue;
            }
            0xfc => 2,
            0xfd => 3,
            0xfe => 8,
            _ => 0,
        };
        let (length, behind) = behind.split_at(bytes);
        let length = match bytes {
            0 => usize::from(*first),
            _ => length.iter().rev().fold(0, |length, byte| length << 8 | usize::from(*byte)),
        };
        let (text, behind) = behind.split_at(length);
        row.push(Some(String::from_utf8_lossy(text).into_owned()));
        rest = behind;
    }
    row
}
