//! A PostgreSQL whose connections are used up by waiters, or whose clients read no more: locks stay usable by those who
//! hold them.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, connect, setsockopt, socket, sockopt};
use std::os::fd::AsRawFd;

use crate::support::hand::{renew, token};
use crate::support::lockrun::Running;
use crate::support::postgres::Setup;
use crate::support::store::on_postgres;
use crate::support::{LONG, LeaseServer, Lockrun, Postgres, eventually};

// "The owner of a lock by hand can renew and release it", however many wait: the server, or the role, has no more
// connections than these.
#[test]
fn waiters_leave_connections_to_others() {
    let small = Setup { settings: vec!["max_connections=20".to_owned()], ..Setup::default() };
    for (setup, limit) in [(small, -1), (Setup::default(), 12)] {
        let postgres = Postgres::with(&setup);
        postgres
            .ask(&format!("CREATE ROLE app LOGIN CONNECTION LIMIT {limit}; GRANT CREATE ON DATABASE postgres TO app"));
        let url = postgres.url_as("app", "sslmode=disable");
        let by_hand = |words: &[&str]| Lockrun::bare().env("LOCKRUN_STORE", &url).args(words).run();
        let its = by_hand(&["acquire", "--key", "k", "--ttl", "none"]).exited(0).silent().stdout();
        let its = its.trim_end();
        let waiters: Vec<Running> = (0..25)
            .map(|_| Lockrun::at(&url).key("k").args(["--wait", "--ttl", "10m"]).command(["echo", "ran"]).spawn())
            .collect();
        eventually(LONG, "all wait", || postgres.count("SELECT count(*) FROM lockrun.waiters") == 25);
        for _ in 0..5 {
            by_hand(&["renew", "--key", "k", "--token", its]).exited(0).silent();
        }
        by_hand(&["status", "--key", "k"]).exited(75);
        by_hand(&["release", "--key", "k", "--token", its]).exited(0).silent();
        for waiter in waiters {
            waiter.wait().exited(0).printed("ran\n").silent();
        }
    }
}

/// Returns how many waiters listen in a session of their own, and how many wait otherwise.
fn waiters(postgres: &Postgres) -> (u64, u64) {
    let count = |what: &str| postgres.count(&format!("SELECT count(*) FROM lockrun.waiters WHERE channel IS {what}"));
    (count("NOT NULL"), count("NULL"))
}

// "A waiter that finds few connections unused waits without one": where few are allowed, few means a quarter of them.
#[test]
fn a_small_limit_leaves_room_for_waiters() {
    let postgres = Postgres::start();
    postgres.ask("CREATE ROLE app LOGIN CONNECTION LIMIT 5; GRANT CREATE ON DATABASE postgres TO app");
    let url = postgres.url_as("app", "sslmode=disable");
    let mut holder = Lockrun::at(&url).key("k").sh("echo ready; read line || :").with_open_input();
    holder.run.wait_for_line("ready");
    let mut runs = Vec::new();
    for expected in [(1, 0), (2, 0), (2, 1)] {
        let call = Lockrun::at(&url).key("k").args(["--wait", "--ttl", "10m"]).command(["echo", "ran"]);
        runs.push(call.spawn());
        eventually(LONG, "it waits", || waiters(&postgres) == expected);
    }
    holder.finish().exited(0).silent();
    for run in runs {
        run.wait().exited(0).printed("ran\n").silent();
    }
}

// "Lockrun needs no rights but those on its tables": a role that may not see how many connections there are waits like
// any other.
#[test]
fn a_role_that_cannot_count_connections_waits() {
    for right in [
        "REVOKE EXECUTE ON FUNCTION pg_stat_get_activity(integer) FROM PUBLIC",
        "REVOKE EXECUTE ON FUNCTION pg_stat_get_db_numbackends(oid) FROM PUBLIC",
        "REVOKE SELECT ON pg_database FROM PUBLIC",
        "REVOKE SELECT ON pg_roles FROM PUBLIC",
    ] {
        let postgres = Postgres::start();
        postgres.ask(&format!("CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE postgres TO app; {right}"));
        let url = postgres.url_as("app", "sslmode=disable");
        let mut holder = Lockrun::at(&url).key("k").sh("echo ready; read line || :").with_open_input();
        holder.run.wait_for_line("ready");
        let call = Lockrun::at(&url).key("k").args(["--wait", "--ttl", "10m"]).command(["echo", "ran"]);
        let run = call.spawn();
        eventually(LONG, "it waits", || waiters(&postgres) == (1, 0));
        holder.finish().exited(0).silent();
        run.wait().exited(0).printed("ran\n").silent();
    }
}

// A request that finds no connection left succeeds if one becomes free within the time-out.
#[test]
fn a_connection_becomes_free() {
    let postgres = Postgres::start();
    postgres.ask("CREATE ROLE app LOGIN CONNECTION LIMIT 1; GRANT CREATE ON DATABASE postgres TO app");
    let url = postgres.url_as("app", "sslmode=disable");
    let holder = Lockrun::at(&url).key("other").sh("echo ready; read line || :").with_open_input();
    let mut holder = holder;
    holder.run.wait_for_line("ready");
    let refused = Lockrun::at(&url).key("k").args(["--store-timeout", "1s"]).command(["true"]).run().exited(69);
    refused.said("too many connections for role").said("raise that limit");
    let patient = ["--store-timeout", "30s", "--ttl", "10m"];
    let run = Lockrun::at(&url).key("k").args(patient).command(["echo", "ran"]).spawn();
    let refusals = || postgres.log().matches("too many connections for role").count();
    let before = refusals();
    eventually(LONG, "it has tried twice", || refusals() >= before + 2);
    holder.finish().exited(0).silent();
    run.wait().exited(0).printed("ran\n").silent();
}

/// Passes what one client and the server send, with little room for the server's answers. After the client has asked
/// for a lock's row, nothing is read from the server any more, and the connection stays open: so does a machine that is
/// frozen. Returns the port.
fn freezes_in_time(server: u16) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = listener.local_addr().expect("its address").port();
    thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("our own client");
        let narrow = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
        setsockopt(&narrow, sockopt::RcvBuf, &4096).expect("its size");
        let address = SockaddrIn::new(127, 0, 0, 1, server);
        connect(narrow.as_raw_fd(), &address).expect("it listens");
        let mut server = TcpStream::from(narrow);
        let (mut back, mut home) = (server.try_clone().expect("a copy"), client.try_clone().expect("a copy"));
        let is_frozen = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let frozen = std::sync::Arc::clone(&is_frozen);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = back.read(&mut buffer) {
                if frozen.load(std::sync::atomic::Ordering::Relaxed) || home.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
        });
        let mut buffer = [0; 16384];
        while let Ok(count @ 1..) = client.read(&mut buffer) {
            if buffer[..count].windows(10).any(|part| part == b"FOR UPDATE") {
                is_frozen.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            if server.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        // The test ends before this does.
        thread::sleep(LONG * 10);
    });
    port
}

// "Lock times bounded": a client that reads nothing more while it is sent a long queue, living or dead, blocks the lock
// only for a moment.
on_postgres!(a_client_that_stops_reading, |store, postgres| {
    let its = token(store, "k", &["--ttl", "none"]);
    let waiter = Lockrun::new(store).key("k").arg("--wait").command(["echo", "ran"]).spawn();
    eventually(LONG, "it waits", || postgres.count("SELECT count(*) FROM lockrun.waiters") == 1);
    for ends_ms in ["9000000000000", "0"] {
        postgres.ask(&format!(
            "INSERT INTO lockrun.waiters (key, token, waiter, ends_ms)
                 SELECT key, 't' || number, replace(waiter::text, token, 't' || number)::json, {ends_ms}
                 FROM lockrun.waiters, generate_series(1, 20000) AS number WHERE NOT token LIKE 't%'"
        ));
        let port = freezes_in_time(postgres.port());
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres?sslmode=disable");
        let call = Lockrun::at(&url).key("k").args(["--wait", "--max-waiting", "100000", "--store-timeout", "2s"]);
        let frozen = call.command(["true"]).spawn();
        let asked =
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%FOR UPDATE' OR state = 'idle in transaction'
                     OR wait_event = 'ClientWrite'";
        eventually(LONG, "it has asked", || postgres.count(asked) > 0);
        renew(store, "k", &its, &["--store-timeout", "8s"]).exited(0).silent();
        drop(frozen);
        postgres.ask("DELETE FROM lockrun.waiters WHERE token LIKE 't%'");
    }
    crate::support::hand::release(store, "k", &its).exited(0).silent();
    waiter.wait().exited(0).printed("ran\n");
});

// A waiter that leaves its connection to others gives it up when it goes to sleep, not between two requests: the server
// does not end a session at once, and would refuse the next one where there is no room.
on_postgres!(a_connection_is_given_up_for_a_sleep_alone, |store, postgres| {
    postgres.ask("ALTER ROLE postgres CONNECTION LIMIT 1");
    let proxy = store.proxy();
    // A superuser may exceed it. One claim of the doctor's waits for another one, and asks until it has the lock.
    let output = Lockrun::bare().args(["doctor", "--store", &proxy.url()]).run();
    assert!(output.stdout().contains("handed to a waiter"), "{output}");
    assert_eq!(proxy.connections(), 1, "{output}");
});
