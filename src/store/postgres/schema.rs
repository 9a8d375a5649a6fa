//! The tables.
//!
//! ```text
//! version   version             one row: the version of these tables
//! locks     key, state          a row a key: its `LockState` without the waiters, as JSON
//! waiters   key, place, ...     a row a waiter, in the order in which they came
//! ```
//!
//! The queue is rows of its own, so that an operation on a lock costs the same however many wait: it loads the first few.

use postgres_protocol::escape::escape_identifier;

use super::connection::Batch;

/// The version of the tables that this program works with.
pub(super) const VERSION: i64 = 1;

/// Held while tables are created, so that a hundred first users do not do so at once. Any number that others will not take.
const CREATING: i64 = 0x6c6f_636b_7275_6e00;

/// The names of the tables in one schema, quoted.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    pub(super) schema: String,
    pub(super) version: String,
    pub(super) locks: String,
    pub(super) waiters: String,
}

impl Tables {
    /// Returns those in the schema of this name.
    pub(super) fn in_schema(schema: &str) -> Self {
        let schema = escape_identifier(schema);
        let table = |name: &str| format!("{schema}.{name}");
        Tables { version: table("version"), locks: table("locks"), waiters: table("waiters"), schema }
    }

    /// Returns the statements that create the schema, if it `is_missing`, and in it the tables that are missing.
    pub(super) fn creation(&self, is_missing: bool) -> Vec<String> {
        let Tables { schema, version, locks, waiters } = self;
        let schema = is_missing.then(|| format!("CREATE SCHEMA IF NOT EXISTS {schema}"));
        let tables = [
            format!("CREATE TABLE IF NOT EXISTS {version} (version bigint PRIMARY KEY)"),
            format!("INSERT INTO {version} SELECT {VERSION} WHERE NOT EXISTS (SELECT FROM {version})"),
            format!("CREATE TABLE IF NOT EXISTS {locks} (key text COLLATE \"C\" PRIMARY KEY, state json NOT NULL)"),
            format!(
                "CREATE TABLE IF NOT EXISTS {waiters} (\
                 key text COLLATE \"C\" NOT NULL, \
                 place bigint GENERATED ALWAYS AS IDENTITY, \
                 token text NOT NULL, \
                 waiter json NOT NULL, \
                 is_granted boolean NOT NULL, \
                 session bigint, \
                 looks_at_ms bigint NOT NULL, \
                 PRIMARY KEY (key, place), \
                 UNIQUE (key, token))"
            ),
            format!("CREATE INDEX IF NOT EXISTS waiters_granted ON {waiters} (key, place) WHERE is_granted"),
        ];
        schema.into_iter().chain(tables).collect()
    }

    /// Returns a batch that creates what is missing, in a transaction that others wait for.
    pub(super) fn create(&self, is_missing: bool) -> Batch {
        let mut batch = Batch::default();
        batch.add("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE", &[]);
        batch.add("SELECT pg_catalog.pg_advisory_xact_lock($1::bigint)", &[Some(&CREATING.to_string())]);
        for statement in self.creation(is_missing) {
            batch.add(&statement, &[]);
        }
        batch.add("COMMIT", &[]);
        batch
    }

    /// Returns all statements that the owner of a database runs for those who may not create tables, who are members of `role`.
    pub(super) fn script(&self, role: &str) -> String {
        let Tables { schema, version, locks, waiters } = self;
        let role = escape_identifier(role);
        let mut statements = self.creation(true);
        statements.push(format!("GRANT USAGE ON SCHEMA {schema} TO {role}"));
        statements.push(format!("GRANT SELECT ON {version} TO {role}"));
        statements.push(format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {locks}, {waiters} TO {role}"));
        statements.iter().map(|statement| format!("{statement};\n")).collect()
    }
}
