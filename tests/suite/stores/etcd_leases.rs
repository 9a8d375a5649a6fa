//! Leases of etcd: a holder's that is revoked by hand, and a waiter's that must not end while the waiter lives.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::hand::{is_held, release, token, until_waiting};
use crate::support::processes::send;
use crate::support::proxy::Mode;
use crate::support::{Etcd, Holder, LONG, Lockrun, Store, eventually, stays_true_for};

// "A lock is free when its lease ends": a lease that was revoked by hand lasts until the end in the record, even if
// that was written by a member whose clock is ahead.
#[test]
fn a_lease_is_revoked_whose_end_was_written_by_a_fast_clock() {
    let store = Store::Etcd(Etcd::of(1));
    let etcd = store.as_etcd().expect("it is one");
    token(&store, "k", &["--ttl", "10m"]);
    let lease = etcd.lease_keys("k")[0].lease.clone();
    etcd.edit("k", |state| {
        let end = &mut state["holders"][0]["lease"]["ends_ms"];
        *end = json!(end.as_u64().expect("a time") + 5_000);
    });
    etcd.ask("/v3/lease/revoke", &json!({ "ID": lease }));
    assert!(is_held(&store, "k"));
    // An end that is far too late is a mistake.
    etcd.edit("k", |state| {
        let end = &mut state["holders"][0]["lease"]["ends_ms"];
        *end = json!(end.as_u64().expect("a time") + 3_600_000);
    });
    assert!(!is_held(&store, "k"));
}

// "`expires_in_ms`: how long its lease still lasts": also if a renewal replaces the lease between two questions of
// `status`.
#[test]
fn a_lease_is_replaced_while_status_asks() {
    let store = Store::Etcd(Etcd::of(1));
    let proxy = store.proxy();
    let call = Lockrun::new(&store).key("k").args(["--ttl", "10m", "--renew-every", "200ms"]);
    let mut run = call.sh("echo ready; exec sleep 600").spawn();
    run.wait_for_line("ready");
    proxy.set(Mode::Delay(Duration::from_secs(1)));
    let status = Lockrun::bare().args(["status", "--json", "--store", &proxy.url()]).key("k").run().exited(75).stdout();
    let status: Value = serde_json::from_str(&status).expect("JSON");
    let left = status[0]["holders"][0]["expires_in_ms"].as_u64();
    assert!(left.is_some_and(|left| left > 500_000), "{status}");
}

// "A keep-alive counts only between two answers in one term": a waiter whose watch fails keeps its place by its
// requests, in the same row.
#[test]
fn a_waiter_keeps_its_place_while_its_watch_fails() {
    let store = Store::Etcd(Etcd::of(1));
    let (etcd, proxy) = (store.as_etcd().expect("it is one"), store.proxy());
    let holder = Holder::new(&store, "k");
    let call = Lockrun::at(&proxy.url()).key("k").args(["--wait", "-v", "--ttl", "3s"]).command(["echo", "ran"]);
    let mut waiter = call.spawn();
    waiter.wait_for_stderr("waiting");
    let row = || etcd.rows("k").pop().map(|row| row.key);
    let joined = row();
    // Its watch may be open already.
    proxy.set(Mode::Reset);
    let before = proxy.connections();
    eventually(LONG, "it has lost its connections", || proxy.connections() > before);
    proxy.set(Mode::CloseAt("/v3/watch"));
    stays_true_for(Duration::from_secs(6), "it keeps its place", || row() == joined);
    assert!(!waiter.has_ended(), "{}", waiter.stderr());
    proxy.set(Mode::Pass);
    holder.end();
    waiter.wait().exited(0).printed("ran\n");
}

// A waiter whose attempt to join took so long that the lease of its row has ended tries again with another one.
#[test]
fn a_waiter_joins_too_late_for_its_lease() {
    let store = Store::Etcd(Etcd::of(1));
    let (etcd, proxy) = (store.as_etcd().expect("it is one"), store.proxy());
    let held = token(&store, "k", &["--ttl", "10m"]);
    proxy.set(Mode::HoldAt("request_put"));
    let call = Lockrun::at(&proxy.url()).key("k").args(["--wait", "--ttl", "24h", "--store-timeout", "60s"]);
    let waiter = call.command(["echo", "ran"]).spawn();
    eventually(LONG, "it joins", || proxy.held() > 0);
    // Its first attempt fails, but creates the lease.
    etcd.edit("k", |_| {});
    let signal = |signal| waiter.processes().iter().for_each(|pid| send(*pid, signal));
    signal(Signal::SIGSTOP);
    proxy.set(Mode::Pass);
    let of_holder = etcd.lease_keys("k")[0].lease.clone();
    eventually(LONG, "it has a lease", || etcd.leases() == 2);
    eventually(LONG, "its attempt has failed", || proxy.delivered() > 0);
    let leases = etcd.ask("/v3/lease/leases", &json!({}))["leases"].clone();
    let ids = leases.as_array().into_iter().flatten().map(|lease| &lease["ID"]);
    ids.filter(|id| **id != json!(of_holder)).for_each(|id| drop(etcd.ask("/v3/lease/revoke", &json!({ "ID": id }))));
    signal(Signal::SIGCONT);
    until_waiting(&store, "k", 1);
    release(&store, "k", &held).exited(0);
    waiter.wait().exited(0).printed("ran\n").silent();
}
