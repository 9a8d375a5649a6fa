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
/// service modules, and a child process can be abandoned at the deadline, which a library call cannot.
pub fn resolve(host: &str, deadline: Moment) -> io::Result<Vec<IpAddr>> {
    if let Ok(address) = host.parse() {
        return Ok(vec![address]);
    }
    if host.eq_ignore_ascii_case("localhost") {
        return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    let mut command = Command::new("getent");
    // Out of reach of a Ctrl-C, which lockrun handles.
    command.process_group(0);
    command.args(["ahosts", "--", host]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut getent = command.spawn().map_err(|error| {
        io::Error::new(error.kind(), format!("its name cannot be looked up, because getent(1) cannot be run: {error}"))
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
