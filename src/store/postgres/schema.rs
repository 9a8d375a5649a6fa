//! The tables.
//!
//! ```text
//! version   version             one row: the version of these tables
//! locks     key, state          one row per key: its `LockState` without the waiters, as JSON
//! waiters   key, place, ...     one row per waiter, in the order in which they came: its `WaiterState` as JSON, when its place ends,
//!                               and the channel on which it listens
//! ```
//!
//! What statements need to know of a waiter is in columns. The server never looks into the JSON: a database whose
//! encoding is not UTF-8 may lack characters for what is in there.
//!
//! The queue has rows of its own, so that an operation on a lock costs the same however many wait: it reads only the
//! first few.

use postgres_protocol::escape::{escape_identifier, escape_literal};

use super::batch::{Batch, READ_WRITE};
use crate::sys::clock::Moment;
use crate::text::escape::escaped;

/// The version of the tables that this program works with.
pub(super) const VERSION: i64 = 1;

/// The names of the tables in one schema, quoted.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    pub(super) schema: String,
    pub(super) version: String,
    pub(super) locks: String,
    pub(super) waiters: String,
}

impl Tables {
    /// Returns the tables in the schema of this name.
    pub(super) fn in_schema(schema: &str) -> Self {
        let schema = escape_identifier(schema);
        let table = |name: &str| format!("{schema}.{name}");
        Tables { version: table("version"), locks: table("locks"), waiters: table("waiters"), schema }
    }

    /// Returns the statements that create the tables that are missing.
    fn creation(&self) -> [String; 3] {
        let Tables { version, locks, waiters, .. } = self;
        [
            format!("CREATE TABLE IF NOT EXISTS {version} (version bigint PRIMARY KEY)"),
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
                 ends_ms bigint NOT NULL,\n    \
                 channel text,\n    \
                 PRIMARY KEY (key, place),\n    \
                 UNIQUE (key, token)\n)"
            ),
        ]
    }

    /// Returns the statement that adds the version if it is missing.
    fn completion(&self) -> String {
        let version = &self.version;
        format!("INSERT INTO {version} SELECT {VERSION} WHERE NOT EXISTS (SELECT FROM {version})")
    }

    /// Returns a batch that creates the missing tables, and the schema if it `is_missing`, in one transaction. Of many
    /// first users at once, one creates them: the others wait for the first name that it has taken, and are refused
    /// when it has committed. No advisory lock is needed, which every role of the database could take to keep us from
    /// creating them.
    pub(super) fn create(&self, is_missing: bool, deadline: Moment) -> Batch {
        let schema = is_missing.then(|| format!("CREATE SCHEMA IF NOT EXISTS {}", self.schema));
        let mut batch = Batch::transaction(READ_WRITE, deadline);
        for statement in schema.into_iter().chain(self.creation()).chain([self.completion()]) {
            batch.add(&statement, &[]);
        }
        batch.add("COMMIT", &[]);
        batch
    }

    /// Returns the script that the owner of the `database` runs, with psql or any other client, for a `role` that may
    /// not create tables. `schema` is the schema's name without quotes. Running the script again does no harm.
    ///
    /// Existing objects may be a trap: if another role has created the schema or a table, a trigger of that role would
    /// run with the rights of the role that runs the script. So nothing is written to the tables before [`CHECK`] has
    /// inspected them. It does so when they exist: from then on only their owners and the schema's owner can replace
    /// them.
    pub(super) fn script(&self, schema: &str, database: &str, role: &str) -> String {
        let Tables { schema: quoted, version, locks, waiters } = self;
        let grantee = escape_identifier(role);
        let mut statements = vec![
            "BEGIN".to_owned(),
            // Suppresses the notices about what already exists.
            "SET LOCAL client_min_messages = warning".to_owned(),
            // Names mean the server's own functions and operators.
            "SET LOCAL search_path = pg_catalog, pg_temp".to_owned(),
            format!("SET LOCAL lockrun.schema = {}", escape_literal(schema).trim_start()),
            // As in `create`, but without a row to print; and if the schema exists, its owner need not have the right
            // to create one.
            format!(
                "DO $$\nBEGIN\n    \
                 IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = current_setting('lockrun.schema')) THEN\n        \
                 EXECUTE format('CREATE SCHEMA %I', current_setting('lockrun.schema'));\n    \
                 END IF;\n\
                 END $$"
            ),
        ];
        statements.extend(self.creation());
        statements.push(CHECK.to_owned());
        statements.push(self.completion());
        statements.push(format!("GRANT USAGE ON SCHEMA {quoted} TO {grantee}"));
        statements.push(format!("GRANT SELECT ON {version} TO {grantee}"));
        statements.push(format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {locks}, {waiters} TO {grantee}"));
        statements.push("COMMIT".to_owned());
        let [schema, role, database] = [quoted, &grantee, &escape_identifier(database)].map(|name| escaped(name));
        let comment = [
            format!(
                "The tables of lockrun (version {VERSION}) in the schema {schema}, for the role {role}, which must exist."
            ),
            format!(
                "For the owner of the database {database}, or a superuser, to run there, for instance with psql -f."
            ),
            "It can be run again: existing objects are kept. Generate a script for each role.".to_owned(),
        ];
        let comment = comment.map(|line| format!("-- {line}\n")).concat();
        format!("{comment}\n{};\n", statements.join(";\n"))
    }
}

/// Rejects a schema or a table that belongs neither to the role that runs this nor to a superuser, and a table that is
/// not an ordinary one or has a trigger or a rule: code of another role could run with the rights of the role that runs
/// this. The owner of the database is not trusted either, since it need not be a superuser.
const CHECK: &str = "DO $$
DECLARE
    place CONSTANT name := current_setting('lockrun.schema');
    finding record;
BEGIN
    SELECT it.what, r.rolname INTO finding
    FROM (
        SELECT format('the schema %I', n.nspname) AS what, n.nspowner AS owner
        FROM pg_namespace n WHERE n.nspname = place
        UNION ALL
        SELECT format('%I.%I', n.nspname, c.relname), c.relowner
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = place AND c.relname IN ('version', 'locks', 'waiters')
    ) it JOIN pg_roles r ON r.oid = it.owner
    WHERE NOT r.rolsuper AND r.rolname <> current_user
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '% belongs to the role %, which could run code with your rights',
            finding.what, quote_ident(finding.rolname)
        USING HINT = format('If it is as it should be, run this as that role: psql -c ''SET ROLE %I'' -f FILE. '
            'Otherwise name another schema with schema= in the store''s URL.', finding.rolname);
    END IF;
    SELECT format('%I.%I', n.nspname, c.relname) AS what, c.relkind INTO finding
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = place AND c.relname IN ('version', 'locks', 'waiters') AND (
        c.relkind <> 'r'
        OR EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal)
        OR EXISTS (SELECT FROM pg_rewrite w WHERE w.ev_class = c.oid))
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '% %, so it is not as lockrun creates it', finding.what,
            CASE finding.relkind WHEN 'r' THEN 'has a trigger or a rule' ELSE 'is not an ordinary table' END
        USING HINT = 'Find out whose it is and drop it, or name another schema with schema= in the store''s URL.';
    END IF;
END $$";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_does_not_end_its_comment_nor_its_quotes() {
        let script = Tables::in_schema("a\"b'$$\\").script("a\"b'$$\\", "d\nb", "x\n; DROP TABLE \"y");
        let comments: Vec<&str> = script.lines().take_while(|line| !line.is_empty()).collect();
        assert!(comments.len() == 3 && comments.iter().all(|line| line.starts_with("-- ")), "{script}");
        assert!(script.contains("SET LOCAL lockrun.schema = E'a\"b''$$\\\\';\n"), "{script}");
        assert!(script.contains("CREATE TABLE IF NOT EXISTS \"a\"\"b'$$\\\".version"), "{script}");
        assert!(script.contains("GRANT USAGE ON SCHEMA \"a\"\"b'$$\\\" TO \"x\n; DROP TABLE \"\"y\";\n"), "{script}");
    }
}
