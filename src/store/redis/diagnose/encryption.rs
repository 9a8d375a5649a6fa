//! Who can listen on the way to the server.

use std::slice;
use std::time::Duration;

use crate::net::endpoint::Endpoint;
use crate::store::diagnostic::{Diagnostic, encryption};
use crate::store::redis::url::Server;

/// Judges whether anybody on the way to `server` could read its password; looks its name up within `timeout`.
pub(super) fn diagnose(server: &Server, timeout: Duration) -> Option<Diagnostic> {
    let is_encrypted = matches!(&server.endpoint, Endpoint::Tcp { tls: Some(_), .. });
    encryption::diagnose(slice::from_ref(&server.endpoint), is_encrypted, unencrypted(server), timeout)
}

/// Returns the diagnostic for a connection to `server` over a network that is not encrypted.
fn unencrypted(server: &Server) -> Diagnostic {
    if server.password.is_some() {
        Diagnostic::warn(
            "the password travels over the network in clear",
            "anyone on the network can read the tokens and release locks; use rediss:// (TLS), or a network that is encrypted by itself",
        )
    } else {
        Diagnostic::ok("the connection is not encrypted, and there is no password to expose")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::diagnostic::Level;
    use crate::store::redis::url;

    #[test]
    fn a_password_in_clear_is_found() {
        let level =
            |url: &str| diagnose(&url::parse(url).expect(url).server, Duration::from_secs(1)).map(|found| found.level);
        assert_eq!(level("redis://u:pw@192.0.2.1"), Some(Level::Warn));
        assert_eq!(level("redis://u:pw@localhost"), Some(Level::Ok));
        assert_eq!(level("redis://192.0.2.1"), Some(Level::Ok));
        assert_eq!(level("rediss://u:pw@192.0.2.1"), Some(Level::Ok));
        assert_eq!(level("redis+unix:///run/redis"), None);
    }
}
