//! The tables.
//!
//! ```text
//! version   version             one row: the version of these tables
//! locks     key, state          a row a key: its `LockState` without the waiters, as JSON
//! waiters   key, place, ...     a row a waiter, in the order in which they came
//! ```
//!
//! A waiter's row has in columns what is asked of it by statements. The server never looks into the JSON: where its encoding is not UTF-8,
//! it may have no characters for what is in there.
//!
//! The queue is rows of its own, so that an operation on a lock costs the same however many wait: it loads the first few.

use postgres_protocol::escape::escape_identifier;

use super::batch::{Batch, READ_WRITE};
use crate::sys::clock::Moment;
use crate::text::escape::escaped;

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
            format!(
                "CREATE TABLE IF NOT EXISTS {locks} (\n    \
                 key text COLLATE \"C\" PRIMARY KEY,\n    \
                 state json NOT NULL\n)"
            ),
            format!(
                "CREATE TABLE IF NOT EXISTS {waiters} (\n    \
                 key text COLLATE \"C\" NOT NULL,\n    \
                 place bigint GENERATED ALWAYS AS IDENTITY,\n    \
                 token text NOT NULL,\n    \
                 waiter json NOT NULL,\n    \
                 is_granted boolean NOT NULL,\n    \
                 grant_ends_ms bigint,\n    \
                 is_unresponsive boolean NOT NULL DEFAULT false,\n    \
                 session bigint,\n    \
                 looked_at_ms bigint NOT NULL,\n    \
                 looks_at_ms bigint NOT NULL,\n    \
                 PRIMARY KEY (key, place),\n    \
                 UNIQUE (key, token)\n)"
            ),
            format!("CREATE INDEX IF NOT EXISTS waiters_granted ON {waiters} (key, place) WHERE is_granted"),
        ];
        schema.into_iter().chain(tables).collect()
    }

    /// Returns a batch that creates what is missing, in a transaction that others wait for.
    pub(super) fn create(&self, is_missing: bool, deadline: Moment) -> Batch {
        let mut batch = Batch::transaction(READ_WRITE, deadline);
        batch.add("SELECT pg_advisory_xact_lock($1::bigint)", &[Some(&CREATING.to_string())]);
        for statement in self.creation(is_missing) {
            batch.add(&statement, &[]);
        }
        batch.add("COMMIT", &[]);
        batch
    }

    /// Returns what the owner of the `database` runs, with psql or any other client, for a `role` that may not create tables. To run it
    /// again does no harm.
    pub(super) fn script(&self, database: &str, role: &str) -> String {
        let Tables { schema, version, locks, waiters } = self;
        let grantee = escape_identifier(role);
        let mut statements = vec![
            "BEGIN".to_owned(),
            // Nobody needs to hear what is there already.
            "SET LOCAL client_min_messages = warning".to_owned(),
            // As in `create`, but without a row to print.
            format!("DO $$ BEGIN PERFORM pg_catalog.pg_advisory_xact_lock({CREATING}); END $$"),
        ];
        statements.extend(self.creation(true));
        statements.push(format!("GRANT USAGE ON SCHEMA {schema} TO {grantee}"));
        statements.push(format!("GRANT SELECT ON {version} TO {grantee}"));
        statements.push(format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {locks}, {waiters} TO {grantee}"));
        statements.push("COMMIT".to_owned());
        let [schema, role, database] = [schema, &grantee, &escape_identifier(database)].map(|name| escaped(name));
        let comment = [
            format!(
                "The tables of lockrun (version {VERSION}) in the schema {schema}, for the role {role}, which must exist."
            ),
            format!(
                "For the owner of the database {database}, or a superuser, to run there, for instance with psql -f."
            ),
            "To run it again does no harm: what is there already stays as it is. For another role, run that one's."
                .to_owned(),
        ];
        let comment = comment.map(|line| format!("-- {line}\n")).concat();
        format!("{comment}\n{};\n", statements.join(";\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_does_not_end_its_comment_nor_its_quotes() {
        let script = Tables::in_schema("a\"b").script("d\nb", "x\n; DROP TABLE \"y");
        let comments: Vec<&str> = script.lines().take_while(|line| !line.is_empty()).collect();
        assert!(comments.len() == 3 && comments.iter().all(|line| line.starts_with("-- ")), "{script}");
        assert!(script.contains("CREATE SCHEMA IF NOT EXISTS \"a\"\"b\";\n"), "{script}");
        assert!(script.contains("GRANT USAGE ON SCHEMA \"a\"\"b\" TO \"x\n; DROP TABLE \"\"y\";\n"), "{script}");
    }
}
