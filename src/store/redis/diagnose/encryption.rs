//! The way to the server: who can listen to it.

use std::net::IpAddr;
use std::time::Duration;

use crate::net::endpoint::Endpoint;
use crate::net::resolve::resolve;
use crate::store::diagnostic::Diagnostic;
use crate::store::redis::url::Server;
use crate::sys::clock::Moment;

/// Whether anybody on the way to `server` could read its password; looks its name up within `timeout`.
pub(super) fn diagnose(server: &Server, timeout: Duration) -> Option<Diagnostic> {
    let Endpoint::Tcp { host, .. } = &server.endpoint else { return None };
    let addresses = resolve(host, Moment::now() + timeout).unwrap_or_default();
    let local = !addresses.is_empty() && addresses.iter().all(IpAddr::is_loopback);
    Some(judge(server, local))
}

/// What is to be said of TCP to `server`, which is on this machine or not.
fn judge(server: &Server, local: bool) -> Diagnostic {
    let encrypted = matches!(&server.endpoint, Endpoint::Tcp { tls: Some(_), .. });
    if encrypted {
        Diagnostic::ok("the connection is encrypted (TLS)")
    } else if local {
        Diagnostic::ok("the connection does not leave this machine")
    } else if server.password.is_some() {
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
        let level = |url: &str, local: bool| judge(&url::parse(url).expect(url), local).level;
        assert_eq!(level("redis://u:pw@db", false), Level::Warn);
        assert_eq!(level("redis://u:pw@db", true), Level::Ok);
        assert_eq!(level("redis://db", false), Level::Ok);
        assert_eq!(level("rediss://u:pw@db", false), Level::Ok);
    }
}
