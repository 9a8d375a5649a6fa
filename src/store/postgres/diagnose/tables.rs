//! The tables: which rights we lack, and whether they survive a crash.

use super::{ask, number, text, truth, try_ask};
use crate::store::diagnostic::Diagnostic;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::connection::Row;
use crate::store::postgres::failure::Failure;
use crate::store::postgres::schema::{Tables, VERSION};

/// A table that was found.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    /// Its name in the schema.
    pub(super) name: String,
    /// The rights on it that our role lacks.
    pub(super) missing: Vec<&'static str>,
    /// Whether row-level security applies to our role.
    pub(super) hides_rows: bool,
    /// Whether a crash empties it.
    pub(super) is_unlogged: bool,
}

const RIGHTS: [&str; 4] = ["SELECT", "INSERT", "UPDATE", "DELETE"];

impl Table {
    /// The names of the tables that a lock needs.
    pub(super) const NAMES: [&str; 3] = ["version", "locks", "waiters"];

    /// Looks for all of them.
    pub(super) fn ask_all(store: &mut PostgresStore) -> Result<Vec<Self>, Failure> {
        let schema = store.server.schema.clone();
        let may = RIGHTS.map(|right| format!("pg_catalog.has_table_privilege(c.oid, '{right}')")).join(", ");
        let statement = format!(
            "SELECT c.relname, c.relpersistence = 'u', pg_catalog.row_security_active(c.oid), {may} \
             FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = $1 AND c.relname = ANY ($2::text[]) ORDER BY c.relname"
        );
        let names = format!("{{{}}}", Self::NAMES.join(","));
        Ok(ask(store, &statement, &[Some(&schema), Some(&names)])?.iter().map(Self::read).collect())
    }

    fn read(row: &Row) -> Self {
        let name = text(row, 0).unwrap_or_default().to_owned();
        // The version is only read.
        let needed = if name == "version" { &RIGHTS[..1] } else { &RIGHTS[..] };
        let lacks = |at: usize| truth(row, 3 + at) != Some(true);
        Table {
            missing: needed.iter().enumerate().filter(|(at, _)| lacks(*at)).map(|(_, right)| *right).collect(),
            name,
            hides_rows: truth(row, 2) == Some(true),
            is_unlogged: truth(row, 1) == Some(true),
        }
    }

    /// Returns its name with its schema's, for SQL.
    pub(super) fn in_schema(&self, tables: &Tables) -> String {
        // None of the tables' names needs quotes.
        format!("{}.{}", tables.schema, self.name)
    }
}

/// Returns which version the tables have; [`PostgresStore::mismatch`] has rejected later ones.
pub(super) fn judge_version(store: &mut PostgresStore) -> Result<Option<Diagnostic>, Failure> {
    let statement = format!("SELECT max(version) FROM {}", store.tables.version);
    let Some(row) = try_ask(store, &statement, &[])? else { return Ok(None) };
    let schema = &store.server.schema;
    Ok(match number(&row, 0) {
        Some(version) => Some(Diagnostic::ok(format!("the tables in the schema {schema:?} have version {version}"))),
        None => Some(Diagnostic::note(
            format!("the tables in the schema {schema:?} do not tell their version"),
            format!(
                "{VERSION} is assumed; if lockrun has created them, INSERT INTO {} VALUES ({VERSION})",
                store.tables.version
            ),
        )),
    })
}

/// Returns a diagnostic for each table that a crash empties.
pub(super) fn judge(found: &[Table], tables: &Tables) -> Vec<Diagnostic> {
    let forgetful = found.iter().filter(|table| table.is_unlogged && table.name != "version");
    let judge = |table: &Table| {
        let name = table.in_schema(tables);
        Diagnostic::fail(
            format!("the table {name} is unlogged: a crash of the server empties it"),
            format!(
                "every lock is forgotten then, and another run gets it while its command runs; ALTER TABLE {name} SET LOGGED"
            ),
        )
    };
    forgetful.map(judge).collect()
}

#[cfg(test)]
impl Table {
    /// Returns a table of this name that is as it should be.
    pub(super) fn named(name: &str) -> Self {
        Table { name: name.to_owned(), ..Table::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::diagnostic::Level;

    #[test]
    fn a_row_is_read() {
        let row = |values: [&str; 7]| values.map(|value| Some(value.to_owned())).to_vec();
        let locks = Table::read(&row(["locks", "t", "t", "t", "f", "t", "f"]));
        assert_eq!(locks.missing, ["INSERT", "DELETE"]);
        assert!(locks.is_unlogged && locks.hides_rows);
        let version = Table::read(&row(["version", "f", "f", "t", "f", "f", "f"]));
        assert!(version.missing.is_empty() && !version.is_unlogged && !version.hides_rows);
    }

    #[test]
    fn an_unlogged_table_is_found() {
        let unlogged = Table { is_unlogged: true, ..Table::named("locks") };
        let found = judge(&[unlogged, Table::named("waiters")], &Tables::in_schema("lockrun"));
        assert!(found.len() == 1 && found[0].level == Level::Fail, "{found:?}");
        assert!(found[0].advice.ends_with("ALTER TABLE \"lockrun\".locks SET LOGGED"), "{found:?}");
    }
}
