//! Why a request to a Redis failed: what only Redis reports, and whether a script may have run.

use std::io;

use redis::{Cmd, Value};

use super::url::{Role, Server};
use super::{resp, script};
use crate::net::endpoint::{Endpoint, TlsFiles};
use crate::store::RetryClass;
use crate::store::failure::{self, Peer, Rejection};
use crate::text::escape::escaped;

/// The codes of transient errors: the server is loading its data, runs another client's script, is being demoted, has
/// lost its primary or too many replicas, cannot write to its disk, is full, or has too many clients; or a hash slot is
/// moving or not served.
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

/// The beginnings of errors by which a server rejects a client, and with it all that this connection has sent: it
/// accepts no such client, or none at all, or the client has not logged in.
const CLIENT_REJECTED: [&str; 4] = ["DENIED", FULL, "NOAUTH", "ERR Protocol error: unauthenticated "];

/// The beginnings of errors by which a server rejects one request that it does not look at: the client lacks the right,
/// or the server the command, or it is not ready.
const UNREAD: [&str; 5] = ["NOPERM", "ERR unknown command", "LOADING", "MASTERDOWN", "CLUSTERDOWN"];

/// Why a request failed.
pub(super) type Failure = failure::Failure<ServerError>;

/// The failure of an answer that no Redis gives to what was asked.
pub(super) const UNEXPECTED: Failure = Failure::UnexpectedReply("the answer does not fit the request");

/// An error by which the server has rejected a request, or our introduction.
#[derive(Debug)]
pub(super) struct ServerError {
    /// The command.
    pub(super) command: String,
    /// The server's words.
    pub(super) error: String,
    /// Whether it may have run the request all the same.
    pub(super) may_have_run: bool,
}

impl Peer for Server {
    const QUESTION: &'static str = "; is it a Redis server?";

    fn tls_files(&self) -> Option<&TlsFiles> {
        self.endpoint.tls_files()
    }

    fn spellings(&self) -> Option<(&'static str, &'static str)> {
        matches!(self.endpoint, Endpoint::Tcp { .. }).then(|| self.role.schemes())
    }
}

impl Rejection for ServerError {
    type Server = Server;

    fn retry_class(&self) -> RetryClass {
        match &self.error {
            // It may have room as soon as one of the other clients has gone.
            error if has_code(error, FULL) => RetryClass::Busy,
            error if TRANSIENT.iter().any(|code| has_code(error, code)) => RetryClass::Unavailable,
            _ => RetryClass::Permanent,
        }
    }

    // It was answered, so it does not arrive later. Whether it has run is another question: see `cannot_have_run`.
    fn leaves_outcome_open(&self) -> bool {
        false
    }

    fn explain(&self, server: &Server) -> String {
        explain_rejection(&self.command, &self.error, server)
    }
}

impl ServerError {
    /// Returns whether the server does not know the command that it has rejected.
    pub(super) fn is_of_unknown_command(&self) -> bool {
        self.error.contains("unknown command")
    }
}

impl Failure {
    /// Returns the failure of an operation on a stream. What cannot be decrypted is taken for a connection that was
    /// closed.
    pub(super) fn of_connection(error: &io::Error) -> Self {
        match Failure::of_stream(error) {
            Failure::UnexpectedReply(_) => Failure::Closed,
            failure => failure,
        }
    }

    /// Returns the failure of a `command` whose answer is too long.
    pub(super) fn too_long(command: &Cmd) -> Self {
        let what = format!(
            "answered {} with more than {} MiB, which is longer than anything that lockrun asks for; check the host \
             and the port in the store's URL, and whether somebody else writes the keys under PREFIX:",
            name_of(command),
            resp::ORDINARY / (1024 * 1024)
        );
        Failure::Other(RetryClass::Unavailable, what)
    }

    /// Returns the failure of an answer that is not in Redis's protocol.
    pub(super) fn not_redis() -> Self {
        let what = "sent an answer that is not in Redis's protocol; check the host and the port in the store's URL";
        Failure::Other(RetryClass::Unavailable, what.to_owned())
    }

    /// Returns the failure of a `command` that the server has rejected with this `error`.
    pub(super) fn refused(command: &Cmd, mut error: String) -> Self {
        let command = name_of(command);
        // Servers quote what they were sent: the beginning of a script, and some also the password.
        let mut quoted = error.find(", with args beginning with");
        if command == "AUTH" {
            quoted = error.find(['\'', '"', '`']);
        }
        error.truncate(quoted.unwrap_or(error.len()));
        let may_have_run = !is_unread(&error);
        Failure::Rejected(ServerError { command, error: error.trim_end().to_owned(), may_have_run })
    }

    /// Returns the failure of a request before which another one, such as our introduction, was rejected in this way.
    /// Whether the request may have run depends on its own `outcome`: an open server without AUTH runs it all the same.
    pub(super) fn followed_by(self, outcome: Result<Value, Failure>) -> Self {
        let Failure::Rejected(rejection) = self else { return self };
        let may_have_run = match outcome {
            Ok(_) => true,
            // Then nothing else is worth mending.
            Err(own) if own.is_of_another_kind_of_server() => return own,
            // A script selects its database before anything else.
            Err(Failure::Rejected(own)) => own.may_have_run && rejection.command != "SELECT",
            Err(_) if begins_with_any(&rejection.error, &CLIENT_REJECTED) => false,
            Err(unread) => return unread,
        };
        Failure::Rejected(ServerError { may_have_run, ..rejection })
    }

    /// Returns whether the server lacks the command by which this kind of store is used.
    fn is_of_another_kind_of_server(&self) -> bool {
        matches!(self, Failure::Rejected(refused) if refused.is_of_unknown_command()
            && matches!(refused.command.as_str(), "EVAL" | "CLUSTER" | "SENTINEL"))
    }

    /// Returns the failure of a request whose primary is not known: why, and whether it may be a little later.
    pub(super) fn no_primary(why: String, is_transient: bool) -> Self {
        Failure::Unsent(if is_transient { RetryClass::Unavailable } else { RetryClass::Permanent }, why)
    }

    /// Returns the failure of the confirmation of an answer.
    pub(super) fn of_confirmation(self) -> Self {
        match self {
            Failure::Unsent(_, why) => Failure::Demoted(why),
            failure => failure,
        }
    }

    /// Returns whether no server has run any part of the request, or will.
    pub(super) fn cannot_have_run(&self) -> bool {
        match self {
            Failure::Unreachable { .. }
            | Failure::NoResources(_)
            | Failure::BadCertificate(_)
            | Failure::Unsent(..) => true,
            Failure::Rejected(refused) => !refused.may_have_run,
            _ => false,
        }
    }

    /// Returns whether to ask another server, or the same one again at once: a slot is moving, or the primary has
    /// changed.
    pub(super) fn is_of_a_move(&self) -> bool {
        match self {
            Failure::Demoted(_) => true,
            Failure::Rejected(refused) => is_of_a_slot(&refused.error) || has_code(&refused.error, "READONLY"),
            _ => false,
        }
    }

    /// Returns whether the server had no room for another client.
    pub(super) fn is_of_full_server(&self) -> bool {
        matches!(self, Failure::Rejected(refused) if has_code(&refused.error, FULL))
    }

    /// Returns whether a script failed because of its key, so that it may succeed under another one: because of what it
    /// found there, or because the key's hash slot is moving.
    pub(super) fn is_of_one_key(&self) -> bool {
        let Failure::Rejected(ServerError { error, .. }) = self else { return false };
        error.contains("WRONGTYPE") || error.contains(" user_script:") || is_of_a_slot(error)
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
fn explain_rejection(command: &str, error: &str, server: &Server) -> String {
    if wants_password(error) {
        let parameters = match server.role {
            Role::Sentinel => "?sentinel_password=PASSWORD (and &sentinel_user=NAME if the Sentinels have users)",
            _ => "a password",
        };
        return format!("{server} requires a password; give {parameters} in the store's URL, or with --store-file");
    }
    if error.contains(script::HOLDER_LOST) {
        let repair = "make sure that no command runs under it, then free it with lockrun break";
        return Failure::Broken(format!("{}; {repair}", script::HOLDER_LOST)).explain(server).to_string();
    }
    if error.contains(script::FENCE_ENDS) {
        return Failure::FenceEnds(i64::MAX.unsigned_abs()).explain(server).to_string();
    }
    if error.contains(script::NO_FENCE) || error.contains(script::FENCE_NOT_INTEGER) {
        return format!(
            "its fence in {server}, under PREFIX:{{KEY}}:fence, is no number; set it to one that is greater than every fence that \
             was given out"
        );
    }
    format!("{server} rejects {command}: {}{}", escaped(error), after_rejection(command, error, server.role))
}

/// Returns what to do about this `error`, as a suffix of the message.
fn after_rejection(command: &str, error: &str, role: Role) -> &'static str {
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

/// Returns whether this error says that the server has not run the request, nor a part of it. A script that ran is
/// named in the errors of its own commands.
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

/// Returns whether the server rejected a request because no password came with it. It rejects a long request before it
/// has read it, in different words.
fn wants_password(error: &str) -> bool {
    has_code(error, "NOAUTH") || error.contains("Protocol error: unauthenticated ")
}
