//! Where a server is.

use std::path::PathBuf;

/// How a server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Over TCP.
    Tcp {
        /// Its name or IP address.
        host: String,
        /// Its port.
        port: u16,
        /// Over TLS, if so with these files.
        tls: Option<TlsFiles>,
    },
    /// Through a socket of this machine.
    Unix(PathBuf),
}

/// The PEM files that a TLS connection needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Whom to trust, in place of the system's authorities.
    pub ca: Option<PathBuf>,
    /// Our certificate chain, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}
