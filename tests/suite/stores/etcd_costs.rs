//! What a run and a hand-off cost an etcd server and the network, and that nothing is lost by it: a release goes by
//! what its holder has read before, and must notice what has changed since.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::calm::held_in_time;
use crate::support::hand::until_waiting;
use crate::support::lockrun::Open;
use crate::support::slots::Slot;
use crate::support::{Etcd, Holder, LONG, LeaseServer, Lockrun, Store, eventually};

// "Round trips before COMMAND starts, etcd without TLS and users, TCP handshake counted: 3. Round trips in all: 4."
#[test]
fn a_run_takes_four_round_trips() {
    let store = Store::Etcd(Etcd::of(1));
    let proxy = store.proxy();
    let trips = || proxy.connections() + proxy.flights();
    let mut run = Lockrun::at(&proxy.url()).key("trips").sh("echo ready; read line || :").with_open_input();
    run.run.wait_for_line("ready");
    assert_eq!(trips(), 3, "before the command starts");
    run.finish().exited(0).silent();
    held_in_time(trips() == 4, "the release needs one more");
}

// "A release is one request": also that of a run to which the lock was handed, which reads the lock while its command
// runs.
#[test]
fn a_release_after_a_hand_off_takes_one_round_trip() {
    let store = Store::Etcd(Etcd::of(1));
    let (etcd, proxy) = (store.as_etcd().expect("it is one"), store.proxy());
    let holder = Holder::new(&store, "k");
    let call = Lockrun::at(&proxy.url()).key("k").arg("--wait");
    let mut run = call.sh("echo ready; read line || :").with_open_input();
    until_waiting(&store, "k", 1);
    let next = Lockrun::new(&store).key("k").arg("--wait").sh("echo begun; read line || :").with_open_input();
    until_waiting(&store, "k", 2);
    is_handed(etcd, holder, &mut run);
    let before = proxy.flights();
    run.finish().exited(0).silent();
    held_in_time(proxy.flights() - before == 1, "the release is one request");
    begins_at_once(next);
    assert_eq!(etcd.revocations(), 0, "their leases end by themselves");
}

/// Ends the holder. Returns when the command of the run to which the lock is handed has begun, and the run has read the
/// lock.
#[track_caller]
fn is_handed(etcd: &Etcd, holder: Holder, run: &mut Open) {
    let before = etcd.requests();
    holder.end();
    run.run.wait_for_line("ready");
    // The holder has failed once, because of the waiters that have joined since it acquired the lock.
    eventually(LONG, "it has read the lock", || etcd.requests() >= before + 3);
}

/// Waits until the command of a waiter begins, which says so, and ends it. Otherwise the waiter asks every ten seconds.
#[track_caller]
fn begins_at_once(mut waiter: Open) {
    let before = Instant::now();
    waiter.run.wait_for_line("begun");
    held_in_time(before.elapsed() < Duration::from_secs(5), "it begins at once");
    waiter.finish().exited(0).silent();
}

// A waiter that joins after its holder has read the lock gets it at once, not when it asks the next time.
#[test]
fn a_waiter_has_joined_since() {
    let store = Store::Etcd(Etcd::of(1));
    let mut run = Lockrun::new(&store).key("k").sh("echo ready; read line || :").with_open_input();
    run.run.wait_for_line("ready");
    let waiter = Lockrun::new(&store).key("k").arg("--wait").sh("echo begun; read line || :").with_open_input();
    until_waiting(&store, "k", 1);
    run.finish().exited(0).silent();
    begins_at_once(waiter);
}

// The same of the waiter behind one that has left, and could not have used the slot that is free now.
#[test]
fn the_first_waiter_has_left_since() {
    let store = Store::Etcd(Etcd::of(1));
    let etcd = store.as_etcd().expect("it is one");
    let call = Lockrun::new(&store).key("k").args(["--slots", "2"]);
    let stays = Slot::take(&call);
    // Its renewals read the queue.
    let ends = Slot::take(&call.clone().args(["--ttl", "60s", "--renew-every", "2s"]));
    etcd.add_waiter("k", &json!({ "token": "first", "joined_ms": 1, "mode": { "slots": 1 }, "who": {} }));
    let waiter = call.clone().arg("--wait").sh("echo begun; read line || :").with_open_input();
    until_waiting(&store, "k", 2);
    let lease = || etcd.lease_keys("k").iter().map(|held| held.lease.clone()).collect::<Vec<_>>();
    let before = lease();
    eventually(LONG, "the lease is renewed", || lease() != before);
    etcd.delete(&etcd.rows("k")[0].key);
    ends.end();
    begins_at_once(waiter);
    stays.end();
}

// "`--once-per`: a run that ended with 0": only one that held the lock until then counts, although its lease was there
// when it read the lock.
#[test]
fn the_lease_has_gone_since() {
    let store = Store::Etcd(Etcd::of(1));
    let etcd = store.as_etcd().expect("it is one");
    let call = Lockrun::new(&store).key("k").args(["--wait", "--once-per", "1h"]);
    let holder = Holder::new(&store, "k");
    let mut run = call.clone().sh("echo ready; read line || :").with_open_input();
    until_waiting(&store, "k", 1);
    is_handed(etcd, holder, &mut run);
    etcd.ask("/v3/lease/revoke", &json!({ "ID": etcd.lease_keys("k")[0].lease }));
    run.finish().exited(0);
    call.command(["echo", "ran"]).run().exited(0).printed("ran\n");
}
