//! Looking up host names.

use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::poll::PollFlags;

use super::stream::await_ready;
use crate::sys::clock::Moment;

/// Returns the addresses of `host`. Fails with `TimedOut` at `deadline`.
///
/// Names are looked up by getent(1) and not by the C library: lockrun is a static program, which cannot load the system's name
/// service modules, and a child process can be abandoned at the deadline, which a library call cannot. A program for musl does without
/// it where there is none.
pub fn resolve(host: &str, deadline: Moment) -> io::Result<Vec<IpAddr>> {
    if let Ok(address) = host.parse() {
        return Ok(vec![address]);
    }
    if host.eq_ignore_ascii_case("localhost") {
        return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    match resolve_by_getent(host, deadline) {
        // An image from scratch has none. musl's own resolver needs no modules, and reads /etc/hosts and /etc/resolv.conf.
        #[cfg(target_env = "musl")]
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_missing("getent") => {
            resolve_by_library(host, deadline)
        }
        resolved => resolved,
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

fn resolve_by_getent(host: &str, deadline: Moment) -> io::Result<Vec<IpAddr>> {
    let mut command = Command::new("getent");
    // Out of reach of a Ctrl-C, which lockrun handles.
    command.process_group(0);
    command.args(["ahosts", "--", host]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut getent = command.spawn().map_err(|error| {
        let why = format!(
            "its name cannot be looked up, because getent(1) cannot be run: {error}; install it, write an address, or take a build \
             for musl"
        );
        io::Error::new(error.kind(), why)
    })?;
    let mut listed = Vec::new();
    let read = getent.stdout.take().map_or(Ok(()), |mut stdout| {
        let mut part = [0; 4096];
        loop {
            await_ready(&stdout, PollFlags::POLLIN, deadline)?;
            match stdout.read(&mut part)? {
                0 => return Ok(()),
                length => listed.extend_from_slice(&part[..length]),
            }
        }
    });
    if read.is_err() {
        let _ = getent.kill();
    }
    getent.wait()?;
    read.map_err(|error: io::Error| io::Error::new(error.kind(), "looking up its name takes too long"))?;
    let listed = String::from_utf8_lossy(&listed);
    let streams = listed.lines().filter(|line| line.contains("STREAM"));
    let addresses: Vec<IpAddr> = streams.filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect();
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "its name is unknown"));
    }
    Ok(addresses)
}
