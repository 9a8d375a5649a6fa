//! Whether the connection to a database is encrypted, where the client asks the server for TLS on the same port.

use std::io;
use std::time::Duration;

use super::diagnostic::Diagnostic;
use super::diagnostic::encryption::{self, EAVESDROPPERS};
use super::failure::{Failure, Rejection, after_unknown_authority};
use crate::net::endpoint::{Endpoint, TlsFiles};
use crate::net::tls::{Tls, Verification};
use crate::net::tls_error::{HandshakeFailure, certificate_alert};

/// Whether TLS is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encryption {
    /// Without TLS.
    Never,
    /// If the server offers it, with any certificate.
    IfOffered,
    /// With TLS, or not at all.
    Required(Verification),
}

/// How the URLs of a kind of store spell this.
pub(super) struct Spelling {
    /// The parameter.
    pub(super) parameter: &'static str,
    /// Its values: never, if it is offered, with any certificate, with one from a known authority, and with one for the
    /// host's name.
    pub(super) values: [&'static str; 5],
}

impl Encryption {
    /// Returns what this value of the parameter means; if there is none, that the certificate is verified if an
    /// authority is named, and else that TLS is used if it is offered.
    pub(super) fn read(value: Option<&str>, tls: &TlsFiles, spelling: &Spelling) -> Result<Self, String> {
        let Spelling { parameter, values: [never, if_offered, required, authority, full] } = spelling;
        let has_authority = tls.ca.is_some();
        let value = value.unwrap_or(if has_authority { full } else { if_offered });
        let encryption = match value {
            _ if value == *never => Encryption::Never,
            _ if value == *if_offered => Encryption::IfOffered,
            _ if has_authority && [required, authority].contains(&&value) => {
                Encryption::Required(Verification::Authority)
            }
            _ if value == *required => Encryption::Required(Verification::None),
            // An impostor, too, can have a certificate from one of the system's authorities.
            _ if value == *authority => {
                return Err(format!("has {parameter}={authority} without ca; name the authority, or use {full}"));
            }
            _ if value == *full => Encryption::Required(Verification::Full),
            _ => {
                return Err(format!(
                    "has a value of {parameter} that is none of {never}, {if_offered}, {required}, {authority} and {full}"
                ));
            }
        };
        if has_authority && !matches!(encryption, Encryption::Required(_)) {
            return Err(format!("names an authority, which {parameter}={value} does not ask; use {full}"));
        }
        Ok(encryption)
    }

    /// Returns what TLS needs to reach these `hosts`; `None` if it is not used. Fails if TLS is impossible with these
    /// hosts or files, and says why.
    pub(super) fn prepare(self, hosts: &[Endpoint], files: &TlsFiles) -> Result<Option<Tls>, String> {
        match self {
            Encryption::Never => Ok(None),
            // A host that does not offer TLS may have any name.
            Encryption::IfOffered => Tls::new(files, Verification::None).map(Some),
            Encryption::Required(verification) => Tls::for_servers(hosts, files, verification).map(Some),
        }
    }

    /// Returns the failure of a TLS handshake with these files. `never` asks for no TLS in the URL.
    pub(super) fn failed_handshake<R: Rejection>(self, error: &io::Error, files: &TlsFiles, never: &str) -> Failure<R> {
        if certificate_alert(error).is_some() {
            return Failure::of_stream(error);
        }
        let advice = match HandshakeFailure::of(error) {
            Some(HandshakeFailure::UnknownAuthority) => after_unknown_authority(Some(files)).to_owned(),
            // lockrun does not do that by itself: a server in between could break the handshake to make it.
            _ if self == Encryption::IfOffered && error.kind() != io::ErrorKind::TimedOut => {
                format!("; if the connection need not be encrypted, write {never} in the store's URL")
            }
            _ => String::new(),
        };
        Failure::Unreachable { why: error.to_string(), advice }
    }

    /// Returns whether a server's certificate, if it has one, is verified.
    pub(super) fn verifies(self) -> bool {
        matches!(self, Encryption::Required(Verification::Full | Verification::Authority))
    }
}

/// Judges whether others on the network could listen to the connection to these `hosts`, or pose as one of them. The
/// connection `is_encrypted`, and the server `is_proved` to be the one that the URL names. `full` asks for that in the
/// URL. Looks up the hosts' names within `timeout`.
pub(super) fn judge(
    hosts: &[Endpoint],
    is_encrypted: bool,
    is_proved: bool,
    full: &str,
    timeout: Duration,
) -> Option<Diagnostic> {
    let exposed = if is_encrypted {
        Diagnostic::warn(
            "the connection is encrypted (TLS), but the server's certificate is not verified",
            format!(
                "another server in between could pose as this one; write {full} in the store's URL, and ca=FILE if the \
                 authority is your own"
            ),
        )
    } else {
        Diagnostic::warn(
            "the connection travels over the network in clear",
            format!(
                "{EAVESDROPPERS}; turn TLS on at the server, and write {full} in the store's URL, or use a network that \
                 is encrypted by itself"
            ),
        )
    };
    encryption::diagnose(hosts, is_encrypted && is_proved, exposed, timeout)
}
