//! The address of a server.

use std::fmt;
use std::path::PathBuf;

use crate::text::escape::{escaped, escaped_path};

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

/// Formats the address for messages.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp { host, port, .. } if host.contains(':') => write!(f, "[{}]:{port}", escaped(host)),
            Endpoint::Tcp { host, port, .. } => write!(f, "{}:{port}", escaped(host)),
            Endpoint::Unix(path) => f.write_str(&escaped_path(path)),
        }
    }
}

/// Lists the addresses of servers, for messages.
pub fn list(endpoints: &[Endpoint]) -> String {
    endpoints.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(", ")
}

/// The PEM files that a TLS connection needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authorities to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// Our certificate chain, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}
