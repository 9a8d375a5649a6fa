//! Why a request to MySQL or MariaDB failed: what only these report.

use std::fmt;

use super::url::Server;
use crate::net::endpoint::TlsFiles;
use crate::store::RetryClass;
use crate::store::failure::{self, Peer, Rejection};
use crate::text::escape::escaped;

/// Why a request failed.
pub(in crate::store) type Failure = failure::Failure<ServerError>;

/// An error message of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) struct ServerError {
    /// Its number, from "Server Error Message Reference" in MySQL's manual and "MariaDB Error Codes" in MariaDB's.
    pub(super) code: u16,
    pub(super) message: String,
    /// The index of the statement that it answers among those that were sent together. The server has carried out
    /// those before it, and none after it.
    pub(super) at: usize,
}

impl Peer for Server {
    // Whether it is one shows during login.
    const QUESTION: &'static str = "";

    fn tls_files(&self) -> Option<&TlsFiles> {
        Some(&self.tls)
    }
}

impl Rejection for ServerError {
    type Server = Server;

    fn retry_class(&self) -> RetryClass {
        match self.code {
            _ if self.is_worth_repeating() || self.is_of_used_up_connections() => RetryClass::Busy,
            // ER_LOCK_WAIT_TIMEOUT, ER_QUERY_INTERRUPTED, ER_QUERY_TIMEOUT, ER_STATEMENT_TIMEOUT (MariaDB)
            1205 | 1317 | 3024 | 1969 => RetryClass::Busy,
            _ if self.ends_session() || self.is_of_replica() || self.lacks_tables() => RetryClass::Unavailable,
            // ER_DISK_FULL, ER_OUTOFMEMORY, ER_OUT_OF_SORTMEMORY, ER_OUT_OF_RESOURCES, ER_GET_ERRNO (of the storage
            // engine), ER_RECORD_FILE_FULL, ER_ERROR_DURING_COMMIT, ER_LOCK_TABLE_FULL; ER_UNKNOWN_COM_ERROR (a node of
            // Galera that is not ready), ER_RUN_HOOK_ERROR (one of group replication), ER_SERVER_OFFLINE_MODE
            1021 | 1037 | 1038 | 1041 | 1030 | 1114 | 1180 | 1206 | 1047 | 3100 | 3032 => RetryClass::Unavailable,
            _ => RetryClass::Permanent,
        }
    }

    /// Returns whether the error has ended the connection. What an error means in answer to a commit, only the
    /// transaction knows.
    fn leaves_outcome_open(&self) -> bool {
        self.ends_session()
    }

    fn explain(&self, server: &Server) -> String {
        format!("{server} rejects the request: {self}{}", self.advice())
    }
}

impl ServerError {
    /// Returns whether the transaction was rolled back because of others, and is worth repeating at once. A node of
    /// a cluster says so of a commit that contradicts one on another node.
    pub(super) fn is_worth_repeating(&self) -> bool {
        // ER_LOCK_DEADLOCK, ER_CHECKREAD ("Record has changed since last read"), ER_TABLE_DEF_CHANGED (a table was created
        // since the transaction began), ER_TRANSACTION_ROLLBACK_DURING_COMMIT (group replication)
        matches!(self.code, 1213 | 1020 | 1412 | 3101)
    }

    /// Returns whether the server has ended the session with it: it shuts down, was told to, or found it idle.
    pub(super) fn ends_session(&self) -> bool {
        // ER_SERVER_SHUTDOWN, ER_CONNECTION_KILLED (MariaDB), ER_CLIENT_INTERACTION_TIMEOUT, ER_ABORTING_CONNECTION,
        // ER_NEW_ABORTING_CONNECTION, ER_NET_READ_ERROR to ER_NET_WRITE_INTERRUPTED, ER_SESSION_WAS_KILLED
        matches!(self.code, 1053 | 1927 | 4031 | 1152 | 1184 | 1158..=1161 | 3169)
    }

    /// Returns whether the server takes no writes: it is a replica, or was made read-only.
    pub(super) fn is_of_replica(&self) -> bool {
        // ER_OPTION_PREVENTS_STATEMENT, ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION, ER_READ_ONLY_MODE
        matches!(self.code, 1290 | 1792 | 1836)
    }

    /// Returns whether all connections are in use that the server, or the user, may have.
    pub(super) fn is_of_used_up_connections(&self) -> bool {
        // ER_CON_COUNT_ERROR, ER_TOO_MANY_USER_CONNECTIONS, ER_USER_LIMIT_REACHED
        matches!(self.code, 1040 | 1203 | 1226)
    }

    /// Returns whether a table is missing.
    pub(super) fn lacks_tables(&self) -> bool {
        // ER_NO_SUCH_TABLE
        self.code == 1146
    }

    /// Returns whether the user lacks a right.
    pub(super) fn lacks_rights(&self) -> bool {
        // ER_DBACCESS_DENIED_ERROR, ER_TABLEACCESS_DENIED_ERROR, ER_COLUMNACCESS_DENIED_ERROR
        matches!(self.code, 1044 | 1142 | 1143)
    }

    /// Returns whether the statement may not fit the table: a column is missing or of another type.
    fn may_be_mismatch(&self) -> bool {
        // ER_BAD_FIELD_ERROR, ER_KEY_DOES_NOT_EXITS (of FORCE INDEX), ER_WRONG_VALUE_COUNT_ON_ROW, ER_NO_DEFAULT_FOR_FIELD
        matches!(self.code, 1054 | 1176 | 1136 | 1364)
    }

    /// Returns what to do about it, as a suffix of the message.
    fn advice(&self) -> &'static str {
        match self.code {
            _ if self.is_of_replica() => "; it takes no writes: name the primary in the store's URL",
            _ if self.is_of_used_up_connections() => {
                "; raise max_connections, or the user's limit: each run that waits or holds a lock may need a connection"
            }
            _ if self.lacks_rights() => "; lockrun doctor --schema prints what an administrator has to run",
            1205 | 1317 | 3024 | 1969 => "; others have used the lock all the time, or the server is too slow",
            1021 | 1114 => "; its disk is full",
            1153 => "; raise max_allowed_packet there",
            // ER_BINLOG_STMT_MODE_AND_ROW_ENGINE
            1665 => "; set binlog_format=ROW (or MIXED) there",
            _ => "",
        }
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (error {})", escaped(&self.message), self.code)
    }
}

impl Failure {
    /// The lock's row was deleted each time before it could be locked.
    pub(super) const ROW_DELETED: Failure = Failure::Deleted("rows of the table locks");

    /// What an answer is called that has fewer rows or columns than were asked for.
    pub(super) const INCOMPLETE: Failure = Failure::UnexpectedReply("an answer lacks columns");

    /// Returns the failure of a transaction that changed nothing, although the server reported no error.
    pub(super) fn unwritten() -> Self {
        Failure::lasting("did not store the change; check for triggers on lockrun's tables")
    }

    /// Returns the failure of a server that is a replica, or was made read-only, at which we might write all the same.
    pub(super) fn read_only() -> Self {
        Failure::Rejected(ServerError { code: 1290, message: "read_only is set".to_owned(), at: 0 })
    }

    /// Returns whether the server takes no writes.
    pub(super) fn is_of_replica(&self) -> bool {
        self.rejection().is_some_and(ServerError::is_of_replica)
    }

    /// Returns whether no connection was left. One that is released makes room.
    pub(super) fn is_of_used_up_connections(&self) -> bool {
        // Of several hosts, some may have none left, and the others be no better.
        matches!(self, Failure::Unsent(RetryClass::Busy, _))
            || self.rejection().is_some_and(ServerError::is_of_used_up_connections)
    }

    /// Returns the failure, or if a statement does not fit the tables, what is wrong with those.
    pub(super) fn or_mismatch(self) -> Self {
        match &self {
            Failure::Rejected(rejection) if rejection.may_be_mismatch() => Failure::lasting(format!(
                "has tables that do not fit ({rejection}): they are another program's, or of a later lockrun; give lockrun \
                 other tables with tables=PREFIX in the store's URL"
            )),
            _ => self,
        }
    }

    /// Returns the server's error message, if it has rejected the request with one.
    pub(super) fn rejection(&self) -> Option<&ServerError> {
        if let Failure::Rejected(rejection) = self { Some(rejection) } else { None }
    }

    /// Returns whether the connection is closed, for whatever reason.
    pub(super) fn is_closed(&self) -> bool {
        matches!(self, Failure::Closed) || self.rejection().is_some_and(ServerError::ends_session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_its_kind() {
        let kind = |code| ServerError { code, message: String::new(), at: 0 }.retry_class();
        for (kinds, codes) in [
            (RetryClass::Busy, &[1205, 1213, 1412, 1040, 1203, 1969, 3024][..]),
            (RetryClass::Unavailable, &[1053, 1290, 1836, 1792, 1927, 1047, 1021, 4031, 1180, 1146]),
            (RetryClass::Permanent, &[1044, 1045, 1049, 1054, 1064, 1142, 1665, 1153]),
        ] {
            for code in codes {
                assert_eq!(kind(*code), kinds, "{code}");
            }
        }
    }
}
