//! Why a request to PostgreSQL failed: what only PostgreSQL reports.

use super::schema::Tables;
use super::server_error::ServerError;
use super::url::Server;
use crate::net::endpoint::TlsFiles;
use crate::store::RetryClass;
use crate::store::failure::{self, Peer, Rejection};

/// Why a request failed.
pub(in crate::store) type Failure = failure::Failure<ServerError>;

impl Peer for Server {
    // Whether it is PostgreSQL shows during login.
    const QUESTION: &'static str = "";

    fn tls_files(&self) -> Option<&TlsFiles> {
        Some(&self.tls)
    }
}

impl Rejection for ServerError {
    type Server = Server;

    fn retry_class(&self) -> RetryClass {
        if self.is_busy() || self.is_of_used_up_connections() {
            RetryClass::Busy
        } else if self.is_transient() {
            RetryClass::Unavailable
        } else {
            RetryClass::Permanent
        }
    }

    fn leaves_outcome_open(&self) -> bool {
        self.is_fatal()
    }

    fn explain(&self, server: &Server) -> String {
        format!("{server} rejects the request: {self}{}", self.advice())
    }
}

impl Failure {
    /// The lock's row was deleted each time before it could be locked.
    pub(super) const ROW_DELETED: Failure = Failure::Deleted("rows of the table locks");

    /// Returns the failure of a transaction that changed nothing or was not committed, although the server reported no
    /// error.
    pub(super) fn unwritten() -> Self {
        Failure::lasting("did not store the change; check for rules and triggers on lockrun's tables")
    }

    /// Returns the failure of a key for which the database has stored another one: its encoding has the same bytes for
    /// both.
    pub(super) fn other_key() -> Self {
        Failure::lasting(
            "has the same bytes for this key and for another one, in the encoding of its database; use another key, \
             or a database with the encoding UTF8",
        )
    }

    /// Returns the failure of a user for which there are no tables, and who may not create them.
    pub(super) fn no_tables(server: &Server) -> Self {
        let Server { schema, user, .. } = server;
        Failure::lasting(format!(
            "has no tables for locks in the schema {schema:?}, and the user {user:?} may not create them; lockrun \
             doctor --schema prints what the database's owner has to run"
        ))
    }

    /// Returns the failure of a table of lockrun's name in the schema that is another program's.
    pub(super) fn foreign_table(name: &str, tables: &Tables) -> Self {
        Failure::lasting(format!(
            "has a table {name} in the schema {} that is not lockrun's; give lockrun a schema of its own with \
             schema=NAME in the store's URL",
            tables.schema
        ))
    }

    /// Returns the failure of creating the tables while another transaction prevents it, as this `rejection` says.
    pub(super) fn creation_blocked(rejection: &ServerError, schema: &str) -> Self {
        let what = format!(
            "could not create the tables for locks in the schema {schema:?}: {rejection}; another transaction has \
             created something of the same name and does not end. Find it with SELECT * FROM pg_stat_activity WHERE \
             state = 'idle in transaction', and end it"
        );
        Failure::Other(RetryClass::Busy, what)
    }

    /// Returns the failure of a connection on which a `rejection` came before: if the connection was then closed, that
    /// says why. A server marks such an error as fatal, a pooler does not always.
    pub(super) fn after(self, rejection: Option<&ServerError>) -> Self {
        match (self, rejection) {
            (Failure::Closed, Some(rejection)) => Failure::Rejected(rejection.clone().with_the_connection()),
            (failure, _) => failure,
        }
    }

    /// Returns the server's error message, if it has rejected the request with one.
    fn rejection(&self) -> Option<&ServerError> {
        if let Failure::Rejected(rejection) = self { Some(rejection) } else { None }
    }

    /// Returns whether a standby was asked to write.
    pub(super) fn is_of_standby(&self) -> bool {
        self.rejection().is_some_and(|rejection| rejection.is_of_standby)
    }

    /// Returns whether the session no longer has a statement that it prepared, and has carried out nothing after it.
    /// From now on each is sent as a whole.
    pub(super) fn is_of_lost_statement(&self) -> bool {
        self.rejection().is_some_and(|rejection| rejection.is_of_lost_statement)
    }

    /// Returns whether no connection was left. One that is released makes room.
    pub(super) fn is_of_used_up_connections(&self) -> bool {
        // Of several hosts, some may have none left, and the others be no better.
        matches!(self, Failure::Unsent(RetryClass::Busy, _))
            || self.rejection().is_some_and(ServerError::is_of_used_up_connections)
    }

    /// Returns whether a waiter has renewed its place since it was read.
    pub(super) fn is_of_changed_place(&self) -> bool {
        self.rejection().is_some_and(ServerError::is_of_changed_place)
    }

    /// Returns whether an administrator, or the server itself, ended the session.
    pub(super) fn is_of_ended_session(&self) -> bool {
        self.rejection().is_some_and(ServerError::is_of_ended_session)
    }

    /// Returns whether the connection is closed, for whatever reason.
    pub(super) fn is_closed(&self) -> bool {
        matches!(self, Failure::Closed) || self.rejection().is_some_and(ServerError::is_fatal)
    }

    /// Returns whether the connection cannot be used any more: it is closed, an answer may still come, or a transaction
    /// is open.
    pub(super) fn is_out_of_step(&self) -> bool {
        self.rejection().is_none_or(ServerError::is_fatal)
    }
}
