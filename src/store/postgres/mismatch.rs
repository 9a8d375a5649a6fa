//! Recognizes tables that this version's statements do not fit: those of a later version, or of another program.
//!
//! An operation reads the version together with the lock. But if a later version has renamed a column, the statement
//! that names it is rejected before that; and if it has renamed a table, that table must not be created again.

use super::PostgresStore;
use super::batch::{Batch, SNAPSHOT};
use super::connection::Row;
use super::failure::Failure;
use super::schema::{Tables, VERSION};
use super::server_error::ServerError;
use crate::sys::clock::Moment;

/// The columns that the statements name, and the kind of their types: `pg_type.typcategory`.
const COLUMNS: [(&str, &[(&str, &str)]); 3] = [
    ("version", &[("version", "N")]),
    ("locks", &[("key", "S"), ("state", "U")]),
    ("waiters", &[("key", "S"), ("place", "N"), ("token", "S"), ("waiter", "U"), ("ends_ms", "N"), ("channel", "S")]),
];

/// Fails if `version` is that of a later lockrun's tables, or not a number. Without a version the tables count as of
/// this version.
pub(super) fn check_version(version: Option<&str>, tables: &Tables) -> Result<(), Failure> {
    match version.map(str::parse::<i64>) {
        Some(Ok(version)) if version > VERSION => Err(Failure::lasting(format!(
            "has tables of version {version} in the schema {}, which this lockrun does not know; install a later one",
            tables.schema
        ))),
        Some(Err(_)) => Err(Failure::foreign_table("version", tables)),
        _ => Ok(()),
    }
}

impl ServerError {
    /// Returns whether the statement may not fit the table: the table or a column is missing or of another type.
    fn may_be_mismatch(&self) -> bool {
        // Class 42 (syntax errors and missing objects) without insufficient_privilege; invalid_text_representation,
        // not_null_violation.
        self.code.starts_with("42") && !self.lacks_rights() || matches!(self.code.as_str(), "22P02" | "23502")
    }
}

impl PostgresStore {
    /// Returns the mismatch behind a `failure` if the statement does not fit the tables, else the failure itself.
    pub(super) fn find_mismatch(&mut self, failure: Failure, deadline: Moment) -> Failure {
        match &failure {
            Failure::Rejected(rejection) if rejection.may_be_mismatch() => match self.mismatch(deadline) {
                Ok(None) => failure,
                Ok(Some(found)) | Err(found) => found,
            },
            _ => failure,
        }
    }

    /// Checks that the tables that exist are of this version. Returns what is wrong with them, if anything. Changes
    /// nothing.
    pub(super) fn mismatch(&mut self, deadline: Moment) -> Result<Option<Failure>, Failure> {
        let names = COLUMNS.map(|(table, _)| table).join(",");
        let rows = self.rows(
            "SELECT c.relname, a.attname, t.typcategory \
             FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
             JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
             JOIN pg_type t ON t.oid = a.atttypid WHERE n.nspname = $1 AND c.relname = ANY ($2::text[])",
            &[Some(&self.server.schema.clone()), Some(&format!("{{{names}}}"))],
            deadline,
        )?;
        let has = |(column, kind): (&str, &str), table: &str| {
            rows.iter().any(|row| row.iter().flatten().eq([table, column, kind]))
        };
        if has(("version", "N"), "version")
            && let Err(newer) = check_version(self.version(deadline)?.as_deref(), &self.tables)
        {
            return Ok(Some(newer));
        }
        let is_there = |table: &str| rows.iter().any(|row| row.first() == Some(&Some(table.to_owned())));
        let is_foreign =
            |(table, columns): &(&str, &[(&str, &str)])| is_there(table) && !columns.iter().all(|it| has(*it, table));
        Ok(COLUMNS.into_iter().find(is_foreign).map(|(table, _)| Failure::foreign_table(table, &self.tables)))
    }

    /// Returns whether there is a table of locks.
    pub(super) fn has_locks(&mut self, deadline: Moment) -> Result<bool, Failure> {
        let locks = self.tables.locks.clone();
        let rows = self.rows("SELECT to_regclass($1) IS NOT NULL", &[Some(&locks)], deadline)?;
        Ok(rows.into_iter().flatten().flatten().any(|it| it == "t"))
    }

    /// Returns the version of the tables; `None` if there is none, or we may not read it.
    fn version(&mut self, deadline: Moment) -> Result<Option<String>, Failure> {
        let statement = format!("SELECT max(version) FROM {}", self.tables.version);
        match self.rows(&statement, &[], deadline) {
            Ok(rows) => Ok(rows.into_iter().flatten().flatten().next()),
            Err(Failure::Rejected(rejection)) if !rejection.is_fatal() && !rejection.is_transient() => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Sends a statement that only reads, by itself, and returns its rows.
    pub(super) fn rows(
        &mut self,
        statement: &str,
        parameters: &[Option<&str>],
        deadline: Moment,
    ) -> Result<Vec<Row>, Failure> {
        let mut batch = Batch::transaction(SNAPSHOT, deadline);
        batch.add(statement, parameters);
        batch.add("COMMIT", &[]);
        let answers = self.connected(deadline)?.run(&batch, deadline)?;
        Ok(answers.into_iter().next().map(|answer| answer.rows).unwrap_or_default())
    }
}
