//! Whether others can listen to the connection to a server.

use std::net::IpAddr;
use std::time::Duration;

use super::Diagnostic;
use crate::net::endpoint::Endpoint;
use crate::net::resolve::resolve;
use crate::sys::clock::Moment;

/// What a connection in clear costs.
pub(in crate::store) const EAVESDROPPERS: &str = "anyone on the network can read the tokens and release locks";

/// Judges whether others could read a password on the way to the servers at `endpoints`, whose names it looks up within
/// `timeout`. A URL that begins with `scheme` would encrypt the connection.
pub(in crate::store) fn diagnose_password(
    endpoints: &[Endpoint],
    is_encrypted: bool,
    has_password: bool,
    scheme: &str,
    timeout: Duration,
) -> Option<Diagnostic> {
    let exposed = if has_password {
        Diagnostic::warn(
            "the password travels over the network in clear",
            format!("{EAVESDROPPERS}; use {scheme} (TLS), or a network that is encrypted by itself"),
        )
    } else {
        Diagnostic::ok("the connection is not encrypted, and there is no password to expose")
    };
    diagnose(endpoints, is_encrypted, exposed, timeout)
}

/// Judges whether others between here and the servers at `endpoints` could listen, or pose as a server. Returns
/// `exposed`, unless TLS prevents that (`is_safe`) or the connections stay on this machine; `None` if no server is
/// reached over TCP. Looks up the servers' names within `timeout`.
pub(in crate::store) fn diagnose<'a>(
    endpoints: &'a [Endpoint],
    is_safe: bool,
    exposed: Diagnostic,
    timeout: Duration,
) -> Option<Diagnostic> {
    let deadline = Moment::now() + timeout;
    let is_local = |host: &str| {
        let addresses = resolve(host, deadline).unwrap_or_default();
        !addresses.is_empty() && addresses.iter().all(IpAddr::is_loopback)
    };
    let host = |endpoint: &'a Endpoint| match endpoint {
        Endpoint::Tcp { host, .. } => Some(host.as_str()),
        Endpoint::Unix(_) => None,
    };
    let hosts: Vec<&str> = endpoints.iter().filter_map(host).collect();
    if hosts.is_empty() {
        None
    } else if is_safe {
        Some(Diagnostic::ok("the connection is encrypted (TLS)"))
    } else if hosts.into_iter().all(is_local) {
        Some(Diagnostic::ok("the connection does not leave this machine"))
    } else {
        Some(exposed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::diagnostic::Level;

    #[test]
    fn what_leaves_this_machine_in_clear_is_found() {
        let tcp = |host: &str| Endpoint::Tcp { host: host.to_owned(), port: 1, tls: None };
        let unix = || Endpoint::Unix("/run/server".into());
        let level = |endpoints: &[Endpoint], is_safe: bool| {
            let exposed = Diagnostic::warn("in clear", "");
            diagnose(endpoints, is_safe, exposed, Duration::from_secs(1)).map(|diagnostic| diagnostic.level)
        };
        assert_eq!(level(&[tcp("192.0.2.1")], false), Some(Level::Warn));
        assert_eq!(level(&[tcp("192.0.2.1")], true), Some(Level::Ok));
        assert_eq!(level(&[tcp("localhost")], false), Some(Level::Ok));
        assert_eq!(level(&[tcp("127.0.0.1"), tcp("192.0.2.1")], false), Some(Level::Warn));
        assert_eq!(level(&[tcp("::1"), unix()], false), Some(Level::Ok));
        assert_eq!(level(&[unix()], false), None);
    }

    #[test]
    fn a_password_in_clear_is_found() {
        let level = |host: &str, is_encrypted, has_password| {
            let endpoint = Endpoint::Tcp { host: host.to_owned(), port: 1, tls: None };
            let found = diagnose_password(&[endpoint], is_encrypted, has_password, "s://", Duration::from_secs(1));
            found.map(|found| found.level)
        };
        assert_eq!(level("192.0.2.1", false, true), Some(Level::Warn));
        assert_eq!(level("localhost", false, true), Some(Level::Ok));
        assert_eq!(level("192.0.2.1", false, false), Some(Level::Ok));
        assert_eq!(level("192.0.2.1", true, true), Some(Level::Ok));
    }
}
