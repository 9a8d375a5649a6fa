//! Connecting to a server, with one deadline for all steps.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use std::vec;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrIn6, UnixAddr, connect, socket};
use rustls::ClientConnection;

use super::endpoint::Endpoint;
use super::resolve::{LookUp, Resolving, look_up};
use super::stream::{DeadlineSocket, Socket, Stream, await_ready};
use super::tls::Tls;
use crate::sys::clock::Moment;
use crate::sys::wait::readable;

/// Connects to `endpoint`, over TLS if `tls` is given. Fails with `TimedOut` at `deadline`.
pub fn dial(endpoint: &Endpoint, tls: Option<&Tls>, deadline: Moment) -> io::Result<Stream> {
    let mut dialing = Dialing::start(endpoint, deadline)?;
    loop {
        match dialing.go_on(tls)? {
            Progress::Done(stream) => return Ok(stream),
            Progress::Pending(pending) => {
                // `go_on` reports the time-out.
                let _ = await_ready(&pending.awaits(), pending.awaits().events(), pending.due());
                dialing = pending;
            }
        }
    }
}

/// A connection in progress, which never blocks.
pub struct Dialing {
    step: Step,
    /// The host and the port; an empty host and 0 for a Unix socket.
    host: String,
    port: u16,
    deadline: Moment,
}

/// The state of a connection in progress.
pub enum Progress {
    /// The connection.
    Done(Stream),
    /// Not yet connected.
    Pending(Dialing),
}

enum Step {
    LookUp(LookUp),
    /// To one address after another: the present socket, until when to wait for it, and the remaining addresses.
    Connect(TcpStream, Moment, Remaining),
    Handshake(Box<ClientConnection>, DeadlineSocket),
    Connected(Stream),
}

impl Dialing {
    /// Starts connecting to `endpoint`. Fails with `TimedOut` if it is not connected by `deadline`.
    pub fn start(endpoint: &Endpoint, deadline: Moment) -> io::Result<Self> {
        #[cfg(any(test, fuzzing))]
        if let Some(socket) = super::scripted::next() {
            let stream = Stream::Plain(DeadlineSocket::new(Socket::Unix(socket?), deadline));
            return Ok(Dialing { step: Step::Connected(stream), host: String::new(), port: 0, deadline });
        }
        let (step, host, port) = match endpoint {
            Endpoint::Unix(path) => {
                let socket = Socket::Unix(dial_unix(path, deadline)?);
                (Step::Connected(Stream::Plain(DeadlineSocket::new(socket, deadline))), String::new(), 0)
            }
            Endpoint::Tcp { host, port, .. } => {
                let step = match look_up(host, deadline)? {
                    Resolving::Done(addresses) => Remaining::new(addresses).connect(*port, deadline)?,
                    Resolving::Pending(look_up) => Step::LookUp(look_up),
                };
                (step, host.clone(), *port)
            }
        };
        Ok(Dialing { step, host, port, deadline })
    }

    /// Returns the event to wait for before [`Dialing::go_on`].
    pub fn awaits(&self) -> PollFd<'_> {
        match &self.step {
            Step::LookUp(look_up) => readable(look_up),
            Step::Connect(socket, ..) => PollFd::new(socket.as_fd(), PollFlags::POLLOUT),
            Step::Handshake(session, socket) => {
                let mut events = PollFlags::POLLIN;
                events.set(PollFlags::POLLOUT, session.wants_write());
                PollFd::new(socket.as_fd(), events)
            }
            Step::Connected(stream) => PollFd::new(stream.as_fd(), PollFlags::POLLOUT),
        }
    }

    /// Returns whether the name is still being looked up by a child process. The child must not outlast the request,
    /// because it is not one of COMMAND's processes.
    pub fn is_looking_up(&self) -> bool {
        matches!(self.step, Step::LookUp(_))
    }

    /// Returns whether its deadline has passed.
    pub fn is_late(&self) -> bool {
        Moment::now() >= self.deadline
    }

    /// Sets another deadline.
    pub fn set_deadline(&mut self, deadline: Moment) {
        self.deadline = deadline;
        match &mut self.step {
            Step::LookUp(look_up) => look_up.set_deadline(deadline),
            Step::Connect(_, until, others) if others.addresses.len() == 0 => *until = deadline,
            Step::Connect(..) => {}
            Step::Handshake(_, socket) => socket.set_deadline(deadline),
            Step::Connected(stream) => stream.set_deadline(deadline),
        }
    }

    /// Returns when to stop waiting for the event.
    pub fn due(&self) -> Moment {
        match &self.step {
            Step::Connect(_, until, _) => *until,
            _ => self.deadline,
        }
    }

    /// Continues once the event has come or [`Dialing::due`] has passed. Uses TLS if `tls` is given.
    pub fn go_on(mut self, tls: Option<&Tls>) -> io::Result<Progress> {
        let (port, deadline) = (self.port, self.deadline);
        loop {
            self.step = match self.step {
                Step::LookUp(look_up) => match look_up.go_on()? {
                    Resolving::Done(addresses) => Remaining::new(addresses).connect(port, deadline)?,
                    Resolving::Pending(look_up) => {
                        return Ok(Progress::Pending(Dialing { step: Step::LookUp(look_up), ..self }));
                    }
                },
                Step::Connect(socket, until, others) => match is_connected(&socket) {
                    Ok(true) => {
                        socket.set_nodelay(true)?;
                        let socket = DeadlineSocket::new(Socket::Tcp(socket), deadline);
                        match tls {
                            Some(tls) => Step::Handshake(Box::new(tls.session(&self.host)?), socket),
                            None => Step::Connected(Stream::Plain(socket)),
                        }
                    }
                    Ok(false) if Moment::now() < until => {
                        return Ok(Progress::Pending(Dialing { step: Step::Connect(socket, until, others), ..self }));
                    }
                    Ok(false) => others.after(timed_out()).connect(port, deadline)?,
                    Err(error) => others.after(error).connect(port, deadline)?,
                },
                Step::Handshake(mut session, mut socket) => {
                    if Tls::continue_handshake(&mut session, &mut socket)? {
                        Step::Connected(Stream::of_session(*session, socket))
                    } else {
                        return Ok(Progress::Pending(Dialing { step: Step::Handshake(session, socket), ..self }));
                    }
                }
                Step::Connected(stream) => return Ok(Progress::Done(stream)),
            };
        }
    }
}

/// The addresses of a host that were not tried yet.
struct Remaining {
    addresses: vec::IntoIter<IpAddr>,
    /// Why the host cannot be reached if none of these can: of the errors of the others, the one that says most.
    error: Option<io::Error>,
}

impl Remaining {
    /// Takes all addresses of a host.
    fn new(addresses: Vec<IpAddr>) -> Self {
        Remaining { addresses: addresses.into_iter(), error: None }
    }

    /// Notes why another address failed. That this machine has no way to it says nothing about the host: on one without
    /// IPv6, each IPv6 address fails so.
    fn after(self, error: io::Error) -> Self {
        let is_ours = matches!(
            error.raw_os_error().map(Errno::from_raw),
            Some(Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::EADDRNOTAVAIL | Errno::EAFNOSUPPORT)
        );
        let error = if is_ours { self.error.unwrap_or(error) } else { error };
        Remaining { error: Some(error), ..self }
    }

    /// Starts connecting to the next address. Fails if none is left.
    fn connect(mut self, port: u16, deadline: Moment) -> io::Result<Step> {
        while let Some(address) = self.addresses.next() {
            match begin_connecting(SocketAddr::new(address, port)) {
                Ok(socket) => {
                    let now = Moment::now();
                    // An unresponsive address must leave time for the remaining ones.
                    let share = deadline.since(now) / u32::try_from(self.addresses.len() + 1).unwrap_or(u32::MAX);
                    return Ok(Step::Connect(socket, now + share, self));
                }
                Err(error) => self = self.after(error),
            }
        }
        let nowhere = || io::Error::new(io::ErrorKind::NotFound, "its name has no address");
        Err(self.error.unwrap_or_else(nowhere))
    }
}

fn begin_connecting(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
    let begun = match address {
        SocketAddr::V4(address) => connect(fd.as_raw_fd(), &SockaddrIn::from(address)),
        SocketAddr::V6(address) => connect(fd.as_raw_fd(), &SockaddrIn6::from(address)),
    };
    match begun {
        Ok(()) | Err(Errno::EINPROGRESS | Errno::EINTR) => Ok(fd.into()),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns whether the socket is connected yet. Fails if it cannot be.
fn is_connected(socket: &TcpStream) -> io::Result<bool> {
    let ready = poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)], PollTimeout::ZERO);
    match ready {
        Ok(0) | Err(Errno::EINTR) => Ok(false),
        Ok(_) => socket.take_error()?.map_or(Ok(true), Err),
        Err(errno) => Err(errno.into()),
    }
}

fn timed_out() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "connection timed out")
}

fn dial_unix(path: &Path, deadline: Moment) -> io::Result<UnixStream> {
    let address = UnixAddr::new(path)?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    loop {
        match connect(fd.as_raw_fd(), &address) {
            Ok(()) => return Ok(fd.into()),
            // The server's backlog is full, and no event announces room in it.
            Err(Errno::EAGAIN) if Moment::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            Err(Errno::EAGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    /// Connects to the first of these addresses that accepts.
    fn connect(addresses: Vec<IpAddr>, port: u16) -> io::Result<Stream> {
        let deadline = Moment::now() + Duration::from_mins(1);
        let step = Remaining::new(addresses).connect(port, deadline)?;
        let mut dialing = Dialing { step, host: String::new(), port, deadline };
        loop {
            match dialing.go_on(None)? {
                Progress::Done(stream) => return Ok(stream),
                Progress::Pending(pending) => dialing = pending,
            }
        }
    }

    #[test]
    fn an_address_that_refuses_is_passed_over() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        let addresses = vec![Ipv4Addr::new(127, 0, 0, 2).into(), Ipv4Addr::LOCALHOST.into()];
        connect(addresses, port).expect("one accepts");
    }

    #[test]
    fn what_the_host_says_counts_more_than_that_there_is_no_way_to_it() {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|it| it.local_addr()).expect("a free port");
        // TCP has no way to a broadcast address.
        let (refuses, unreachable) = (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::BROADCAST.into());
        for (addresses, kind) in [
            (vec![refuses, unreachable], io::ErrorKind::ConnectionRefused),
            (vec![unreachable, refuses], io::ErrorKind::ConnectionRefused),
            (vec![unreachable, unreachable], io::ErrorKind::NetworkUnreachable),
        ] {
            let error = connect(addresses.clone(), free.port()).err().expect("nobody listens");
            assert_eq!(error.kind(), kind, "{addresses:?}: {error}");
        }
    }

    #[test]
    fn no_address_and_no_listener_are_failures() {
        let none = connect(Vec::new(), 1).err().expect("there is none");
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|it| it.local_addr()).expect("a free port");
        let nobody = Endpoint::Tcp { host: "127.0.0.1".into(), port: free.port(), tls: None };
        let deadline = Moment::now() + Duration::from_mins(1);
        let refused = dial(&nobody, None, deadline).err().expect("nobody listens");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}
