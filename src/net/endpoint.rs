//! The address of a server.

use std::path::PathBuf;

/// How to reach a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Over TCP.
    Tcp {
        /// Its name or IP address.
        host: String,
        /// Its port.
        port: u16,
        /// The files for TLS, if it is used.
        tls: Option<TlsFiles>,
    },
    /// Over a Unix socket on this machine.
    Unix(PathBuf),
}

impl Endpoint {
    /// Returns the files for TLS, if it is used.
    pub fn tls_files(&self) -> Option<&TlsFiles> {
        match self {
            Endpoint::Tcp { tls, .. } => tls.as_ref(),
            Endpoint::Unix(_) => None,
        }
    }
}

/// The PEM files that a TLS connection needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authorities to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// Our certificate chain, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}
