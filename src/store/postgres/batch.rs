//! Statements that travel together.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::IsNull;
use postgres_protocol::message::frontend;

use crate::lock::state::millis;
use crate::sys::clock::Moment;

/// How a transaction begins that changes a lock.
pub(super) const READ_WRITE: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

/// How one begins that looks at many rows as of one moment.
pub(super) const SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// The longest time-out that PostgreSQL takes, in milliseconds.
const TIMEOUT_MAX: u64 = 2_147_483_647;

/// How long a transaction may stand still between its round trips, in milliseconds, at most half as long as a request may take; then
/// the server ends the session. A lockrun that is stopped right then keeps the others from the lock for so long, and its holder from
/// renewing it.
const IDLE_MAX_MS: u64 = 1500;

/// What a crash of the server must not make it forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Commit {
    /// What was written: the commit waits for the server's disk, and only then do others see it.
    Durable,
    /// The same, but others see it before that. What they do then, they commit, too, which waits for all that was written until then.
    SeenFirst,
    /// Nothing: nobody waits for the disk.
    Forgettable,
}

/// Lets the commit of a transaction wait for the server's disk, and say if no standby has confirmed it, whatever is set in the session.
const SYNCHRONOUS: &str = "pg_catalog.set_config('synchronous_commit', \
     CASE WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'off' THEN 'local' \
      ELSE pg_catalog.current_setting('synchronous_commit') END, true), \
     pg_catalog.set_config('client_min_messages', 'warning', true)";

/// Statements that travel together, each of which is carried out when it has come.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) messages: BytesMut,
    length: usize,
    /// How many of them nobody needs the answers of.
    pub(super) preparations: usize,
    /// Whether the first of them begins a transaction that writes.
    pub(super) writes: bool,
    /// A statement that cannot be sent at all.
    pub(super) failure: Option<io::Error>,
}

impl Batch {
    /// Returns a batch that begins a transaction as `begin` says. Each statement is bounded in time, and so is a pause between two. The
    /// transaction is committed to the server's disk whatever `synchronous_commit` is there: a crash must not make the server forget a lock
    /// after it has answered. A commit has no bound on the server, where it may have to wait for a standby; we wait until the `deadline`.
    ///
    /// Names mean the server's own functions and operators in it, not what another user of the database has called the same.
    pub(super) fn transaction(begin: &str, deadline: Moment) -> Self {
        Batch::impatient_transaction(begin, deadline, Duration::MAX)
    }

    /// The same, which waits no longer than `lock_wait` for a row that another transaction has locked.
    pub(super) fn impatient_transaction(begin: &str, deadline: Moment, lock_wait: Duration) -> Self {
        let left = millis(deadline.since(Moment::now())).clamp(1, TIMEOUT_MAX);
        let idle = (left / 2).clamp(1, IDLE_MAX_MS);
        let lock_wait = (left * 3 / 4 + 1).min(millis(lock_wait));
        let [lock_wait, whole, idle] = [lock_wait, left, idle].map(|span| span.to_string());
        let mut batch = Batch::default();
        batch.add(begin, &[]);
        batch.add(
            &format!(
                "SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true), \
                 pg_catalog.set_config('lock_timeout', $1, true), pg_catalog.set_config('statement_timeout', $2, true), \
                 pg_catalog.set_config('idle_in_transaction_session_timeout', $3, true), {SYNCHRONOUS}"
            ),
            &[Some(&lock_wait), Some(&whole), Some(&idle)],
        );
        batch.preparations = batch.length;
        batch.writes = begin == READ_WRITE;
        batch
    }

    /// Commits. Returns where among the answers that of the commit is.
    pub(super) fn commit(&mut self, how: Commit) -> usize {
        if how != Commit::Durable {
            self.add("SELECT set_config('synchronous_commit', 'off', true)", &[]);
        }
        let at = self.length - self.preparations;
        self.add("COMMIT", &[]);
        if how == Commit::SeenFirst {
            // A transaction of its own, which waits for the disk. It writes as little as can be waited for, and takes no lock.
            self.add(&format!("SELECT {SYNCHRONOUS}, pg_catalog.pg_logical_emit_message(true, 'lockrun', '')"), &[]);
        }
        at
    }

    /// Returns how many statements it has.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Adds a statement with its parameters, which are text.
    ///
    /// It is prepared without a name, so it needs nothing that an earlier transaction has left in the session: a pooler may give each
    /// one another session. The server is ready for the next one after each, so that its time-outs hold if that never comes.
    pub(super) fn add(&mut self, statement: &str, parameters: &[Option<&str>]) {
        let buffer = &mut self.messages;
        let put = |value: Option<&str>, buffer: &mut BytesMut| match value {
            Some(text) => {
                buffer.extend_from_slice(text.as_bytes());
                Ok(IsNull::No)
            }
            None => Ok(IsNull::Yes),
        };
        let parsed = frontend::parse("", statement, [], buffer);
        let bound = frontend::bind("", "", [], parameters.iter().copied(), put, [], buffer);
        let bound = bound.map_err(|error| match error {
            frontend::BindError::Conversion(error) => io::Error::other(error),
            frontend::BindError::Serialization(error) => error,
        });
        let executed = frontend::execute("", 0, buffer);
        frontend::sync(buffer);
        self.length += 1;
        self.failure = self.failure.take().or(parsed.and(bound).and(executed).err());
    }
}
