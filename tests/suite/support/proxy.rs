//! A proxy between a client and a server that can disturb their traffic at any time.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fastrand::Rng;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};

use super::garble::{Garbled, garbled};
use super::lease_server::LeaseServer;

/// How long a thread sleeps before it checks the mode again, or what it has to deliver.
const TICK: Duration = Duration::from_millis(5);

/// The same for a thread that has nothing to deliver: with dozens of connections, shorter sleeps cost more than the
/// traffic.
const LONG_TICK: Duration = Duration::from_millis(20);

/// How much later than a request that was held back the end of the client's side reaches the server.
const END_AFTER: Duration = Duration::from_millis(500);

/// What the name of a Sentinel's connection begins with, which it sends first.
const SENTINEL: &str = "\nsentinel-";

/// What happens to traffic.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Mode {
    /// Everything passes.
    Pass,
    /// Requests and replies vanish; connections stay, and new ones are accepted.
    Swallow,
    /// Requests arrive, replies vanish.
    SwallowReplies,
    /// Requests arrive and take effect; the replies to requests that change a lock vanish.
    SwallowAnswers,
    /// Connections, old and new, are reset.
    Reset,
    /// New connections are refused; existing ones continue.
    Refuse,
    /// Everything that the server sends is delayed by this time.
    Delay(Duration),
    /// The replies to requests that change a lock are delayed by this time.
    DelayAnswers(Duration),
    /// On the connections up to this one, everything vanishes from the first request that changes a lock on; later
    /// connections pass.
    SwallowUpTo(u64),
    /// Everything on a connection vanishes from the message on in which the client sends this word.
    SwallowAt(&'static str),
    /// The same, but the part of the message before the word passes.
    CutAt(&'static str),
    /// On the connections up to this one, a request that changes a lock is held back, with everything that follows it,
    /// until the mode changes, and until then the server's replies vanish; later connections pass.
    HoldUpTo(u64),
    /// The same, and the client's side of such a connection is closed.
    CloseAndHoldUpTo(u64),
    /// The part before the word of a message in which the client sends it passes, and the rest after this time.
    PauseAt(&'static str, Duration),
    /// A request with this word is held back in the same way.
    HoldAt(&'static str),
    /// A connection on which this word is sent is closed instead.
    CloseAt(&'static str),
    /// One reply in three, at random, is garbled; this is the seed. Those to a Sentinel, which connects to the servers
    /// that it monitors, pass: it could crash.
    Garble(u64),
    /// Each reply is replaced by these bytes, except those to a Sentinel.
    Answer(&'static [u8]),
    /// On the connections up to this one, a request that changes a lock arrives; but its answer vanishes, and after
    /// this time the connection is closed.
    LoseAnswer(u64, Duration),
    /// The same of a request with this word.
    LoseAnswerTo(&'static str, u64, Duration),
}

/// The state of one connection.
#[derive(Default)]
struct Link {
    number: u64,
    /// The client is a Sentinel.
    is_sentinel: AtomicBool,
    /// The server has sent something since the client did.
    is_answered: AtomicBool,
    /// The client has sent a request that changes a lock.
    has_changed: AtomicBool,
    /// The server's present replies answer such a request.
    is_changing: AtomicBool,
    /// Nothing passes any more.
    is_silent: AtomicBool,
    /// A request is held back.
    is_held: AtomicBool,
    /// A request was held back, and has been passed on.
    was_held: AtomicBool,
    /// Some request was held back.
    held_any: AtomicBool,
    /// The server has closed the connection.
    is_over: AtomicBool,
}

struct Shared {
    server: SocketAddr,
    /// The word in requests that change a lock: see [`LeaseServer::word`].
    word: &'static str,
    /// A text in the server's answers, and its replacement of the same length.
    rewritten: Option<(String, String)>,
    /// How many connections a client makes. It sends its requests over the last one.
    of_a_client: u64,
    mode: Mutex<Mode>,
    over: AtomicBool,
    bytes: AtomicU64,
    connections: AtomicU64,
    flights: AtomicU64,
    changes: AtomicU64,
    held: AtomicU64,
    delivered: AtomicU64,
    delayed: AtomicU64,
    replies: AtomicU64,
}

/// A proxy on a port of the loopback interface. It ends, with its connections, when this is dropped.
pub(crate) struct Proxy {
    shared: Arc<Shared>,
    port: u16,
    url: String,
    acceptor: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy in front of this server.
    pub(crate) fn before(server: &dyn LeaseServer) -> Self {
        let port = server.port();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port_here = listener.local_addr().expect("its address").port();
        let shared = Arc::new(Shared {
            server: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            word: server.word(),
            rewritten: server.rewritten(port_here),
            of_a_client: server.connections_of_a_client(),
            mode: Mutex::new(Mode::Pass),
            over: AtomicBool::new(false),
            bytes: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            flights: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            held: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            delayed: AtomicU64::new(0),
            replies: AtomicU64::new(0),
        });
        let acceptor = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.accept(listener, port_here)
        });
        Self { shared, port: port_here, url: server.url_at(port_here), acceptor: Some(acceptor) }
    }

    /// Returns the URL of the store through this proxy.
    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Changes what happens to traffic from now on.
    pub(crate) fn set(&self, mode: Mode) {
        *self.shared.mode.lock().expect("no thread panics") = mode;
    }

    /// Returns how many bytes came, from both sides.
    pub(crate) fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// Returns how many connections were made.
    pub(crate) fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Returns the number of the connection over which the next client will send its requests.
    pub(crate) fn next_number(&self) -> u64 {
        self.connections() + self.shared.of_a_client
    }

    /// Returns how often a client sent something after the server had: the round trips, however many requests each
    /// carried.
    pub(crate) fn flights(&self) -> u64 {
        self.shared.flights.load(Ordering::Relaxed)
    }
}

impl Proxy {
    /// Returns how many requests that change a lock have come.
    pub(crate) fn changes(&self) -> u64 {
        self.shared.changes.load(Ordering::Relaxed)
    }

    /// Returns how many requests were held back so far.
    pub(crate) fn held(&self) -> u64 {
        self.shared.held.load(Ordering::Relaxed)
    }

    /// Returns how many held requests have been passed on since, and were answered or came too late for their
    /// connection.
    pub(crate) fn delivered(&self) -> u64 {
        self.shared.delivered.load(Ordering::Relaxed)
    }

    /// Returns how many replies were, or still are, delayed. One to a request that has taken effect may not have come yet.
    pub(crate) fn delayed(&self) -> u64 {
        self.shared.delayed.load(Ordering::Relaxed)
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

/// Returns `bytes` with one word replaced by another one.
fn rewritten(bytes: &[u8], old: &str, new: &str) -> Vec<u8> {
    assert_eq!(old.len(), new.len(), "lengths were announced");
    let mut bytes = bytes.to_vec();
    while let Some(at) = bytes.windows(old.len()).position(|part| part == old.as_bytes()) {
        bytes[at..at + new.len()].copy_from_slice(new.as_bytes());
    }
    bytes
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
            } else if listener.is_none() {
                thread::sleep(TICK);
            }
        }
        for pump in pumps {
            let _ = pump.join();
        }
    }

    /// Connects a client to the server by two threads.
    fn join(self: &Arc<Self>, client: TcpStream, number: u64) -> Vec<JoinHandle<()>> {
        if self.mode() == Mode::Reset {
            reset(&client);
            return Vec::new();
        }
        let Ok(server) = TcpStream::connect(self.server) else {
            return Vec::new();
        };
        let link = Arc::new(Link { number, is_answered: AtomicBool::new(true), ..Link::default() });
        let ends = [(client.try_clone(), server.try_clone(), true), (Ok(server), Ok(client), false)];
        ends.into_iter()
            .map(|(from, to, is_request)| {
                let (from, to) = (from.expect("a descriptor"), to.expect("a descriptor"));
                let (shared, link) = (Arc::clone(self), Arc::clone(&link));
                thread::spawn(move || shared.pump(&link, (&from, &to), is_request))
            })
            .collect()
    }

    fn pump(&self, link: &Link, (mut from, mut to): (&TcpStream, &TcpStream), is_request: bool) {
        let _ = to.set_nodelay(true);
        let mut buffer = [0; 16384];
        let mut on_its_way = VecDeque::new();
        while !self.is_over() {
            if !deliver(&mut on_its_way, to) {
                break;
            }
            if self.mode() == Mode::Reset {
                reset(from);
                reset(to);
                return;
            }
            let tick = if on_its_way.is_empty() { LONG_TICK } else { TICK };
            from.set_read_timeout(Some(tick)).expect("a time-out");
            let count = match from.read(&mut buffer) {
                Ok(count @ 1..) => count,
                Err(error) if is_pause(&error) => continue,
                Ok(0) | Err(_) => break,
            };
            if let (false, Some((old, new))) = (is_request, &self.rewritten) {
                let bytes = rewritten(&buffer[..count], old, new);
                buffer[..count].copy_from_slice(&bytes);
            }
            let bytes = &buffer[..count];
            let mut delay = Duration::ZERO;
            let changes = is_request && contains(bytes, self.word);
            self.note(link, bytes, is_request);
            self.changes.fetch_add(u64::from(changes), Ordering::Relaxed);
            if !is_request && link.was_held.swap(false, Ordering::Relaxed) {
                self.delivered.fetch_add(1, Ordering::Relaxed);
            }
            let has = |what: &AtomicBool| what.load(Ordering::Relaxed);
            if has(&link.is_silent) || has(&link.is_held) {
                continue;
            }
            if let Some(time) = self.loses_answer(link, bytes).filter(|_| is_request) {
                lose_answer(link, (from, to), bytes, time);
                break;
            }
            match self.mode() {
                // The mode has changed while this thread was reading.
                Mode::Swallow | Mode::Reset => continue,
                Mode::SwallowUpTo(last) if link.number <= last && has(&link.has_changed) => continue,
                Mode::SwallowAt(word) if is_request && contains(bytes, word) => {
                    link.is_silent.store(true, Ordering::Relaxed);
                    continue;
                }
                Mode::CutAt(word) if is_request && contains(bytes, word) => {
                    link.is_silent.store(true, Ordering::Relaxed);
                    let _ = to.write_all(&bytes[..place_of(word, bytes)]);
                    continue;
                }
                Mode::PauseAt(word, time) if is_request && contains(bytes, word) => {
                    let (before, rest) = bytes.split_at(place_of(word, bytes));
                    on_its_way.push_back((Instant::now(), before.to_vec()));
                    on_its_way.push_back((Instant::now() + time, rest.to_vec()));
                    continue;
                }
                Mode::SwallowReplies if !is_request => continue,
                Mode::SwallowAnswers if !is_request && has(&link.is_changing) => continue,
                Mode::Delay(time) if !is_request => delay = time,
                Mode::DelayAnswers(time) if !is_request && has(&link.is_changing) => delay = time,
                Mode::HoldUpTo(last) if changes && link.number <= last => self.hold(link),
                Mode::HoldAt(word) if is_request && contains(bytes, word) => self.hold(link),
                Mode::CloseAndHoldUpTo(last) if changes && link.number <= last => {
                    let _ = from.shutdown(Shutdown::Both);
                    self.hold(link);
                }
                Mode::CloseAt(word) if is_request && contains(bytes, word) => {
                    let _ = from.shutdown(Shutdown::Both);
                    break;
                }
                _ => {}
            }
            let bytes = match self.mode() {
                Mode::Answer(bytes) if !is_request && !has(&link.is_sentinel) => bytes.to_vec(),
                Mode::Garble(seed) if !is_request && !has(&link.is_sentinel) => match self.garble(bytes, seed) {
                    Garbled::Once(bytes) => bytes,
                    Garbled::Endless(bytes) => {
                        while !self.is_over() && to.write_all(&bytes).is_ok() {}
                        break;
                    }
                },
                _ => bytes.to_vec(),
            };
            on_its_way.push_back((Instant::now() + delay, bytes));
            self.delayed.fetch_add(u64::from(!delay.is_zero()), Ordering::Relaxed);
            if !deliver(&mut on_its_way, to) {
                break;
            }
        }
        while !on_its_way.is_empty() && !self.is_over() && deliver(&mut on_its_way, to) {
            thread::sleep(TICK);
        }
        if !is_request {
            link.is_over.store(true, Ordering::Relaxed);
            self.delivered.fetch_add(u64::from(link.was_held.swap(false, Ordering::Relaxed)), Ordering::Relaxed);
        }
        self.hold_end(link, is_request);
        let _ = to.shutdown(Shutdown::Write);
    }

    /// Waits until the end of one side may reach the other.
    fn hold_end(&self, link: &Link, is_of_client: bool) {
        // While traffic vanishes, it does not either.
        while (self.mode() == Mode::Swallow || link.is_held.load(Ordering::Relaxed)) && !self.is_over() {
            thread::sleep(LONG_TICK);
        }
        // etcd drops a request, even one that it has read, when it hears of the client's end.
        if !is_of_client || !link.held_any.load(Ordering::Relaxed) {
            return;
        }
        let until = Instant::now() + END_AFTER;
        while Instant::now() < until && !link.is_over.load(Ordering::Relaxed) && !self.is_over() {
            thread::sleep(LONG_TICK);
        }
    }

    /// Returns after what time the connection is closed, if the answer to this request is to vanish.
    fn loses_answer(&self, link: &Link, request: &[u8]) -> Option<Duration> {
        let (word, last, time) = match self.mode() {
            Mode::LoseAnswer(last, time) => (self.word, last, time),
            Mode::LoseAnswerTo(word, last, time) => (word, last, time),
            _ => return None,
        };
        (link.number <= last && contains(request, word)).then_some(time)
    }

    fn garble(&self, reply: &[u8], seed: u64) -> Garbled {
        let mut chance = Rng::with_seed(seed.wrapping_add(self.replies.fetch_add(1, Ordering::Relaxed)));
        if chance.u8(..3) == 0 { garbled(reply, &mut chance) } else { Garbled::Once(reply.to_vec()) }
    }

    /// Waits until requests on this connection may pass.
    fn hold(&self, link: &Link) {
        let is_held = || match self.mode() {
            Mode::HoldUpTo(last) | Mode::CloseAndHoldUpTo(last) => link.number <= last,
            Mode::HoldAt(_) => true,
            _ => false,
        };
        self.held.fetch_add(1, Ordering::Relaxed);
        link.held_any.store(true, Ordering::Relaxed);
        link.is_held.store(true, Ordering::Relaxed);
        while is_held() && !self.is_over() {
            thread::sleep(TICK);
        }
        link.is_held.store(false, Ordering::Relaxed);
        link.was_held.store(true, Ordering::Relaxed);
        if link.is_over.load(Ordering::Relaxed) {
            self.delivered.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts what has come, and records its kind.
    fn note(&self, link: &Link, bytes: &[u8], is_request: bool) {
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if !is_request {
            link.is_answered.store(true, Ordering::Relaxed);
            return;
        }
        let is_first = link.is_answered.swap(false, Ordering::Relaxed);
        self.flights.fetch_add(u64::from(is_first), Ordering::Relaxed);
        link.is_sentinel.fetch_or(contains(bytes, SENTINEL), Ordering::Relaxed);
        let changes = contains(bytes, self.word);
        link.has_changed.fetch_or(changes, Ordering::Relaxed);
        // A long message comes in several parts, of which only the first may contain the word.
        if changes || is_first {
            link.is_changing.store(changes, Ordering::Relaxed);
        }
    }
}

/// Returns the next connection, if one comes within a tick.
fn next(listener: &TcpListener) -> Option<TcpStream> {
    let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    let _ = poll(&mut fds, PollTimeout::try_from(TICK).unwrap_or(PollTimeout::ZERO));
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

/// Returns where the word begins in `bytes`, which contain it.
fn place_of(word: &str, bytes: &[u8]) -> usize {
    bytes.windows(word.len()).position(|part| part == word.as_bytes()).unwrap_or(0)
}

/// Passes a request on whose answer is to vanish, and closes the client's connection after this time.
fn lose_answer(link: &Link, (from, mut to): (&TcpStream, &TcpStream), request: &[u8], after: Duration) {
    link.is_silent.store(true, Ordering::Relaxed);
    let _ = to.write_all(request);
    thread::sleep(after);
    let _ = from.shutdown(Shutdown::Both);
}

/// Makes this connection end by a reset when it is closed.
fn reset(stream: &TcpStream) {
    let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
    let _ = setsockopt(stream, sockopt::Linger, &at_once);
}

/// Passes on what has been delayed long enough. Returns whether that was possible.
fn deliver(on_its_way: &mut VecDeque<(Instant, Vec<u8>)>, mut to: &TcpStream) -> bool {
    while let Some((due, bytes)) = on_its_way.front() {
        if *due > Instant::now() {
            break;
        }
        if to.write_all(bytes).is_err() {
            return false;
        }
        on_its_way.pop_front();
    }
    true
}
