//! Requests to an etcd that are carried out, and whose answers are lost.

use std::time::Duration;

use serde_json::json;

use crate::support::calm::{held_in_time, judge};
use crate::support::proxy::{Mode, Proxy};
use crate::support::slots::Slot;
use crate::support::{Etcd, Holder, LONG, Lockrun, Running, Store, eventually, stays_true_for};

// A renewal is carried out, its answer is lost, and another member gets it again: the lease that the first request
// created is the holder's.
#[test]
fn a_renewal_whose_answer_is_lost_keeps_its_lease() {
    let etcd = Etcd::of(1);
    let [first, second] = [Proxy::before(&etcd), Proxy::before(&etcd)];
    let url = format!("etcd://127.0.0.1:{},127.0.0.1:{}", first.port(), second.port());
    let call = Lockrun::at(&url).key("k").args(["--ttl", "20s", "--renew-every", "3s", "--store-timeout", "4s"]);
    let mut run = call.sh("echo ready; read line || :").with_open_input();
    run.run.wait_for_line("ready");
    assert_eq!(second.connections(), 0);
    first.set(Mode::SwallowReplies);
    eventually(LONG, "the other member is asked", || second.connections() > 0);
    stays_true_for(Duration::from_secs(2), "the holder's lease is there", || etcd.lease_keys("k").len() == 1);
    run.finish().exited(0);
}

// A break is carried out, its answer is lost, and another member gets it again: the next holder keeps the lock, and the
// output names every holder that lost it, the one whose slot was free at once and the one whose command has yet to end.
#[test]
fn a_break_whose_answer_is_lost_revokes_nothing_from_the_next_holder() {
    const BROKEN: &str = "00000000-0000-4000-8000-000000000001";
    const NEXT: &str = "00000000-0000-4000-8000-000000000002";
    let store = Store::Etcd(Etcd::of(1));
    let etcd = store.as_etcd().expect("it is one");
    let [first, second] = [Proxy::before(etcd), Proxy::before(etcd)];
    let slots = ["--slots", "2", "--ttl", "10m"];
    let by_hand = |command: &str, token: &str| {
        Lockrun::bare().args([command, "--store", &store.url(), "--token", token]).key("k")
    };
    by_hand("acquire", BROKEN).args(slots).run().exited(0);
    let running = Slot::take(&Lockrun::new(&store).key("k").args(slots));
    let mut next = by_hand("acquire", NEXT).args(slots).args(["--wait", "-v"]).spawn();
    next.wait_for_stderr("waiting");
    first.set(Mode::SwallowAnswers);
    let url = format!("etcd://127.0.0.1:{},127.0.0.1:{}", first.port(), second.port());
    let broken = Lockrun::bare().args(["break", "--store", &url, "--store-timeout", "6s"]).key("k").spawn();
    next.wait().exited(0);
    let broken = broken.wait().exited(0);
    assert!(second.connections() > 0);
    assert_eq!(broken.stderr().matches("was taken from").count(), 2, "{broken}");
    by_hand("renew", NEXT).run().exited(0).silent();
    running.kill();
}

/// Adds this many waiters, of which nothing is running, to the queue of the lock `k`, with places that last for so long.
fn add_waiters(etcd: &Etcd, count: usize, place: Duration) {
    for number in 0..count {
        let token = format!("waiter{number:03}");
        let waiter = json!({ "token": token, "joined_ms": 1, "mode": { "slots": 1 }, "who": {} });
        etcd.add_waiter_for(place, "k", &waiter);
    }
}

// A waiter whose row was lost joins the queue again behind very many, and gets no answer: it finds that row, and is in
// the queue only once.
#[test]
fn a_waiter_that_joins_anew_stands_in_the_queue_once() {
    const AHEAD: usize = 20;
    let store = Store::Etcd(Etcd::of(1));
    let etcd = store.as_etcd().expect("it is one");
    let holder = Holder::new(&store, "k");
    add_waiters(etcd, AHEAD, Duration::from_secs(10));
    let proxy = store.proxy();
    let call = Lockrun::at(&proxy.url()).key("k").args(["--wait", "-v", "--ttl", "6s", "--store-timeout", "500ms"]);
    let mut waiter = call.command(["echo", "ran"]).spawn();
    waiter.wait_for_stderr("waiting");
    let own = etcd.rows("k").pop().expect("it is the last one");
    proxy.set(Mode::SwallowAnswers);
    etcd.delete(&own.key);
    let before = proxy.connections();
    eventually(LONG, "it has asked again", || proxy.connections() > before + 2);
    assert_eq!(etcd.rows("k").len(), AHEAD + 1);
    proxy.set(Mode::Pass);
    holder.end();
    waiter.wait().exited(0).printed("ran\n");
}

// "At a cost that does not grow with the number of waiters": one that has joined and got no answer looks for its own row,
// and not through the queue. Many that did that at once after an outage kept the servers from answering any of them.
#[test]
fn a_join_without_an_answer_is_repeated_at_the_same_cost() {
    const AHEAD: usize = 200;
    let store = Store::Etcd(Etcd::of(1));
    let etcd = store.as_etcd().expect("it is one");
    let _holder = Holder::new(&store, "k");
    add_waiters(etcd, AHEAD, Duration::from_mins(10));
    let proxy = store.proxy();
    let call = Lockrun::at(&proxy.url()).key("k").args(["--wait", "-v", "--ttl", "10m", "--store-timeout", "2s"]);
    let mut undisturbed = call.clone().command(["true"]).spawn();
    undisturbed.wait_for_stderr("waiting");
    let (once, before) = (proxy.bytes(), proxy.connections());
    proxy.set(Mode::SwallowAnswers);
    let mut disturbed = call.command(["true"]).spawn();
    eventually(LONG, "it has joined, and asked again twice", || {
        etcd.rows("k").len() == AHEAD + 2 && proxy.connections() >= before + 3
    });
    proxy.set(Mode::Pass);
    disturbed.wait_for_stderr("waiting");
    assert_eq!(etcd.rows("k").len(), AHEAD + 2);
    let (bytes, attempts) = (proxy.bytes() - once, proxy.connections() - before);
    assert!(bytes < 2 * once * attempts, "{bytes} bytes in {attempts} attempts, and {once} for one that is answered");
}

// A request to join that is held back on the way: the waiter joins at the end, behind those that have joined meanwhile,
// and when the first request arrives after all, it does nothing.
#[test]
fn a_join_that_arrives_late_joins_nothing() {
    judge(|| {
        let store = Store::Etcd(Etcd::of(1));
        let etcd = store.as_etcd().expect("it is one");
        let holder = Holder::new(&store, "k");
        let proxy = store.proxy();
        let rows = || etcd.rows("k").into_iter().map(|row| row.key).collect::<Vec<_>>();
        proxy.set(Mode::HoldUpTo(proxy.next_number()));
        let mut late = waiter(&proxy.url());
        eventually(LONG, "its request is on the way", || proxy.held() == 1);
        let mut other = waiter(&store.url());
        other.wait_for_stderr("waiting");
        let others = rows();
        held_in_time(others.len() == 1, "the late one has not asked again");
        late.wait_for_stderr("waiting");
        let joined = rows();
        assert_eq!((joined.len(), &joined[..1]), (2, &others[..]));
        proxy.set(Mode::Pass);
        eventually(LONG, "the first request arrives", || proxy.delivered() == 1);
        stays_true_for(Duration::from_millis(300), "it writes no row", || rows() == joined);
        holder.end();
        for waiter in [other, late] {
            waiter.wait().exited(0).printed("ran\n");
        }
    });
}

// Several requests to join that are held back, and arrive together: the waiter is in the queue once.
#[test]
fn joins_that_arrive_together_join_once() {
    let store = Store::Etcd(Etcd::of(1));
    let etcd = store.as_etcd().expect("it is one");
    let holder = Holder::new(&store, "k");
    let proxy = store.proxy();
    proxy.set(Mode::HoldUpTo(u64::MAX));
    let mut waiter = waiter(&proxy.url());
    for held in 1..=3 {
        eventually(LONG, "another request is on the way", || proxy.held() == held);
        // A row is named by the cluster's revision, too.
        etcd.put("another", "change");
    }
    proxy.set(Mode::Pass);
    eventually(LONG, "they arrive", || proxy.delivered() == 3);
    waiter.wait_for_stderr("waiting");
    stays_true_for(Duration::from_millis(300), "it is there once", || etcd.rows("k").len() == 1);
    holder.end();
    waiter.wait().exited(0).printed("ran\n");
}

/// Starts a run that waits for the lock `k`, and soon asks again if it gets no answer.
fn waiter(url: &str) -> Running {
    let call = Lockrun::at(url).key("k").args(["--wait", "-v", "--ttl", "10m", "--store-timeout", "2s"]);
    call.command(["echo", "ran"]).spawn()
}
