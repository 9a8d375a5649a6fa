//! Reading from and writing to a server, with a deadline for the whole request.
//!
//! A time-out for each read would not do: a server that sends one byte at a time could delay lockrun for ever.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustls::{ClientConnection, StreamOwned};

use super::certificate::server_end_point;
use super::tls::{Tls, tls_error_behind};
use crate::sys::clock::Moment;

/// A connected stream, with or without TLS.
pub enum Stream {
    Plain(DeadlineSocket),
    Tls(Box<StreamOwned<ClientConnection, DeadlineSocket>>),
}

impl Stream {
    /// Makes every further operation fail with `TimedOut` at `deadline`. With [`NO_WAIT`] none of them waits.
    pub fn set_deadline(&mut self, deadline: Moment) {
        match self {
            Stream::Plain(timed) => timed.set_deadline(deadline),
            Stream::Tls(tls) => tls.sock.set_deadline(deadline),
        }
    }

    /// Performs the TLS handshake with `host` over a plain stream, within its deadline, once the server has agreed to
    /// TLS. The caller must not have read a byte beyond the server's consent: what follows could come from an impostor,
    /// and only the handshake can tell. Fails as [`Tls::handshake`] does.
    pub fn upgrade(self, tls: &Tls, host: &str) -> io::Result<Stream> {
        match self {
            Stream::Plain(timed) => Ok(Stream::Tls(Box::new(tls.handshake(host, timed)?))),
            Stream::Tls(_) => Err(io::Error::other("TLS is in use already")),
        }
    }

    /// Wraps a TLS session whose handshake over `socket` is complete.
    pub fn of_session(session: ClientConnection, socket: DeadlineSocket) -> Stream {
        Stream::Tls(Box::new(StreamOwned::new(session, socket)))
    }

    /// Returns the channel binding data `tls-server-end-point` (RFC 5929, section 4.1), a hash of the server's
    /// certificate. `None` without TLS, and for a certificate whose signature algorithm has no single hash function,
    /// such as Ed25519.
    pub fn server_end_point(&self) -> Option<Vec<u8>> {
        match self {
            Stream::Plain(_) => None,
            Stream::Tls(tls) => server_end_point(tls.conn.peer_certificates()?.first()?),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Plain(timed) => timed.socket.as_fd(),
            Stream::Tls(tls) => tls.sock.socket.as_fd(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(timed) => timed.read(buffer),
            Stream::Tls(tls) => tls.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(timed) => timed.write(bytes),
            Stream::Tls(tls) => tls.write(bytes).map_err(|error| tls_error_behind(&mut tls.conn, &mut tls.sock, error)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(_) => Ok(()),
            Stream::Tls(tls) => tls.flush().map_err(|error| tls_error_behind(&mut tls.conn, &mut tls.sock, error)),
        }
    }
}

/// A non-blocking socket.
pub enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(socket) => socket.as_fd(),
            Socket::Unix(socket) => socket.as_fd(),
        }
    }
}

/// The deadline of an operation that takes what has already arrived, and does not wait.
pub const NO_WAIT: Moment = Moment::from_boot(Duration::ZERO);

/// How many bytes can be read after the deadline. What has arrived by then counts, even if this process was stopped and
/// reads it late. But a peer that never stops sending makes nobody wait, so that only a bound ends the reading.
const LATE_MAX: usize = 64 * 1024;

/// A socket whose operations wait until a deadline.
pub struct DeadlineSocket {
    socket: Socket,
    deadline: Moment,
    /// How many bytes were read after the deadline.
    late: usize,
}

impl DeadlineSocket {
    /// Wraps a non-blocking `socket`.
    pub fn new(socket: Socket, deadline: Moment) -> Self {
        DeadlineSocket { socket, deadline, late: 0 }
    }

    /// Returns whether its deadline has passed.
    pub fn is_late(&self) -> bool {
        Moment::now() >= self.deadline
    }

    /// Makes every further operation fail with `TimedOut` at `deadline`.
    pub fn set_deadline(&mut self, deadline: Moment) {
        (self.deadline, self.late) = (deadline, 0);
    }

    /// Runs `operation`. Its reads and writes fail with `TimedOut` instead of waiting.
    pub fn without_waiting<T>(&mut self, operation: impl FnOnce(&mut Self) -> T) -> T {
        let (deadline, late) = (self.deadline, self.late);
        self.set_deadline(NO_WAIT);
        let done = operation(self);
        (self.deadline, self.late) = (deadline, late);
        done
    }

    /// Repeats `operation` until it would not block, waiting for `event` in between.
    fn when(
        &mut self,
        event: PollFlags,
        mut operation: impl FnMut(&mut Socket) -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            match operation(&mut self.socket) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
            await_ready(&self.socket, event, self.deadline)?;
        }
    }
}

impl AsFd for DeadlineSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Read for DeadlineSocket {
    /// Fails with `TimedOut` if nothing has arrived by the deadline, and after it once [`LATE_MAX`] bytes were read.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let is_late = self.is_late();
        if is_late && self.late >= LATE_MAX {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let count = self.when(PollFlags::POLLIN, |socket| match socket {
            Socket::Tcp(socket) => socket.read(buffer),
            Socket::Unix(socket) => socket.read(buffer),
        })?;
        if is_late {
            self.late += count;
        }
        Ok(count)
    }
}

impl Write for DeadlineSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.when(PollFlags::POLLOUT, |socket| match socket {
            Socket::Tcp(socket) => socket.write(bytes),
            Socket::Unix(socket) => socket.write(bytes),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Waits for `event` on `fd`. Fails with `TimedOut` at `deadline`.
pub fn await_ready(fd: &impl AsFd, event: PollFlags, deadline: Moment) -> io::Result<()> {
    loop {
        let left = deadline.since(Moment::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // Rounded up, so that the last round does not spin.
        let millis = i32::try_from(left.as_millis() + 1).unwrap_or(i32::MAX);
        let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(fd.as_fd(), event)], timeout) {
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn pair(deadline: Moment) -> (DeadlineSocket, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        ours.set_nonblocking(true).expect("is set");
        (DeadlineSocket::new(Socket::Unix(ours), deadline), theirs)
    }

    #[test]
    fn a_peer_that_never_stops_sending_does_not_outlast_the_deadline() {
        let (mut socket, mut theirs) = pair(Moment::now() + Duration::from_millis(50));
        let sender = thread::spawn(move || while theirs.write_all(&[0; 4096]).is_ok() {});
        let ended = loop {
            if let Err(error) = socket.read(&mut [0; 16]) {
                break error;
            }
        };
        assert_eq!(ended.kind(), io::ErrorKind::TimedOut);
        drop(socket);
        sender.join().expect("it has ended");
    }

    #[test]
    fn what_has_arrived_by_the_deadline_counts() {
        let (mut socket, mut theirs) = pair(Moment::now());
        theirs.write_all(&[7; 32]).expect("is sent");
        assert_eq!(
            (socket.read(&mut [0; 16]).expect("is there"), socket.read(&mut [0; 99]).expect("is there")),
            (16, 16)
        );
        let none = socket.read(&mut [0; 16]).expect_err("nothing more");
        assert_eq!(none.kind(), io::ErrorKind::TimedOut);
    }
}
