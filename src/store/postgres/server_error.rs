//! Error messages of the server: what they mean by their SQLSTATE.

use std::fmt;

use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::ErrorFields;

use crate::text::escape::escaped;

/// An error message of the server.
// Each is a fact of its own about the message.
#[allow(clippy::struct_excessive_bools)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::store) struct ServerError {
    /// The SQLSTATE, five characters.
    pub(super) code: String,
    /// The server's message.
    pub(super) message: String,
    /// Whether the server has closed the connection with it.
    is_fatal: bool,
    /// Whether it says that the server is a standby.
    pub(super) is_of_standby: bool,
    /// Whether it ended a session that had begun.
    ends_session: bool,
    /// Whether it says that the session no longer has a statement that it prepared. It is sent again as a whole.
    pub(super) is_of_lost_statement: bool,
}

/// The SQLSTATEs of errors that pass by themselves, from "PostgreSQL Error Codes", appendix A of its manual.
const TRANSIENT: [&str; 10] = [
    "25P03", // idle_in_transaction_session_timeout
    "25P04", // transaction_timeout
    "40001", // serialization_failure
    "40P01", // deadlock_detected
    "55P03", // lock_not_available
    "57014", // query_canceled
    "57P01", // admin_shutdown
    "57P02", // crash_shutdown
    "57P03", // cannot_connect_now
    "57P05", // idle_session_timeout
];

/// The classes whose errors pass by themselves or are ended by an administrator: connection exceptions, insufficient
/// resources, system errors and internal errors.
const TRANSIENT_CLASSES: [&str; 4] = ["08", "53", "58", "XX"];

/// The SQLSTATEs of errors that do not pass, even if the server, or a pooler in front of it, ends a session with them:
/// our login or the server's configuration has to change.
const LASTING: [&str; 4] = [
    "28000", // invalid_authorization_specification
    "28P01", // invalid_password
    "3D000", // invalid_catalog_name
    "42501", // insufficient_privilege
];

impl ServerError {
    /// Reads the fields of an error message.
    pub(super) fn read(fields: ErrorFields<'_>) -> Self {
        let mut rejection = ServerError::default();
        let mut fields = fields;
        // The severity, in the server's language and untranslated. Poolers leave out the latter.
        let (mut shown, mut called) = (None, None);
        while let Ok(Some(field)) = fields.next() {
            let value = || String::from_utf8_lossy(field.value_bytes()).into_owned();
            let is_fatal = || Some(matches!(field.value_bytes(), b"FATAL" | b"PANIC"));
            match field.type_() {
                b'C' => rejection.code = value(),
                b'M' => rejection.message = value(),
                b'S' => shown = is_fatal(),
                b'V' => called = is_fatal(),
                _ => {}
            }
        }
        rejection.is_fatal = called.or(shown).unwrap_or(false);
        // read_only_sql_transaction: "cannot execute ... in a read-only transaction"
        rejection.is_of_standby = rejection.code == "25006";
        rejection
    }

    /// Returns the error of the statement that begins a transaction that writes. Only a standby rejects that: "cannot
    /// set transaction read-write mode during recovery", in the server's language.
    pub(super) fn of_begin(self) -> Self {
        // feature_not_supported
        let is_of_standby = self.is_of_standby || self.code == "0A000";
        ServerError { is_of_standby, ..self }
    }

    /// Returns the error as one that came after login. If it ended the session, the server had reasons of its own,
    /// which need not be listed: another session may succeed.
    pub(super) fn in_session(self) -> Self {
        ServerError { ends_session: self.is_fatal, ..self }
    }

    /// Returns the error as that of a statement that the session had prepared, and has lost. It says nothing about
    /// the connection.
    pub(super) fn of_lost_statement(self) -> Self {
        ServerError { is_of_lost_statement: true, is_fatal: false, ..self }
    }

    /// Returns the error as one with which the server has closed the connection.
    pub(super) fn with_the_connection(self) -> Self {
        ServerError { is_fatal: true, ..self }
    }

    /// Returns whether the tables or their schema are missing.
    pub(super) fn lacks_tables(&self) -> bool {
        // undefined_table, invalid_schema_name
        matches!(self.code.as_str(), "42P01" | "3F000")
    }

    /// Returns whether the session that creates the tables has not yet noticed what others have just created: it takes
    /// a name for free, or a schema for missing, that the tables of the server already contain.
    pub(super) fn is_of_late_notice(&self) -> bool {
        // duplicate_schema, duplicate_table, duplicate_object (the type of a table's rows), unique_violation (in the
        // server's own catalogues)
        self.lacks_tables() || matches!(self.code.as_str(), "42P06" | "42P07" | "42710" | "23505")
    }

    /// Returns whether the role lacks a right.
    pub(super) fn lacks_rights(&self) -> bool {
        self.code == "42501"
    }

    /// Returns whether the same request may be answered a little later.
    pub(super) fn is_transient(&self) -> bool {
        // Tables that are missing are created.
        self.is_of_standby
            || self.is_of_lost_statement
            || self.lacks_tables()
            || self.ends_session && !LASTING.contains(&self.code.as_str())
            || TRANSIENT_CLASSES.iter().any(|class| self.code.starts_with(class))
            || TRANSIENT.contains(&self.code.as_str())
    }

    /// Returns whether the session does not have the statement, or can no longer use it because a table has changed.
    pub(super) fn is_of_missing_statement(&self) -> bool {
        // invalid_sql_statement_name, feature_not_supported ("cached plan must not change result type")
        self.code == "26000" || self.code == "0A000" && !self.is_of_standby
    }

    /// Returns whether the transaction is worth repeating at once: it was rolled back because of others, or because we
    /// took too long between its round trips.
    pub(super) fn is_worth_repeating(&self) -> bool {
        matches!(self.code.as_str(), "25P03" | "25P04" | "40001" | "40P01")
    }

    /// Returns whether the server rejected a notification because too many are waiting to be read.
    pub(super) fn is_of_full_queue(&self) -> bool {
        // program_limit_exceeded
        self.code == "54000"
    }

    /// Returns whether a statement found that another row than expected has changed: see [`super::writing`].
    pub(super) fn is_of_changed_place(&self) -> bool {
        // division_by_zero
        self.code == "22012"
    }

    /// Returns whether an administrator ended the session, or the server did because one of its processes has crashed;
    /// perhaps even before the login was complete. That says nothing about the request.
    pub(super) fn is_of_ended_session(&self) -> bool {
        // admin_shutdown, crash_shutdown
        self.is_fatal && matches!(self.code.as_str(), "57P01" | "57P02")
    }

    /// Returns whether others have kept the statement from being carried out in time.
    pub(super) fn is_busy(&self) -> bool {
        // lock_not_available, query_canceled
        matches!(self.code.as_str(), "55P03" | "57014")
    }

    /// Returns whether all connections are in use that the server, the database or the role may have, or a pooler in
    /// front of it.
    pub(super) fn is_of_used_up_connections(&self) -> bool {
        // too_many_connections; pgbouncer has the same code, protocol_violation, for all that it rejects.
        self.code == "53300" || self.code == "08P01" && self.message.starts_with("no more connections allowed")
    }

    /// Returns what to do about it, as a suffix of the message.
    pub(super) fn advice(&self) -> &'static str {
        match self.code.as_str() {
            _ if self.is_of_standby => "; this is a standby: name the primary in the store's URL",
            // insufficient_privilege
            "42501" => "; lockrun doctor names the right that the user lacks",
            _ if self.is_of_used_up_connections() => {
                "; raise that limit (of the server, the database, the role or the pooler), or use a connection pooler: each run that waits \
                 or holds a lock may need a connection"
            }
            "25P03" => "; see whether the connection is slow, or lockrun is stopped",
            "25P04" => "; set transaction_timeout to 0 for this role",
            "57P05" => "; set idle_session_timeout to 0 for this role",
            "53100" => "; its disk is full",
            // untranslatable_character
            "22P05" => {
                "; its database cannot store this key, or the name of the schema: choose another one, or a database with the \
                 encoding UTF8"
            }
            _ if self.is_busy() => {
                "; others have used the lock, or its tables, all the time, or their commits wait for a standby"
            }
            _ => "",
        }
    }

    /// Returns whether the connection has become useless: the server has closed it with this message, or is a standby
    /// now.
    pub(super) fn is_fatal(&self) -> bool {
        self.is_fatal || self.is_of_standby
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SQLSTATE {})", escaped(&self.message), escaped(&self.code))
    }
}

/// Returns whether a notice says that the wait for a standby to confirm a commit was cancelled. Other warnings that
/// come with a commit do not matter here.
pub(super) fn is_of_unconfirmed_commit(fields: ErrorFields<'_>) -> bool {
    let mut fields = fields;
    while let Ok(Some(field)) = fields.next() {
        // The server's function that waits. The notice's code is shared with other warnings, and its text is in the
        // server's language.
        if field.type_() == b'R' {
            return field.value_bytes() == b"SyncRepWaitForLSN";
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::RetryClass;
    use crate::store::postgres::failure::Failure;

    fn rejection(code: &str, is_fatal: bool) -> ServerError {
        ServerError { code: code.into(), is_fatal, ..ServerError::default() }
    }

    #[test]
    fn what_ends_a_session_passes() {
        // 42P17 does not pass if it is the answer to a statement.
        for code in ["25P04", "42P17", "57P04", "XX000", "00000"] {
            let failure = Failure::Rejected(rejection(code, true).in_session());
            assert!(failure.is_closed() && failure.retry_class() != RetryClass::Permanent, "{code}");
        }
        assert!(!rejection("42P17", false).in_session().is_transient());
        assert!(!rejection("42P17", true).is_transient(), "it was not let in");
        for code in LASTING {
            assert!(!rejection(code, true).in_session().is_transient(), "{code}");
        }
    }

    #[test]
    fn a_session_that_is_ended_during_its_login_is_an_ended_one() {
        for (code, is_fatal, is_ended) in
            [("57P01", true, true), ("57P02", true, true), ("57P01", false, false), ("57P03", true, false)]
        {
            assert_eq!(rejection(code, is_fatal).is_of_ended_session(), is_ended, "{code}");
            assert_eq!(rejection(code, is_fatal).in_session().is_of_ended_session(), is_ended, "{code}");
        }
    }

    #[test]
    fn what_another_first_user_has_created_is_no_failure() {
        for code in ["42P06", "42P07", "42710", "23505", "3F000", "42P01"] {
            assert!(rejection(code, false).is_of_late_notice(), "{code}");
        }
        assert!(!rejection("42501", false).is_of_late_notice());
    }

    #[test]
    fn errors_of_the_server_pass() {
        for code in ["25P04", "53100", "53400", "58030", "XX000", "08006", "40001", "55P03"] {
            assert!(rejection(code, false).is_transient(), "{code}");
        }
        for code in ["22P05", "28P01", "42501", "54000", "55000"] {
            assert!(!rejection(code, false).is_transient(), "{code}");
        }
        assert!(rejection("25P04", true).is_worth_repeating());
    }
}
