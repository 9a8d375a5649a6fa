//! Which roles could run code with the rights of those that use a lock: a trigger or a rule on the tables runs with the rights of the role
//! that writes to them.

use std::collections::BTreeMap;

use super::{ask, text, truth};
use crate::store::diagnostic::Diagnostic;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::connection::Row;
use crate::store::postgres::failure::Failure;

/// The schema and the tables, and who owns them.
#[derive(Default)]
pub(super) struct Trust {
    objects: Vec<Object>,
    /// The role that owns the database, for SQL.
    database_owner: String,
}

/// The schema, or an object in it that has the name of a table of lockrun's.
#[derive(Clone, Debug, Default)]
struct Object {
    /// What it is, for SQL: SCHEMA, TABLE, VIEW.
    kind: String,
    /// Its name, for SQL.
    name: String,
    /// Whether it is of the kind that lockrun creates.
    is_ordinary: bool,
    /// The role that owns it.
    owner: String,
    /// Whether that is our role, a superuser or the owner of the database.
    is_trusted: bool,
    /// The triggers and rules on it, for SQL: such as TRIGGER x.
    traps: Vec<String>,
}

impl Trust {
    /// Asks for them.
    pub(super) fn ask(store: &mut PostgresStore) -> Result<Self, Failure> {
        let schema = store.server.schema.clone();
        let rows = ask(
            store,
            "SELECT quote_ident(pg_get_userbyid(d.datdba)), o.kind, o.name, o.is_ordinary, r.rolname, \
             r.rolsuper OR r.rolname = current_user OR r.oid = d.datdba, o.traps \
             FROM (SELECT 'SCHEMA' AS kind, quote_ident(n.nspname) AS name, true AS is_ordinary, n.nspowner AS owner, NULL AS traps \
                   FROM pg_namespace n WHERE n.nspname = $1 \
                   UNION ALL \
                   SELECT CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' \
                                         WHEN 'f' THEN 'FOREIGN TABLE' ELSE 'TABLE' END, \
                          format('%I.%I', n.nspname, c.relname), c.relkind = 'r', c.relowner, \
                          (SELECT json_agg(it.trap ORDER BY it.trap) \
                           FROM (SELECT format('TRIGGER %I', tgname) AS trap FROM pg_trigger \
                                 WHERE tgrelid = c.oid AND NOT tgisinternal \
                                 UNION ALL SELECT format('RULE %I', rulename) FROM pg_rewrite WHERE ev_class = c.oid) it) \
                   FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                   WHERE n.nspname = $1 AND c.relname IN ('version', 'locks', 'waiters')) o \
             JOIN pg_roles r ON r.oid = o.owner JOIN pg_database d ON d.datname = current_database() \
             ORDER BY o.kind <> 'SCHEMA', o.name",
            &[Some(&schema)],
        )?;
        let database_owner = rows.first().and_then(|row| text(row, 0)).unwrap_or_default().to_owned();
        Ok(Trust { objects: rows.iter().map(Object::read).collect(), database_owner })
    }

    /// Returns what could be a trap, and whether there is no trigger, rule or view: only then may the tables be used. (The owner of a table
    /// has other ways, such as a CHECK or an index on an expression; owners that are not trusted are named.)
    pub(super) fn judge(&self) -> (Vec<Diagnostic>, bool) {
        let mut diagnostics: Vec<Diagnostic> = self.objects.iter().flat_map(Object::judge).collect();
        let is_safe = diagnostics.is_empty();
        let mut suspects: BTreeMap<&str, Vec<&Object>> = BTreeMap::new();
        for object in self.objects.iter().filter(|object| !object.is_trusted) {
            suspects.entry(&object.owner).or_default().push(object);
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
        if diagnostics.is_empty() && !self.objects.is_empty() {
            diagnostics.push(Diagnostic::ok(
                "the tables have no triggers and no rules, and belong to your role, the owner of the database or a superuser",
            ));
        }
        (diagnostics, is_safe)
    }
}

impl Object {
    fn read(row: &Row) -> Self {
        let word = |at| text(row, at).unwrap_or_default().to_owned();
        Object {
            kind: word(1),
            name: word(2),
            is_ordinary: truth(row, 3) == Some(true),
            owner: word(4),
            is_trusted: truth(row, 5) == Some(true),
            traps: text(row, 6).and_then(|traps| serde_json::from_str(traps).ok()).unwrap_or_default(),
        }
    }

    fn judge(&self) -> Vec<Diagnostic> {
        let Object { kind, name, traps, .. } = self;
        if !self.is_ordinary {
            return vec![Diagnostic::fail(
                format!("{name} is not an ordinary table, so it is not as lockrun creates it"),
                format!(
                    "it may run code with the rights of every role that uses a lock here, so no lock was tried; find out whose it is and \
                     DROP {kind} {name}, or name another schema with schema= in the store's URL"
                ),
            )];
        }
        let judge = |trap: &String| {
            Diagnostic::fail(
                format!("{trap} is on {name}, and was not made by lockrun"),
                format!(
                    "it runs with the rights of every role that uses a lock here, and may keep locks from being stored, so no lock was \
                     tried; find out whose it is and DROP {trap} ON {name}"
                ),
            )
        };
        traps.iter().map(judge).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::diagnostic::Level;

    fn object(kind: &str, name: &str) -> Object {
        Object {
            kind: kind.into(),
            name: name.into(),
            is_ordinary: true,
            owner: "a".into(),
            is_trusted: true,
            traps: Vec::new(),
        }
    }

    fn judged(objects: Vec<Object>) -> (Vec<Diagnostic>, bool) {
        Trust { objects, database_owner: "d".into() }.judge()
    }

    #[test]
    fn traps_are_found() {
        let (found, is_safe) = judged(vec![object("SCHEMA", "s"), object("TABLE", "s.locks")]);
        assert!(is_safe && found.len() == 1 && found[0].level == Level::Ok, "{found:?}");
        assert_eq!(judged(Vec::new()), (Vec::new(), true));
        let trap = Object { traps: vec!["TRIGGER x".into(), "RULE y".into()], ..object("TABLE", "s.locks") };
        let view = Object { is_ordinary: false, traps: vec!["RULE _RETURN".into()], ..object("VIEW", "s.locks") };
        for (unsafe_one, count) in [(trap, 2), (view, 1)] {
            let (found, is_safe) = judged(vec![object("SCHEMA", "s"), unsafe_one]);
            let fails = found.iter().filter(|finding| finding.level == Level::Fail).count();
            assert!(!is_safe && fails == count && found.len() == count, "{found:?}");
        }
    }

    #[test]
    fn what_belongs_to_others_is_named_once_for_each() {
        let owned = |owner: &str, kind, name| Object { owner: owner.into(), is_trusted: false, ..object(kind, name) };
        let objects = vec![owned("a", "SCHEMA", "s"), owned("b", "TABLE", "s.locks"), owned("a", "TABLE", "s.version")];
        let (found, is_safe) = judged(objects);
        assert!(is_safe && found.iter().all(|finding| finding.level == Level::Warn), "{found:?}");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].text.starts_with("role \"a\" owns s, s.version, and"), "{found:?}");
        let alters = "ALTER SCHEMA s OWNER TO d; ALTER TABLE s.version OWNER TO d";
        assert!(found[0].advice.ends_with(alters), "{found:?}");
    }
}
