//! What our role may do.

use postgres_protocol::escape::escape_identifier;

use super::tables::Table;
use super::{ask, ask_one, text, truth};
use crate::store::diagnostic::Diagnostic;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::failure::Failure;
use crate::store::postgres::schema::Tables;
use crate::store::postgres::url::Server;

/// The functions that a hand-off or a new waiter calls. Every role may call them, unless that right was revoked.
const FUNCTIONS: [&str; 2] = ["pg_notify", "pg_stat_get_activity"];

/// What the role may do outside of the tables.
#[derive(Clone, Debug, Default)]
pub(super) struct Rights {
    role: String,
    /// Whether it may create schemas in the database.
    may_create_schemas: bool,
    /// Whether it may use the schema, if there is one, and create tables in it.
    schema: Option<SchemaRights>,
    /// Which of the [`FUNCTIONS`] it may not call, each with its arguments.
    missing_functions: Vec<String>,
}

/// What the role may do with a schema.
#[derive(Clone, Copy, Debug)]
struct SchemaRights {
    may_use: bool,
    may_create: bool,
}

/// Whether a lock can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    /// The tables exist, and the role may use them.
    Ready,
    /// The first run creates the tables.
    FirstUse {
        /// Whether the role may also create schemas.
        may_create_schemas: bool,
    },
    /// The role may not do what is needed, or the tables are not those of this version.
    Unusable,
}

impl Rights {
    /// Asks the server for them.
    pub(super) fn ask(store: &mut PostgresStore, role: &str) -> Result<Self, Failure> {
        let schema = store.server.schema.clone();
        let row = ask_one(
            store,
            "SELECT pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE'), \
             (SELECT pg_catalog.has_schema_privilege(oid, 'USAGE') FROM pg_catalog.pg_namespace WHERE nspname = $1), \
             (SELECT pg_catalog.has_schema_privilege(oid, 'CREATE') FROM pg_catalog.pg_namespace WHERE nspname = $1)",
            &[Some(&schema)],
        )?;
        let schema = text(&row, 1)
            .map(|_| SchemaRights { may_use: truth(&row, 1) == Some(true), may_create: truth(&row, 2) == Some(true) });
        // The arguments are not the same in all versions. The variant for bytes is not called.
        let missing_functions = ask(
            store,
            "SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace \
             AND proname = ANY ($1::text[]) AND 'bytea'::regtype <> ALL (proargtypes) \
             AND NOT has_function_privilege(oid, 'EXECUTE')",
            &[Some(&format!("{{{}}}", FUNCTIONS.join(",")))],
        )?;
        let missing_functions = missing_functions.iter().filter_map(|row| text(row, 0).map(str::to_owned)).collect();
        let may_create_schemas = truth(&row, 0) == Some(true);
        Ok(Rights { role: role.to_owned(), may_create_schemas, schema, missing_functions })
    }
}

/// Returns whether the role may do what a lock needs with the tables that were found, or create those that are missing.
pub(super) fn judge(
    rights: &Rights,
    found: &[Table],
    tables: &Tables,
    server: &Server,
) -> (Vec<Diagnostic>, Readiness) {
    let Rights { role, may_create_schemas, schema: schema_rights, missing_functions } = rights;
    let grantee = escape_identifier(role);
    let lacks = |words: &str, on: &str, owner: &str, more: &str| {
        let text = format!("role \"{role}\" lacks {words} on {on}");
        Diagnostic::unusable(text, format!("{owner} grants that with GRANT {words} ON {on} TO {grantee}{more}"))
    };
    let lacks_call = |function: &String| {
        lacks(
            "EXECUTE",
            &format!("FUNCTION pg_catalog.{function}"),
            "a superuser",
            "; without it a wait or a hand-off fails, or takes longer",
        )
    };
    let mut diagnostics: Vec<_> = missing_functions.iter().map(lacks_call).collect();
    let is_complete = Table::NAMES.iter().all(|name| found.iter().any(|table| table.name == *name));
    if !is_complete {
        let may_create = schema_rights.map_or(*may_create_schemas, |schema| schema.may_create && schema.may_use);
        if !may_create {
            diagnostics.push(Diagnostic::unusable(Failure::no_tables(server).explain(server).to_string(), ""));
        }
        if !diagnostics.is_empty() {
            return (diagnostics, Readiness::Unusable);
        }
        let instead = if *may_create_schemas { "tried in a schema of its own instead" } else { "not tried" };
        let finding = Diagnostic::note(
            format!("the schema {:?} has no tables for locks; a lock was {instead}", server.schema),
            "the first run creates them; if there should be locks in it, check the store's URL",
        );
        return (vec![finding], Readiness::FirstUse { may_create_schemas: *may_create_schemas });
    }
    let lacks_of_ours =
        |words: &str, on: &str| lacks(words, on, "its owner", "; lockrun doctor --schema prints all that a lock needs");
    if !schema_rights.is_some_and(|schema| schema.may_use) {
        diagnostics.push(lacks_of_ours("USAGE", &format!("SCHEMA {}", tables.schema)));
    }
    for table in found.iter().filter(|table| !table.missing.is_empty()) {
        diagnostics.push(lacks_of_ours(&table.missing.join(", "), &table.in_schema(tables)));
    }
    for table in found.iter().filter(|table| table.hides_rows) {
        let name = table.in_schema(tables);
        diagnostics.push(Diagnostic::unusable(
            format!("row-level security on {name} would hide locks from role \"{role}\""),
            format!("its owner turns that off with ALTER TABLE {name} DISABLE ROW LEVEL SECURITY"),
        ));
    }
    if diagnostics.is_empty() {
        let finding = Diagnostic::ok(format!("role \"{role}\" may do all that a lock needs"));
        return (vec![finding], Readiness::Ready);
    }
    (diagnostics, Readiness::Unusable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::diagnostic::Level;
    use crate::store::postgres::url;

    fn judged(rights: &Rights, found: &[Table]) -> (Vec<Diagnostic>, Readiness) {
        let server = url::parse("postgres://app@127.0.0.1/db").expect("is a URL");
        judge(rights, found, &Tables::in_schema("lockrun"), &server)
    }

    fn rights(may_create_schemas: bool, schema: Option<(bool, bool)>) -> Rights {
        let schema = schema.map(|(may_use, may_create)| SchemaRights { may_use, may_create });
        Rights { role: "a b".into(), may_create_schemas, schema, missing_functions: Vec::new() }
    }

    fn all() -> Vec<Table> {
        Table::NAMES.map(Table::named).into()
    }

    #[test]
    fn what_is_missing_is_named_with_the_words_that_grant_it() {
        let (found, readiness) = judged(&rights(false, Some((true, false))), &all());
        assert!(found.len() == 1 && found[0].level == Level::Ok && readiness == Readiness::Ready, "{found:?}");
        let mut tables = all();
        tables[1].missing = vec!["UPDATE", "DELETE"];
        let (found, readiness) = judged(&rights(false, Some((false, false))), &tables);
        assert_eq!(readiness, Readiness::Unusable);
        assert!(found.iter().all(|finding| finding.level == Level::Unusable), "{found:?}");
        assert!(found[0].advice.contains("GRANT USAGE ON SCHEMA \"lockrun\" TO \"a b\";"), "{found:?}");
        assert!(found[1].advice.contains("GRANT UPDATE, DELETE ON \"lockrun\".locks TO \"a b\";"), "{found:?}");
    }

    #[test]
    fn tables_that_are_missing_are_created_by_who_may() {
        let readiness = |rights: &Rights, found: &[Table]| {
            let (diagnostics, readiness) = judged(rights, found);
            (diagnostics[0].level, readiness)
        };
        let first_use = |may_create_schemas| (Level::Note, Readiness::FirstUse { may_create_schemas });
        assert_eq!(readiness(&rights(true, None), &[]), first_use(true));
        assert_eq!(readiness(&rights(false, Some((true, true))), &[]), first_use(false));
        assert_eq!(readiness(&rights(false, Some((true, true))), &all()[1..]), first_use(false));
        let unusable = (Level::Unusable, Readiness::Unusable);
        assert_eq!(readiness(&rights(false, None), &[]), unusable);
        assert_eq!(readiness(&rights(true, Some((true, false))), &[]), unusable);
        assert_eq!(readiness(&rights(false, Some((true, false))), &all()[..2]), unusable);
    }
}
