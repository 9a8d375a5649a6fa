//! What would make locks in this database unsafe or slow.

mod connections;
mod durability;
mod encryption;
mod replication;
mod rights;
mod server;
mod settings;
mod tables;
mod trust;

use std::mem;
use std::time::Duration;

use uuid::Uuid;

use super::PostgresStore;
use super::batch::{Batch, READ_WRITE};
use super::connection::Row;
use super::failure::Failure;
use super::schema::Tables;
use crate::lock::key::Key;
use crate::store::diagnostic::{Diagnostic, latency, trial};
use crate::store::engine::Records as _;
use crate::sys::blocked_signals::with_signals_blocked;
use crate::sys::clock::Moment;
use rights::{Readiness, Rights};
use server::Introduction;
use settings::Settings;
use tables::Table;
use trust::Trust;

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
    let (introduction, is_encrypted) = (Introduction::ask(store)?, is_encrypted(store));
    let settings = Settings::ask(store)?;
    diagnostics.extend(server::judge(&store.server, &introduction, &settings));
    if introduction.is_standby {
        return Ok(());
    }
    diagnostics.extend(encryption::diagnose(&store.server, is_encrypted, store.timeout));

    let found = Table::ask_all(store)?;
    let (findings, is_safe) = Trust::ask(store)?.judge();
    diagnostics.extend(findings);
    if is_safe {
        let readiness = judge_tables(store, &found, &introduction.role, diagnostics)?;
        // What it creates must be removed.
        diagnostics.extend(with_signals_blocked(|| try_a_lock(store, readiness))?);
    }
    diagnostics.extend(latency::diagnose(store.timeout, || time(store))?);

    diagnostics.extend(tables::judge(&found, &store.tables));
    diagnostics.extend(durability::judge(&settings));
    diagnostics.push(replication::diagnose(store, &settings, &introduction.role)?);
    diagnostics.extend(connections::diagnose(store, &settings, introduction.is_pooled)?);
    Ok(())
}

/// Adds to `diagnostics` whether the tables that were found are lockrun's, and whether our role may use them.
fn judge_tables(
    store: &mut PostgresStore,
    found: &[Table],
    role: &str,
    diagnostics: &mut Vec<Diagnostic>,
) -> Result<Readiness, Failure> {
    if let Some(mismatch) = store.mismatch(Moment::now() + store.timeout)? {
        diagnostics.push(Diagnostic::unusable(store.explain(&mismatch).to_string(), ""));
        return Ok(Readiness::Unusable);
    }
    let rights = Rights::ask(store, role)?;
    let (findings, readiness) = rights::judge(&rights, found, &store.tables, &store.server);
    diagnostics.extend(findings);
    if readiness == Readiness::Ready {
        diagnostics.extend(tables::judge_version(store)?);
    }
    Ok(readiness)
}

fn is_encrypted(store: &PostgresStore) -> bool {
    store.connection.as_ref().is_some_and(super::connection::Connection::is_encrypted)
}

/// Tries a lock that only we use; to the server it is like any other.
fn try_a_lock(store: &mut PostgresStore, readiness: Readiness) -> Result<Option<Diagnostic>, Failure> {
    let key = trial::key();
    match readiness {
        Readiness::Ready => {
            let tried = trial::diagnose(store, &key);
            let Tables { locks, waiters, .. } = store.tables.clone();
            for table in [waiters, locks] {
                try_ask(store, &format!("DELETE FROM {table} WHERE key = $1"), &[Some(key.as_str())])?;
            }
            Ok(Some(tried))
        }
        Readiness::FirstUse { may_create_schemas: true } => try_elsewhere(store, &key).map(Some),
        Readiness::FirstUse { may_create_schemas: false } | Readiness::Unusable => Ok(None),
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
        Err(Failure::Refused(refusal)) if !refusal.is_fatal() => Ok(None),
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

/// Returns the number in a column, unless it is null or missing.
fn number(row: &Row, at: usize) -> Option<i64> {
    text(row, at)?.parse().ok()
}
