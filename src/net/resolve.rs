//! Looking up host names.

use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::PollFlags;

use super::stream::await_ready;
use crate::sys::clock::Moment;

/// A host name that is being looked up, without waiting.
///
/// Names are looked up by getent(1) and not by the C library: lockrun is a static program, which cannot load the system's name
/// service modules, and a child process can be abandoned at the deadline, which a library call cannot. A program for musl does without
/// it where there is none.
pub struct LookUp {
    getent: Child,
    stdout: ChildStdout,
    listed: Vec<u8>,
    has_ended: bool,
    deadline: Moment,
}

/// What has become of a look-up.
pub enum Resolving {
    /// The addresses; there is at least one.
    Done(Vec<IpAddr>),
    /// It takes longer.
    Pending(LookUp),
}

/// Returns the addresses of `host`. Fails with `TimedOut` at `deadline`.
pub fn resolve(host: &str, deadline: Moment) -> io::Result<Vec<IpAddr>> {
    let mut resolving = look_up(host, deadline)?;
    loop {
        match resolving {
            Resolving::Done(addresses) => return Ok(addresses),
            Resolving::Pending(look_up) => {
                // That the time is over, the look-up says itself.
                let _ = await_ready(&look_up, PollFlags::POLLIN, deadline);
                resolving = look_up.go_on()?;
            }
        }
    }
}

/// Begins to look up the addresses of `host`, until `deadline` at the latest.
pub fn look_up(host: &str, deadline: Moment) -> io::Result<Resolving> {
    if let Ok(address) = host.parse() {
        return Ok(Resolving::Done(vec![address]));
    }
    if host.eq_ignore_ascii_case("localhost") {
        return Ok(Resolving::Done(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]));
    }
    match LookUp::start(host, deadline) {
        // An image from scratch has none. musl's own resolver needs no modules, and reads /etc/hosts and /etc/resolv.conf.
        #[cfg(target_env = "musl")]
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_missing("getent") => {
            resolve_by_library(host, deadline).map(Resolving::Done)
        }
        started => Ok(Resolving::Pending(started?)),
    }
}

/// Returns whether no directory of PATH has this program.
#[cfg(target_env = "musl")]
fn is_missing(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    !std::env::split_paths(&path).any(|directory| directory.join(program).exists())
}

/// Looks the name up by the C library, in a thread that is left behind at the `deadline`.
#[cfg(target_env = "musl")]
fn resolve_by_library(host: &str, deadline: Moment) -> io::Result<Vec<IpAddr>> {
    use std::net::ToSocketAddrs;
    use std::sync::mpsc;

    let (answers, answer) = mpsc::channel();
    let name = host.to_owned();
    let look_up = move || drop(answers.send((name.as_str(), 0).to_socket_addrs().map(Vec::from_iter)));
    std::thread::Builder::new().name("resolve".into()).spawn(look_up)?;
    let found = answer.recv_timeout(deadline.since(Moment::now()));
    let addresses = found.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "looking up its name takes too long"))?;
    let unknown = |_| io::Error::new(io::ErrorKind::NotFound, "its name is unknown");
    Ok(addresses.map_err(unknown)?.into_iter().map(|address| address.ip()).collect())
}

impl LookUp {
    fn start(host: &str, deadline: Moment) -> io::Result<Self> {
        let mut command = Command::new("getent");
        // Out of reach of a Ctrl-C, which lockrun handles.
        command.process_group(0);
        command.args(["ahosts", "--", host]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut getent = command.spawn().map_err(|error| {
            let why = format!(
                "its name cannot be looked up, because getent(1) cannot be run: {error}; install it, write an address, or take a build for musl"
            );
            io::Error::new(error.kind(), why)
        })?;
        let stdout = getent.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        fcntl(&stdout, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(LookUp { getent, stdout, listed: Vec::new(), has_ended: false, deadline })
    }

    /// Goes on after there was something to read, or the deadline has passed.
    pub fn go_on(mut self) -> io::Result<Resolving> {
        let mut part = [0; 4096];
        loop {
            match self.stdout.read(&mut part) {
                Ok(0) => break,
                Ok(length) => self.listed.extend_from_slice(&part[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Err(_) if Moment::now() < self.deadline => return Ok(Resolving::Pending(self)),
                Err(_) => return Err(io::Error::new(io::ErrorKind::TimedOut, "looking up its name takes too long")),
            }
        }
        self.has_ended = true;
        let listed = String::from_utf8_lossy(&self.listed);
        let streams = listed.lines().filter(|line| line.contains("STREAM"));
        let addresses: Vec<IpAddr> = streams.filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect();
        if addresses.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "its name is unknown"));
        }
        Ok(Resolving::Done(addresses))
    }
}

impl AsFd for LookUp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stdout.as_fd()
    }
}

impl Drop for LookUp {
    fn drop(&mut self) {
        if !self.has_ended {
            let _ = self.getent.kill();
        }
        let _ = self.getent.wait();
    }
}
