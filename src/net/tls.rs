//! TLS: trusted authorities, the client's certificate, and the handshake.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{CertificateError, ClientConfig, ClientConnection, Error, InvalidMessage, RootCertStore, StreamOwned};

use super::endpoint::TlsFiles;
use super::stream::Timed;
use crate::sys::input;

/// Why a handshake failed, where that says what may be wrong with the server's address or with the trusted authorities. The content of
/// the [`io::Error`] that reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeFailure {
    /// The server did not answer in time: it hangs, or waits for words of another protocol.
    Silence,
    /// The server closed the connection.
    HungUp,
    /// What the server answers is not TLS.
    NotTls,
    /// The server's certificate was issued by an authority that is not trusted.
    UnknownAuthority,
}

impl HandshakeFailure {
    /// Returns what is behind an error of the handshake, if it is one of these.
    fn behind(error: &io::Error) -> Option<Self> {
        match (error.get_ref().and_then(|error| error.downcast_ref::<Error>()), error.kind()) {
            (Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)), _) => Some(Self::NotTls),
            (Some(Error::InvalidCertificate(CertificateError::UnknownIssuer)), _) => Some(Self::UnknownAuthority),
            (_, io::ErrorKind::TimedOut) => Some(Self::Silence),
            (_, io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => {
                Some(Self::HungUp)
            }
            _ => None,
        }
    }

    /// Returns the failure that `error` reports, if it reports one.
    pub fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }
}

impl fmt::Display for HandshakeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HandshakeFailure::Silence => "it did not answer the TLS handshake in time",
            HandshakeFailure::HungUp => "it closed the connection during the TLS handshake",
            HandshakeFailure::NotTls => "what it answers is not TLS",
            HandshakeFailure::UnknownAuthority => "its certificate was issued by an unknown authority",
        })
    }
}

impl std::error::Error for HandshakeFailure {}

/// The configuration for handshakes with one server.
pub struct Tls {
    config: Arc<ClientConfig>,
    /// The name that the server's certificate must be for.
    name: ServerName<'static>,
}

impl Tls {
    /// Reads the files. The error names the faulty one.
    pub fn new(host: &str, files: &TlsFiles) -> Result<Self, String> {
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|error| format!("the store's host {host:?} cannot be a certificate's: {error}"))?;
        let config = config(files).map_err(|error| format!("cannot use TLS: {error}"))?;
        Ok(Tls { config: Arc::new(config), name })
    }

    /// Performs the handshake over `socket`, within its deadline. See [`HandshakeFailure`].
    pub fn handshake(&self, mut socket: Timed) -> io::Result<StreamOwned<ClientConnection, Timed>> {
        let session = ClientConnection::new(Arc::clone(&self.config), self.name.clone());
        let mut session = session.map_err(io::Error::other)?;
        while session.is_handshaking() {
            session.complete_io(&mut socket).map_err(|error| match HandshakeFailure::behind(&error) {
                Some(failure) => io::Error::new(error.kind(), failure),
                None => error,
            })?;
        }
        Ok(StreamOwned::new(session, socket))
    }
}

/// Builds the configuration from the PEM files.
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
            let pem = input::read_file_or_pipe(key).map_err(|error| bad_file(key, &error))?;
            let secret = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| bad_file(key, &error))?;
            builder.with_client_auth_cert(chain, secret).map_err(|error| bad_file(key, &error))
        }
    }
}

/// Returns the certificates in a PEM file. Fails if there is none.
fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let pem = input::read_file_or_pipe(path).map_err(|error| bad_file(path, &error))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(bad_file(path, &"it contains no certificate")),
        Ok(found) => Ok(found),
        Err(error) => Err(bad_file(path, &error)),
    }
}

fn bad_file(path: &Path, why: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {why}", path.display()))
}
