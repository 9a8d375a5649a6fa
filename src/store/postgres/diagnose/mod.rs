//! What would make locks in this database unsafe or slow.

mod server;
mod settings;
mod tables;

use std::mem;
use std::time::Duration;

use uuid::Uuid;

use super::PostgresStore;
use super::batch::{Batch, READ_WRITE};
use super::connection::{Connection, Row};
use super::failure::Failure;
use super::schema::Tables;
use crate::lock::key::Key;
use crate::store::diagnostic::{Diagnostic, latency, trial};
use crate::store::engine::Records as _;
use crate::sys::blocked_signals::with_signals_blocked;
use crate::sys::clock::Moment;
use server::Introduction;
use settings::Settings;
use tables::{Objects, Rights, Trial};

/// Checks the server of `store`, and tries a lock there under a key that no one else uses.
pub(super) fn diagnose(store: &mut PostgresStore) -> Vec<Diagnostic> {
    let mut diagnostics = Vec::new();
    if let Err(failure) = look(store, &mut diagnostics) {
        diagnostics.push(Diagnostic::unusable(store.explain(&failure).to_string(), ""));
    }
    diagnostics
}

/// Adds what is found to `diagnostics`. Fails if the server stops answering.
fn look(store: &mut PostgresStore, diagnostics: &mut Vec<Diagnostic>) -> Result<(), Failure> {
    let introduction = Introduction::ask(store)?;
    let is_encrypted = store.connection.as_ref().is_some_and(Connection::is_encrypted);
    let settings = Settings::ask(store)?;
    diagnostics.extend(server::judge(&store.server, &introduction, &settings));
    if introduction.is_standby {
        return Ok(());
    }
    diagnostics.extend(server::judge_encryption(&store.server, is_encrypted, store.timeout));

    let objects = Objects::ask(store)?;
    let (findings, is_safe) = objects.judge_trust();
    diagnostics.extend(findings);
    if is_safe {
        diagnostics.extend(try_tables(store, &objects, &introduction.role)?);
    }
    diagnostics.extend(latency::diagnose(store.timeout, || time(store))?);

    diagnostics.extend(objects.judge_persistence());
    diagnostics.extend(settings.judge_durability());
    diagnostics.push(settings::diagnose_standbys(store, &settings, &introduction.role)?);
    // Behind a pooler, connections are the pooler's business.
    if !introduction.is_pooled {
        diagnostics.extend(settings::diagnose_connections(store, &settings)?);
    }
    Ok(())
}

/// Returns whether the tables are lockrun's, and our role may use them; if so, tries a lock.
fn try_tables(store: &mut PostgresStore, objects: &Objects, role: &str) -> Result<Vec<Diagnostic>, Failure> {
    if let Some(mismatch) = store.mismatch(Moment::now() + store.timeout)? {
        return Ok(vec![Diagnostic::unusable(store.explain(&mismatch).to_string(), "")]);
    }
    let rights = Rights::ask(store, role)?;
    let (mut diagnostics, trial) = objects.judge_rights(&rights, &store.server);
    // What the trial creates must be removed.
    diagnostics.extend(with_signals_blocked(|| try_a_lock(store, trial))?);
    Ok(diagnostics)
}

/// Tries a lock that only we use; to the server it is like any other.
fn try_a_lock(store: &mut PostgresStore, trial: Trial) -> Result<Option<Diagnostic>, Failure> {
    let key = trial::key();
    match trial {
        Trial::InTables => {
            let tried = trial::diagnose(store, &key);
            let Tables { locks, waiters, .. } = store.tables.clone();
            for table in [waiters, locks] {
                try_ask(store, &format!("DELETE FROM {table} WHERE key = $1"), &[Some(key.as_str())])?;
            }
            Ok(Some(tried))
        }
        Trial::InOwnSchema => try_elsewhere(store, &key).map(Some),
        Trial::Nowhere => Ok(None),
    }
}

/// Tries the lock in a schema that is created for this and dropped: the first run is to create the real tables.
fn try_elsewhere(store: &mut PostgresStore, key: &Key) -> Result<Diagnostic, Failure> {
    let schema = format!("lockrun_doctor_{}", Uuid::new_v4().simple());
    let tables = mem::replace(&mut store.tables, Tables::in_schema(&schema));
    let named = mem::replace(&mut store.server.schema, schema);
    let tried = trial::diagnose(store, key);
    let dropped = try_ask(store, &format!("DROP SCHEMA IF EXISTS {} CASCADE", store.tables.schema), &[]);
    store.server.schema = named;
    store.tables = tables;
    dropped.map(|_| tried)
}

/// Returns the time since 1970 by the server's clock; `None` if the answer cannot be read.
fn time(store: &mut PostgresStore) -> Result<Option<Duration>, Failure> {
    let clock = "SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint";
    let row = ask_one(store, clock, &[])?;
    Ok(text(&row, 0).and_then(|micros| micros.parse().ok()).map(Duration::from_micros))
}

/// Sends a statement and waits for its rows.
fn ask(store: &mut PostgresStore, statement: &str, parameters: &[Option<&str>]) -> Result<Vec<Row>, Failure> {
    let deadline = Moment::now() + store.timeout;
    let mut batch = Batch::transaction(READ_WRITE, deadline);
    batch.add(statement, parameters);
    batch.add("COMMIT", &[]);
    let mut answers = store.connected(deadline)?.run(&batch, deadline)?;
    answers.pop();
    Ok(answers.pop().map(|answer| answer.rows).unwrap_or_default())
}

/// Sends a statement that has one row. Returns an empty row if there is none.
fn ask_one(store: &mut PostgresStore, statement: &str, parameters: &[Option<&str>]) -> Result<Row, Failure> {
    Ok(ask(store, statement, parameters)?.pop().unwrap_or_default())
}

/// The same, but returns `None` if the server rejects the statement.
fn try_ask(store: &mut PostgresStore, statement: &str, parameters: &[Option<&str>]) -> Result<Option<Row>, Failure> {
    match ask_one(store, statement, parameters) {
        Ok(row) => Ok(Some(row)),
        Err(Failure::Rejected(rejection)) if !rejection.is_fatal() => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Returns the value of a column, unless it is null or missing.
fn text(row: &Row, at: usize) -> Option<&str> {
    row.get(at)?.as_deref()
}

/// Returns whether a column is true; `None` if it is null or missing.
fn truth(row: &Row, at: usize) -> Option<bool> {
    text(row, at).map(|value| value == "t")
}

/// Returns the words in a column, a JSON array; none if it is null or missing.
fn list(row: &Row, at: usize) -> Result<Vec<String>, Failure> {
    let words = text(row, at).map(serde_json::from_str).transpose();
    words.map(Option::unwrap_or_default).map_err(|_| Failure::UnexpectedReply("a list that cannot be read"))
}

/// Returns the number in a column, unless it is null or missing.
fn number(row: &Row, at: usize) -> Option<i64> {
    text(row, at)?.parse().ok()
}
