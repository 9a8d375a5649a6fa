//! The schema and the tables: whether our role may use or create them, whether they survive a crash, and which roles
//! could run code with the rights of those that use a lock. A trigger or a rule on a table runs with the rights of the
//! role that writes to it.

use std::collections::BTreeMap;

use postgres_protocol::escape::escape_identifier;

use super::{ask, ask_one, list, text, truth};
use crate::store::diagnostic::Diagnostic;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::connection::Row;
use crate::store::postgres::failure::Failure;
use crate::store::postgres::url::Server;

/// The names of the tables that a lock needs.
const NAMES: [&str; 3] = ["version", "locks", "waiters"];

/// The functions that a hand-off or a new waiter calls. Every role may call them, unless that right was revoked.
const FUNCTIONS: [&str; 3] = ["pg_notify", "pg_stat_get_activity", "pg_stat_get_db_numbackends"];

/// The schema, or an object in it that has the name of a table of lockrun's.
#[derive(Clone, Debug, Default)]
struct Object {
    /// What it is, for SQL: SCHEMA, TABLE, VIEW.
    kind: String,
    /// Its name in the schema; empty for the schema itself.
    relation: String,
    /// Its name, for SQL.
    name: String,
    /// The role that owns it, if that is neither our role nor a superuser nor the owner of the database.
    stranger: Option<String>,
    /// Whether it is of the kind that lockrun creates.
    is_ordinary: bool,
    /// The triggers and rules on it, for SQL: such as TRIGGER x.
    traps: Vec<String>,
    /// The rights on it that our role lacks.
    missing: Vec<String>,
    /// Whether row-level security applies to our role.
    hides_rows: bool,
    /// Whether a crash empties it.
    is_unlogged: bool,
}

/// The schema and the tables that exist.
#[derive(Default)]
pub(super) struct Objects {
    all: Vec<Object>,
    /// The role that owns the database, for SQL.
    database_owner: String,
}

/// What the role may do outside of the tables.
#[derive(Clone, Debug, Default)]
pub(super) struct Rights {
    role: String,
    /// Whether it may create schemas in the database.
    may_create_schemas: bool,
    /// Whether it may create the tables: in the schema, if there is one.
    may_create_tables: bool,
    /// Which of the [`FUNCTIONS`] it may not call, each with its arguments.
    missing_functions: Vec<String>,
}

/// Where a lock can be tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trial {
    /// In the tables.
    InTables,
    /// In a schema of its own: the first run is to create the tables.
    InOwnSchema,
    /// Nowhere: the role may not do what is needed, or may create the tables, but no schema besides theirs.
    Nowhere,
}

impl Objects {
    /// Asks for them.
    pub(super) fn ask(store: &mut PostgresStore) -> Result<Self, Failure> {
        let schema = store.server.schema.clone();
        let rows = ask(
            store,
            "SELECT o.kind, o.relation, o.name, \
             CASE WHEN NOT (r.rolsuper OR r.rolname = current_user OR r.oid = d.datdba) THEN r.rolname END, \
             o.is_ordinary, o.traps, o.missing, o.hides_rows, o.is_unlogged, \
             quote_ident(pg_get_userbyid(d.datdba)) \
             FROM (SELECT 'SCHEMA' AS kind, '' AS relation, quote_ident(n.nspname) AS name, n.nspowner AS owner, \
                          true AS is_ordinary, NULL AS traps, \
                          CASE WHEN NOT has_schema_privilege(n.oid, 'USAGE') THEN json_build_array('USAGE') END AS missing, \
                          false AS hides_rows, false AS is_unlogged \
                   FROM pg_namespace n WHERE n.nspname = $1 \
                   UNION ALL \
                   SELECT CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' \
                                         WHEN 'f' THEN 'FOREIGN TABLE' ELSE 'TABLE' END, \
                          c.relname, format('%I.%I', n.nspname, c.relname), c.relowner, c.relkind = 'r', \
                          (SELECT json_agg(it.trap ORDER BY it.trap) \
                           FROM (SELECT format('TRIGGER %I', tgname) AS trap FROM pg_trigger \
                                 WHERE tgrelid = c.oid AND NOT tgisinternal \
                                 UNION ALL SELECT format('RULE %I', rulename) FROM pg_rewrite WHERE ev_class = c.oid) it), \
                          (SELECT json_agg(it) FROM unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) it \
                           WHERE (it = 'SELECT' OR c.relname <> 'version') AND NOT has_table_privilege(c.oid, it)), \
                          row_security_active(c.oid), c.relpersistence = 'u' \
                   FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                   WHERE n.nspname = $1 AND c.relname = ANY ($2::text[])) o \
             JOIN pg_roles r ON r.oid = o.owner JOIN pg_database d ON d.datname = current_database() \
             ORDER BY o.kind <> 'SCHEMA', o.name",
            &[Some(&schema), Some(&format!("{{{}}}", NAMES.join(",")))],
        )?;
        let database_owner = rows.first().and_then(|row| text(row, 9)).unwrap_or_default().to_owned();
        let all: Result<_, Failure> = rows.iter().map(Object::read).collect();
        Ok(Objects { all: all?, database_owner })
    }

    /// Returns what could be a trap, and whether there is no trigger, rule or view: only then may the tables be used.
    /// (The owner of a table has other ways, such as a CHECK or an index on an expression; owners that are not trusted
    /// are named.)
    pub(super) fn judge_trust(&self) -> (Vec<Diagnostic>, bool) {
        let mut diagnostics: Vec<Diagnostic> = self.all.iter().flat_map(Object::judge_traps).collect();
        let is_safe = diagnostics.is_empty();
        let mut suspects: BTreeMap<&str, Vec<&Object>> = BTreeMap::new();
        for object in &self.all {
            if let Some(owner) = &object.stranger {
                suspects.entry(owner).or_default().push(object);
            }
        }
        for (owner, owned) in suspects {
            let names: Vec<&str> = owned.iter().map(|object| object.name.as_str()).collect();
            let alter =
                |object: &&Object| format!("ALTER {} {} OWNER TO {}", object.kind, object.name, self.database_owner);
            let alters: Vec<String> = owned.iter().map(alter).collect();
            diagnostics.push(Diagnostic::warn(
                format!(
                    "role \"{owner}\" owns {}, and is neither your role nor the owner of the database nor a superuser",
                    names.join(", ")
                ),
                format!(
                    "it can run code with the rights of every role that uses a lock here; trust it, or {}",
                    alters.join("; ")
                ),
            ));
        }
        if diagnostics.is_empty() && !self.all.is_empty() {
            diagnostics.push(Diagnostic::ok(
                "the tables have no triggers and no rules, and belong to your role, the owner of the database or a \
                 superuser",
            ));
        }
        (diagnostics, is_safe)
    }

    /// Returns whether the role may do what a lock needs with the tables, or create those that are missing.
    pub(super) fn judge_rights(&self, rights: &Rights, server: &Server) -> (Vec<Diagnostic>, Trial) {
        let Rights { role, may_create_schemas, may_create_tables, missing_functions } = rights;
        let grantee = escape_identifier(role);
        let lacks = |words: &str, on: &str, owner: &str, more: &str| {
            let text = format!("role \"{role}\" lacks {words} on {on}");
            Diagnostic::unusable(text, format!("{owner} grants that with GRANT {words} ON {on} TO {grantee}; {more}"))
        };
        let lacks_call = |function: &String| {
            let function = format!("FUNCTION pg_catalog.{function}");
            lacks("EXECUTE", &function, "a superuser", "without it a wait or a hand-off fails, or takes longer")
        };
        let mut diagnostics: Vec<_> = missing_functions.iter().map(lacks_call).collect();
        if !NAMES.iter().all(|name| self.all.iter().any(|object| object.relation == *name)) {
            if !may_create_tables {
                diagnostics.push(Diagnostic::unusable(Failure::no_tables(server).explain(server).to_string(), ""));
            }
            if !diagnostics.is_empty() {
                return (diagnostics, Trial::Nowhere);
            }
            let (trial, instead) = if *may_create_schemas {
                (Trial::InOwnSchema, "tried in a schema of its own instead")
            } else {
                (Trial::Nowhere, "not tried")
            };
            let finding = Diagnostic::note(
                format!("the schema {:?} has no tables for locks; a lock was {instead}", server.schema),
                "the first run creates them; if there should be locks in it, check the store's URL",
            );
            return (vec![finding], trial);
        }
        for Object { kind, name, missing, .. } in self.all.iter().filter(|object| !object.missing.is_empty()) {
            let on = format!("{kind} {name}");
            let more = "lockrun doctor --schema prints all that a lock needs";
            diagnostics.push(lacks(&missing.join(", "), &on, "its owner", more));
        }
        for Object { name, .. } in self.all.iter().filter(|object| object.hides_rows) {
            diagnostics.push(Diagnostic::unusable(
                format!("row-level security on {name} would hide locks from role \"{role}\""),
                format!("its owner turns that off with ALTER TABLE {name} DISABLE ROW LEVEL SECURITY"),
            ));
        }
        if diagnostics.is_empty() {
            let finding = Diagnostic::ok(format!("role \"{role}\" may do all that a lock needs"));
            return (vec![finding], Trial::InTables);
        }
        (diagnostics, Trial::Nowhere)
    }

    /// Returns a diagnostic for each table that a crash empties.
    pub(super) fn judge_persistence(&self) -> Vec<Diagnostic> {
        let unlogged = |Object { name, .. }: &Object| {
            Diagnostic::fail(
                format!("the table {name} is unlogged: a crash of the server empties it"),
                format!(
                    "every lock is forgotten then, and another run gets it while its command runs; ALTER TABLE {name} \
                     SET LOGGED"
                ),
            )
        };
        let is_forgetful = |object: &&Object| object.is_unlogged && object.relation != "version";
        self.all.iter().filter(is_forgetful).map(unlogged).collect()
    }
}

impl Object {
    fn read(row: &Row) -> Result<Self, Failure> {
        let word = |at| text(row, at).unwrap_or_default().to_owned();
        let is = |at| truth(row, at) == Some(true);
        Ok(Object {
            kind: word(0),
            relation: word(1),
            name: word(2),
            stranger: text(row, 3).map(str::to_owned),
            is_ordinary: is(4),
            traps: list(row, 5)?,
            missing: list(row, 6)?,
            hides_rows: is(7),
            is_unlogged: is(8),
        })
    }

    fn judge_traps(&self) -> Vec<Diagnostic> {
        let Object { kind, name, traps, .. } = self;
        if !self.is_ordinary {
            return vec![Diagnostic::fail(
                format!("{name} is not an ordinary table, so it is not as lockrun creates it"),
                format!(
                    "it may run code with the rights of every role that uses a lock here, so no lock was tried; find out \
                     whose it is and DROP {kind} {name}, or name another schema with schema= in the store's URL"
                ),
            )];
        }
        let judge = |trap: &String| {
            Diagnostic::fail(
                format!("{trap} is on {name}, and was not made by lockrun"),
                format!(
                    "it runs with the rights of every role that uses a lock here, and may keep locks from being stored, \
                     so no lock was tried; find out whose it is and DROP {trap} ON {name}"
                ),
            )
        };
        traps.iter().map(judge).collect()
    }
}

impl Rights {
    /// Asks the server for them.
    pub(super) fn ask(store: &mut PostgresStore, role: &str) -> Result<Self, Failure> {
        let schema = store.server.schema.clone();
        // The arguments of the functions are not the same in all versions. The variant for bytes is not called.
        let row = ask_one(
            store,
            "SELECT has_database_privilege(current_database(), 'CREATE'), \
             coalesce((SELECT has_schema_privilege(oid, 'CREATE') AND has_schema_privilege(oid, 'USAGE') \
                       FROM pg_namespace WHERE nspname = $1), has_database_privilege(current_database(), 'CREATE')), \
             (SELECT json_agg(oid::regprocedure::text) FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace \
              AND proname = ANY ($2::text[]) AND 'bytea'::regtype <> ALL (proargtypes) \
              AND NOT has_function_privilege(oid, 'EXECUTE'))",
            &[Some(&schema), Some(&format!("{{{}}}", FUNCTIONS.join(",")))],
        )?;
        Ok(Rights {
            role: role.to_owned(),
            may_create_schemas: truth(&row, 0) == Some(true),
            may_create_tables: truth(&row, 1) == Some(true),
            missing_functions: list(&row, 2)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::diagnostic::Level;
    use crate::store::postgres::url;

    fn object(kind: &str, name: &str) -> Object {
        Object {
            kind: kind.into(),
            relation: name.split_once('.').map(|(_, relation)| relation).unwrap_or_default().into(),
            name: name.into(),
            is_ordinary: true,
            ..Object::default()
        }
    }

    fn table(name: &str) -> Object {
        object("TABLE", &format!("s.{name}"))
    }

    fn objects(all: Vec<Object>) -> Objects {
        Objects { all, database_owner: "d".into() }
    }

    /// Returns the schema and all tables.
    fn all() -> Vec<Object> {
        std::iter::once(object("SCHEMA", "s")).chain(NAMES.map(table)).collect()
    }

    #[test]
    fn a_row_is_read() {
        let values = ["TABLE", "locks", "s.locks", "a", "t", "", r#"["INSERT", "DELETE"]"#, "t", "t", "d"];
        let row = values.map(|value| (!value.is_empty()).then(|| value.to_owned())).to_vec();
        let locks = Object::read(&row).expect("is right");
        assert_eq!((locks.missing.join(" "), locks.traps.len()), ("INSERT DELETE".into(), 0));
        assert!(locks.is_unlogged && locks.hides_rows && locks.is_ordinary && locks.stranger.is_some());
    }

    #[test]
    fn traps_are_found() {
        let judged = |all| objects(all).judge_trust();
        let (found, is_safe) = judged(all());
        assert!(is_safe && found.len() == 1 && found[0].level == Level::Ok, "{found:?}");
        assert_eq!(judged(Vec::new()), (Vec::new(), true));
        let trap = Object { traps: vec!["TRIGGER x".into(), "RULE y".into()], ..table("locks") };
        let view = Object { is_ordinary: false, traps: vec!["RULE _RETURN".into()], ..object("VIEW", "s.locks") };
        for (unsafe_one, count) in [(trap, 2), (view, 1)] {
            let (found, is_safe) = judged(vec![object("SCHEMA", "s"), unsafe_one]);
            let fails = found.iter().filter(|finding| finding.level == Level::Fail).count();
            assert!(!is_safe && fails == count && found.len() == count, "{found:?}");
        }
    }

    #[test]
    fn what_belongs_to_others_is_named_once_for_each() {
        let owned = |owner: &str, object: Object| Object { stranger: Some(owner.into()), ..object };
        let all = vec![owned("a", object("SCHEMA", "s")), owned("b", table("locks")), owned("a", table("version"))];
        let (found, is_safe) = objects(all).judge_trust();
        assert!(is_safe && found.iter().all(|finding| finding.level == Level::Warn), "{found:?}");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].text.starts_with("role \"a\" owns s, s.version, and"), "{found:?}");
        let alters = "ALTER SCHEMA s OWNER TO d; ALTER TABLE s.version OWNER TO d";
        assert!(found[0].advice.ends_with(alters), "{found:?}");
    }

    fn judged(may_create_schemas: bool, may_create_tables: bool, all: &[Object]) -> (Vec<Diagnostic>, Trial) {
        let server = url::parse("postgres://app@127.0.0.1/db").expect("is a URL");
        let rights = Rights { role: "a b".into(), may_create_schemas, may_create_tables, ..Rights::default() };
        objects(all.to_vec()).judge_rights(&rights, &server)
    }

    #[test]
    fn what_is_missing_is_named_with_the_words_that_grant_it() {
        let (found, trial) = judged(false, false, &all());
        assert!(found.len() == 1 && found[0].level == Level::Ok && trial == Trial::InTables, "{found:?}");
        let mut all = all();
        all[0].missing = vec!["USAGE".into()];
        all[2].missing = vec!["UPDATE".into(), "DELETE".into()];
        let (found, trial) = judged(false, false, &all);
        assert_eq!(trial, Trial::Nowhere);
        assert!(found.iter().all(|finding| finding.level == Level::Unusable), "{found:?}");
        assert!(found[0].advice.contains("GRANT USAGE ON SCHEMA s TO \"a b\";"), "{found:?}");
        assert!(found[1].advice.contains("GRANT UPDATE, DELETE ON TABLE s.locks TO \"a b\";"), "{found:?}");
    }

    #[test]
    fn tables_that_are_missing_are_created_by_who_may() {
        let judged = |may_create_schemas, may_create_tables, all: &[Object]| {
            let (diagnostics, trial) = judged(may_create_schemas, may_create_tables, all);
            (diagnostics[0].level, trial)
        };
        assert_eq!(judged(true, true, &[]), (Level::Note, Trial::InOwnSchema));
        assert_eq!(judged(false, true, &all()[..1]), (Level::Note, Trial::Nowhere));
        assert_eq!(judged(false, true, &all()[2..]), (Level::Note, Trial::Nowhere));
        assert_eq!(judged(false, false, &[]), (Level::Unusable, Trial::Nowhere));
        assert_eq!(judged(true, false, &all()[..1]), (Level::Unusable, Trial::Nowhere));
        assert_eq!(judged(false, false, &all()[..3]), (Level::Unusable, Trial::Nowhere));
    }

    #[test]
    fn an_unlogged_table_is_found() {
        // Tables without a version count as of this version.
        let unlogged = |name| Object { is_unlogged: true, ..table(name) };
        let found = objects(vec![unlogged("version"), unlogged("locks"), table("waiters")]).judge_persistence();
        assert_eq!(found.iter().map(|finding| finding.level).collect::<Vec<_>>(), [Level::Fail]);
        assert!(found[0].advice.ends_with("ALTER TABLE s.locks SET LOGGED"), "{found:?}");
    }
}
