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

/// The longest time that a transaction may be idle between its round trips, in milliseconds, and for which what the
/// server sends in it may remain unread, but at most half as long as the request may take; then the server ends the
/// session. For so long, a lockrun that is stopped just then keeps others from acquiring the lock, and its holder from
/// renewing it.
const IDLE_MAX_MS: u64 = 1500;

/// The settings of a transaction, whatever those of the session are. Names mean the server's own functions and
/// operators. A row-level security policy that would hide rows is an error. A prepared statement keeps its plan. The
/// commit waits for the server's disk, and the server warns if no standby has confirmed it.
pub(super) const SETTINGS: &str = "SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true), \
     pg_catalog.set_config('lock_timeout', $1, true), pg_catalog.set_config('statement_timeout', $2, true), \
     pg_catalog.set_config('idle_in_transaction_session_timeout', $3, true), \
     pg_catalog.set_config('tcp_user_timeout', $3, true), \
     pg_catalog.set_config('row_security', 'off', true), \
     pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', true), \
     pg_catalog.set_config('synchronous_commit', \
     CASE WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'off' THEN 'local' \
      ELSE pg_catalog.current_setting('synchronous_commit') END, true), \
     pg_catalog.set_config('client_min_messages', 'warning', true)";

/// A statement with its parameters, which are text.
struct Statement {
    text: String,
    parameters: Vec<Option<String>>,
    /// Whether a sync follows. If a statement fails, the server skips what follows up to the next sync.
    ends_with_sync: bool,
}

/// Statements that are sent together. The server carries out each as it arrives.
#[derive(Default)]
pub(super) struct Batch {
    statements: Vec<Statement>,
    /// Whether the first answer is that of a transaction's beginning, which no caller needs.
    pub(super) begins: bool,
    /// Whether that transaction writes.
    pub(super) writes: bool,
    /// How many bytes the answers may take, if they are a page of a listing.
    pub(super) listing_left: Option<usize>,
    /// What the session prepares when the statements are done, so that it costs nobody who waits for them.
    pub(super) preparation: Option<Preparation>,
}

/// Statements that a session prepares.
pub(super) struct Preparation {
    pub(super) statements: Vec<Preparable>,
    settings: Vec<Option<String>>,
}

/// A statement that a session can prepare.
pub(super) struct Preparable {
    pub(super) text: String,
    /// How many parameters it has.
    pub(super) parameters: usize,
    /// Whether it is carried out under [`SETTINGS`].
    pub(super) has_our_settings: bool,
}

impl Batch {
    /// Returns a batch that begins a transaction of this `kind`. Each statement has a time-out, and so has a pause
    /// between two. The commit waits for the server's disk whatever `synchronous_commit` is there: a crash must not
    /// make the server forget a lock after it has answered. The server sets no limit on a commit, which may have to
    /// wait for a standby; we wait until the `deadline`.
    ///
    /// In it, names mean the server's own functions and operators, not another user's objects of the same name. A
    /// statement from which a row-level security policy would hide rows is an error: a lock whose row is hidden would
    /// look free.
    pub(super) fn transaction(kind: &str, deadline: Moment) -> Self {
        Batch::transaction_with_lock_timeout(kind, deadline, Duration::MAX)
    }

    /// The same, but waits at most `lock_wait` for a row that another transaction has locked.
    ///
    /// The beginning has one sync: no time-out of the role's ends the session before ours are set. A standby rejects
    /// the kind, not `BEGIN`, so that it carries out none of the other statements: outside the transaction, their names
    /// could mean another user's objects.
    pub(super) fn transaction_with_lock_timeout(kind: &str, deadline: Moment, lock_wait: Duration) -> Self {
        let mut batch = Batch { begins: true, writes: kind == READ_WRITE, ..Batch::default() };
        batch.put("BEGIN", Vec::new(), false);
        batch.put(kind, Vec::new(), false);
        batch.put(SETTINGS, settings(deadline, lock_wait), true);
        batch
    }

    /// Lets the session prepare these statements when the others are done. The answer to the others waits for this,
    /// until the `deadline` of the whole at most: somebody may hold a lock on a table.
    pub(super) fn prepare(&mut self, statements: Vec<Preparable>, deadline: Moment) {
        self.preparation = Some(Preparation { statements, settings: settings(deadline, Duration::MAX) });
    }

    /// Adds the commit. Returns the index of its answer. Unless it `is_durable`, it does not wait for the disk: a crash
    /// of the server may undo it.
    pub(super) fn commit(&mut self, is_durable: bool) -> usize {
        if !is_durable {
            self.add("SELECT pg_catalog.set_config('synchronous_commit', 'off', true)", &[]);
        }
        self.add("COMMIT", &[]);
        self.answers() - 1
    }

    /// Returns the number of answers: one for each statement, and one for a transaction's beginning.
    pub(super) fn len(&self) -> usize {
        self.statements.iter().filter(|statement| statement.ends_with_sync).count()
    }

    /// Returns the number of answers that a caller gets: the index of the next statement's.
    pub(super) fn answers(&self) -> usize {
        self.len() - usize::from(self.begins)
    }

    /// Adds a statement with its parameters, which are text.
    ///
    /// It ends with a sync, so that the server's time-outs apply while it waits for the next one.
    pub(super) fn add(&mut self, statement: &str, parameters: &[Option<&str>]) {
        self.put(statement, parameters.iter().map(|value| value.map(str::to_owned)).collect(), true);
    }

    fn put(&mut self, text: &str, parameters: Vec<Option<String>>, ends_with_sync: bool) {
        self.statements.push(Statement { text: text.to_owned(), parameters, ends_with_sync });
    }

    /// Returns the messages, for a session that has `prepared` some statements.
    pub(super) fn encode(&self, prepared: &Prepared) -> io::Result<BytesMut> {
        let mut buffer = BytesMut::new();
        for Statement { text, parameters, ends_with_sync } in &self.statements {
            run(&mut buffer, text, parameters, prepared)?;
            if *ends_with_sync {
                frontend::sync(&mut buffer);
            }
        }
        if let Some(preparation) = &self.preparation {
            preparation.encode(&mut buffer, prepared)?;
        }
        Ok(buffer)
    }
}

impl Preparation {
    /// Adds the messages that prepare the statements and let the server plan them, which it does when parameters are
    /// bound. What was parsed under another search_path is parsed again, so those that are carried out under the
    /// session's own settings come first. All of it is one transaction, which changes nothing.
    fn encode(&self, buffer: &mut BytesMut, prepared: &Prepared) -> io::Result<()> {
        let named = || self.statements.iter().enumerate().map(|(at, it)| (prepared.name(at), it));
        for (name, it) in named().filter(|(_, it)| !it.has_our_settings) {
            frontend::parse(&name, &it.text, [], buffer)?;
        }
        run(buffer, SETTINGS, &self.settings, prepared)?;
        for (name, it) in named().filter(|(_, it)| it.has_our_settings) {
            frontend::parse(&name, &it.text, [], buffer)?;
            bind(buffer, &name, &vec![None; it.parameters])?;
        }
        frontend::sync(buffer);
        Ok(())
    }
}

/// The statements that a session has prepared. Their names begin with the name of its channel, so no other client's
/// have them.
pub(super) struct Prepared {
    prefix: String,
    texts: Vec<String>,
}

impl Prepared {
    /// Returns none, in the session with this channel.
    pub(super) fn none(channel: &str) -> Self {
        Prepared { prefix: channel.to_owned(), texts: Vec::new() }
    }

    /// Returns whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Notes that the statements of a preparation are prepared.
    pub(super) fn note(&mut self, preparation: &Preparation) {
        self.texts = preparation.statements.iter().map(|statement| statement.text.clone()).collect();
    }

    /// Forgets them: from now on each statement is sent as a whole.
    pub(super) fn forget(&mut self) {
        self.texts.clear();
    }

    fn name(&self, at: usize) -> String {
        format!("{}_{at}", self.prefix)
    }

    fn name_of(&self, text: &str) -> Option<String> {
        self.texts.iter().position(|it| it == text).map(|at| self.name(at))
    }
}

/// Returns the parameters of [`SETTINGS`].
fn settings(deadline: Moment, lock_wait: Duration) -> Vec<Option<String>> {
    let left = millis(deadline.since(Moment::now())).clamp(1, TIMEOUT_MAX);
    let idle = (left / 2).clamp(1, IDLE_MAX_MS);
    let lock_wait = (left * 3 / 4 + 1).min(millis(lock_wait));
    [lock_wait, left, idle].map(|span| Some(span.to_string())).into()
}

/// Adds the messages that carry out a statement. One that the session has not `prepared` has no name, so it needs
/// nothing that an earlier transaction has left in the session: a pooler may give each transaction another session.
fn run(buffer: &mut BytesMut, text: &str, parameters: &[Option<String>], prepared: &Prepared) -> io::Result<()> {
    let name = prepared.name_of(text);
    if name.is_none() {
        frontend::parse("", text, [], buffer)?;
    }
    bind(buffer, name.as_deref().unwrap_or_default(), parameters)?;
    frontend::execute("", 0, buffer)
}

fn bind(buffer: &mut BytesMut, statement: &str, parameters: &[Option<String>]) -> io::Result<()> {
    let encode = |value: &Option<String>, buffer: &mut BytesMut| {
        let text = value.as_ref().map(|text| buffer.extend_from_slice(text.as_bytes()));
        Ok(text.map_or(IsNull::Yes, |()| IsNull::No))
    };
    frontend::bind("", statement, [], parameters, encode, [], buffer).map_err(|error| match error {
        frontend::BindError::Conversion(error) => io::Error::other(error),
        frontend::BindError::Serialization(error) => error,
    })
}
