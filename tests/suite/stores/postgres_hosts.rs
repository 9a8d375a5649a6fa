//! Several hosts in the URL of a PostgreSQL store: the one that takes writes is used.

use crate::support::deadline::eventually_some;
use crate::support::events::Events;
use crate::support::ports::free_port;
use crate::support::postgres::Setup;
use crate::support::store::on_postgres;
use crate::support::{LONG, LeaseServer, Lockrun, Postgres, eventually};

/// Returns the URL with these ports of the loopback interface, in this order.
fn at(ports: &[u16], parameters: &str) -> String {
    let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("postgres://postgres@{}/postgres?sslmode=disable{parameters}", hosts.join(","))
}

// "Several hosts with `target_session_attrs=read-write`", which is the default: a standby, or a port that no one
// listens on, is passed over.
on_postgres!(the_one_that_takes_writes, |_store, postgres| {
    let standby = Postgres::with(&Setup { follows: Some(0), ..Setup::default() });
    let (ours, standby, nobody) = (postgres.port(), standby.port(), free_port());
    for ports in [&[ours, standby][..], &[standby, ours], &[nobody, standby, ours], &[standby, ours, nobody]] {
        for parameters in ["", "&target_session_attrs=read-write", "&target_session_attrs=primary"] {
            let call = Lockrun::at(&at(ports, parameters)).key("hosts").command(["echo", "ran"]);
            call.run().exited(0).printed("ran\n").silent();
        }
    }
    let output = Lockrun::at(&at(&[standby, nobody], "")).key("hosts").command(["echo", "ran"]).run();
    output.exited(69).printed("").said(&nobody.to_string());
});

// A host that accepts and is silent costs only part of the time.
on_postgres!(a_silent_host_is_passed_over, |_store, postgres| {
    let silent = crate::support::fake::Fake::start(crate::support::fake::Manner::Silent);
    let call = Lockrun::at(&at(&[silent.port(), postgres.port()], "")).key("hosts").args(["--store-timeout", "4s"]);
    call.command(["echo", "ran"]).run().exited(0).printed("ran\n").silent();
    assert!(silent.connections() > 0);
});

// "A failover (read-only standby: 'not this one') handled like a cut connection": the holder keeps its lock and the
// waiter its place on the server that was promoted, to which every commit had been copied.
#[test]
fn a_standby_takes_over() {
    let settings = vec!["synchronous_standby_names=*".to_owned()];
    let primary = Postgres::with(&Setup { settings, ..Setup::default() });
    let standby = Postgres::standby_of(&primary);
    let copies = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
    eventually(LONG, "the standby follows", || primary.count(copies) == 1);
    let call = Lockrun::at(&at(&[primary.port(), standby.port()], "")).key("hosts");
    let call = call.args(["--ttl", "30s", "--renew-every", "500ms"]);
    let mut holder = call.clone().sh("echo ready; read line || :; exit 3").with_open_input();
    holder.run.wait_for_line("ready");
    let events = Events::new();
    let waiter = events.of(call.clone().arg("--wait")).command(["echo", "ran"]).spawn();
    events.hear("waiting", 1);
    eventually(LONG, "it sleeps", || primary.asleep() == 1);
    let its = primary.waiting("hosts");
    primary.kill();
    standby.ask("SELECT pg_promote()");
    let before = standby.requests();
    eventually(LONG, "the lease is renewed there", || standby.requests() > before);
    eventually(LONG, "the waiter is there, too", || standby.asleep() == 1);
    assert_eq!(standby.waiting("hosts"), its);
    assert!(!holder.run.has_ended());
    holder.finish().exited(3).silent();
    waiter.wait().exited(0).printed("ran\n").silent();
}

// "Always, if commits wait for the standby": a commit whose wait for the standby was cancelled is not known to be safe,
// and acquires no lock.
#[test]
fn a_commit_that_no_standby_has_confirmed() {
    let settings = ["synchronous_standby_names=*", "synchronous_commit=local"].map(str::to_owned).to_vec();
    let postgres = Postgres::with(&Setup { settings, ..Setup::default() });
    postgres.ask("CREATE ROLE careful LOGIN SUPERUSER; ALTER ROLE careful SET synchronous_commit = on");
    Lockrun::at(&postgres.url()).key("k").command(["true"]).run().exited(0).silent();
    let url = postgres.url_as("careful", "sslmode=disable");
    let call = Lockrun::at(&url).key("k").args(["--ttl", "10m", "--store-timeout", "4s"]);
    let run = call.command(["echo", "ran"]).spawn();
    let waiting = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    eventually(LONG, "it waits for a standby", || postgres.count(&format!("SELECT count(*) {waiting}")) == 1);
    postgres.ask(&format!("SELECT pg_cancel_backend(pid) {waiting}"));
    run.wait().exited(69).printed("").said("no standby");
    // A waiter asks again, and waits for a standby again, though nothing is left to write.
    let call = Lockrun::at(&url).key("other").args(["--wait", "--ttl", "none", "--store-timeout", "20s"]);
    let run = call.command(["echo", "ran"]).spawn();
    let mut before = String::new();
    for _ in 0..3 {
        before = eventually_some(LONG, "it waits for a standby anew", || {
            let now = postgres.ask(&format!("SELECT pid, query_start {waiting}"));
            (!now.is_empty() && now != before).then_some(now)
        });
        assert_eq!(run.stdout(), "");
        postgres.ask(&format!("SELECT pg_cancel_backend(pid) {waiting}"));
    }
}
