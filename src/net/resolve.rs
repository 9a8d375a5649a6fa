//! Looking up host names.

use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::poll::PollFlags;
use nix::sys::socket::{MsgFlags, send};

use super::stream::await_ready;
use crate::sys::clock::Moment;

/// A host name look-up in progress, which never blocks.
///
/// A build for glibc uses getent(1): a static program cannot load the system's name service modules, and unlike a call
/// of the library a child process can be killed at the deadline. A build for musl, whose resolver needs no modules,
/// also works where there is no getent, as in a container image built from scratch: it calls the library.
pub struct LookUp {
    /// getent, unless the C library looks the name up.
    child: Option<Child>,
    /// Where the answer arrives, in getent's format.
    answer: UnixStream,
    listed: Vec<u8>,
    deadline: Moment,
}

/// The state of a look-up.
pub enum Resolving {
    /// The addresses, at least one.
    Done(Vec<IpAddr>),
    /// Not yet known.
    Pending(LookUp),
}

/// Returns the addresses of `host`. Fails with `TimedOut` at `deadline`.
pub fn resolve(host: &str, deadline: Moment) -> io::Result<Vec<IpAddr>> {
    let mut resolving = look_up(host, deadline)?;
    loop {
        match resolving {
            Resolving::Done(addresses) => return Ok(addresses),
            Resolving::Pending(look_up) => {
                // `go_on` reports the time-out.
                let _ = await_ready(&look_up, PollFlags::POLLIN, deadline);
                resolving = look_up.go_on()?;
            }
        }
    }
}

/// Starts looking up the addresses of `host`, until `deadline` at the latest.
pub fn look_up(host: &str, deadline: Moment) -> io::Result<Resolving> {
    if let Ok(address) = host.parse() {
        return Ok(Resolving::Done(vec![address]));
    }
    if host.eq_ignore_ascii_case("localhost") {
        return Ok(Resolving::Done(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]));
    }
    let look_up = if cfg!(target_env = "musl") { LookUp::by_library } else { LookUp::by_getent };
    look_up(host, deadline).map(Resolving::Pending)
}

impl LookUp {
    fn by_getent(host: &str, deadline: Moment) -> io::Result<Self> {
        let (answer, output) = answer()?;
        let mut command = Command::new("getent");
        // In a group of its own, so that Ctrl-C, which lockrun handles, does not reach it.
        command.process_group(0);
        command.args(["ahosts", "--", host]).stdin(Stdio::null()).stderr(Stdio::null());
        command.stdout(OwnedFd::from(output));
        let child = command.spawn().map_err(why_no_getent)?;
        Ok(LookUp { child: Some(child), answer, listed: Vec::new(), deadline })
    }

    /// Asks the C library, in a thread that is abandoned at the deadline.
    fn by_library(host: &str, deadline: Moment) -> io::Result<Self> {
        let (answer, output) = answer()?;
        let name = host.to_owned();
        let look_up = move || {
            let addresses = (name.as_str(), 0).to_socket_addrs().map(Vec::from_iter).unwrap_or_default();
            let lines: Vec<String> = addresses.iter().map(|address| format!("{} STREAM", address.ip())).collect();
            let listed = lines.join("\n");
            // After the deadline, nobody reads it.
            let _ = send(output.as_raw_fd(), listed.as_bytes(), MsgFlags::MSG_NOSIGNAL);
        };
        std::thread::Builder::new().name("resolve".into()).spawn(look_up)?;
        Ok(LookUp { child: None, answer, listed: Vec::new(), deadline })
    }

    /// Sets another deadline.
    pub fn set_deadline(&mut self, deadline: Moment) {
        self.deadline = deadline;
    }

    /// Continues once there is something to read, or the deadline has passed.
    pub fn go_on(mut self) -> io::Result<Resolving> {
        let mut part = [0; 4096];
        loop {
            match self.answer.read(&mut part) {
                Ok(0) => break,
                Ok(length) => self.listed.extend_from_slice(&part[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Err(_) if Moment::now() < self.deadline => return Ok(Resolving::Pending(self)),
                Err(_) => return Err(too_slow()),
            }
        }
        let listed = String::from_utf8_lossy(&self.listed);
        let streams = listed.lines().filter(|line| line.contains("STREAM"));
        let addresses: Vec<IpAddr> = streams.filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect();
        if addresses.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "its name is unknown"));
        }
        Ok(Resolving::Done(addresses))
    }
}

/// Returns the error of a look-up for which getent could not be started. A lack of descriptors or memory stays the
/// error that it is: callers know it by its number.
fn why_no_getent(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
            let why = format!(
                "its name cannot be looked up, because getent(1) cannot be run: {error}; install it, write an address, or take a build for musl"
            );
            io::Error::new(error.kind(), why)
        }
        // No more processes.
        io::ErrorKind::WouldBlock => {
            let why = "its name cannot be looked up, because no process can be started; raise the limit of this user (ulimit -u) or of \
                       the cgroup (pids.max)";
            io::Error::other(why)
        }
        _ => error,
    }
}

/// Returns the error of a look-up that did not end in time.
pub fn too_slow() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "looking up its name takes too long")
}

/// Returns where an answer can be read without blocking, and where it is written. Not a pipe: a write to a pipe without
/// a reader would raise SIGPIPE.
fn answer() -> io::Result<(UnixStream, UnixStream)> {
    let (answer, output) = UnixStream::pair()?;
    answer.set_nonblocking(true)?;
    Ok((answer, output))
}

impl AsFd for LookUp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.answer.as_fd()
    }
}

impl Drop for LookUp {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // A child that has written its answer has nothing left to do.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nix::errno::Errno;

    use super::*;

    fn end_of(mut look_up: LookUp) -> io::Result<Vec<IpAddr>> {
        loop {
            let _ = await_ready(&look_up, PollFlags::POLLIN, look_up.deadline);
            match look_up.go_on()? {
                Resolving::Done(addresses) => return Ok(addresses),
                Resolving::Pending(pending) => look_up = pending,
            }
        }
    }

    #[test]
    fn getent_and_the_library_find_the_same() {
        let deadline = Moment::now() + Duration::from_mins(1);
        for look_up in [LookUp::by_getent, LookUp::by_library] {
            let found = end_of(look_up("127.0.0.9", deadline).expect("begins")).expect("is one");
            assert!(found.iter().all(|it| *it == IpAddr::from([127, 0, 0, 9])), "{found:?}");
            let unknown = end_of(look_up("no-such-host.invalid", deadline).expect("begins")).expect_err("is unknown");
            assert_eq!(unknown.kind(), io::ErrorKind::NotFound);
        }
    }

    #[test]
    fn a_lack_of_resources_is_no_lack_of_getent() {
        let why = |errno: Errno| why_no_getent(errno.into());
        assert_eq!(why(Errno::EMFILE).raw_os_error(), Some(Errno::EMFILE as i32));
        let no_process = why(Errno::EAGAIN).to_string();
        assert!(no_process.contains("of this user (ulimit -u) or of the cgroup (pids.max)"), "{no_process}");
        for errno in [Errno::ENOENT, Errno::EACCES] {
            assert!(why(errno).to_string().contains("install it"), "{}", why(errno));
        }
    }

    #[test]
    fn a_look_up_does_not_wait_for_longer_than_it_may() {
        let (answer, _output) = answer().expect("a pair");
        let look_up = LookUp { child: None, answer, listed: Vec::new(), deadline: Moment::now() };
        assert_eq!(end_of(look_up).expect_err("nothing comes").kind(), io::ErrorKind::TimedOut);
    }
}
