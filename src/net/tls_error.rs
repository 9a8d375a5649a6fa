//! Why TLS fails, in words: rustls has none for many of its errors.

use std::fmt;
use std::io;
use std::time::Duration;

use rustls::{AlertDescription, CertificateError, Error, InconsistentKeys, InvalidMessage};

use crate::text::duration::say;

/// Why a handshake failed, where that hints at a wrong address of the server or at untrusted authorities. It is the
/// content of the [`io::Error`] that reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeFailure {
    /// The server did not answer in time: it hangs, or expects another protocol.
    Silence,
    /// The server closed the connection.
    HungUp,
    /// The server's reply is not TLS.
    NotTls,
    /// The server's certificate was issued by an authority that is not trusted.
    UnknownAuthority,
    /// The server accepts no such client. Before TLS 1.3, this is all that it says about a missing client certificate.
    Rejected,
}

impl HandshakeFailure {
    /// Returns which of these failures is behind an error of the handshake, if one is.
    fn behind(error: &io::Error) -> Option<Self> {
        match (tls_error(error), error.kind()) {
            (Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)), _) => Some(Self::NotTls),
            (Some(Error::InvalidCertificate(CertificateError::UnknownIssuer)), _) => Some(Self::UnknownAuthority),
            (Some(Error::AlertReceived(AlertDescription::HandshakeFailure)), _) => Some(Self::Rejected),
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
            HandshakeFailure::Rejected => "it ended the TLS handshake (TLS alert HandshakeFailure)",
        })
    }
}

impl std::error::Error for HandshakeFailure {}

/// Returns the name of the TLS alert by which the server rejected the client's certificate, or the lack of one, if
/// `error` reports such an alert. A TLS 1.3 server judges the certificate after the client has completed the handshake,
/// so a later read may report it.
pub fn certificate_alert(error: &io::Error) -> Option<String> {
    let Some(Error::AlertReceived(alert)) = tls_error(error) else { return None };
    let is_about_certificate = matches!(
        alert,
        AlertDescription::NoCertificate
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRequired
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::DecryptError
    );
    is_about_certificate.then(|| format!("{alert:?}"))
}

/// Returns the `error` of a handshake as it is reported: as a [`HandshakeFailure`] if it is one; unchanged if it is a
/// [`certificate_alert`] or not of TLS; and with a message [`in_words`] otherwise.
pub(super) fn explained(error: io::Error) -> io::Error {
    match (HandshakeFailure::behind(&error), tls_error(&error)) {
        (Some(failure), _) => io::Error::new(error.kind(), failure),
        (None, Some(reason)) if certificate_alert(&error).is_none() => io::Error::new(error.kind(), in_words(reason)),
        (None, _) => error,
    }
}

fn tls_error(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

/// Returns what an error of TLS says. It may contain names from the other side's certificate, which are not escaped.
pub(super) fn in_words(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(why) => certificate_in_words(why),
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => "the key is not that of the certificate".to_owned(),
        Error::AlertReceived(alert) => format!("the server ended the TLS handshake (TLS alert {alert:?})"),
        Error::PeerIncompatible(why) => format!("TLS is not possible with this server: {}", split_name(why)),
        Error::PeerMisbehaved(why) => format!("the server violates the rules of TLS: {}", split_name(why)),
        Error::InvalidMessage(why) => format!("the server violates the rules of TLS: {}", split_name(why)),
        Error::General(why) => why.clone(),
        other => format!("TLS failed: {}", split_name(other)),
    }
}

/// Returns what is wrong with a certificate, and how to issue a better one.
fn certificate_in_words(error: &CertificateError) -> String {
    let between = |later: u64, sooner: u64| say(Duration::from_secs(later.saturating_sub(sooner)));
    match error {
        CertificateError::UnknownIssuer => "the certificate was issued by an unknown authority".to_owned(),
        CertificateError::ExpiredContext { time, not_after } => {
            format!("the certificate expired {} ago", between(time.as_secs(), not_after.as_secs()))
        }
        CertificateError::NotValidYetContext { time, not_before } => format!(
            "the certificate is not valid for another {}; is the clock of this machine right?",
            between(not_before.as_secs(), time.as_secs())
        ),
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names = match &presented[..] {
                [] => "no name: it has no subjectAltName, and its common name does not count".to_owned(),
                names => names.iter().map(|name| plain_name(name)).collect::<Vec<_>>().join(", "),
            };
            format!("the certificate is not valid for {}, but for {names}", expected.to_str())
        }
        CertificateError::InvalidPurposeContext { .. } => {
            "the certificate is not for this purpose (extendedKeyUsage)".to_owned()
        }
        // Errors of the webpki crate, which is not a dependency of ours.
        CertificateError::Other(why) => match why.0.to_string().as_str() {
            "UnsupportedCertVersion" => {
                "the certificate is of X.509 version 1, which cannot be verified; issue one with \
                 extensions: openssl x509 -req -extfile FILE, with subjectAltName and basicConstraints=CA:FALSE in it"
                    .to_owned()
            }
            "CaUsedAsEndEntity" => "the certificate is an authority's own, not a server's; issue one with \
                 basicConstraints=CA:FALSE and subjectAltName, signed by that authority"
                .to_owned(),
            why => format!("the certificate cannot be verified: {}", split_name(&why)),
        },
        other => format!("the certificate cannot be verified: {}", split_name(other)),
    }
}

/// Returns a name of a certificate as rustls shows it, without its kind: `DnsName("a")`.
fn plain_name(shown: &str) -> &str {
    let inner = shown.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(shown).trim_matches('"')
}

/// Returns the name of an error, without its data, as words: `BadEncoding` as `bad encoding`.
fn split_name(error: &impl fmt::Debug) -> String {
    let name = format!("{error:?}");
    let mut words = String::new();
    for letter in name.trim_matches('"').chars().take_while(char::is_ascii_alphanumeric) {
        if letter.is_ascii_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.push(letter.to_ascii_lowercase());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_words() {
        assert_eq!(split_name(&CertificateError::BadEncoding), "bad encoding");
        assert_eq!(split_name(&"MissingOrMalformedExtensions"), "missing or malformed extensions");
        assert_eq!(split_name(&Error::General("x".to_owned())), "general");
        assert_eq!(plain_name("DnsName(\"a.b\")"), "a.b");
        assert_eq!(plain_name("IpAddress(127.0.0.1)"), "127.0.0.1");
        assert_eq!(plain_name("DirectoryName"), "DirectoryName");
    }
}
