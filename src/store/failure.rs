//! Why a request to a server failed: the same kinds, words and consequences for every store with a server.

use std::fmt::{Debug, Display};
use std::io;

use anyhow::anyhow;
use nix::errno::Errno;

use super::record_limit::RecordTooLong;
use super::{RetryClass, StoreError, listing_limit};
use crate::lock::state::FenceExhausted;
use crate::net::endpoint::TlsFiles;
use crate::net::tls_error::{HandshakeFailure, certificate_alert};
use crate::text::escape::escaped;

/// Why a request failed. `R` is how this kind of server rejects one.
#[derive(Clone, Debug)]
pub enum Failure<R> {
    /// The server could not be reached, so it has seen nothing of the request.
    Unreachable {
        /// Why.
        why: String,
        /// What to do, as a suffix of the message; empty if that is not known.
        advice: String,
    },
    /// The process has no descriptor or memory left for a connection.
    NoResources(String),
    /// The process cannot wait for the answer.
    NoWait(Errno),
    /// The server rejects our certificate, or requires one, with this TLS alert. It has not read the request.
    BadCertificate(String),
    /// The connection was closed before an answer came.
    Closed,
    /// The same, and the server has never answered this process: it may expect another kind of connection.
    HungUp,
    /// No answer came in time.
    Silent,
    /// The server began to answer, but did not finish in time.
    Slow,
    /// The answer is not one that such a server gives: what is wrong with it.
    UnexpectedReply(&'static str),
    /// The server has answered, but may no longer be the primary, for this reason.
    Demoted(String),
    /// Others changed the lock before each of our attempts.
    Contended,
    /// What stores the lock was deleted before each of our attempts: what that is, in the plural.
    Deleted(&'static str),
    /// What is stored of this lock cannot be read: why, and what to do.
    Broken(String),
    /// The record of this lock would become too long.
    RecordTooLong(RecordTooLong),
    /// A listing is longer than [`listing_limit::BYTES`].
    ListingTooLong,
    /// The fence of this lock, which is this number, cannot grow.
    FenceEnds(u64),
    /// The server has rejected the request.
    Rejected(R),
    /// What else the server does, as it follows the server's name.
    Other(RetryClass, String),
    /// No server was sent the request, for a reason that is a message by itself.
    Unsent(RetryClass, String),
}

/// How one kind of server rejects a request.
pub trait Rejection: Debug {
    /// What rejects.
    type Server: Peer;

    /// Returns whether, and how soon, the same request may succeed.
    fn retry_class(&self) -> RetryClass;

    /// Returns whether the request may be carried out although the server rejects it.
    fn leaves_outcome_open(&self) -> bool;

    /// Describes what this `server` rejects, and what to do about it.
    fn explain(&self, server: &Self::Server) -> String;
}

/// A server, or several that are one store. Its name never contains a password.
pub trait Peer: Display {
    /// What to ask if its answer is unexpected, after a semicolon.
    const QUESTION: &'static str;

    /// Returns the files for TLS with which it is reached; `None` if TLS is not used.
    fn tls_files(&self) -> Option<&TlsFiles>;

    /// Returns what to write in the URL for a connection without TLS, and over TLS; `None` if it is reached in a way
    /// that never uses TLS, or finds that out by itself.
    fn spellings(&self) -> Option<(&'static str, &'static str)> {
        None
    }
}

/// Fails if a lock can get no further fence.
impl<R> From<FenceExhausted> for Failure<R> {
    fn from(FenceExhausted { last }: FenceExhausted) -> Self {
        Failure::FenceEnds(last)
    }
}

impl<R: Rejection> Failure<R> {
    /// Returns the failure of an attempt to reach the `server`.
    pub fn of_dial(error: &io::Error, server: &R::Server) -> Self {
        match (certificate_alert(error), error.raw_os_error().map(Errno::from_raw)) {
            (Some(alert), _) => Failure::BadCertificate(alert),
            // This does not pass by itself.
            (None, Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM)) => Failure::NoResources(error.to_string()),
            (None, _) => Failure::Unreachable { why: error.to_string(), advice: after_handshake(error, server) },
        }
    }

    /// Returns the failure of an operation on a stream.
    pub fn of_stream(error: &io::Error) -> Self {
        match (certificate_alert(error), error.kind()) {
            (Some(alert), _) => Failure::BadCertificate(alert),
            (None, io::ErrorKind::TimedOut) => Failure::Silent,
            (None, io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput) => {
                Failure::UnexpectedReply("a message that cannot be read")
            }
            (None, _) => Failure::Closed,
        }
    }

    /// Returns a failure of its own kind that does not pass by itself: `what` the server does, as it follows the
    /// server's name.
    pub fn lasting(what: impl Into<String>) -> Self {
        Failure::Other(RetryClass::Permanent, what.into())
    }

    /// Returns whether the request may have been carried out, or may be later.
    pub fn leaves_outcome_open(&self) -> bool {
        match self {
            Failure::Closed
            | Failure::HungUp
            | Failure::Silent
            | Failure::Slow
            | Failure::UnexpectedReply(_)
            | Failure::Demoted(_)
            | Failure::Other(..) => true,
            Failure::Rejected(rejection) => rejection.leaves_outcome_open(),
            Failure::Unreachable { .. }
            | Failure::NoResources(_)
            | Failure::NoWait(_)
            | Failure::BadCertificate(_)
            | Failure::Contended
            | Failure::Deleted(_)
            | Failure::Broken(_)
            | Failure::RecordTooLong(_)
            | Failure::ListingTooLong
            | Failure::FenceEnds(_)
            | Failure::Unsent(..) => false,
        }
    }

    /// Returns whether the same request may succeed a little later.
    pub fn is_transient(&self) -> bool {
        self.retry_class() != RetryClass::Permanent
    }

    /// Returns whether, and how soon, to try again.
    pub fn retry_class(&self) -> RetryClass {
        match self {
            Failure::Unreachable { .. }
            | Failure::Closed
            | Failure::HungUp
            | Failure::Silent
            | Failure::Demoted(_)
            | Failure::Deleted(_) => RetryClass::Unavailable,
            Failure::Slow => RetryClass::Slow,
            Failure::Contended => RetryClass::Busy,
            Failure::Rejected(rejection) => rejection.retry_class(),
            Failure::Other(retry_class, _) | Failure::Unsent(retry_class, _) => *retry_class,
            Failure::NoResources(_)
            | Failure::NoWait(_)
            | Failure::BadCertificate(_)
            | Failure::UnexpectedReply(_)
            | Failure::Broken(_)
            | Failure::RecordTooLong(_)
            | Failure::ListingTooLong
            | Failure::FenceEnds(_) => RetryClass::Permanent,
        }
    }

    /// Describes the failure: what failed, on what, and what to do about it where that is known.
    pub fn explain(&self, server: &R::Server) -> StoreError {
        match self {
            Failure::Unreachable { why, advice } => anyhow!("cannot reach {server}: {}{advice}", escaped(why)),
            Failure::NoResources(why) => anyhow!("cannot reach {server}: {}", escaped(why)),
            Failure::NoWait(errno) => anyhow!("cannot wait for {server}: {}", errno.desc()),
            Failure::BadCertificate(alert) if has_identity(server) => anyhow!(
                "{server} rejects the client's certificate (TLS alert {alert}); check cert=FILE and key=FILE in the \
                 store's URL"
            ),
            Failure::BadCertificate(alert) => anyhow!(
                "{server} requires a certificate of its clients (TLS alert {alert}); give one with cert=FILE and \
                 key=FILE in the store's URL"
            ),
            Failure::Closed => anyhow!("{server} closed the connection before it answered"),
            Failure::HungUp => anyhow!("{server} closed the connection before it answered{}", after_hang_up(server)),
            Failure::Silent => anyhow!("{server} did not answer in time"),
            Failure::Slow => {
                anyhow!(
                    "{server} did not answer in time, though it can be reached; allow more time with --store-timeout"
                )
            }
            Failure::UnexpectedReply(what) => anyhow!("unexpected reply from {server}: {what}{}", R::Server::QUESTION),
            Failure::Demoted(why) => anyhow!("{server} may not be the primary any more: {why}"),
            Failure::Contended => anyhow!("others kept changing the lock in {server}; try again"),
            Failure::Deleted(what) => {
                anyhow!("its record in {server} was deleted each time that it was read; find what deletes {what}")
            }
            Failure::Broken(why) => {
                anyhow!("its record in {server} is broken, so the lock cannot be acquired: {}", escaped(why))
            }
            Failure::RecordTooLong(refused) => refused.explain(server),
            Failure::ListingTooLong => anyhow!(
                "{server} lists more than {} MiB of locks, the most that lockrun reads; ask for one lock with lockrun \
                 status KEY, or spread the locks over several stores",
                listing_limit::BYTES >> 20
            ),
            Failure::FenceEnds(last) => {
                anyhow!("its fence in {server} is {last}, and cannot grow any more; use another key")
            }
            Failure::Rejected(rejection) => anyhow!(rejection.explain(server)),
            Failure::Other(_, what) => anyhow!("{server} {}", escaped(what)),
            Failure::Unsent(_, why) => anyhow!("{why}"),
        }
    }
}

/// What to do if the server may require a certificate, and the URL gives none.
const MAY_WANT_CERTIFICATE: &str =
    "; if it requires a certificate of its clients, give one with cert=FILE and key=FILE in the store's URL";

/// Returns whether the URL gives us a certificate for the `server`.
fn has_identity(server: &impl Peer) -> bool {
    server.tls_files().is_some_and(|files| files.identity.is_some())
}

/// Returns what to do if the server's certificate was issued by an authority that is not among these files, nor trusted
/// otherwise.
pub fn after_unknown_authority(files: Option<&TlsFiles>) -> &'static str {
    if files.is_some_and(|files| files.ca.is_some()) {
        "; check that ca=FILE in the store's URL names the authority that issued it"
    } else {
        "; name the authority's certificate with ?ca=FILE in the store's URL"
    }
}

/// Returns what to do after a failed TLS handshake with the `server`, as a suffix of the message.
fn after_handshake(error: &io::Error, server: &impl Peer) -> String {
    let (without_tls, _) = server.spellings().unwrap_or_default();
    let name_port = format!("name the TLS port in the store's URL, or write {without_tls} if it has none");
    match HandshakeFailure::of(error) {
        None => String::new(),
        Some(HandshakeFailure::UnknownAuthority) => after_unknown_authority(server.tls_files()).into(),
        Some(HandshakeFailure::Rejected) if has_identity(server) => String::new(),
        Some(HandshakeFailure::Rejected) => MAY_WANT_CERTIFICATE.into(),
        Some(HandshakeFailure::NotTls) => format!("; {name_port}"),
        Some(HandshakeFailure::Silence | HandshakeFailure::HungUp) => {
            format!("; if that is not a TLS port, {name_port}")
        }
    }
}

/// Returns why the `server` may have closed the connection at the first request, and what to do, as a suffix of the
/// message.
fn after_hang_up(server: &impl Peer) -> String {
    match server.spellings() {
        Some((_, with_tls)) if server.tls_files().is_none() => {
            format!("; if that is a TLS port, write {with_tls} in the store's URL")
        }
        Some(_) if !has_identity(server) => MAY_WANT_CERTIFICATE.into(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    /// A server that is reached over TLS with these files, or without TLS.
    struct Db(Option<TlsFiles>);

    impl fmt::Display for Db {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Db at h")
        }
    }

    impl Peer for Db {
        const QUESTION: &'static str = "; is it a Db?";

        fn tls_files(&self) -> Option<&TlsFiles> {
            self.0.as_ref()
        }

        fn spellings(&self) -> Option<(&'static str, &'static str)> {
            Some(("db://", "dbs://"))
        }
    }

    /// A rejection of this retry class.
    #[derive(Debug)]
    struct Rejected(RetryClass);

    impl Rejection for Rejected {
        type Server = Db;

        fn retry_class(&self) -> RetryClass {
            self.0
        }

        fn leaves_outcome_open(&self) -> bool {
            self.0 != RetryClass::Permanent
        }

        fn explain(&self, server: &Db) -> String {
            format!("{server} rejects it")
        }
    }

    fn with_identity() -> Db {
        Db(Some(TlsFiles { identity: Some(("cert".into(), "key".into())), ..TlsFiles::default() }))
    }

    fn in_words(failure: &Failure<Rejected>, server: &Db) -> String {
        failure.explain(server).to_string()
    }

    #[test]
    fn a_lack_of_resources_does_not_pass() {
        for (errno, retry_class) in [
            (Errno::ECONNREFUSED, RetryClass::Unavailable),
            (Errno::EMFILE, RetryClass::Permanent),
            (Errno::ENOMEM, RetryClass::Permanent),
        ] {
            let failure = Failure::<Rejected>::of_dial(&errno.into(), &Db(None));
            assert_eq!((failure.retry_class(), failure.leaves_outcome_open()), (retry_class, false), "{errno}");
            assert!(in_words(&failure, &Db(None)).starts_with("cannot reach Db at h: "), "{errno}");
        }
    }

    #[test]
    fn what_may_have_arrived_leaves_the_outcome_open() {
        for kind in [io::ErrorKind::TimedOut, io::ErrorKind::ConnectionReset, io::ErrorKind::InvalidData] {
            assert!(Failure::<Rejected>::of_stream(&kind.into()).leaves_outcome_open(), "{kind}");
        }
        for class in [RetryClass::Busy, RetryClass::Permanent] {
            let failure = Failure::Rejected(Rejected(class));
            assert_eq!((failure.retry_class(), failure.leaves_outcome_open()), (class, class == RetryClass::Busy));
        }
        assert!(!Failure::<Rejected>::Unsent(RetryClass::Unavailable, String::new()).leaves_outcome_open());
        assert!(!Failure::<Rejected>::BadCertificate(String::new()).leaves_outcome_open());
    }

    #[test]
    fn advice_depends_on_what_the_url_says() {
        let hung_up = "Db at h closed the connection before it answered";
        let with_tls = Db(Some(TlsFiles::default()));
        for (server, advice) in [
            (Db(None), "; if that is a TLS port, write dbs:// in the store's URL"),
            (Db(Some(TlsFiles::default())), MAY_WANT_CERTIFICATE),
            (with_identity(), ""),
        ] {
            assert_eq!(in_words(&Failure::HungUp, &server), format!("{hung_up}{advice}"));
            assert_eq!(in_words(&Failure::Closed, &server), hung_up);
        }
        let rejected = Failure::BadCertificate("UnknownCA".to_owned());
        assert!(in_words(&rejected, &with_tls).starts_with("Db at h requires a certificate of its clients"));
        assert!(in_words(&rejected, &with_identity()).starts_with("Db at h rejects the client's certificate"));
        let handshake = |failure| after_handshake(&io::Error::other(failure), &with_tls);
        assert_eq!(
            handshake(HandshakeFailure::NotTls),
            "; name the TLS port in the store's URL, or write db:// if it has none"
        );
        assert_eq!(handshake(HandshakeFailure::Rejected), MAY_WANT_CERTIFICATE);
    }

    #[test]
    fn words_of_a_server_are_escaped() {
        let failure = Failure::lasting("says \u{1b}[31m");
        assert!(!in_words(&failure, &Db(None)).contains('\u{1b}'));
        let failure = Failure::Broken("\u{1b}".to_owned());
        assert!(!in_words(&failure, &Db(None)).contains('\u{1b}'));
    }
}
