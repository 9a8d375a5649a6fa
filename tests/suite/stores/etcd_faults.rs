//! Faults of etcd alone, besides those of every store's server: a full database, TLS, a compaction, broken records.

use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::hand::{acquire, break_lock, holders, is_held, release, renew, token};
use crate::support::proxy::Mode;
use crate::support::tls::Certificates;
use crate::support::{Etcd, Holder, LONG, LeaseServer, Lockrun, Output, Queue, Store, eventually, stays_true_for};

fn run(url: &str) -> Output {
    Lockrun::at(url).key("k").command(["echo", "ran"]).run()
}

/// Raises the alarm of a full database, or disarms it.
fn set_full(etcd: &Etcd, is_full: bool) {
    let status = etcd.ask("/v3/maintenance/status", &json!({}));
    let action = if is_full { "ACTIVATE" } else { "DEACTIVATE" };
    let alarm = json!({ "action": action, "memberID": status["header"]["member_id"], "alarm": "NOSPACE" });
    etcd.ask("/v3/maintenance/alarm", &alarm);
}

// "No space": no lock can be acquired, and the message says what to do; but held locks stay held, and their runs end as
// their commands end.
#[test]
fn the_database_is_full() {
    let store = Store::Etcd(Etcd::of(1));
    let etcd = store.as_etcd().expect("it is one");
    let call = Lockrun::new(&store).key("held").args(["--ttl", "3s", "--store-timeout", "500ms"]);
    let mut holder = call.sh("echo ready; read line || :; exit 7").with_open_input();
    holder.run.wait_for_line("ready");
    set_full(etcd, true);
    run(&store.url()).exited(69).printed("").said("its database is full");
    let doctor = Lockrun::bare().args(["doctor", "--store", &store.url()]).run().exited(69);
    assert!(doctor.stdout().contains("NOSPACE"), "{doctor}");
    stays_true_for(Duration::from_secs(5), "it is held", || is_held(&store, "held"));
    set_full(etcd, false);
    holder.finish().exited(7).silent();
    run(&store.url()).exited(0).printed("ran\n").silent();
}

// A lease in a full database keeps its length. So a renewal for longer fails, and one for no longer succeeds.
#[test]
fn no_lease_becomes_longer_in_a_full_database() {
    let store = Store::Etcd(Etcd::of(1));
    let etcd = store.as_etcd().expect("it is one");
    let held = token(&store, "k", &["--ttl", "60s"]);
    set_full(etcd, true);
    for ttl in ["10m", "none"] {
        renew(&store, "k", &held, &["--ttl", ttl]).exited(69).printed("").said("its database is full");
    }
    for options in [&[][..], &["--ttl", "60s"]] {
        renew(&store, "k", &held, options).exited(0).silent();
    }
    set_full(etcd, false);
    renew(&store, "k", &held, &["--ttl", "10m"]).exited(0).silent();
}

// "A compaction of the watch": lockrun does not need the history.
#[test]
fn the_history_is_compacted() {
    let store = Store::Etcd(Etcd::of(1));
    let etcd = store.as_etcd().expect("it is one");
    let holder = crate::support::Holder::new(&store, "k");
    let mut queue = Queue::new(&store, "k");
    queue.join_and_hear(5);
    queue.settles();
    let answer: Value = etcd.ask("/v3/kv/range", &json!({ "key": STANDARD.encode("x") }));
    etcd.ask("/v3/kv/compaction", &json!({ "revision": answer["header"]["revision"], "physical": true }));
    holder.end();
    queue.end().in_order(0..5);
}

// "`ca`, `cert`, `key`": a cluster that requires client certificates, and has one of a private authority.
#[test]
fn certificates() {
    let certificates = Certificates::make();
    let etcd = Etcd::with_tls(&certificates);
    let path = |name: &str| certificates.path(name);
    let url = |query: &str| format!("etcds://localhost:{}{query}", etcd.port());
    let identity = format!("cert={}&key={}", path("client.crt"), path("client.key"));
    run(&url(&format!("?ca={}&{identity}", path("ca.crt")))).exited(0).printed("ran\n").silent();
    // "A pipe": it is read once, for however many members.
    let members = format!("etcds://localhost:{0},127.0.0.1:{0}?ca=/dev/stdin&{identity}", etcd.port());
    let piped = Lockrun::at(&members).key("k").command(["echo", "ran"]).env("CA", path("ca.crt"));
    piped.in_shell("cat \"$CA\" | \"$@\"").alone().exited(0).printed("ran\n").silent();
    run(&url(&format!("?ca={}", path("ca.crt")))).exited(69).printed("").said("certificate");
    run(&url(&format!("?ca={}&{identity}", path("untrusted.crt")))).exited(69).printed("").said("certificate");
    run(&url("")).exited(69).printed("").said("certificate");
    run(&format!("etcd://127.0.0.1:{}", etcd.port())).exited(69).printed("").said("etcds://");
    let slots = Lockrun::at(&url(&format!("?ca={}&{identity}", path("ca.crt")))).key("k");
    let mut holder = slots.clone().sh("echo ready; read line || :").with_open_input();
    holder.run.wait_for_line("ready");
    let waiter = slots.args(["--wait", "-v"]).command(["echo", "ran"]).spawn();
    let mut waiter = waiter;
    waiter.wait_for_stderr("waiting");
    holder.finish().exited(0);
    waiter.wait().exited(0).printed("ran\n");
}

/// Runs a command under a lease that would last for longer than a minute.
#[track_caller]
fn run_under_a_long_lease(store: &Store) {
    Lockrun::new(store).key("k").args(["--ttl", "2m"]).command(["true"]).run().exited(0);
}

// "Nothing is left": nor are etcd leases of a run, of waiters, and of a lock that was renewed, but those that end
// within a minute.
#[test]
fn no_lease_is_left() {
    let store = Store::Etcd(Etcd::of(1));
    let etcd = store.as_etcd().expect("it is one");
    run_under_a_long_lease(&store);
    assert_eq!(etcd.leases(), 0);
    let call = Lockrun::new(&store).key("k").args(["--ttl", "2m", "--renew-every", "100ms"]);
    let mut holder = call.sh("echo ready; read line || :").with_open_input();
    holder.run.wait_for_line("ready");
    let before = etcd.requests();
    eventually(LONG, "the lease is renewed", || etcd.requests() > before + 4);
    let mut queue = Queue::new(&store, "k").with(&["--ttl", "6s"]);
    queue.join_and_hear(3);
    Lockrun::new(&store).key("k").args(["--wait", "100ms"]).command(["true"]).run().exited(75);
    holder.finish().exited(0);
    queue.end().in_order(0..3);
    assert!(etcd.lease_keys("k").is_empty());
    eventually(LONG, "the leases of the waiters end", || etcd.leases() == 0);
}

// The same of a run that gives up because others change the lock: its write comes too late, and there is too little
// time for another one.
#[test]
fn no_lease_is_left_of_a_run_that_loses() {
    const TIMEOUT: Duration = Duration::from_secs(12);
    let store = Store::Etcd(Etcd::of(1));
    let (etcd, proxy) = (store.as_etcd().expect("it is one"), store.proxy());
    run_under_a_long_lease(&store);
    proxy.set(Mode::HoldAt("request_put"));
    let call = Lockrun::at(&proxy.url()).key("k").args(["--fail", "--ttl", "24h", "--store-timeout", "12s"]);
    let run = call.command(["true"]).spawn();
    eventually(LONG, "it writes", || proxy.held() > 0);
    etcd.edit("k", |_| {});
    // Another answer that takes as long would come after the time-out.
    thread::sleep(TIMEOUT / 2 + Duration::from_millis(500));
    proxy.set(Mode::Pass);
    run.wait().exited(69);
    assert_eq!(etcd.leases(), 0);
}

// Two processes that wait under one token are one waiter: each learns of the lock, and of a signal.
#[test]
fn a_second_waiter_under_the_same_token() {
    let store = Store::Etcd(Etcd::of(1));
    let etcd = store.as_etcd().expect("it is one");
    let holder = Holder::new(&store, "k");
    let call = acquire(&store, "k", &["--token", "twice", "--wait", "--ttl", "10m", "-v"]);
    let mut first = call.spawn();
    first.wait_for_stderr("waiting");
    let mut second = call.spawn();
    second.wait_for_stderr("waiting");
    assert_eq!(etcd.rows("k").len(), 1);
    second.signal(Signal::SIGTERM);
    eventually(LONG, "the signal has ended it", || second.has_ended());
    second.wait().died_of(Signal::SIGTERM);
    holder.end();
    first.wait();
}

// "`break --now`": also with more holders than etcd allows operations in a transaction.
#[test]
fn very_many_holders_are_broken() {
    const MANY: usize = 130;
    let store = Store::Etcd(Etcd::of(1));
    for _ in 0..MANY {
        token(&store, "k", &["--slots", "200", "--ttl", "10m"]);
    }
    assert_eq!(holders(&store, "k"), MANY);
    break_lock(&store, "k", &["--now"]).exited(0);
    let etcd = store.as_etcd().expect("it is one");
    eventually(LONG, "nothing is left of them", || etcd.lease_keys("k").is_empty());
    assert!(!is_held(&store, "k"));
}

// A transaction of etcd has at most 128 operations. However many waiters can have the lock at once, it is handed to
// some of them at a time.
#[test]
fn more_can_have_the_lock_than_a_transaction_holds() {
    let store = Store::Etcd(Etcd::of(1));
    let etcd = store.as_etcd().expect("it is one");
    let held = token(&store, "k", &["--ttl", "10m"]);
    for number in 0..200 {
        let token = format!("waiter{number:03}");
        etcd.add_waiter("k", &json!({ "token": token, "joined_ms": 1, "mode": { "slots": 500 }, "who": {} }));
    }
    let call = Lockrun::new(&store).key("k").args(["--slots", "500", "--wait", "-v"]).command(["echo", "ran"]);
    let mut waiter = call.spawn();
    waiter.wait_for_stderr("waiting");
    release(&store, "k", &held).exited(0);
    waiter.wait().exited(0).printed("ran\n");
}

// "A broken record is an error, never a free lock" (69). The message says which key of etcd is broken.
#[test]
fn a_broken_record_is_named() {
    let store = Store::Etcd(Etcd::of(1));
    let etcd = store.as_etcd().expect("it is one");
    run(&store.url()).exited(0);
    for key in ["lockrun/state/k", "lockrun/queue/k/0000000000000001-x"] {
        etcd.put(key, "no JSON");
        for name in ["status", "break", "prune"] {
            let output = Lockrun::other(name, &store).key("k").run().exited(69);
            output.said(&format!("etcdctl del {key}\n"));
        }
        run(&store.url()).exited(69).printed("").said(&format!("etcdctl del {key}\n"));
        etcd.delete(key);
        run(&store.url()).exited(0).printed("ran\n").silent();
    }
}
