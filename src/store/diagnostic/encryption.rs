//! Whether others can listen to the connection to a server.

use std::net::IpAddr;
use std::time::Duration;

use super::Diagnostic;
use crate::net::endpoint::Endpoint;
use crate::net::resolve::resolve;
use crate::sys::clock::Moment;

/// Judges whether others between here and the servers at `endpoints` could listen, or pose as a server. Returns `exposed`,
/// unless TLS prevents that (`is_safe`) or the connections stay on this machine; `None` if no server is reached over TCP. Looks
/// up the servers' names within `timeout`.
pub(in crate::store) fn diagnose(
    endpoints: &[Endpoint],
    is_safe: bool,
    exposed: Diagnostic,
    timeout: Duration,
) -> Option<Diagnostic> {
    let deadline = Moment::now() + timeout;
    let is_local = |host: &str| {
        let addresses = resolve(host, deadline).unwrap_or_default();
        !addresses.is_empty() && addresses.iter().all(IpAddr::is_loopback)
    };
    let hosts: Vec<&str> = endpoints.iter().filter_map(name).collect();
    (!hosts.is_empty()).then(|| judge(is_safe, || hosts.into_iter().all(is_local), exposed))
}

/// Returns the name of a server that is reached over TCP.
fn name(endpoint: &Endpoint) -> Option<&str> {
    match endpoint {
        Endpoint::Tcp { host, .. } => Some(host),
        Endpoint::Unix(_) => None,
    }
}

/// Returns the finding about connections over TCP.
fn judge(is_safe: bool, is_local: impl FnOnce() -> bool, exposed: Diagnostic) -> Diagnostic {
    if is_safe {
        Diagnostic::ok("the connection is encrypted (TLS)")
    } else if is_local() {
        Diagnostic::ok("the connection does not leave this machine")
    } else {
        exposed
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
}
