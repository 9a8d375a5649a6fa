//! What only MySQL and MariaDB do.

use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::thread;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::mysql_login::scripted_server;
use crate::support::hand::{token, until_waiting};
use crate::support::holder::is_free;
use crate::support::proxy::{Mode, Proxy};
use crate::support::tls::Certificates;
use crate::support::{Holder, LONG, LeaseServer as _, Lockrun, Mariadb, Store, eventually};

/// Returns a call for this URL of the server.
pub(super) fn at(url: &str) -> Lockrun {
    Lockrun::at(url).key("own")
}

// "Tables on first use where the role may": of many first users at once, all run, one after the other.
#[test]
fn a_hundred_first_users_at_once() {
    let store = Store::mariadb();
    let runs: Vec<_> =
        (0..100).map(|_| Lockrun::new(&store).key("first").arg("--wait").command(["true"]).spawn()).collect();
    for run in runs {
        run.wait().exited(0).silent();
    }
}

// "`doctor --schema` where not": what it prints lets a user run who may create nothing, and doctor says so before.
#[test]
fn a_user_who_may_create_nothing() {
    let mariadb = Mariadb::start();
    mariadb.ask("CREATE USER app IDENTIFIED BY 'pw'");
    mariadb.ask("GRANT SELECT ON locks.* TO app");
    let url = mariadb.url_as("app:pw", "tls=disabled");
    let run = at(&url).command(["echo", "ran"]);
    run.clone().run().exited(69).said("lockrun doctor --schema prints");
    let doctor = Lockrun::bare().args(["doctor", "--store", &url]);
    assert!(doctor.clone().run().stdout().contains("lockrun doctor --schema prints"));
    let schema = Lockrun::bare().args(["doctor", "--schema", "--store", &url]).run().exited(0);
    for statement in schema.stdout().split(";\n").filter(|it| !it.trim().is_empty()) {
        mariadb.ask(statement);
    }
    run.run().exited(0).printed("ran\n");
    doctor.run().exited(0);
}

// "Passwords from ~/.my.cnf ([client]) and MYSQL_PWD, with the usual care."
#[test]
fn passwords_are_found() {
    let mariadb = Mariadb::start();
    mariadb.ask("CREATE USER app IDENTIFIED BY 'it''s #1'");
    mariadb.ask("GRANT ALL ON locks.* TO app");
    let (home, url) = (TempDir::new().expect("a directory"), mariadb.url_as("app", "tls=disabled"));
    let file = home.path().join(".my.cnf");
    let call = at(&url).env("HOME", home.path().to_str().expect("plain")).command(["echo", "ran"]);
    call.clone().run().exited(69).said("MYSQL_PWD or in ~/.my.cnf");
    call.clone().env("MYSQL_PWD", "it's #1").run().exited(0).printed("ran\n");
    at(&mariadb.url_as("app:it's%20%231", "tls=disabled")).command(["true"]).run().exited(0);
    fs::write(&file, "[client]\nuser = other\npassword = \"it's #1\"\n").expect("our own");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("our own");
    call.clone().run().exited(69).said(".my.cnf").said("chmod 0600");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("our own");
    call.run().exited(0).printed("ran\n");
}

// "TLS as for the others."
#[test]
fn tls_is_verified_as_the_url_says() {
    let certificates = Certificates::make();
    let mariadb = Mariadb::with_tls(&certificates);
    mariadb.ask("CREATE USER app REQUIRE SSL");
    mariadb.ask("GRANT ALL ON locks.* TO app");
    let run = |parameters: &str| at(&mariadb.url_as("app", parameters)).command(["echo", "ran"]).run();
    let ca = certificates.path("ca.crt");
    for parameters in ["", "tls=required", &format!("ca={ca}"), &format!("tls=verify-ca&ca={ca}")] {
        run(parameters).exited(0).printed("ran\n");
    }
    run("tls=disabled").exited(69).said("refused the login");
    run("tls=verify-identity").exited(69).said("name the authority's certificate with ?ca=FILE");
    let untrusted = certificates.path("untrusted.crt");
    run(&format!("ca={untrusted}")).exited(69).said("check that ca=FILE");
    let plain = Mariadb::start();
    let insists = at(&plain.url_as("root", "tls=required")).command(["true"]).run();
    insists.exited(69).said("does not offer TLS");
}

// "Read-only and super-read-only servers: the right kind of failure": of several hosts, the one that takes writes is
// used, and a primary that becomes a replica is left for another one.
#[test]
fn a_replica_is_passed_over() {
    let (one, other) = (Mariadb::start(), Mariadb::start());
    for mariadb in [&one, &other] {
        mariadb.ask("CREATE USER app");
        mariadb.ask("GRANT ALL ON locks.* TO app");
    }
    one.ask("SET GLOBAL read_only = 1");
    let url = format!("mysql://app@127.0.0.1:{},127.0.0.1:{}/locks?tls=disabled", one.port(), other.port());
    at(&one.url_as("app", "tls=disabled"))
        .command(["true"])
        .run()
        .exited(69)
        .said("takes no writes")
        .said("name the primary");
    // An administrator may write there all the same.
    at(&one.url_as("root", "tls=disabled")).command(["true"]).run().exited(69).said("takes no writes");
    at(&url).command(["echo", "ran"]).run().exited(0).printed("ran\n");
    let waits = at(&url).args(["--wait", "-v", "--store-retry", "1m"]);
    other.ask("SET GLOBAL read_only = 1");
    let mut run = waits.command(["echo", "ran"]).spawn();
    run.wait_for_stderr("trying again");
    one.ask("SET GLOBAL read_only = 0");
    eventually(LONG, "the run has ended", || run.has_ended());
    run.wait().exited(0).printed("ran\n");
}

// "Deadlocks (1213): the right kind of failure": an operation that the server has rolled back because of others is
// repeated.
#[test]
fn a_deadlock_costs_no_run() {
    let store = Store::mariadb();
    let mariadb = store.as_mariadb().expect("it is one");
    let holder = Holder::new(&store, "dead");
    let waiter = || Lockrun::new(&store).key("dead").arg("--wait").command(["echo", "ran"]).spawn();
    let first = waiter();
    until_waiting(&store, "dead", 1);
    // A client that has changed something, so that the server does not roll it back, has the row of the first waiter.
    mariadb.ask("START TRANSACTION");
    mariadb.ask("UPDATE lockrun_waiters SET ends_ms = ends_ms + 1");
    let second = waiter();
    let waits = || mariadb.ask("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'").trim().ends_with("|1");
    eventually(LONG, "an operation has the row of the lock, and waits for the other", waits);
    mariadb.ask("SELECT k FROM lockrun_locks WHERE k = 'dead' FOR UPDATE");
    mariadb.ask("COMMIT");
    assert!(mariadb.ask("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'").trim() != "Innodb_deadlocks|0");
    until_waiting(&store, "dead", 2);
    holder.end();
    for run in [first, second] {
        run.wait().exited(0).printed("ran\n");
    }
}

// "Tables come by themselves on first use", also while another client reads: the server rejects a read that began before
// a table was created or changed (1412).
#[test]
fn tables_that_change_while_somebody_reads() {
    let store = Store::mariadb();
    let mariadb = store.as_mariadb().expect("it is one");
    let holder = Holder::new(&store, "seen");
    mariadb.ask("LOCK TABLES lockrun_version WRITE, lockrun_locks WRITE, lockrun_waiters WRITE");
    let status = Lockrun::bare().args(["status", "--store", &store.url(), "--key", "seen"]).spawn();
    let waits = "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'Waiting for table metadata lock'";
    eventually(LONG, "its transaction has begun, and it waits for a table", || mariadb.count(waits) == 1);
    mariadb.ask("ALTER TABLE lockrun_locks FORCE");
    mariadb.ask("UNLOCK TABLES");
    assert!(status.wait().exited(75).silent().stdout().contains("pid"));
    holder.end();
}

// "What is read after the wait": an operation that has to wait for the row of another waiter goes by the time after it.
// By an earlier one, a place that was renewed meanwhile would seem to last too long, and be cut short.
#[test]
fn the_clock_is_read_behind_every_wait() {
    let store = Store::mariadb();
    let mariadb = store.as_mariadb().expect("it is one");
    let holder = Holder::new(&store, "clock");
    let waiter = || Lockrun::new(&store).key("clock").arg("--wait").command(["true"]).spawn();
    let first = waiter();
    until_waiting(&store, "clock", 1);
    mariadb.ask("START TRANSACTION");
    mariadb.ask("UPDATE lockrun_waiters SET ends_ms = ends_ms + 1");
    let second = waiter();
    let waits = || mariadb.ask("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'").trim().ends_with("|1");
    eventually(LONG, "it waits for the row of the first one", waits);
    // The clocks' own milliseconds differ.
    mariadb.ask("SELECT SLEEP(0.05)");
    let freed_ms = mariadb.count("SELECT FLOOR(UNIX_TIMESTAMP(NOW(6)) * 1000)");
    mariadb.ask("COMMIT");
    until_waiting(&store, "clock", 2);
    let joined = "SELECT JSON_VALUE(CONVERT(waiter USING utf8mb4), '$.joined_ms') FROM lockrun_waiters";
    assert!(mariadb.count(&format!("{joined} ORDER BY place DESC LIMIT 1")) >= freed_ms);
    holder.end();
    for run in [first, second] {
        run.wait().exited(0).silent();
    }
}

// "A session that idles between the halves keeps nobody waiting": a run that is stopped in the middle of an operation
// holds the row of the lock for a second.
#[test]
fn a_run_that_is_stopped_in_an_operation_keeps_no_lock() {
    let store = Store::mariadb();
    let mariadb = store.as_mariadb().expect("it is one");
    assert!(is_free(&store, "still"));
    let proxy = Proxy::before(mariadb);
    proxy.set(Mode::HoldAt(mariadb.word()));
    let stopped = Lockrun::at(&proxy.url())
        .key("still")
        .args(["--ttl", "5m", "--store-timeout", "20s"])
        .command(["true"])
        .spawn();
    eventually(LONG, "its second half is held back", || proxy.held() > 0);
    stopped.signal(Signal::SIGSTOP);
    assert!(is_free(&store, "still"));
    stopped.signal(Signal::SIGKILL);
    stopped.wait();
}

// "InnoDB checked": tables of an engine without transactions lock nothing.
#[test]
fn tables_of_another_engine_are_refused() {
    let store = Store::mariadb();
    let mariadb = store.as_mariadb().expect("it is one");
    assert!(is_free(&store, "own"));
    mariadb.ask("ALTER TABLE lockrun_locks ENGINE = MyISAM");
    at(&store.url()).command(["echo", "ran"]).run().exited(69).printed("").said("not InnoDB's (lockrun_locks MyISAM)");
    assert!(Lockrun::bare().args(["doctor", "--store", &store.url()]).run().stdout().contains("not InnoDB's"));
}

// "Unique keys by bytes, not by a case-folding collation."
#[test]
fn keys_that_look_alike_are_not_the_same() {
    let store = Store::mariadb();
    for key in ["a", "A", "a ", "ä", "Ä", "ａ"] {
        token(&store, key, &[]);
    }
    let status = Lockrun::bare().args(["status", "--json", "--store", &store.url()]).run().exited(0);
    assert_eq!(status.stdout().matches("\"held\"").count(), 6, "{status}");
}

// "Tables that do not fit": those of another program, and of a later version.
#[test]
fn tables_that_do_not_fit() {
    let store = Store::mariadb();
    let mariadb = store.as_mariadb().expect("it is one");
    assert!(is_free(&store, "own"));
    mariadb.ask("INSERT INTO lockrun_version VALUES (2)");
    at(&store.url()).command(["true"]).run().exited(69).said("tables of version 2");
    let url = mariadb.url_as("root", "tls=disabled&tables=mine_");
    mariadb.ask("CREATE TABLE mine_locks (id INT)");
    at(&url).command(["true"]).run().exited(69).said("do not fit").said("tables=PREFIX");
    let others = mariadb.url_as("root", "tls=disabled&tables=ours_");
    at(&others).command(["true"]).run().exited(0);
}

// "Too many connections (1040)": waiters far behind leave their connections to others.
#[test]
fn more_waiters_than_connections() {
    let mariadb = Mariadb::with(&["--max-connections=40"]);
    let store = Store::Mariadb(mariadb);
    let holder = Holder::new(&store, "crowd");
    let waiting = || store.server().waiting("crowd").len();
    // This opens the test's own connection, for which none may be left later.
    assert_eq!(waiting(), 0);
    let runs: Vec<_> =
        (0..60).map(|_| Lockrun::new(&store).key("crowd").arg("--wait").command(["true"]).spawn()).collect();
    eventually(2 * LONG, "all wait", || waiting() == 60);
    assert!(!is_free(&store, "crowd"));
    holder.end();
    for run in runs {
        run.wait().exited(0).silent();
    }
}

/// Returns a packet of a server, with this number.
pub(super) fn packet(number: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("a short packet").to_le_bytes();
    [&length[..3], &[number], body].concat()
}

// "`doctor` says which it found": what makes a lock unsafe.
#[test]
fn doctor_finds_what_is_unsafe() {
    let log = ["--log-bin", "--server-id=1", "--binlog-format=STATEMENT"];
    let mariadb = Mariadb::with(&[&log[..], &["--innodb-flush-log-at-trx-commit=2", "--sync-binlog=0"]].concat());
    let doctor = || Lockrun::bare().args(["doctor", "--store", &mariadb.url_as("root", "tls=disabled")]).run().stdout();
    let found = doctor();
    for words in ["innodb_flush_log_at_trx_commit is 2", "sync_binlog is 0", "binlog_format is STATEMENT", "replicas"] {
        assert!(found.contains(words), "{words}: {found}");
    }
    let plain = Mariadb::start();
    let found = Lockrun::bare().args(["doctor", "--store", &plain.url_as("root", "tls=disabled")]).run().exited(0);
    assert!(found.stdout().contains("MariaDB") && found.stdout().contains("handed to a waiter"), "{found}");
    assert_eq!(plain.left("none", true), Vec::<String>::new(), "its trial leaves nothing");
}

// "Rows are kept for a second": what a swallowed request holds does not keep the next one waiting for longer.
#[test]
fn a_lost_request_keeps_no_row() {
    let store = Store::mariadb();
    assert!(is_free(&store, "lost"));
    let proxy = store.proxy();
    proxy.set(Mode::SwallowUpTo(proxy.next_number()));
    let call = Lockrun::at(&proxy.url()).key("lost").args(["--store-timeout", "900ms", "--store-retry", "30s"]);
    call.command(["echo", "ran"]).run().exited(0).printed("ran\n");
}

// "Server going away: the right kind of failure": a MySQL 8 tells a session that was idle for too long that it ends it,
// unasked. The next request goes over a new connection.
#[test]
fn a_session_that_was_ended_while_it_was_idle() {
    let idle = packet(0, b"\xff\xbf\x0f#HY000The client was disconnected by the server because of inactivity.");
    let lets_in = [packet(2, b"\x01\x03"), packet(3, b"\0\0\0\x02\0\0\0"), idle].concat();
    let (port, _) = scripted_server(None, vec![lets_in, Vec::new()]);
    let run = at(&format!("mysql://app:pw@127.0.0.1:{port}/locks")).command(["true"]).run();
    run.exited(69).said("closed the connection before it answered");
}

// "Too many connections (1040)": said before the greeting, by MySQL without a SQLSTATE, by MariaDB as packet 1.
#[test]
fn too_many_connections_before_the_greeting() {
    for refusal in
        [packet(0, b"\xff\x10\x04Too many connections"), packet(1, b"\xff\x10\x04#08004Too many connections")]
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.write_all(&refusal);
            }
        });
        let url = format!("mysql://app:pw@127.0.0.1:{port}/locks");
        let run = at(&url).args(["--ttl", "5s", "--store-timeout", "800ms"]).command(["true"]).run();
        run.exited(69).said("Too many connections").said("raise max_connections");
    }
}

// "Read-only servers": a waiter whose server becomes a replica joins the queue at the new primary, also if it may write
// there all the same.
#[test]
fn a_waiter_leaves_a_primary_that_becomes_a_replica() {
    for user in ["app", "root"] {
        let (old, new) = (Mariadb::start(), Mariadb::start());
        for mariadb in [&old, &new] {
            mariadb.ask("CREATE USER app");
            mariadb.ask("GRANT ALL ON locks.* TO app");
        }
        let holder = Lockrun::bare().args(["acquire", "--store", &old.url_as("app", "tls=disabled"), "--key", "own"]);
        holder.args(["--ttl", "1h"]).run().exited(0);
        let url = format!("mysql://{user}@127.0.0.1:{},127.0.0.1:{}/locks?tls=disabled", old.port(), new.port());
        let mut waiter =
            at(&url).args(["--wait", "-v", "--ttl", "6s", "--store-retry", "1m"]).command(["echo", "ran"]).spawn();
        waiter.wait_for_stderr("waiting");
        old.ask("SET GLOBAL read_only = 1");
        eventually(LONG, "the run has ended", || waiter.has_ended());
        waiter.wait().exited(0).printed("ran\n");
    }
}

// "Whatever the settings of the session are."
#[test]
fn odd_settings_of_the_server_change_nothing() {
    for settings in
        [["--autocommit=0", "--completion-type=CHAIN"], ["--completion-type=RELEASE", "--sql-mode=ANSI_QUOTES"]]
    {
        let store = Store::Mariadb(Mariadb::with(&settings));
        let holder = Holder::new(&store, "odd");
        let waiter = Lockrun::new(&store).key("odd").arg("--wait").command(["echo", "ran"]).spawn();
        until_waiting(&store, "odd", 1);
        holder.end();
        waiter.wait().exited(0).printed("ran\n");
        Lockrun::bare().args(["status", "--store", &store.url()]).run().exited(0);
        Lockrun::bare().args(["doctor", "--store", &store.url()]).run().exited(0);
        assert_eq!(store.server().left("odd", true), Vec::<String>::new());
    }
}
