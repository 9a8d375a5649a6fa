//! Statements that are sent together.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::IsNull;
use postgres_protocol::message::frontend;

use crate::lock::state::millis;
use crate::sys::clock::Moment;

/// The kind of a transaction that changes a lock.
pub(super) const READ_WRITE: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED READ WRITE";

/// The kind of a transaction that reads many rows as of one moment.
pub(super) const SNAPSHOT: &str = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// The longest time-out that PostgreSQL accepts, in milliseconds.
const TIMEOUT_MAX: u64 = 2_147_483_647;

/// The longest time that a transaction may be idle between its round trips, in milliseconds, and for which what the server sends in it may
/// remain unread, but at most half as long as the request may take; then the server ends the session. For so long, a lockrun that is
/// stopped just then keeps others from acquiring the lock, and its holder from renewing it.
const IDLE_MAX_MS: u64 = 1500;

/// Makes the commit of a transaction wait for the server's disk, and warn if no standby has confirmed it, whatever the session's settings
/// are.
const SYNCHRONOUS: &str = "pg_catalog.set_config('synchronous_commit', \
     CASE WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'off' THEN 'local' \
      ELSE pg_catalog.current_setting('synchronous_commit') END, true), \
     pg_catalog.set_config('client_min_messages', 'warning', true)";

/// Statements that are sent together. The server carries out each as it arrives.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) messages: BytesMut,
    length: usize,
    /// Whether the first answer is that of a transaction's beginning, which no caller needs.
    pub(super) begins: bool,
    /// Whether that transaction writes.
    pub(super) writes: bool,
    /// How many bytes the answers may take, if they are a page of a listing.
    pub(super) listing_left: Option<usize>,
    /// Why a statement could not be encoded.
    pub(super) failure: Option<io::Error>,
}

impl Batch {
    /// Returns a batch that begins a transaction of this `kind`. Each statement has a time-out, and so has a pause between two.
    /// The commit waits for the server's disk whatever `synchronous_commit` is there: a crash must not make the server forget a lock after
    /// it has answered. The server sets no limit on a commit, which may have to wait for a standby; we wait until the `deadline`.
    ///
    /// In it, names mean the server's own functions and operators, not another user's objects of the same name. A statement from which a
    /// row-level security policy would hide rows is an error: a lock whose row is hidden would look free.
    pub(super) fn transaction(kind: &str, deadline: Moment) -> Self {
        Batch::impatient_transaction(kind, deadline, Duration::MAX)
    }

    /// The same, but waits at most `lock_wait` for a row that another transaction has locked.
    ///
    /// The beginning has one sync: no time-out of the role's ends the session before ours are set. A standby rejects the kind, not `BEGIN`,
    /// so that it carries out none of the other statements: outside the transaction, their names could mean another user's objects.
    pub(super) fn impatient_transaction(kind: &str, deadline: Moment, lock_wait: Duration) -> Self {
        let left = millis(deadline.since(Moment::now())).clamp(1, TIMEOUT_MAX);
        let idle = (left / 2).clamp(1, IDLE_MAX_MS);
        let lock_wait = (left * 3 / 4 + 1).min(millis(lock_wait));
        let [lock_wait, whole, idle] = [lock_wait, left, idle].map(|span| span.to_string());
        let mut batch = Batch::default();
        batch.put("BEGIN", &[]);
        batch.put(kind, &[]);
        batch.add(
            &format!(
                "SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true), \
                 pg_catalog.set_config('lock_timeout', $1, true), pg_catalog.set_config('statement_timeout', $2, true), \
                 pg_catalog.set_config('idle_in_transaction_session_timeout', $3, true), \
                 pg_catalog.set_config('tcp_user_timeout', $3, true), \
                 pg_catalog.set_config('row_security', 'off', true), {SYNCHRONOUS}"
            ),
            &[Some(&lock_wait), Some(&whole), Some(&idle)],
        );
        batch.begins = true;
        batch.writes = kind == READ_WRITE;
        batch
    }

    /// Adds the commit. Returns the index of its answer. Unless it `is_durable`, it does not wait for the disk: a crash of the server may
    /// undo it.
    pub(super) fn commit(&mut self, is_durable: bool) -> usize {
        if !is_durable {
            self.add("SELECT pg_catalog.set_config('synchronous_commit', 'off', true)", &[]);
        }
        self.add("COMMIT", &[]);
        self.answers() - 1
    }

    /// Returns the number of answers: one for each statement, and one for a transaction's beginning.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Returns the number of answers that a caller gets: the index of the next statement's.
    pub(super) fn answers(&self) -> usize {
        self.length - usize::from(self.begins)
    }

    /// Adds a statement with its parameters, which are text.
    ///
    /// The prepared statement has no name, so it needs nothing that an earlier transaction has left in the session: a pooler may give each
    /// transaction another session. Each statement ends with a sync, so that the server's time-outs apply while it waits for the next one.
    pub(super) fn add(&mut self, statement: &str, parameters: &[Option<&str>]) {
        self.put(statement, parameters);
        frontend::sync(&mut self.messages);
        self.length += 1;
    }

    /// Adds a statement without a sync. If it fails, the server skips what follows up to the next sync.
    fn put(&mut self, statement: &str, parameters: &[Option<&str>]) {
        let buffer = &mut self.messages;
        let encode = |value: Option<&str>, buffer: &mut BytesMut| match value {
            Some(text) => {
                buffer.extend_from_slice(text.as_bytes());
                Ok(IsNull::No)
            }
            None => Ok(IsNull::Yes),
        };
        let parsed = frontend::parse("", statement, [], buffer);
        let bound = frontend::bind("", "", [], parameters.iter().copied(), encode, [], buffer);
        let bound = bound.map_err(|error| match error {
            frontend::BindError::Conversion(error) => io::Error::other(error),
            frontend::BindError::Serialization(error) => error,
        });
        let executed = frontend::execute("", 0, buffer);
        self.failure = self.failure.take().or(parsed.and(bound).and(executed).err());
    }
}
