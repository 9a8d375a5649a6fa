//! `lockrun doctor` on PostgreSQL: what would make locks unsafe or slow is found, and named. For the rights of a role
//! see `doctor_rights`, for the SQL of its tables `doctor_schema`.

use std::fs;
use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::doctor::{call, doctor, finds, is_well};
use crate::support::fake::{Fake, Manner};
use crate::support::lockrun::waiting_for_its_end;
use crate::support::ports::free_port;
use crate::support::postgres::{Pooled, Postgres, Setup};
use crate::support::processes::find_program;
use crate::support::{LONG, LeaseServer, Lockrun, Output, eventually};

/// Starts a server with these settings besides those that every server should have.
fn with(settings: &[&str]) -> Postgres {
    let settings = ["fsync=on"].iter().chain(settings).map(|&setting| setting.to_owned()).collect();
    Postgres::with(&Setup { settings, ..Setup::default() })
}

/// Settings that rule out a standby that is away.
const NO_STANDBYS: [&str; 2] = ["wal_level=minimal", "max_wal_senders=0"];

/// A server as docs/postgresql.md wants it.
pub(super) fn well_kept() -> Postgres {
    with(&NO_STANDBYS)
}

/// Runs something under a lock there, which creates the tables.
#[track_caller]
pub(super) fn use_lock(url: &str) {
    Lockrun::at(url).args(["--key", "first"]).command(["true"]).run().exited(0).silent();
}

/// Runs a file with psql, as the superuser.
#[track_caller]
pub(super) fn psql(postgres: &Postgres, sql: &[u8]) -> Output {
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
pub(super) fn run_sql(postgres: &Postgres, sql: &[u8]) -> Output {
    psql(postgres, sql).exited(0).silent()
}

/// Runs the GRANT or ALTER in the first line with these words, up to its end or a semicolon.
#[track_caller]
pub(super) fn follow(postgres: &Postgres, output: &Output, words: &str) {
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
    is_well(output, 11);
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
    is_well(doctor(&url), 11);
}

// "doctor removes everything that it created for its tests", also if it is interrupted: it ends as soon as it has.
#[test]
fn a_doctor_that_is_interrupted() {
    let postgres = well_kept();
    use_lock(&postgres.url());
    // Lets the test lock be acquired, but not waited for.
    let hold_up = postgres.transaction("LOCK TABLE lockrun.waiters IN EXCLUSIVE MODE");
    let doctor = call(&postgres.url()).args(["--store-timeout", "30s"]).spawn();
    let tried = "SELECT count(*) FROM lockrun.locks WHERE key LIKE 'lockrun doctor %'";
    eventually(LONG, "the test lock is held", || postgres.count(tried) == 1);
    doctor.signal(Signal::SIGTERM);
    hold_up.commit();
    doctor.wait().died_of(Signal::SIGTERM).printed("");
    assert_eq!(postgres.ask("SELECT key FROM lockrun.locks"), "first\n");
}

#[test]
fn a_server_that_forgets() {
    let postgres = Postgres::with(&Setup::default());
    finds(&doctor(&postgres.url()).exited(2), "fail", &["fsync off", "set fsync on"]);
    let postgres = with(&["full_page_writes=off"]);
    finds(&doctor(&postgres.url()).exited(1), "warn", &["full_page_writes off"]);
    // lockrun's transactions wait for the disk whatever synchronous_commit is.
    let postgres = with(&["synchronous_commit=off", NO_STANDBYS[0], NO_STANDBYS[1]]);
    use_lock(&postgres.url());
    finds(&doctor(&postgres.url()).exited(0), "ok", &["a crash forgets nothing"]);
    postgres.ask("ALTER TABLE lockrun.locks SET UNLOGGED");
    let output = doctor(&postgres.url()).exited(2);
    finds(&output, "fail", &["locks is unlogged", "empties it"]);
    follow(&postgres, &output, "is unlogged");
    is_well(doctor(&postgres.url()), 11);
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
    finds(&output, "warn", &["does not wait for the disk of a synchronous standby", "synchronous_commit local"]);
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
    finds(&output, "warn", &["does not wait for the disk", "synchronous_commit remote_write"]);
    follow(&primary, &output, "does not wait");
    doctor(&primary.url()).exited(0);
    drop(standby);
}

#[test]
fn tables_of_a_later_version() {
    let postgres = well_kept();
    use_lock(&postgres.url());
    postgres.ask("UPDATE lockrun.version SET version = 1000");
    finds(&doctor(&postgres.url()).exited(69), "fail", &["version 1000", "install a later one"]);
}

#[test]
fn connections_that_run_out() {
    let postgres = with(&["max_connections=20"]);
    postgres.ask("CREATE ROLE clerk LOGIN CONNECTION LIMIT 7; GRANT CREATE ON DATABASE postgres TO clerk");
    let url = postgres.url_as("clerk", "schema=clerks");
    finds(&doctor(&url).exited(0), "ok", &["at most 7 connections at once (the limit of the role), 1 in use"]);
    // Their leases outlast the test: none of them renews, and perhaps connects anew, while the doctor counts.
    let hold = |url: &str, numbers: std::ops::Range<usize>| -> Vec<_> {
        let call = |number| Lockrun::at(url).args(["--ttl", "10m", "--key", &format!("held {number}")]);
        numbers.map(|number| waiting_for_its_end(&call(number))).collect()
    };
    // The session of the doctor ends a moment after the doctor.
    let in_use = |role: &str, count: usize| {
        let others = format!(
            "SELECT count(*) FROM pg_stat_activity \
             WHERE usename = '{role}' AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        );
        eventually(LONG, "each run has a connection", || postgres.ask(&others).trim() == count.to_string());
    };
    let clerks = hold(&url, 0..6);
    in_use("clerk", 6);
    finds(&doctor(&url).exited(1), "warn", &["at most 7 connections", "7 in use", "connection pooler"]);
    let url = postgres.url();
    let more = hold(&url, 6..15);
    in_use("clerk", 6);
    in_use("postgres", 9);
    finds(&doctor(&url).exited(1), "warn", &["at most 17 connections at once (max_connections)"]);
    for run in clerks.into_iter().chain(more) {
        run.finish().exited(0);
    }
}

// A run goes on waiting when the server ends its idle session between two of its requests, and the doctor says what is
// wrong.
#[test]
fn sessions_that_do_not_last() {
    let postgres = with(&["idle_session_timeout=500ms"]);
    let url = postgres.url();
    finds(&doctor(&url).exited(1), "warn", &["idle for 500 ms is ended", "idle_session_timeout"]);
    let call = Lockrun::at(&url).args(["--key", "idle"]);
    let holder = waiting_for_its_end(&call);
    let waiter = call.args(["--wait", "-v"]).sh("echo mine").spawn();
    eventually(LONG, "it waits", || postgres.waiting("idle").len() == 1);
    let session = "SELECT coalesce(max(channel), '0') FROM lockrun.waiters";
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
