//! A network between a client and a server that can be disturbed while it is used.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};

use super::lease_server::LeaseServer;

/// How long a reader sleeps before it looks again at what it is to do.
const TICK: Duration = Duration::from_millis(5);

/// What happens to traffic.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Mode {
    /// Everything passes.
    Pass,
    /// Requests and replies vanish; connections stay, and new ones are accepted.
    Swallow,
    /// Requests arrive, replies vanish.
    SwallowReplies,
    /// Connections, old and new, are reset.
    Reset,
    /// Nobody listens any more; connections that exist go on.
    Refuse,
    /// Every reply is held back for so long.
    Delay(Duration),
    /// The connections up to this one fall silent as in `Swallow`; later ones pass.
    SwallowUpTo(u64),
    /// The requests of the connections up to this one are held back until the mode changes; later ones pass.
    HoldUpTo(u64),
    /// The same, and the client's side of such a connection is closed when it sends a request.
    CloseAndHoldUpTo(u64),
    /// A connection on which this word is sent is closed instead.
    CloseAt(&'static str),
    /// Instead of each reply, these bytes come.
    Answer(&'static [u8]),
    /// On the connections up to this one, a request for a lock, or to renew or release it, arrives; but no answer comes, and so long
    /// after the connection is closed.
    LoseAnswer(u64, Duration),
}

struct Shared {
    server: SocketAddr,
    /// The server's word for a request about a lock.
    word: &'static str,
    mode: Mutex<Mode>,
    over: AtomicBool,
    bytes: AtomicU64,
    passed: AtomicU64,
    connections: AtomicU64,
    flights: AtomicU64,
}

/// A proxy on a port of the loopback interface. It ends, with its connections, when it is dropped.
pub(crate) struct Proxy {
    shared: Arc<Shared>,
    port: u16,
    url: String,
    acceptor: Option<JoinHandle<()>>,
}

impl Proxy {
    /// A proxy before this server.
    pub(crate) fn before(server: &dyn LeaseServer) -> Self {
        let port = server.port();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port_here = listener.local_addr().expect("its address").port();
        let shared = Arc::new(Shared {
            server: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            word: server.word(),
            mode: Mutex::new(Mode::Pass),
            over: AtomicBool::new(false),
            bytes: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            flights: AtomicU64::new(0),
        });
        let acceptor = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.accept(listener, port_here)
        });
        Self { shared, port: port_here, url: server.url_at(port_here), acceptor: Some(acceptor) }
    }

    /// The URL of the store behind it.
    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Changes what happens to traffic, from now on.
    pub(crate) fn set(&self, mode: Mode) {
        *self.shared.mode.lock().expect("no thread panics") = mode;
    }

    /// How many bytes came, from both sides.
    pub(crate) fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// How many bytes were passed on, to both sides.
    pub(crate) fn passed(&self) -> u64 {
        self.shared.passed.load(Ordering::Relaxed)
    }

    /// How many connections were made.
    pub(crate) fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// How often a client had something to say after the server had spoken: the round trips, whatever
    /// number of requests each carried.
    pub(crate) fn flights(&self) -> u64 {
        self.shared.flights.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

impl Shared {
    fn mode(&self) -> Mode {
        *self.mode.lock().expect("no thread panics")
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn accept(self: Arc<Self>, listener: TcpListener, port: u16) {
        let mut listener = Some(listener);
        let mut pumps = Vec::new();
        while !self.is_over() {
            if self.mode() == Mode::Refuse {
                listener = None;
            } else if listener.is_none() {
                listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok();
            }
            if let Some(stream) = listener.as_ref().and_then(next) {
                let number = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
                pumps.extend(self.join(stream, number));
            } else {
                thread::sleep(TICK / 5);
            }
        }
        for pump in pumps {
            let _ = pump.join();
        }
    }

    /// Ties a client to the server by two threads.
    fn join(self: &Arc<Self>, client: TcpStream, number: u64) -> Vec<JoinHandle<()>> {
        if self.mode() == Mode::Reset {
            reset(&client);
            return Vec::new();
        }
        let Ok(server) = TcpStream::connect(self.server) else {
            return Vec::new();
        };
        let answered = Arc::new(AtomicBool::new(true));
        let muted = Arc::new(AtomicBool::new(false));
        let ends = [(client.try_clone(), server.try_clone(), true), (Ok(server), Ok(client), false)];
        ends.into_iter()
            .map(|(from, to, is_request)| {
                let (from, to) = (from.expect("a descriptor"), to.expect("a descriptor"));
                let (shared, answered, muted) = (Arc::clone(self), Arc::clone(&answered), Arc::clone(&muted));
                thread::spawn(move || shared.pump(number, (&from, &to), is_request, (&answered, &muted)))
            })
            .collect()
    }

    fn pump(
        &self,
        number: u64,
        (mut from, mut to): (&TcpStream, &TcpStream),
        is_request: bool,
        (answered, muted): (&AtomicBool, &AtomicBool),
    ) {
        from.set_read_timeout(Some(TICK)).expect("a time-out");
        let _ = to.set_nodelay(true);
        let mut buffer = [0; 16384];
        while !self.is_over() {
            if self.mode() == Mode::Reset {
                reset(from);
                reset(to);
                return;
            }
            let count = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if is_pause(&error) => continue,
                Err(_) => break,
            };
            self.count(count, is_request, answered);
            if !is_request && muted.load(Ordering::Relaxed) {
                continue;
            }
            match self.mode() {
                // It was awaited when the mode was still another.
                Mode::Swallow | Mode::Reset => continue,
                Mode::SwallowUpTo(last) if number <= last => continue,
                Mode::SwallowReplies if !is_request => continue,
                Mode::Delay(time) if !is_request => thread::sleep(time),
                Mode::HoldUpTo(last) if is_request && number <= last => self.hold(number),
                Mode::CloseAndHoldUpTo(last) if is_request && number <= last => {
                    let _ = from.shutdown(std::net::Shutdown::Both);
                    self.hold(number);
                }
                Mode::CloseAt(word) if is_request && contains(&buffer[..count], word) => {
                    let _ = from.shutdown(std::net::Shutdown::Both);
                    break;
                }
                Mode::LoseAnswer(last, time)
                    if is_request && number <= last && contains(&buffer[..count], self.word) =>
                {
                    muted.store(true, Ordering::Relaxed);
                    let _ = to.write_all(&buffer[..count]);
                    thread::sleep(time);
                    let _ = from.shutdown(std::net::Shutdown::Both);
                    break;
                }
                _ => {}
            }
            let bytes = match self.mode() {
                Mode::Answer(bytes) if !is_request => bytes,
                _ => &buffer[..count],
            };
            if to.write_all(bytes).is_err() {
                break;
            }
            self.passed.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        // A side that ends while traffic vanishes is not heard of on the other side either.
        while self.mode() == Mode::Swallow && !self.is_over() {
            thread::sleep(TICK);
        }
        let _ = to.shutdown(std::net::Shutdown::Write);
    }

    /// Waits until requests on this connection are let through.
    fn hold(&self, number: u64) {
        let is_held = || matches!(self.mode(), Mode::HoldUpTo(last) | Mode::CloseAndHoldUpTo(last) if number <= last);
        while is_held() && !self.is_over() {
            thread::sleep(TICK);
        }
    }

    fn count(&self, bytes: usize, is_request: bool, answered: &AtomicBool) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if !is_request {
            answered.store(true, Ordering::Relaxed);
        } else if answered.swap(false, Ordering::Relaxed) {
            self.flights.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn next(listener: &TcpListener) -> Option<TcpStream> {
    listener.set_nonblocking(true).ok()?;
    let (stream, _) = listener.accept().ok()?;
    stream.set_nonblocking(false).ok()?;
    Some(stream)
}

fn is_pause(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn contains(bytes: &[u8], word: &str) -> bool {
    bytes.windows(word.len()).any(|part| part == word.as_bytes())
}

/// Makes the end of this connection a reset instead of a farewell.
fn reset(stream: &TcpStream) {
    let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
    let _ = setsockopt(stream, sockopt::Linger, &at_once);
}
