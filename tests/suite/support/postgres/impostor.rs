//! A listener that speaks as much of PostgreSQL's protocol as a test wants, without TLS.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// A listener on a port of the loopback interface. It serves until the test's process ends.
pub(crate) struct Impostor {
    port: u16,
    received: Arc<Mutex<Vec<u8>>>,
}

impl Impostor {
    /// Starts a listener that serves each connection by `answer`: it gets the number of what it has received on that
    /// connection, from 0, and writes what it likes. The connection is closed when it fails.
    pub(crate) fn start(answer: impl Fn(usize, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        let received = Arc::new(Mutex::new(Vec::new()));
        let (heard, answer) = (Arc::clone(&received), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (heard, answer) = (Arc::clone(&heard), Arc::clone(&answer));
                thread::spawn(move || serve(stream, &heard, &*answer));
            }
        });
        Self { port, received }
    }

    /// Returns the URL, with these credentials and parameters.
    pub(crate) fn url(&self, user: &str, parameters: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/postgres{parameters}", self.port)
    }

    /// Returns whether any client has sent these bytes.
    pub(crate) fn has_received(&self, bytes: &[u8]) -> bool {
        self.received.lock().expect("no panic").windows(bytes.len()).any(|part| part == bytes)
    }
}

fn serve(mut stream: TcpStream, heard: &Mutex<Vec<u8>>, answer: &dyn Fn(usize, &mut TcpStream) -> std::io::Result<()>) {
    let mut buffer = [0; 16384];
    for number in 0.. {
        let Ok(count @ 1..) = stream.read(&mut buffer) else { return };
        heard.lock().expect("no panic").extend_from_slice(&buffer[..count]);
        if answer(number, &mut stream).and_then(|()| stream.flush()).is_err() {
            return;
        }
    }
}

/// Returns a message of the server.
pub(crate) fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).expect("a short message").to_be_bytes();
    [&[kind][..], &length, body].concat()
}

/// Returns the messages by which a primary lets a client in.
pub(crate) fn welcome() -> Vec<u8> {
    [message(b'R', &[0; 4]), message(b'S', b"in_hot_standby\0off\0"), message(b'K', &[0; 8]), message(b'Z', b"I")]
        .concat()
}

/// Returns a row of these values.
pub(crate) fn row(values: &[&str]) -> Vec<u8> {
    let count = u16::try_from(values.len()).expect("few columns").to_be_bytes();
    let value =
        |text: &&str| [&u32::try_from(text.len()).expect("a short text").to_be_bytes(), text.as_bytes()].concat();
    message(b'D', &[&count[..], &values.iter().map(value).collect::<Vec<_>>().concat()].concat())
}

/// Returns the answer to a statement: these rows, and whether a transaction is open then.
pub(crate) fn answer(rows: &[u8], tag: &str, is_open: bool) -> Vec<u8> {
    let tag = message(b'C', format!("{tag}\0").as_bytes());
    let ready = message(b'Z', if is_open { b"T" } else { b"I" });
    [&message(b'1', b"")[..], &message(b'2', b""), rows, &tag, &ready].concat()
}
