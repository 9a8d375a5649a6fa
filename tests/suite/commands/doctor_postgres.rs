//! `lockrun doctor` on PostgreSQL: what would make locks unsafe or slow is found, and named; and the SQL of its tables.

use std::fs;
use std::time::Duration;

use tempfile::TempDir;

use super::doctor::{call, doctor, finds, is_well};
use crate::support::fake::{Fake, Manner};
use crate::support::lockrun::waiting_for_its_end;
use crate::support::postgres::{Pooled, Postgres, Setup};
use crate::support::processes::find_program;
use crate::support::redis::free_port;
use crate::support::{LONG, LeaseServer, Lockrun, Output, eventually};

/// Starts a server with these settings besides those that every server should have.
fn with(settings: &[&str]) -> Postgres {
    let settings = ["fsync=on"].iter().chain(settings).map(|&setting| setting.to_owned()).collect();
    Postgres::with(&Setup { settings, ..Setup::default() })
}

/// Settings that rule out a standby that is away.
const NO_STANDBYS: [&str; 2] = ["wal_level=minimal", "max_wal_senders=0"];

/// A server as docs/stores.md wants it.
fn well_kept() -> Postgres {
    with(&NO_STANDBYS)
}

/// Runs something under a lock there, which creates the tables.
#[track_caller]
fn use_lock(url: &str) {
    Lockrun::at(url).args(["--key", "first"]).command(["true"]).run().exited(0).silent();
}

/// Runs a file with psql, as the superuser.
#[track_caller]
fn psql(postgres: &Postgres, sql: &[u8]) -> Output {
    let directory = TempDir::new().expect("a temporary directory");
    let file = directory.path().join("lockrun.sql");
    fs::write(&file, sql).expect("a file");
    let psql = find_program("psql");
    let words = [psql.to_str().expect("a plain path"), "-X", "-v", "ON_ERROR_STOP=1", "-f"];
    let words = words.into_iter().chain([file.to_str().expect("a plain path")]);
    postgres.known_to(Lockrun::bare()).command(words).alone()
}

/// The same for a file that holds no error.
#[track_caller]
fn run_sql(postgres: &Postgres, sql: &[u8]) -> Output {
    psql(postgres, sql).exited(0).silent()
}

/// Runs the GRANT or ALTER in the first line with these words, up to its end or a semicolon.
#[track_caller]
fn follow(postgres: &Postgres, output: &Output, words: &str) {
    let text = output.stdout();
    let line = text.lines().find(|line| line.contains(words)).unwrap_or_else(|| panic!("no {words:?} in {output}"));
    let at = line.find("GRANT ").or_else(|| line.find("ALTER ")).unwrap_or_else(|| panic!("no advice in {line:?}"));
    postgres.ask(line[at..].split(';').next().expect("is there"));
}

/// The rows of all tables, and all schemas that are not PostgreSQL's own.
fn everything(postgres: &Postgres) -> String {
    postgres.ask("SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' ORDER BY 1")
}

// "Exit 0 only when there is no warning and no failure": the trial leaves nothing behind.
#[test]
fn a_server_that_is_well() {
    let postgres = well_kept();
    use_lock(&postgres.url());
    let output = doctor(&postgres.url());
    finds(&output, "ok", &["PostgreSQL at 127.0.0.1", "answers: PostgreSQL "]);
    finds(&output, "ok", &["role \"postgres\" may do all"]);
    finds(&output, "ok", &["a lock was acquired, renewed, handed to a waiter and released"]);
    is_well(output, 12);
    assert_eq!(postgres.ask("SELECT key FROM lockrun.locks"), "first\n");
    assert_eq!(postgres.count("SELECT count(*) FROM lockrun.waiters"), 0);
}

// "Only who takes a lock creates": where none exist, a lock is tried all the same, and leaves nothing behind.
#[test]
fn a_database_that_was_never_used() {
    let postgres = well_kept();
    let before = everything(&postgres);
    let output = doctor(&postgres.url()).exited(0);
    finds(&output, "note", &["the schema \"lockrun\" has no tables", "the first run creates them"]);
    finds(&output, "ok", &["a lock was acquired"]);
    assert_eq!(everything(&postgres), before);
    // A role that may create tables only in an existing schema has no schema for a trial.
    postgres.ask("CREATE ROLE clerk LOGIN; CREATE SCHEMA lockrun; GRANT USAGE, CREATE ON SCHEMA lockrun TO clerk");
    let url = postgres.url_as("clerk", "");
    let output = doctor(&url).exited(0);
    finds(&output, "note", &["has no tables", "a lock was not tried"]);
    use_lock(&url);
    is_well(doctor(&url), 12);
}

#[test]
fn a_server_that_forgets() {
    let postgres = Postgres::with(&Setup::default());
    finds(&doctor(&postgres.url()).exited(2), "fail", &["fsync off", "set fsync on"]);
    let postgres = with(&["full_page_writes=off"]);
    finds(&doctor(&postgres.url()).exited(1), "warn", &["full_page_writes off"]);
    let postgres = with(&["synchronous_commit=off", NO_STANDBYS[0], NO_STANDBYS[1]]);
    use_lock(&postgres.url());
    finds(&doctor(&postgres.url()).exited(0), "ok", &["synchronous_commit off, but not for lockrun's"]);
    postgres.ask("ALTER TABLE lockrun.locks SET UNLOGGED");
    let output = doctor(&postgres.url()).exited(2);
    finds(&output, "fail", &["locks is unlogged", "empties it"]);
    follow(&postgres, &output, "is unlogged");
    is_well(doctor(&postgres.url()), 12);
}

#[test]
fn a_standby_and_its_primary() {
    let primary = with(&["synchronous_standby_names="]);
    use_lock(&primary.url());
    let standby = Postgres::standby_of(&primary);
    finds(&doctor(&standby.url()).exited(69), "fail", &["is a standby", "name the primary"]);
    let replicas = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
    eventually(LONG, "the standby follows", || primary.count(replicas) == 1);
    finds(
        &doctor(&primary.url()).exited(1),
        "warn",
        &["it has standbys (1 connected)", "a failover may lose", "synchronous_standby_names"],
    );
    // A role that may not look at the standbys is told that there are some.
    primary.ask("CREATE ROLE clerk LOGIN; GRANT CREATE ON DATABASE postgres TO clerk");
    finds(&doctor(&primary.url_as("clerk", "schema=clerks")).exited(1), "warn", &["it has standbys (1 connected)"]);
    // A standby that is away, for instance because it is being restarted, cannot be seen.
    standby.stop_in_peace();
    eventually(LONG, "the standby has gone", || primary.count("SELECT count(*) FROM pg_stat_replication") == 0);
    let output = doctor(&primary.url()).exited(0);
    finds(&output, "note", &["no standby is connected at this moment", "restarted", "archive"]);
    assert!(!output.stdout().contains("no failover can lose a lock"), "{output}");
}

#[test]
fn a_primary_that_waits_for_its_standby() {
    let primary = with(&["synchronous_standby_names=*"]);
    primary.ask("SET synchronous_commit = local; ALTER ROLE postgres SET synchronous_commit = local");
    let output = doctor(&primary.url()).exited(1);
    finds(&output, "warn", &["does not wait for the synchronous standbys", "synchronous_commit local"]);
    let standby = Postgres::standby_of(&primary);
    let waits = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
    eventually(LONG, "the standby is waited for", || primary.count(waits) == 1);
    follow(&primary, &output, "does not wait");
    finds(
        &doctor(&primary.url()).exited(0),
        "ok",
        &["is on the disk of a synchronous standby", "keep both clocks in step"],
    );
    primary.ask("ALTER ROLE postgres SET synchronous_commit = remote_write");
    let output = doctor(&primary.url()).exited(1);
    finds(&output, "warn", &["not for its disk", "synchronous_commit remote_write"]);
    follow(&primary, &output, "not for its disk");
    doctor(&primary.url()).exited(0);
    drop(standby);
}

/// The rights that a role needs if it may not create the tables, as `(object, rights)`.
const NEEDED: [(&str, &[&str]); 4] = [
    ("SCHEMA lockrun", &["USAGE"]),
    ("lockrun.version", &["SELECT"]),
    ("lockrun.locks", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("lockrun.waiters", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
];

// "Exactly what is missing is named, together with the GRANT that would give it": each single right, and the words do give it.
#[test]
fn a_role_that_lacks_one_right() {
    let postgres = well_kept();
    use_lock(&postgres.url());
    postgres.ask("CREATE ROLE clerk LOGIN");
    let url = postgres.url_as("clerk", "");
    for (object, rights) in NEEDED {
        postgres.ask(&format!("GRANT {} ON {object} TO clerk", rights.join(", ")));
    }
    is_well(doctor(&url), 12);
    for (object, rights) in NEEDED {
        for right in rights {
            postgres.ask(&format!("REVOKE {right} ON {object} FROM clerk"));
            let output = doctor(&url).exited(69);
            let table = object.rsplit(['.', ' ']).next().expect("a name");
            finds(&output, "fail", &["role \"clerk\" lacks", right, table]);
            let fails = output.stdout().lines().filter(|line| line.starts_with("fail")).count();
            assert_eq!(fails, 1, "{output}");
            follow(&postgres, &output, "lacks");
            let words = ["--key", "rights", "--wait", "1"];
            Lockrun::at(&url).args(words).command(["true"]).run().exited(0).silent();
        }
    }
    is_well(doctor(&url), 12);
}

#[test]
fn tables_of_a_later_version() {
    let postgres = well_kept();
    use_lock(&postgres.url());
    postgres.ask("UPDATE lockrun.version SET version = 1000");
    finds(&doctor(&postgres.url()).exited(69), "fail", &["version 1000", "install a later one"]);
}

#[test]
fn rows_that_are_never_removed() {
    let postgres = with(&["autovacuum=off"]);
    use_lock(&postgres.url());
    finds(&doctor(&postgres.url()).exited(1), "warn", &["autovacuum off", "set autovacuum on"]);
    let postgres = well_kept();
    use_lock(&postgres.url());
    postgres.ask("ALTER TABLE lockrun.waiters SET (autovacuum_enabled = false)");
    let output = doctor(&postgres.url()).exited(1);
    finds(&output, "warn", &["waiters that are out of date are not removed"]);
    follow(&postgres, &output, "are not removed");
    is_well(doctor(&postgres.url()), 12);
}

#[test]
fn connections_that_run_out() {
    let postgres = with(&["max_connections=20"]);
    postgres.ask("CREATE ROLE clerk LOGIN CONNECTION LIMIT 7; GRANT CREATE ON DATABASE postgres TO clerk");
    let url = postgres.url_as("clerk", "schema=clerks");
    finds(&doctor(&url).exited(0), "ok", &["at most 7 connections at once (the limit of the role), 1 in use"]);
    let holders: Vec<_> = (0..6).map(|number| waiting_for_its_end(&at_key(&url, number))).collect();
    finds(&doctor(&url).exited(1), "warn", &["at most 7 connections", "7 in use", "connection pooler"]);
    let url = postgres.url();
    let more: Vec<_> = (6..15).map(|number| waiting_for_its_end(&at_key(&url, number))).collect();
    finds(&doctor(&url).exited(1), "warn", &["at most 17 connections at once (max_connections)"]);
    for run in holders.into_iter().chain(more) {
        run.finish().exited(0);
    }
}

fn at_key(url: &str, number: usize) -> Lockrun {
    Lockrun::at(url).args(["--key", &format!("held {number}")])
}

// A run goes on waiting when the server ends its idle session between two heartbeats, and the doctor says what is wrong.
#[test]
fn sessions_that_do_not_last() {
    let postgres = with(&["idle_session_timeout=500ms"]);
    let url = postgres.url();
    finds(&doctor(&url).exited(1), "warn", &["idle for 500 ms is ended", "idle_session_timeout"]);
    let call = Lockrun::at(&url).args(["--key", "idle"]);
    let holder = waiting_for_its_end(&call);
    let waiter = call.args(["--wait", "-v"]).sh("echo mine").spawn();
    eventually(LONG, "it waits", || postgres.waiting("idle").len() == 1);
    let session = "SELECT coalesce(max(session), 0) FROM lockrun.waiters";
    let first = postgres.ask(session);
    eventually(LONG, "it has another session", || !["0\n", first.as_str()].contains(&postgres.ask(session).as_str()));
    holder.finish().exited(0);
    waiter.wait().exited(0).printed("mine\n");
}

#[test]
fn a_pooler_in_between() {
    let pooled = Pooled::start();
    let output = doctor(&pooled.url_at(pooled.port())).exited(2);
    finds(&output, "ok", &["a connection pooler is in between"]);
    finds(&output, "ok", &["a lock was acquired"]);
    finds(&output, "fail", &["fsync off"]);
    assert!(!output.stdout().contains("connections at once"), "{output}");
}

#[test]
fn a_connection_over_tls() {
    let postgres = Postgres::with_tls(&["hostssl all all 127.0.0.1/32 trust"]);
    let ca = postgres.certificates().path("ca.crt");
    let output = doctor(&postgres.url_as("postgres", &format!("sslmode=verify-full&ca={ca}")));
    finds(&output, "ok", &["TLS"]);
    finds(&doctor(&postgres.url_as("postgres", "sslmode=disable")).exited(69), "fail", &["no encryption"]);
}

// "69 when the store cannot be used at all."
#[test]
fn a_server_that_cannot_be_used() {
    let url = format!("postgres://somebody:hush@127.0.0.1:{}/jobs", free_port());
    let away = doctor(&url).exited(69);
    finds(&away, "fail", &["cannot reach PostgreSQL at 127.0.0.1"]);
    let postgres = Postgres::with_password("scram-sha-256", "clerk", "right");
    let wrong = doctor(&postgres.url_as("clerk:hush", "")).exited(69);
    finds(&wrong, "fail", &["check the user and the password"]);
    let missing = doctor(&postgres.url_as("clerk:right", "").replace("/postgres", "/hushed")).exited(69);
    finds(&missing, "fail", &["database", "does not exist"]);
    for output in [away, wrong] {
        assert!(!output.stdout().contains("hush"), "{output}");
    }
    let silent = Fake::start(Manner::Silent);
    let url = silent.url().replacen("redis://", "postgres://u@", 1) + "/db";
    let output = call(&url).args(["--store-timeout", "1s"]).run().exited(69);
    finds(&output, "fail", &["did not answer in time"]);
    assert!(output.took < Duration::from_secs(3), "{output}");
}

// "A role that may not create: 69, then the printed SQL run by the owner makes it work": also with names that need quotes, and run twice.
#[test]
fn a_role_that_may_not_create() {
    let postgres = well_kept();
    postgres.ask("CREATE ROLE \"night \"\"jobs\"\"\" LOGIN; CREATE ROLE day LOGIN");
    let url = postgres.url_as("night%20%22jobs%22", "schema=Locks%20%22A%22%3B%20--");
    let refused = Lockrun::at(&url).args(["--key", "a"]).command(["true"]).run().exited(69);
    refused.said("lockrun doctor --schema");
    let output = doctor(&url).exited(69);
    finds(&output, "fail", &["may not create them", "lockrun doctor --schema"]);
    let printed = call(&url).arg("--schema").run().exited(0).silent();
    assert!(printed.stdout().lines().take(3).all(|line| line.starts_with("-- ")), "{printed}");
    run_sql(&postgres, &printed.stdout);
    use_lock(&url);
    is_well(doctor(&url), 12);
    let lock = Lockrun::at(&url).args(["--key", "held"]);
    let holder = waiting_for_its_end(&lock);
    run_sql(&postgres, &printed.stdout);
    lock.command(["true"]).run().exited(75);
    holder.finish().exited(0);
    // The next role needs only the grants.
    let other = postgres.url_as("day", "schema=Locks%20%22A%22%3B%20--");
    doctor(&other).exited(69);
    run_sql(&postgres, &call(&other).arg("--schema").run().exited(0).silent().stdout);
    is_well(doctor(&other), 12);
    is_well(doctor(&url), 12);
}

/// What a role `mallory` that may create schemas does to make others run its code, which records their names in `mallory.victims`.
const MALLORY: &str = "CREATE ROLE mallory; CREATE ROLE clerk LOGIN; GRANT CREATE ON DATABASE postgres TO mallory;
    SET ROLE mallory;
    CREATE SCHEMA mallory; GRANT USAGE ON SCHEMA mallory TO public;
    CREATE TABLE mallory.victims (name text); GRANT INSERT ON mallory.victims TO public;
    CREATE FUNCTION mallory.trap() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO mallory.victims VALUES (current_user); RETURN NEW; END $$;
    CREATE SCHEMA team; GRANT ALL ON SCHEMA team TO public;
    ALTER DEFAULT PRIVILEGES IN SCHEMA team GRANT ALL ON TABLES TO public;
    CREATE TABLE team.version (version bigint PRIMARY KEY);
    RESET ROLE";

/// A trap on that table.
const TRAP: &str = "CREATE TRIGGER trap BEFORE INSERT ON team.version FOR EACH ROW EXECUTE FUNCTION mallory.trap()";

// "Whoever creates the schema first" cannot run code as the user who runs the printed SQL: here a superuser.
#[test]
fn the_schema_runs_no_code_of_others() {
    let postgres = well_kept();
    postgres.ask(MALLORY);
    let url = postgres.url_as("clerk", "schema=team");
    let script = call(&url).arg("--schema").run().exited(0).silent().stdout;
    let victims = || postgres.count("SELECT count(*) FROM mallory.victims");
    let untouched = |words: &[&str]| {
        let before = "SELECT relname, relowner FROM pg_class WHERE relnamespace = 'team'::regnamespace ORDER BY 1";
        let there = postgres.ask(before);
        let output = psql(&postgres, &script);
        assert_ne!(output.status, Some(0), "{output}");
        assert!(words.iter().all(|word| output.stderr().contains(word)), "{words:?}: {output}");
        assert_eq!((postgres.ask(before), victims()), (there, 0));
    };
    for trap in [
        TRAP,
        "CREATE TABLE team.locks (key text, state json)",
        "DROP TABLE team.version; CREATE VIEW team.version AS SELECT 1::bigint AS version WHERE false;
         CREATE RULE trap AS ON INSERT TO team.version DO INSTEAD INSERT INTO mallory.victims VALUES (current_user)",
        "DROP VIEW team.version",
    ] {
        postgres.ask(&format!("SET ROLE mallory; {trap}; RESET ROLE"));
        untouched(&["belongs to the role mallory", "SET ROLE mallory"]);
    }
    // Its tables are no better in another role's schema.
    postgres.ask("ALTER SCHEMA team OWNER TO postgres; GRANT CREATE ON SCHEMA team TO mallory");
    untouched(&["team.locks belongs to the role mallory"]);
    // Nor is what it has left on tables that now belong to others.
    postgres.ask("ALTER TABLE team.locks OWNER TO postgres");
    postgres.ask("CREATE TRIGGER trap BEFORE INSERT ON team.locks FOR EACH ROW EXECUTE FUNCTION mallory.trap()");
    untouched(&["team.locks has a trigger or a rule"]);
    postgres.ask("DROP TABLE team.locks; CREATE VIEW team.locks AS SELECT 1 AS one");
    untouched(&["team.locks is not an ordinary table"]);
    postgres.ask("DROP VIEW team.locks");
    // Without all that, the SQL works, whatever is first in the search path.
    postgres.ask(
        "CREATE FUNCTION mallory.current_setting(text) RETURNS text LANGUAGE sql AS
             $$ INSERT INTO mallory.victims VALUES (current_user) RETURNING 'team' $$;
         ALTER DATABASE postgres SET search_path = mallory, pg_catalog",
    );
    run_sql(&postgres, &script);
    use_lock(&url);
    is_well(doctor(&url), 12);
    assert_eq!(victims(), 0);
}

// "Run the SQL as that role": the owner of a schema creates its tables for others, even without the right to create schemas.
#[test]
fn the_owner_of_a_schema_runs_its_sql() {
    let postgres = well_kept();
    postgres.ask("CREATE ROLE \"the team\"; CREATE ROLE clerk LOGIN; CREATE SCHEMA lockrun AUTHORIZATION \"the team\"");
    let url = postgres.url_as("clerk", "");
    let script = call(&url).arg("--schema").run().exited(0).silent().stdout();
    let refused = psql(&postgres, script.as_bytes());
    assert!(refused.stderr().contains("SET ROLE \"the team\""), "{refused}");
    for _ in 0..2 {
        run_sql(&postgres, format!("SET ROLE \"the team\";\n{script}").as_bytes());
    }
    use_lock(&url);
    // The doctor names that owner, until the owner of the database owns the schema.
    let output = doctor(&url).exited(1);
    finds(
        &output,
        "warn",
        &["role \"the team\" owns lockrun, lockrun.locks", "trust it, or ALTER SCHEMA lockrun OWNER TO postgres"],
    );
    let text = output.stdout();
    let advice = text.lines().find_map(|line| line.split_once("trust it, or ")).expect("is there").1;
    postgres.ask(advice);
    is_well(doctor(&url), 12);
}

// A trigger, a rule or a view runs with the rights of the role that uses a lock: the doctor names it without triggering it.
#[test]
fn code_in_the_tables() {
    let postgres = well_kept();
    postgres.ask(MALLORY);
    let url = postgres.url_as("clerk", "schema=lockrun");
    run_sql(&postgres, &call(&url).arg("--schema").run().exited(0).silent().stdout);
    let insert = "INSERT INTO mallory.victims VALUES (current_user)";
    for (make, words) in [
        (
            "CREATE TRIGGER trap BEFORE INSERT ON lockrun.locks FOR EACH ROW EXECUTE FUNCTION mallory.trap()".to_owned(),
            "TRIGGER trap is on lockrun.locks",
        ),
        (format!("CREATE RULE \"a trap\" AS ON UPDATE TO lockrun.waiters DO ALSO {insert}"), "RULE \"a trap\" is on lockrun.waiters"),
        (
            "ALTER TABLE lockrun.version RENAME TO former; CREATE VIEW lockrun.version AS SELECT version FROM lockrun.former;
             GRANT SELECT ON lockrun.version TO clerk"
                .to_owned(),
            "lockrun.version is not an ordinary table",
        ),
    ] {
        is_well(doctor(&url), 12);
        postgres.ask(&make);
        let output = doctor(&url).exited(2);
        finds(&output, "fail", &[words, "no lock was tried"]);
        assert!(!output.stdout().contains("a lock was acquired"), "{output}");
        let text = output.stdout();
        let advice = text.lines().find(|line| line.contains(words)).expect("is there");
        let drop = &advice[advice.find("DROP ").expect("advice")..];
        postgres.ask(drop.split(',').next().expect("is there"));
    }
    assert_eq!(postgres.count("SELECT count(*) FROM mallory.victims"), 0);
    // The table has lost its place.
    let output = doctor(&url);
    finds(&output, "fail", &["may not create them"]);
    postgres.ask("ALTER TABLE lockrun.former RENAME TO version");
    is_well(doctor(&url), 12);
}

// "Prints the SQL, connects to nothing"; "bad combinations exit 64 before anything is touched".
#[test]
fn the_schema_is_printed_without_a_server() {
    let url = format!("postgres://clerk:hush@127.0.0.1:{}/jobs?sslmode=verify-full&ca=/nowhere", free_port());
    let doctor = Lockrun::bare().args(["doctor", "--schema"]);
    let typed = doctor.clone().args(["--store", &url]).run().exited(0).silent();
    assert!(typed.stdout().contains("TO \"clerk\";\n") && !typed.stdout().contains("hush"), "{typed}");
    let set = doctor.clone().env("LOCKRUN_STORE", &url).run().exited(0).silent();
    assert_eq!(set.stdout(), typed.stdout());
    for store in ["file:", "redis://127.0.0.1"] {
        doctor.clone().args(["--store", store]).run().exited(64).printed("").said("--store postgres://");
    }
    doctor.clone().run().exited(64).printed("");
    doctor.clone().args(["--store", "postgres://h"]).run().exited(64).printed("");
    doctor.clone().args(["--store", &url, "--store-timeout", "0"]).run().exited(64).printed("");
    doctor.clone().args(["--store", &url, "word"]).run().exited(64).printed("");
    Lockrun::bare().args(["doctor", "--schema=x", "--store", &url]).run().exited(64).printed("");
    Lockrun::bare().args(["status", "--schema", "--store", &url]).run().exited(64).printed("");
}
