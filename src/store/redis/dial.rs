//! Connecting: names, sockets, TLS. All of it within one deadline.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::stream::{Socket, Stream, Timed, await_ready};
use crate::clock::Moment;
use crate::store::address::{Endpoint, TlsFiles};

/// Connects to `endpoint`, with TLS if it wants that; fails with `TimedOut` at `deadline`.
pub(super) fn dial(endpoint: &Endpoint, deadline: Moment) -> io::Result<Stream> {
    match endpoint {
        Endpoint::Unix(path) => Ok(Stream::Plain(Timed::new(Socket::Unix(dial_unix(path, deadline)?), deadline))),
        Endpoint::Tcp { host, port, tls } => {
            // Bad files are found before anything is sent to anybody.
            let tls = tls.as_ref().map(|files| Ok::<_, io::Error>((config(files)?, name(host)?))).transpose()?;
            let socket = dial_tcp(host, *port, deadline)?;
            let timed = Timed::new(Socket::Tcp(socket), deadline);
            let Some((config, name)) = tls else { return Ok(Stream::Plain(timed)) };
            let session = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
            let mut tls = StreamOwned::new(session, timed);
            while tls.conn.is_handshaking() {
                tls.conn.complete_io(&mut tls.sock)?;
            }
            Ok(Stream::Tls(Box::new(tls)))
        }
    }
}

fn dial_tcp(host: &str, port: u16, deadline: Moment) -> io::Result<TcpStream> {
    let addresses = resolve(host, deadline)?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
    for (tried, address) in addresses.iter().enumerate() {
        // An address that does not answer must leave time for the others.
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
            // The server's queue of connections is full. There is nothing to wait on but time.
            Err(Errno::EAGAIN) if Moment::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            Err(Errno::EAGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The addresses of `host`.
///
/// Names are looked up by getent(1) and not by the C library: lockrun is a static program, which cannot load the system's
/// name service modules, and a child can be given up on at the deadline, which a call cannot.
fn resolve(host: &str, deadline: Moment) -> io::Result<Vec<IpAddr>> {
    if let Ok(address) = host.parse() {
        return Ok(vec![address]);
    }
    if host.eq_ignore_ascii_case("localhost") {
        return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    let mut command = Command::new("getent");
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
    read.map_err(|error: io::Error| io::Error::new(error.kind(), "the look-up of its name takes too long"))?;
    let listed = String::from_utf8_lossy(&listed);
    let streams = listed.lines().filter(|line| line.contains("STREAM"));
    let addresses: Vec<IpAddr> = streams.filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect();
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "its name is not known"));
    }
    Ok(addresses)
}

/// The name that the server's certificate must be for.
fn name(host: &str) -> io::Result<ServerName<'static>> {
    ServerName::try_from(host.to_owned()).map_err(|error| io::Error::other(format!("its name: {error}")))
}

/// What TLS needs to know: whom we trust, and who we are.
fn config(files: &TlsFiles) -> io::Result<ClientConfig> {
    let mut trusted = RootCertStore::empty();
    match &files.ca {
        Some(path) => {
            for certificate in certificates(path)? {
                trusted.add(certificate).map_err(|error| bad_file(path, &error))?;
            }
        }
        None => {
            trusted.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(trusted);
    match &files.identity {
        None => Ok(builder.with_no_client_auth()),
        Some((certificate, key)) => {
            let chain = certificates(certificate)?;
            let mut pem = Vec::new();
            File::open(key).and_then(|mut file| file.read_to_end(&mut pem)).map_err(|error| bad_file(key, &error))?;
            let secret = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| bad_file(key, &error))?;
            builder.with_client_auth_cert(chain, secret).map_err(|error| bad_file(key, &error))
        }
    }
}

/// The certificates in a PEM file; an error if there is none.
fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let pem = std::fs::read(path).map_err(|error| bad_file(path, &error))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(bad_file(path, &"there is no certificate in it")),
        Ok(found) => Ok(found),
        Err(error) => Err(bad_file(path, &error)),
    }
}

fn bad_file(path: &Path, why: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {why}", path.display()))
}
