//! The connection to the server: whether others can listen to it, or pose as the server.

use std::time::Duration;

use crate::net::tls::Verification;
use crate::store::diagnostic::{
    Diagnostic,
    encryption::{self, EAVESDROPPERS},
};
use crate::store::postgres::url::{Binding, Encryption, Server};

/// Returns whether others on the network could listen to a connection to `server`, or pose as it. Looks up its name within `timeout`.
pub(super) fn diagnose(server: &Server, is_encrypted: bool, timeout: Duration) -> Option<Diagnostic> {
    // A proof that is bound to one certificate is useless to a server with another.
    let is_verified = matches!(server.encryption, Encryption::Required(Verification::Full | Verification::Authority))
        || server.binding == Binding::Required;
    let exposed = if is_encrypted {
        Diagnostic::warn(
            "the connection is encrypted (TLS), but the server's certificate is not verified",
            "another server in between could pose as this one; write sslmode=verify-full in the store's URL, \
             and ca=FILE if the authority is your own",
        )
    } else {
        Diagnostic::warn(
            "the connection travels over the network in clear",
            format!(
                "{EAVESDROPPERS}; turn TLS on at the server, and write sslmode=verify-full in the store's URL, or use a \
                 network that is encrypted by itself"
            ),
        )
    };
    encryption::diagnose(&server.hosts, is_encrypted && is_verified, exposed, timeout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::diagnostic::Level;
    use crate::store::postgres::url;

    #[test]
    fn who_can_listen_or_pose_is_found() {
        let level = |host: &str, parameters: &str, is_encrypted| {
            let server = url::parse(&format!("postgres://u@{host}/db{parameters}")).expect("is a URL");
            diagnose(&server, is_encrypted, Duration::from_secs(1)).map(|found| found.level)
        };
        assert_eq!(level("192.0.2.1", "", false), Some(Level::Warn));
        assert_eq!(level("192.0.2.1", "", true), Some(Level::Warn));
        assert_eq!(level("192.0.2.1", "?sslmode=require", true), Some(Level::Warn));
        assert_eq!(level("192.0.2.1", "?sslmode=verify-full", true), Some(Level::Ok));
        assert_eq!(level("192.0.2.1", "?sslmode=require&channel_binding=require", true), Some(Level::Ok));
        assert_eq!(level("127.0.0.1", "", false), Some(Level::Ok));
        assert_eq!(level("%2Frun%2Fpostgresql", "", false), None);
    }
}
