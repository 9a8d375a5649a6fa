//! Why a request to a Redis failed, what may have happened, and what to do.

use std::io;

use anyhow::anyhow;
use nix::errno::Errno;
use redis::{Cmd, Value};

use super::reply::UnexpectedReply;
use super::url::{Role, Server};
use super::{resp, script};
use crate::net::endpoint::Endpoint;
use crate::net::tls_error::{HandshakeFailure, certificate_alert};
use crate::store::{RetryClass, StoreError, listing_limit};
use crate::text::escape::escaped;

/// The codes of transient errors: the server is loading its data, runs another client's script, is being demoted, has lost
/// its primary or too many replicas, cannot write to its disk, is full, or has too many clients; or a hash slot is moving or
/// not served.
const TRANSIENT: [&str; 13] = [
    "LOADING",
    "BUSY",
    "UNBLOCKED",
    "READONLY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "MOVED",
    "ASK",
    "NOREPLICAS",
    "MISCONF",
    "OOM",
    FULL,
];

/// The error of a server that has as many clients as it may have.
const FULL: &str = "ERR max number of clients";

/// The codes that say that a hash slot of a cluster is on another server, or on its way there.
const SLOT_MOVING: [&str; 3] = ["MOVED", "ASK", "TRYAGAIN"];

/// The beginnings of errors by which a server rejects a client, and with it all that this connection has sent: it accepts no
/// such client, or none at all, or the client has not logged in.
const CLIENT_REJECTED: [&str; 4] = ["DENIED", FULL, "NOAUTH", "ERR Protocol error: unauthenticated "];

/// The beginnings of errors by which a server rejects one request that it does not look at: the client lacks the right, or the
/// server the command.
const UNREAD: [&str; 2] = ["NOPERM", "ERR unknown command"];

/// Why a request failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server could not be reached: it has seen nothing of the request.
    Unreachable(io::Error),
    /// The connection was closed before an answer came.
    Closed,
    /// The same, and the server has never answered this process.
    HungUp,
    /// The server has rejected our certificate, or requires one, by this TLS alert. It has not read the request.
    BadCertificate(String),
    /// No readable answer came in time; says what happened.
    NoAnswer(&'static str),
    /// What came is not in Redis's protocol.
    NotRedis,
    /// The answer to this command is longer than [`resp::ORDINARY`].
    TooLong(String),
    /// A listing is longer than [`listing_limit::BYTES`].
    ListingTooLong,
    /// The process cannot wait for the answer.
    NoWait(Errno),
    /// The primary is not known. No server was sent the request.
    NoPrimary {
        /// Why.
        why: String,
        /// Whether it may be known a little later.
        is_transient: bool,
    },
    /// The server has answered, but it is not confirmed, for this reason, that it is still the primary.
    Unconfirmed(String),
    /// An answer came that no Redis gives.
    UnexpectedReply(UnexpectedReply),
    /// The server has rejected the request, or our introduction.
    Refused {
        /// The command.
        command: String,
        /// The server's words.
        error: String,
        /// Whether it may have run the request all the same.
        may_have_run: bool,
    },
}

impl Failure {
    /// Returns the failure of an attempt to reach a server.
    pub(super) fn of_dial(error: io::Error) -> Self {
        certificate_alert(&error).map_or(Failure::Unreachable(error), Failure::BadCertificate)
    }

    /// Returns the failure of an operation on a stream; `late` says what did not happen if its deadline has passed.
    pub(super) fn of_stream(error: &io::Error, late: &'static str) -> Self {
        match certificate_alert(error) {
            Some(alert) => Failure::BadCertificate(alert),
            None if error.kind() == io::ErrorKind::TimedOut => Failure::NoAnswer(late),
            None => Failure::Closed,
        }
    }

    /// Returns the failure of a `command` whose answer is too long.
    pub(super) fn too_long(command: &Cmd) -> Self {
        Failure::TooLong(name_of(command))
    }

    /// Returns the failure of a `command` that the server has rejected with this `error`.
    pub(super) fn refused(command: &Cmd, mut error: String) -> Self {
        let name = name_of(command);
        // Servers quote what they were sent: the beginning of a script, and some also the password.
        let mut quoted = error.find(", with args beginning with");
        if name == "AUTH" {
            quoted = error.find(['\'', '"', '`']);
        }
        error.truncate(quoted.unwrap_or(error.len()));
        let may_have_run = !is_unread(&error);
        Failure::Refused { command: name, error: error.trim_end().to_owned(), may_have_run }
    }

    /// Returns the failure of a request before which another one, such as our introduction, was rejected in this way. Whether
    /// the request may have run depends on its own `outcome`: an open server without AUTH runs it all the same.
    pub(super) fn followed_by(self, outcome: Result<Value, Failure>) -> Self {
        let Failure::Refused { command, error, .. } = self else { return self };
        let may_have_run = match outcome {
            Ok(_) => true,
            // Then nothing else is worth mending.
            Err(own) if own.is_of_another_kind_of_server() => return own,
            // A script selects its database before anything else.
            Err(Failure::Refused { may_have_run, .. }) => may_have_run && command != "SELECT",
            Err(_) if begins_with_any(&error, &CLIENT_REJECTED) => false,
            Err(unread) => return unread,
        };
        Failure::Refused { command, error, may_have_run }
    }

    /// Returns whether the server lacks the command by which this kind of store is used.
    fn is_of_another_kind_of_server(&self) -> bool {
        let Failure::Refused { command, error, .. } = self else { return false };
        matches!(command.as_str(), "EVAL" | "CLUSTER" | "SENTINEL") && error.contains("unknown command")
    }

    /// Returns the failure of the confirmation of an answer.
    pub(super) fn of_confirmation(self) -> Self {
        match self {
            Failure::NoPrimary { why, .. } => Failure::Unconfirmed(why),
            failure => failure,
        }
    }

    /// Returns whether the same request may succeed a little later: the server is away, silent, starting, busy, or briefly
    /// not the primary.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Failure::Unreachable(error) => !is_for_want_of_resources(error),
            _ if self.is_unanswered() => true,
            Failure::NoPrimary { is_transient, .. } => *is_transient,
            Failure::Refused { error, .. } => TRANSIENT.iter().any(|code| has_code(error, code)),
            _ => false,
        }
    }

    /// Returns the kind of trouble, which decides whether a waiter tries again.
    pub(super) fn trouble(&self) -> RetryClass {
        match self {
            _ if self.is_of_full_server() => RetryClass::Busy,
            _ if self.is_transient() => RetryClass::Unavailable,
            _ => RetryClass::Permanent,
        }
    }

    /// Returns whether the request may still arrive.
    pub(super) fn is_unanswered(&self) -> bool {
        matches!(
            self,
            Failure::Closed
                | Failure::HungUp
                | Failure::NoAnswer(_)
                | Failure::NotRedis
                | Failure::TooLong(_)
                | Failure::Unconfirmed(_)
        )
    }

    /// Returns whether no server has run any part of the request, or will.
    pub(super) fn cannot_have_run(&self) -> bool {
        match self {
            Failure::Unreachable(_) | Failure::BadCertificate(_) | Failure::NoPrimary { .. } => true,
            Failure::Refused { may_have_run, .. } => !may_have_run,
            _ => false,
        }
    }

    /// Returns whether to ask another server, or the same one again at once: a slot is moving, or the primary has changed.
    pub(super) fn is_of_a_move(&self) -> bool {
        match self {
            Failure::Unconfirmed(_) => true,
            Failure::Refused { error, .. } => is_of_a_slot(error) || has_code(error, "READONLY"),
            _ => false,
        }
    }

    /// Returns whether the server had no room for another client: it may have as soon as one of the others has gone.
    pub(super) fn is_of_full_server(&self) -> bool {
        matches!(self, Failure::Refused { error, .. } if has_code(error, FULL))
    }

    /// Returns whether a script failed because of its key, so that it may succeed under another one: because of what it found
    /// there, or because the key's hash slot is moving.
    pub(super) fn is_of_one_key(&self) -> bool {
        let Failure::Refused { error, .. } = self else { return false };
        error.contains("WRONGTYPE") || error.contains(" user_script:") || is_of_a_slot(error)
    }

    /// Describes the failure: what failed, on what, and what to do about it where that is known.
    pub(super) fn explain(&self, server: &Server) -> StoreError {
        match self {
            Failure::Unreachable(error) => anyhow!("cannot reach {server}: {error}{}", after_handshake(error, server)),
            Failure::Closed => anyhow!("{server} closed the connection before it answered"),
            Failure::HungUp => anyhow!("{server} closed the connection before it answered{}", after_hang_up(server)),
            Failure::BadCertificate(alert) if has_certificate(server) => {
                anyhow!(
                    "{server} rejects the client's certificate (TLS alert {alert}); check cert=FILE and key=FILE in the store's URL"
                )
            }
            Failure::BadCertificate(alert) => {
                anyhow!(
                    "{server} requires a certificate of its clients (TLS alert {alert}); give one with cert=FILE and key=FILE in \
                     the store's URL"
                )
            }
            Failure::UnexpectedReply(UnexpectedReply) => {
                anyhow!("unexpected reply from {server}: is it a Redis server?")
            }
            Failure::NoAnswer(what) => anyhow!("{server} {what}"),
            Failure::NotRedis => anyhow!(
                "{server} sent an answer that is not in Redis's protocol; check the host and the port in the store's URL"
            ),
            Failure::TooLong(command) => anyhow!(
                "{server} answered {command} with more than {} MiB, which is longer than anything that lockrun asks for; check the \
                 host and the port in the store's URL, and whether somebody else writes the keys under PREFIX:",
                resp::ORDINARY / (1024 * 1024)
            ),
            Failure::NoPrimary { why, .. } => anyhow!("{why}"),
            Failure::Unconfirmed(why) => anyhow!("{server} may not be the primary any more: {why}"),
            Failure::ListingTooLong => listing_limit::exceeded(server),
            Failure::NoWait(errno) => anyhow!("cannot wait for {server}: {}", errno.desc()),
            Failure::Refused { command, error, .. } => explain_refusal(command, error, server),
        }
    }
}

/// Returns the first word of a command.
fn name_of(command: &Cmd) -> String {
    match command.args_iter().next() {
        Some(redis::Arg::Simple(name)) => String::from_utf8_lossy(name).into_owned(),
        _ => String::new(),
    }
}

/// Describes that the server has rejected a `command` with this `error`.
fn explain_refusal(command: &str, error: &str, server: &Server) -> StoreError {
    if wants_password(error) {
        let parameters = match server.role {
            Role::Sentinel => "?sentinel_password=PASSWORD (and &sentinel_user=NAME if the Sentinels have users)",
            _ => "a password",
        };
        return anyhow!("{server} requires a password; give {parameters} in the store's URL, or with --store-file");
    }
    if error.contains(script::HOLDER_LOST) {
        return anyhow!(
            "its record in {server} is broken, {}, so the lock cannot be acquired; make sure that no command runs under it, then free it \
             with lockrun break",
            script::HOLDER_LOST
        );
    }
    if error.contains(script::FENCE_ENDS) {
        return anyhow!("its fence in {server} is {}, and cannot grow any more; use another key", i64::MAX);
    }
    if error.contains(script::NO_FENCE) || error.contains(script::FENCE_NOT_INTEGER) {
        return anyhow!(
            "its fence in {server}, under PREFIX:{{KEY}}:fence, is no number; set it to one that is greater than every fence that \
             was given out"
        );
    }
    anyhow!("{server} rejects {command}: {}{}", escaped(error), after_refusal(command, error, server.role))
}

/// Returns what to do about this `error`, as a suffix of the message.
fn after_refusal(command: &str, error: &str, role: Role) -> &'static str {
    match error.split(' ').next().unwrap_or_default() {
        "WRONGPASS" if role == Role::Sentinel => "; check sentinel_user and sentinel_password in the store's URL",
        "WRONGPASS" => "; check the user and the password in the store's URL",
        _ if error.contains("WRONGTYPE") => {
            "; a key under PREFIX:{KEY}: was not created by lockrun; delete it once no run holds the lock"
        }
        _ if error.contains("can't run this command") || error.contains("NOPERM") => {
            "; this user lacks rights that a lock needs"
        }
        "MOVED" if role != Role::Node => "; it is a node of a cluster: write redis+cluster:// in the store's URL",
        "MOVED" | "ASK" | "TRYAGAIN" => {
            "; the cluster is moving the slot of this lock to another node: until it has, nobody can acquire or renew it"
        }
        _ if error.contains("not allowed in cluster mode") => {
            "; it is a node of a cluster: write redis+cluster:// in the store's URL, without a database"
        }
        "CLUSTERDOWN" => "; redis-cli --cluster check says which slots have no node that serves them",
        _ if has_code(error, "READONLY") && role == Role::Alone => {
            "; this is a replica: name the primary in the store's URL"
        }
        _ if has_code(error, "READONLY") => "; it is not the primary any more: a failover is under way",
        _ if has_code(error, "OOM") => "; it is out of memory",
        "LOADING" => "; it is still starting",
        _ if has_code(error, FULL) => {
            "; each run has a connection, waiting or not: raise maxclients, or limit the waiters with --max-waiting"
        }
        _ if error.contains("cluster support disabled") => {
            "; it is not a node of a cluster: write redis:// in the store's URL"
        }
        _ if command == "SENTINEL" && error.contains("No such master") => {
            "; it does not know the service: check the name behind the / in the store's URL, or take this Sentinel out of it"
        }
        _ if !error.contains("unknown command") => "",
        _ if command == "CLUSTER" => {
            "; it is not a node of a cluster: name the port of one, or write redis+sentinel:// in the store's URL if it is a Sentinel"
        }
        _ if command == "SENTINEL" => {
            "; it is not a Sentinel: name the port of one, or write redis:// in the store's URL"
        }
        _ if command.starts_with("EVAL") || command == "SELECT" => {
            "; if it is a Sentinel, write redis+sentinel://HOST/SERVICE in the store's URL"
        }
        _ => "",
    }
}

/// Returns whether this error says that the server has not run the request, nor a part of it. A script that ran is named in the
/// errors of its own commands.
fn is_unread(error: &str) -> bool {
    (begins_with_any(error, &CLIENT_REJECTED) || begins_with_any(error, &UNREAD)) && !error.contains("user_script")
}

fn begins_with_any(error: &str, beginnings: &[&str]) -> bool {
    beginnings.iter().any(|beginning| error.starts_with(beginning))
}

/// Returns whether an error has this code, also if it came while a script ran, because older servers wrap that.
fn has_code(error: &str, code: &str) -> bool {
    let after =
        |rest: &str| rest.strip_prefix(code).is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()));
    after(error) || error.split(": -").skip(1).any(after)
}

/// Returns whether the error is that a hash slot is on another server, or on its way there.
fn is_of_a_slot(error: &str) -> bool {
    SLOT_MOVING.iter().any(|code| has_code(error, code))
}

/// Returns whether the URL gives us a certificate for this server.
fn has_certificate(server: &Server) -> bool {
    matches!(&server.endpoint, Endpoint::Tcp { tls: Some(files), .. } if files.identity.is_some())
}

/// Returns whether the server rejected a request because no password came with it. It rejects a long request before it has
/// read it, in different words.
fn wants_password(error: &str) -> bool {
    has_code(error, "NOAUTH") || error.contains("Protocol error: unauthenticated ")
}

/// What to do if the server may require a certificate, and the URL gives none.
const MAY_WANT_CERTIFICATE: &str =
    "; if it requires a certificate of its clients, give one with cert=FILE and key=FILE in the store's URL";

/// Returns what to do after a failed TLS handshake with `server`, as a suffix of the message.
fn after_handshake(error: &io::Error, server: &Server) -> String {
    let has_authority = matches!(&server.endpoint, Endpoint::Tcp { tls: Some(files), .. } if files.ca.is_some());
    let (without_tls, _) = server.role.schemes();
    match HandshakeFailure::of(error) {
        None => String::new(),
        Some(HandshakeFailure::UnknownAuthority) if has_authority => {
            "; check that ca=FILE in the store's URL names the authority that issued it".into()
        }
        Some(HandshakeFailure::UnknownAuthority) => {
            "; name the authority's certificate with ?ca=FILE in the store's URL".into()
        }
        Some(HandshakeFailure::Rejected) if has_certificate(server) => String::new(),
        Some(HandshakeFailure::Rejected) => MAY_WANT_CERTIFICATE.into(),
        Some(HandshakeFailure::NotTls) => {
            format!("; name the TLS port in the store's URL, or write {without_tls} if it has none")
        }
        Some(HandshakeFailure::Silence | HandshakeFailure::HungUp) => {
            format!(
                "; if that is not a TLS port, name the TLS port in the store's URL, or write {without_tls} if it has none"
            )
        }
    }
}

/// Returns why a `server` may have closed the connection at the first request, and what to do, as a suffix of the message.
fn after_hang_up(server: &Server) -> String {
    match &server.endpoint {
        Endpoint::Tcp { tls: None, .. } => {
            format!("; if that is a TLS port, write {} in the store's URL", server.role.schemes().1)
        }
        Endpoint::Tcp { .. } if !has_certificate(server) => MAY_WANT_CERTIFICATE.into(),
        Endpoint::Unix(_) | Endpoint::Tcp { .. } => String::new(),
    }
}

/// Returns whether lockrun, or this machine, has run out of what a connection needs: that does not pass by itself.
fn is_for_want_of_resources(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM))
}
