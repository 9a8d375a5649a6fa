//! Why a request to PostgreSQL failed, and what to do about it.

use std::io;

use anyhow::anyhow;
use fallible_iterator::FallibleIterator;
use nix::errno::Errno;
use postgres_protocol::message::backend::ErrorFields;

use super::url::Server;
use crate::net::tls_error::certificate_alert;
use crate::store::{StoreError, Trouble};
use crate::text::escape::escaped;

/// Why a request failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// None of several hosts takes requests: why each does not, and the most promising kind of trouble among them.
    NoHost { why: String, trouble: Trouble },
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
    /// Others kept the lock's row locked, and a new waiter could not join the queue without locking it, either.
    RowBusy,
    /// The server rejects our login, or we do not trust it.
    NotAdmitted(String),
    /// The server has rejected a statement.
    Refused(Refusal),
    /// What is stored for this lock cannot be read.
    Broken(String),
    /// There are no tables, and we may not create them.
    NoTables,
    /// The lock was revoked before we knew that it was ours.
    Revoked,
    /// The lease expired before we knew that the lock was ours.
    TooLate,
    /// The fence of this lock, which is this number, cannot grow.
    FenceEnds(u64),
    /// The tables are those of a later version of lockrun.
    NewerTables(i64),
    /// The table of this name is another program's.
    ForeignTable(&'static str),
}

/// An error message of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The SQLSTATE, five characters.
    pub(super) code: String,
    /// The server's message.
    pub(super) message: String,
    /// Whether the server has closed the connection with it.
    is_fatal: bool,
    /// Whether it says that the server is a standby.
    is_of_standby: bool,
    /// Whether it ended a session that had begun.
    ends_session: bool,
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

/// The classes whose errors pass by themselves or are ended by an administrator: connection exceptions, insufficient resources, system
/// errors and internal errors.
const TRANSIENT_CLASSES: [&str; 4] = ["08", "53", "58", "XX"];

/// The SQLSTATEs of errors that do not pass, even if the server, or a pooler in front of it, ends a session with them: our login or the
/// server's configuration has to change.
const LASTING: [&str; 4] = [
    "28000", // invalid_authorization_specification
    "28P01", // invalid_password
    "3D000", // invalid_catalog_name
    "42501", // insufficient_privilege
];

impl Refusal {
    /// Reads the fields of an error message.
    pub(super) fn read(fields: ErrorFields<'_>) -> Self {
        let mut refusal = Refusal::default();
        let mut fields = fields;
        // The severity, in the server's language and untranslated. Poolers leave out the latter.
        let (mut shown, mut called) = (None, None);
        while let Ok(Some(field)) = fields.next() {
            let value = || String::from_utf8_lossy(field.value_bytes()).into_owned();
            let is_fatal = || Some(matches!(field.value_bytes(), b"FATAL" | b"PANIC"));
            match field.type_() {
                b'C' => refusal.code = value(),
                b'M' => refusal.message = value(),
                b'S' => shown = is_fatal(),
                b'V' => called = is_fatal(),
                _ => {}
            }
        }
        refusal.is_fatal = called.or(shown).unwrap_or(false);
        // read_only_sql_transaction: "cannot execute ... in a read-only transaction"
        refusal.is_of_standby = refusal.code == "25006";
        refusal
    }

    /// Returns the refusal of the statement that begins a transaction that writes. Only a standby rejects that: "cannot set transaction
    /// read-write mode during recovery", in the server's language.
    pub(super) fn of_begin(self) -> Self {
        // feature_not_supported
        let is_of_standby = self.is_of_standby || self.code == "0A000";
        Refusal { is_of_standby, ..self }
    }

    /// Returns the refusal as one that came after login. If it ended the session, the server had reasons of its own, which need not be
    /// listed: another session may succeed.
    pub(super) fn in_session(self) -> Self {
        Refusal { ends_session: self.is_fatal, ..self }
    }

    /// Returns whether the tables or their schema are missing.
    pub(super) fn lacks_tables(&self) -> bool {
        // undefined_table, invalid_schema_name
        matches!(self.code.as_str(), "42P01" | "3F000")
    }

    /// Returns whether the role lacks a right.
    pub(super) fn lacks_rights(&self) -> bool {
        self.code == "42501"
    }

    /// Returns whether the same request may be answered a little later.
    pub(super) fn is_transient(&self) -> bool {
        // Tables that are missing are created.
        self.is_of_standby
            || self.lacks_tables()
            || self.ends_session && !LASTING.contains(&self.code.as_str())
            || TRANSIENT_CLASSES.iter().any(|class| self.code.starts_with(class))
            || TRANSIENT.contains(&self.code.as_str())
    }

    /// Returns whether the transaction is worth repeating at once: it was rolled back because of others, or because we took too long
    /// between its round trips.
    pub(super) fn is_worth_repeating(&self) -> bool {
        matches!(self.code.as_str(), "25P03" | "25P04" | "40001" | "40P01")
    }

    /// Returns whether the server rejected a notification because too many are waiting to be read.
    pub(super) fn is_of_full_queue(&self) -> bool {
        // program_limit_exceeded
        self.code == "54000"
    }

    /// Returns whether others have kept the statement from being carried out in time.
    pub(super) fn is_busy(&self) -> bool {
        // lock_not_available, query_canceled
        matches!(self.code.as_str(), "55P03" | "57014")
    }

    /// Returns whether the connection has become useless: the server has closed it with this message, or is a standby now.
    pub(super) fn is_fatal(&self) -> bool {
        self.is_fatal || self.is_of_standby
    }
}

/// Returns whether a notice says that the wait for a standby to confirm a commit was cancelled. Other warnings that come with a commit do
/// not matter here.
pub(super) fn is_of_unconfirmed_commit(fields: ErrorFields<'_>) -> bool {
    let mut fields = fields;
    while let Ok(Some(field)) = fields.next() {
        // The server's function that waits. The notice's code is shared with other warnings, and its text is in the server's language.
        if field.type_() == b'R' {
            return field.value_bytes() == b"SyncRepWaitForLSN";
        }
    }
    false
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
    pub(super) fn after(self, refusal: Option<&Refusal>) -> Self {
        match (self, refusal) {
            (Failure::Closed, Some(refusal)) => Failure::Refused(Refusal { is_fatal: true, ..refusal.clone() }),
            (failure, _) => failure,
        }
    }

    /// Returns whether a standby was asked to write.
    pub(super) fn is_of_standby(&self) -> bool {
        matches!(self, Failure::Refused(refusal) if refusal.is_of_standby)
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
        !matches!(self, Failure::Refused(refusal) if !refusal.is_fatal())
    }

    /// Returns whether an operation that failed so may have been committed.
    pub(super) fn leaves_outcome_open(&self) -> bool {
        self.is_out_of_step() && !matches!(self, Failure::RowBusy)
    }

    /// Returns whether the same request may be answered a little later.
    pub(super) fn is_transient(&self) -> bool {
        self.trouble() != Trouble::Permanent
    }

    /// Returns what kind of trouble it is.
    pub(super) fn trouble(&self) -> Trouble {
        match self {
            Failure::Unreachable(_) | Failure::Standby | Failure::Closed | Failure::Silent | Failure::RowDeleted => {
                Trouble::Unavailable
            }
            Failure::Slow | Failure::Unconfirmed | Failure::TooLate => Trouble::Slow,
            Failure::RowBusy => Trouble::Busy,
            Failure::Refused(refusal) if refusal.is_busy() => Trouble::Busy,
            Failure::Refused(refusal) if refusal.is_transient() => Trouble::Unavailable,
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
            | Failure::NoTables
            | Failure::Revoked
            | Failure::FenceEnds(_)
            | Failure::NewerTables(_)
            | Failure::ForeignTable(_) => Trouble::Permanent,
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
            Failure::RowBusy => {
                anyhow!("{server} could not carry out the request in time: others have used the lock all the time")
            }
            Failure::NoPassword(why) | Failure::NoHost { why, .. } => anyhow!("{why}"),
            Failure::Unwritten => anyhow!(
                "{server} has not stored what it was told to; see whether a rule or trigger on the tables of lockrun prevents it"
            ),
            Failure::Unconfirmed => anyhow!(
                "{server} has committed, but no standby has confirmed that it has received it; see why, and who has cancelled the wait for it"
            ),
            Failure::NotAdmitted(why) => anyhow!("{server} {}", escaped(why)),
            Failure::Broken(what) => anyhow!("its record in {server} is broken, so nobody gets it: {}", escaped(what)),
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
            Failure::NoTables => anyhow!(
                "{server} has no tables for locks in the schema {:?}, and the user {:?} may not create them; \
                 lockrun doctor --schema prints what the database's owner has to run",
                server.schema,
                server.user
            ),
            Failure::Refused(refusal) => {
                let Refusal { code, message, .. } = refusal;
                let advice = match code.as_str() {
                    _ if refusal.is_of_standby => "; this is a standby: name the primary in the store's URL",
                    "42501" => "; lockrun doctor --schema prints the rights that the user needs",
                    "53300" => {
                        "; raise that limit (of the server, the database or the role), or use a connection pooler"
                    }
                    "53100" => "; its disk is full",
                    // untranslatable_character
                    "22P05" => {
                        "; its database cannot store this key: choose another one, or a database with the encoding UTF8"
                    }
                    _ if refusal.is_busy() => {
                        "; others have used the lock, or its tables, all the time, or their commits wait for a standby"
                    }
                    _ => "",
                };
                anyhow!("{server} rejects the request: {} (SQLSTATE {}){advice}", escaped(message), escaped(code))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(code: &str, is_fatal: bool) -> Refusal {
        Refusal { code: code.into(), is_fatal, ..Refusal::default() }
    }

    #[test]
    fn what_ends_a_session_passes() {
        // 42P17 does not pass if it is the answer to a statement.
        for code in ["25P04", "42P17", "57P04", "XX000", "00000"] {
            let failure = Failure::Refused(refusal(code, true).in_session());
            assert!(failure.is_closed() && failure.is_transient(), "{code}");
        }
        assert!(!refusal("42P17", false).in_session().is_transient());
        assert!(!refusal("42P17", true).is_transient(), "it was not let in");
        for code in LASTING {
            assert!(!refusal(code, true).in_session().is_transient(), "{code}");
        }
    }

    #[test]
    fn troubles_of_the_server_pass() {
        for code in ["25P04", "53100", "53400", "58030", "XX000", "08006", "40001", "55P03"] {
            assert!(refusal(code, false).is_transient(), "{code}");
        }
        for code in ["22P05", "28P01", "42501", "54000", "55000"] {
            assert!(!refusal(code, false).is_transient(), "{code}");
        }
        assert!(refusal("25P04", true).is_worth_repeating());
    }
}
