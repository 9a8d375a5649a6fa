//! Listeners that are no Redis: they count connections, and answer wrongly or not at all.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How such a listener treats a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Manner {
    /// Reads, and never answers.
    Silent,
    /// Answers a byte now and then, and never finishes.
    Trickle,
    /// Closes the connection at once.
    HangUp,
    /// Answers every request with these bytes.
    Answer(&'static [u8]),
    /// Answers the first request on a connection with the first of these, the next with the second, and so on; then
    /// closes it.
    InTurn(&'static [&'static [u8]]),
    /// Answers a request with these bytes, and then sends numbers without end.
    Flood(&'static [u8]),
    /// Answers each request with what this returns for its number, from 0.
    Each(fn(u64) -> Vec<u8>),
    /// Answers a request with the first of these, and then sends the second again and again, without end.
    Endless(&'static [u8], &'static [u8]),
    /// Never answers on the first connection; on a later one, answers the first request with the first of these, and
    /// all others with the second.
    SilentThen(&'static [u8], &'static [u8]),
}

/// A listener on a port of the loopback interface. It ends when this is dropped.
pub(crate) struct Fake {
    port: u16,
    connections: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
    threads: Option<JoinHandle<()>>,
}

impl Fake {
    pub(crate) fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        listener.set_nonblocking(true).expect("our own listener");
        let port = listener.local_addr().expect("its address").port();
        let connections = Arc::new(AtomicUsize::new(0));
        let over = Arc::new(AtomicBool::new(false));
        let threads = thread::spawn({
            let (connections, over) = (Arc::clone(&connections), Arc::clone(&over));
            move || listen(&listener, manner, &connections, &over)
        });
        Self { port, connections, over, threads: Some(threads) }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns the number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(threads) = self.threads.take() {
            let _ = threads.join();
        }
    }
}

fn listen(listener: &TcpListener, manner: Manner, connections: &AtomicUsize, over: &Arc<AtomicBool>) {
    let mut guests = Vec::new();
    while !over.load(Ordering::Relaxed) {
        if let Ok((stream, _)) = listener.accept() {
            let earlier = connections.fetch_add(1, Ordering::Relaxed);
            let over = Arc::clone(over);
            guests.push(thread::spawn(move || serve(stream, manner, earlier, &over)));
        } else {
            thread::sleep(Duration::from_millis(2));
        }
    }
    for guest in guests {
        let _ = guest.join();
    }
}

fn serve(mut stream: TcpStream, manner: Manner, earlier: usize, over: &AtomicBool) {
    let tick = Duration::from_millis(50);
    stream.set_nonblocking(false).expect("our own connection");
    stream.set_read_timeout(Some(tick)).expect("a time-out");
    // A client that has gone, or reads no more, must not block this thread.
    stream.set_write_timeout(Some(tick)).expect("a time-out");
    let mut asked = [0; 4096];
    let mut first = true;
    let mut has_answered = false;
    let mut numbers = 0..;
    let mut in_turn = match manner {
        Manner::InTurn(answers) => answers.iter(),
        _ => [].iter(),
    };
    while !over.load(Ordering::Relaxed) {
        let count = match (manner, stream.read(&mut asked)) {
            (Manner::HangUp, _) | (_, Ok(0)) => return,
            (_, Ok(count)) => count,
            (_, Err(_)) => 0,
        };
        let sent = match manner {
            Manner::Trickle if first => stream.write_all(b"$1000000\r\n"),
            Manner::Trickle => stream.write_all(b"x"),
            Manner::Answer(bytes) if count > 0 => stream.write_all(bytes),
            Manner::Each(answer) if count > 0 => {
                numbers.next().map_or(Ok(()), |number| stream.write_all(&answer(number)))
            }
            Manner::InTurn(_) if count > 0 => in_turn.next().map_or(Ok(()), |answer| stream.write_all(answer)),
            Manner::Flood(bytes) if count > 0 => {
                stream.write_all(bytes).and_then(|()| flood(&mut stream, b":1\r\n", over))
            }
            Manner::Endless(bytes, part) if count > 0 => {
                stream.write_all(bytes).and_then(|()| flood(&mut stream, part, over))
            }
            // If the buffer is full, the rest of the request is still to come.
            Manner::SilentThen(once, then) if earlier > 0 && count > 0 && count < asked.len() => {
                stream.write_all(if std::mem::replace(&mut has_answered, true) { then } else { once })
            }
            _ => Ok(()),
        };
        first = false;
        if sent.is_err() || matches!(manner, Manner::InTurn(_)) && in_turn.len() == 0 {
            return;
        }
    }
}

/// Sends a part again and again, until the client has gone.
fn flood(stream: &mut TcpStream, part: &[u8], over: &AtomicBool) -> std::io::Result<()> {
    let parts = part.repeat((65_536 / part.len()).max(1));
    let mut sent = 0;
    while !over.load(Ordering::Relaxed) {
        match stream.write(&parts[sent..]) {
            Ok(count) => sent = (sent + count) % parts.len(),
            // The client reads slowly.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
