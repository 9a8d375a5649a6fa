//! PostgreSQL tables that this lockrun's statements do not fit: those of a later lockrun, and those of other programs.

use crate::support::hand::{token, until_waiting};
use crate::support::store::{on_pooled, on_postgres};
use crate::support::{Holder, Lockrun, Postgres};

/// What a later version could do to the tables.
const CHANGES: [&str; 4] = [
    "ALTER TABLE lockrun.locks RENAME COLUMN state TO condition",
    "ALTER TABLE lockrun.locks ALTER COLUMN state TYPE bytea USING 'x'",
    "ALTER TABLE lockrun.waiters RENAME COLUMN waiter TO who",
    "ALTER TABLE lockrun.locks RENAME TO leases",
];

/// Returns the names of all objects in a schema.
fn all_in(postgres: &Postgres, schema: &str) -> String {
    postgres.ask(&format!("SELECT relname FROM pg_class WHERE relnamespace = '{schema}'::regnamespace ORDER BY 1"))
}

/// Asserts that each of lockrun's commands says this, and that none starts a command.
#[track_caller]
fn all_fail(url: &str, its: &str, words: &str) {
    let own = ["--store", url];
    Lockrun::at(url).key("k").command(["echo", "ran"]).run().exited(69).printed("").said(words);
    Lockrun::at(url).key("k").args(["--wait"]).command(["echo", "ran"]).run().exited(69).printed("").said(words);
    for others in [&["status"][..], &["prune", "--older-than", "0"]] {
        Lockrun::bare().args(others).args(own).run().exited(69).printed("").said(words);
    }
    for (word, options) in [
        ("acquire", &[][..]),
        ("renew", &["--token", its]),
        ("release", &["--token", its]),
        ("break", &[]),
        ("status", &[]),
    ] {
        Lockrun::bare().arg(word).key("k").args(own).args(options).run().exited(69).printed("").said(words);
    }
    let doctor = Lockrun::bare().args(["doctor", "--store", url]).run().exited(69).silent().stdout();
    assert!(doctor.lines().any(|line| line.starts_with("fail") && line.contains(words)), "{doctor}");
}

// "One that a later one has migrated is not touched", also if the server rejects this lockrun's statements after the
// migration.
on_postgres!(a_later_version_with_other_columns, |store, postgres| {
    for change in CHANGES {
        let its = token(store, "k", &[]);
        postgres.ask(&format!("UPDATE lockrun.version SET version = 2; {change}"));
        let before = all_in(postgres, "lockrun");
        all_fail(&store.url(), &its, "install a later one");
        assert_eq!(all_in(postgres, "lockrun"), before, "{change}");
        store.server().forget_everything();
    }
});

// The same for a run that waits meanwhile: its next look at its own row shows it.
on_pooled!(a_waiter_learns_of_a_later_version, |store, pooled| {
    let holder = Holder::new(store, "k");
    let waiter = Lockrun::new(store).key("k").arg("--wait").command(["echo", "ran"]).spawn();
    until_waiting(store, "k", 1);
    pooled.postgres().ask(&format!("UPDATE lockrun.version SET version = 2; {}", CHANGES[0]));
    waiter.wait().exited(69).printed("").said("install a later one");
    drop(holder);
});

// "Give lockrun a schema of its own": other programs have tables of these names.
on_postgres!(tables_of_another_program, |_store, postgres| {
    for (number, tables) in [
        "CREATE TABLE version (version text); INSERT INTO version VALUES ('1.2.3')",
        "CREATE TABLE version (id bigint, name text)",
        "CREATE TABLE locks (id bigint PRIMARY KEY, owner text)",
        "CREATE TABLE locks (key uuid PRIMARY KEY, state text)",
        "CREATE TABLE locks (key bigint PRIMARY KEY, state json NOT NULL)",
        "CREATE TABLE waiters (name text)",
        "CREATE VIEW locks AS SELECT 1 AS seats",
    ]
    .into_iter()
    .enumerate()
    {
        let schema = format!("app{number}");
        postgres.ask(&format!("CREATE SCHEMA {schema}; SET search_path = {schema}; {tables}; RESET search_path"));
        let before = all_in(postgres, &schema);
        let url = postgres.url_as("postgres", &format!("sslmode=disable&schema={schema}"));
        for words in [
            &["--key", "k", "--", "echo", "ran"][..],
            &["acquire", "--key", "k"],
            &["status"],
            &["status", "--key", "k"],
        ] {
            let call = Lockrun::bare().env("LOCKRUN_STORE", &url).args(words).run().exited(69).printed("");
            call.said("that is not lockrun's").said("a schema of its own").said(&schema);
        }
        assert_eq!(all_in(postgres, &schema), before, "{tables}");
        let doctor = Lockrun::bare().args(["doctor", "--store", &url]).run().silent();
        let found = doctor.stdout();
        let is_named =
            |line: &str| line.starts_with("fail") && (line.contains("not lockrun's") || tables.contains("VIEW"));
        assert!(found.lines().any(is_named) && !found.contains("a lock was acquired"), "{doctor}");
        assert_eq!(all_in(postgres, &schema), before, "{tables}");
    }
});

// "Bad combinations exit 64 before anything is touched": a schema that holds other programs' tables.
on_postgres!(schemas_of_everybody, |_store, postgres| {
    for schema in ["public", "pg_catalog", "information_schema", "pg_toast", "pg_mine"] {
        let url = postgres.url_as("postgres", &format!("schema={schema}"));
        let output = Lockrun::at(&url).key("k").command(["echo", "ran"]).run().exited(64).printed("");
        output.said("needs one of its own").said("schema=lockrun");
    }
    assert_eq!(postgres.ask("SELECT relname FROM pg_class WHERE relname IN ('version', 'locks', 'waiters')"), "");
});
