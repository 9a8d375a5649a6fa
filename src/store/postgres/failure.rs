//! Why a request to PostgreSQL failed, and what to do about it.

use std::io;

use anyhow::anyhow;
use nix::errno::Errno;

use super::server_error::ServerError;
use super::url::Server;
use crate::net::tls_error::certificate_alert;
use crate::store::record_limit::RecordTooLong;
use crate::store::{RetryClass, StoreError, listing_limit};
use crate::text::escape::escaped;

/// Why a request failed.
#[derive(Debug)]
pub(in crate::store) enum Failure {
    /// None of several hosts takes requests: why each does not, and the most promising kind of trouble among them.
    NoHost { why: String, trouble: RetryClass },
    /// The server reported no error, but the transaction changed nothing or was not committed.
    Unwritten,
    /// A transaction was committed, but the server warned that no standby has confirmed it.
    Unconfirmed,
    /// The server could not be reached, so it has seen nothing of the request.
    Unreachable(String),
    /// The server is a standby.
    Standby,
    /// The process has no descriptor or memory left for a connection.
    NoResources(String),
    /// The password cannot be read: what is wrong.
    NoPassword(String),
    /// The connection was closed before an answer came.
    Closed,
    /// No answer came in time.
    Silent,
    /// The server began to answer this operation, but did not finish in time.
    Slow,
    /// The process cannot wait for the answer.
    NoWait(Errno),
    /// The answer is not one that PostgreSQL gives: what is wrong with it.
    UnexpectedReply(&'static str),
    /// The same during login: the server may not be PostgreSQL at all.
    NotPostgres(&'static str),
    /// The lock's row was deleted each time before it could be locked.
    RowDeleted,
    /// Each time, a waiter prolonged its place just as the operation was about to end it.
    PlaceProlonged,
    /// The server rejects our login, or we do not trust it.
    NotAdmitted(String),
    /// The server has rejected a statement.
    Refused(ServerError),
    /// The session no longer has a statement that it prepared, and has carried out nothing after it. From now on each is sent as a whole.
    StatementLost,
    /// What is stored for this lock cannot be read.
    Broken(String),
    /// The database has stored another key for this one: its encoding has the same bytes for both.
    OtherKey,
    /// The keys of a listing are not in order.
    ListingOutOfOrder,
    /// A listing is longer than [`listing_limit::BYTES`].
    ListingTooLong,
    /// Another transaction keeps us from creating the tables.
    CreationBlocked(ServerError),
    /// There are no tables, and we may not create them.
    NoTables,
    /// The lock was revoked before we knew that it was ours.
    Revoked,
    /// The lease expired before we knew that the lock was ours.
    TooLate,
    /// The fence of this lock, which is this number, cannot grow.
    FenceEnds(u64),
    /// The record of this lock would become too long.
    RecordTooLong(RecordTooLong),
    /// The tables are those of a later version of lockrun.
    NewerTables(i64),
    /// The table of this name is another program's.
    ForeignTable(&'static str),
}

impl Failure {
    /// Returns the failure of an operation on a stream.
    pub(super) fn of_stream(error: &io::Error) -> Self {
        if let Some(alert) = certificate_alert(error) {
            return Failure::of_certificate(&alert);
        }
        match error.kind() {
            io::ErrorKind::TimedOut => Failure::Silent,
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
                Failure::UnexpectedReply("a message that cannot be read")
            }
            _ => Failure::Closed,
        }
    }

    /// Returns the failure of a connection that the server has ended by this TLS alert because of the client's certificate.
    fn of_certificate(alert: &str) -> Self {
        let why = format!(
            "rejects the client's certificate (TLS alert {alert}); check cert=FILE and key=FILE in the store's URL"
        );
        Failure::NotAdmitted(why)
    }

    /// Returns the failure of a connection on which a `refusal` came before: if the connection was then closed, the refusal says why. A
    /// server marks such a refusal as fatal, a pooler does not always.
    pub(super) fn after(self, refusal: Option<&ServerError>) -> Self {
        match (self, refusal) {
            (Failure::Closed, Some(refusal)) => Failure::Refused(refusal.clone().with_the_connection()),
            (failure, _) => failure,
        }
    }

    /// Returns whether a standby was asked to write.
    pub(super) fn is_of_standby(&self) -> bool {
        matches!(self, Failure::Refused(refusal) if refusal.is_of_standby)
    }

    /// Returns whether no connection was left. One that is released makes room.
    pub(super) fn is_of_used_up_connections(&self) -> bool {
        match self {
            Failure::Refused(refusal) => refusal.is_of_used_up_connections(),
            // Some hosts have none left, and the others are no better.
            Failure::NoHost { trouble, .. } => *trouble == RetryClass::Busy,
            _ => false,
        }
    }

    /// Returns whether a waiter has prolonged its place since it was read.
    pub(super) fn is_of_changed_place(&self) -> bool {
        matches!(self, Failure::Refused(refusal) if refusal.is_of_changed_place())
    }

    /// Returns whether an administrator, or the server itself, ended the session.
    pub(super) fn is_of_ended_session(&self) -> bool {
        matches!(self, Failure::Refused(refusal) if refusal.is_of_ended_session())
    }

    /// Returns whether the connection is closed, for whatever reason.
    pub(super) fn is_closed(&self) -> bool {
        match self {
            Failure::Closed => true,
            Failure::Refused(refusal) => refusal.is_fatal(),
            _ => false,
        }
    }

    /// Returns whether the connection cannot be used any more: it is closed, an answer may still come, or a transaction is open.
    pub(super) fn is_out_of_step(&self) -> bool {
        !matches!(self, Failure::Refused(refusal) if !refusal.is_fatal()) && !matches!(self, Failure::StatementLost)
    }

    /// Returns whether an operation that failed so may have been committed.
    pub(super) fn leaves_outcome_open(&self) -> bool {
        self.is_out_of_step() && !matches!(self, Failure::PlaceProlonged | Failure::RecordTooLong(_))
    }

    /// Returns what kind of trouble it is.
    pub(super) fn trouble(&self) -> RetryClass {
        match self {
            Failure::Unreachable(_)
            | Failure::Standby
            | Failure::Closed
            | Failure::Silent
            | Failure::RowDeleted
            | Failure::StatementLost => RetryClass::Unavailable,
            Failure::Slow | Failure::Unconfirmed | Failure::TooLate => RetryClass::Slow,
            Failure::PlaceProlonged | Failure::CreationBlocked(_) => RetryClass::Busy,
            Failure::Refused(refusal) if refusal.is_busy() || refusal.is_of_used_up_connections() => RetryClass::Busy,
            Failure::Refused(refusal) if refusal.is_transient() => RetryClass::Unavailable,
            Failure::NoHost { trouble, .. } => *trouble,
            Failure::Refused(_)
            | Failure::Unwritten
            | Failure::NoResources(_)
            | Failure::NoPassword(_)
            | Failure::NoWait(_)
            | Failure::UnexpectedReply(_)
            | Failure::NotPostgres(_)
            | Failure::NotAdmitted(_)
            | Failure::Broken(_)
            | Failure::OtherKey
            | Failure::ListingOutOfOrder
            | Failure::ListingTooLong
            | Failure::NoTables
            | Failure::Revoked
            | Failure::FenceEnds(_)
            | Failure::RecordTooLong(_)
            | Failure::NewerTables(_)
            | Failure::ForeignTable(_) => RetryClass::Permanent,
        }
    }

    /// Returns the message: what failed, where, and what to do about it if that is known.
    pub(super) fn explain(&self, server: &Server) -> StoreError {
        match self {
            Failure::Unreachable(why) => anyhow!("cannot reach {server}: {}", escaped(why)),
            Failure::NoResources(error) => anyhow!("cannot reach {server}: {error}"),
            Failure::Standby => {
                anyhow!("{server} is a standby, which takes no writes; name the primary in the store's URL")
            }
            Failure::Closed => anyhow!("{server} closed the connection before it answered"),
            Failure::Silent => anyhow!("{server} did not answer in time"),
            Failure::Slow => {
                anyhow!(
                    "{server} did not answer in time, though it can be reached; allow more time with --store-timeout"
                )
            }
            Failure::NoWait(errno) => anyhow!("cannot wait for {server}: {}", errno.desc()),
            Failure::UnexpectedReply(what) => anyhow!("unexpected reply from {server}: {what}"),
            Failure::NotPostgres(what) => {
                anyhow!("unexpected reply from {server}: {what}; is it a PostgreSQL server?")
            }
            Failure::RowDeleted => {
                anyhow!(
                    "its row in {server} was deleted each time that it was read; see what deletes rows of the table locks"
                )
            }
            Failure::PlaceProlonged => {
                anyhow!("{server} could not carry out the request in time: others have used the lock all the time")
            }
            Failure::NoPassword(why) | Failure::NoHost { why, .. } => anyhow!("{why}"),
            Failure::Unwritten => {
                anyhow!("{server} did not store the change; check for rules and triggers on lockrun's tables")
            }
            Failure::Unconfirmed => anyhow!(
                "{server} has committed, but no standby has confirmed that it has received it; see why, and who has cancelled the wait for it"
            ),
            Failure::StatementLost => anyhow!("{server} has lost a prepared statement"),
            Failure::NotAdmitted(why) => anyhow!("{server} {}", escaped(why)),
            Failure::Broken(what) => {
                anyhow!("its record in {server} is broken, so the lock cannot be acquired: {}", escaped(what))
            }
            Failure::CreationBlocked(refusal) => anyhow!(
                "{server} could not create the tables for locks in the schema {:?}: {refusal}; another transaction has created something of \
                 the same name and does not end. Find it with SELECT * FROM pg_stat_activity WHERE state = 'idle in transaction', and end it",
                server.schema
            ),
            Failure::OtherKey => anyhow!(
                "{server} has the same bytes for this key and for another one, in the encoding of its database; use another key, or a \
                 database with the encoding UTF8"
            ),
            Failure::ListingOutOfOrder => anyhow!("unexpected reply from {server}: its list of locks is not in order"),
            Failure::ListingTooLong => listing_limit::exceeded(server),
            Failure::NewerTables(version) => anyhow!(
                "the tables in the schema {:?} of {server} have version {version}, which this lockrun does not know; install a later one",
                server.schema
            ),
            Failure::ForeignTable(name) => anyhow!(
                "the schema {:?} of {server} has a table {name} that is not lockrun's; \
                 give lockrun a schema of its own with schema=NAME in the store's URL",
                server.schema
            ),
            Failure::Revoked => {
                anyhow!("{server} answered so late that the lock was revoked before the command could start")
            }
            Failure::TooLate => {
                anyhow!("{server} answered so late that too little of its lease was left to start the command")
            }
            Failure::FenceEnds(last) => {
                anyhow!("its fence in {server} is {last}, and cannot grow any more; use another key")
            }
            Failure::RecordTooLong(refused) => refused.explain(server),
            Failure::NoTables => anyhow!(
                "{server} has no tables for locks in the schema {:?}, and the user {:?} may not create them; \
                 lockrun doctor --schema prints what the database's owner has to run",
                server.schema,
                server.user
            ),
            Failure::Refused(refusal) => anyhow!("{server} rejects the request: {refusal}{}", refusal.advice()),
        }
    }
}
