//! Connecting to a server, with one deadline for all steps.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use super::endpoint::Endpoint;
use super::resolve::resolve;
use super::stream::{Socket, Stream, Timed};
use super::tls::Tls;
use crate::sys::clock::Moment;

/// Connects to `endpoint`, over TLS if `tls` is given. Fails with `TimedOut` at `deadline`.
pub fn dial(endpoint: &Endpoint, tls: Option<&Tls>, deadline: Moment) -> io::Result<Stream> {
    #[cfg(any(test, fuzzing))]
    if let Some(socket) = super::scripted::next() {
        return Ok(Stream::Plain(Timed::new(Socket::Unix(socket?), deadline)));
    }
    match endpoint {
        Endpoint::Unix(path) => Ok(Stream::Plain(Timed::new(Socket::Unix(dial_unix(path, deadline)?), deadline))),
        Endpoint::Tcp { host, port, .. } => {
            let socket = dial_tcp(host, *port, deadline)?;
            let plain = Stream::Plain(Timed::new(Socket::Tcp(socket), deadline));
            match tls {
                Some(tls) => plain.upgrade(tls),
                None => Ok(plain),
            }
        }
    }
}

fn dial_tcp(host: &str, port: u16, deadline: Moment) -> io::Result<TcpStream> {
    let addresses = resolve(host, deadline)?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
    for (tried, address) in addresses.iter().enumerate() {
        // An address that does not answer must leave time for the remaining ones.
        let left = deadline.since(Moment::now()) / u32::try_from(addresses.len() - tried).unwrap_or(1);
        match TcpStream::connect_timeout(&SocketAddr::new(*address, port), left.max(Duration::from_millis(1))) {
            Ok(socket) => {
                socket.set_nonblocking(true)?;
                socket.set_nodelay(true)?;
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn dial_unix(path: &Path, deadline: Moment) -> io::Result<UnixStream> {
    let address = UnixAddr::new(path)?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    loop {
        match connect(fd.as_raw_fd(), &address) {
            Ok(()) => return Ok(fd.into()),
            // The server's queue of connections is full, and there is no event to wait for.
            Err(Errno::EAGAIN) if Moment::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            Err(Errno::EAGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
