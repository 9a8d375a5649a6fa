//! What runs and waiters cost a Redis server and the network.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::support::calm::{late, stays_in_time_for};
use crate::support::hand::{all, token};
use crate::support::monitor::{self, Monitor};
use crate::support::proxy::Proxy;
use crate::support::slots::{self, SharedRecord, Slot, TELL};
use crate::support::store::on_redis;
use crate::support::{Holder, LeaseServer, Lockrun, Queue, Redis, Store, redis_keys, stays_true_for};

/// Returns a server with a password, a proxy that counts, and the URL of a database there.
fn counted() -> (Redis, Proxy, String) {
    let redis = Redis::with_password("pw");
    let proxy = Proxy::before(&redis);
    let url = format!("redis://:pw@127.0.0.1:{}/3", proxy.port());
    // From now on the server has the scripts.
    Lockrun::at(&url).key("warm").command(["true"]).run().exited(0);
    (redis, proxy, url)
}

// "Round trips before COMMAND starts, Redis with AUTH and SELECT, TCP handshake counted: 2. Round trips in all: 3."
#[test]
fn a_run_takes_three_round_trips() {
    let (_redis, proxy, url) = counted();
    let (connections, flights) = (proxy.connections(), proxy.flights());
    let mut run = Lockrun::at(&url).key("trips").sh("echo ready; read line || :").with_open_input();
    run.run.wait_for_line("ready");
    let before = proxy.connections() - connections + proxy.flights() - flights;
    assert!(before <= 2, "{before} round trips before the command starts");
    run.finish().exited(0).silent();
    let in_all = proxy.connections() - connections + proxy.flights() - flights;
    assert!(in_all <= 3, "{in_all} round trips in all");
}

// "A hand-off costs a number of store commands that does not grow with the number of waiters": at most 5 that clients
// send, joining the queue included.
on_redis!(a_hand_off_costs_the_same_however_many_wait, |store, redis| {
    for count in [10, 100] {
        let store = &store.another();
        let redis = store.as_redis().expect("a Redis");
        // The lease is so long that no renewals are counted.
        let call = Lockrun::new(store).key("cost").args(["--ttl", "10m"]);
        let holder = Holder::with(&call, &[]);
        let monitor = Monitor::of(redis);
        let mut queue = Queue::new(store, "cost").with(&["--ttl", "10m"]);
        queue.join(count);
        queue.settles();
        holder.end();
        queue.end().in_order(0..count);
        let counts = monitor.counts(redis);
        let sent: usize = counts.values().sum();
        // The holder itself releases with two more. On a busy machine, a waiter that is to be woken is sometimes not
        // asleep again yet, and the one behind it is woken instead.
        let limit = count * 5 + 2 + count / 20;
        assert!(sent <= limit, "{sent} commands for {count} hand-offs: {counts:?}");
    }
});

/// Returns how often this many waiters send each command while a holder with a lease of `ttl` has the lock for ten
/// seconds or more, and for how many seconds.
#[track_caller]
fn sent_by_idle(store: &Store, redis: &Redis, waiters: usize, ttl: &str) -> (BTreeMap<String, usize>, usize) {
    let call = Lockrun::new(store).key("idle").args(["--ttl", ttl]);
    let holder = Holder::with(&call, &[]);
    let mut queue = Queue::new(store, "idle");
    queue.join(waiters);
    queue.settles();
    let started = Instant::now();
    let monitor = Monitor::of(redis);
    stays_true_for(Duration::from_secs(10), "all wait", || queue.begun().is_empty());
    let counts = monitor.counts(redis);
    let seconds = usize::try_from(started.elapsed().as_secs()).expect("a short time");
    holder.end();
    queue.end().in_order(0..waiters);
    (counts, seconds)
}

// "An idle waiter sends at most 0.5 commands a second", the first in the queue as well as the others.
on_redis!(idle_waiters_are_quiet, |store, redis| {
    let (counts, seconds) = sent_by_idle(store, redis, 4, "10m");
    let sent: usize = counts.values().sum();
    assert!(sent <= 4 * seconds / 2, "{sent} commands of 4 waiters in {seconds} s: {counts:?}");
});

// Not so behind a very short lease, whose end has to be noticed within a second: the first four look when it ends, as
// far as they know.
on_redis!(idle_waiters_share_the_watch_over_a_short_lease, |store, redis| {
    let (counts, seconds) = sent_by_idle(store, redis, 8, "1s");
    // The holder renews its lease with EVAL; a waiter sleeps again (BLPOP) after each look, and does not look again
    // within 0.6 s.
    let looks = counts["blpop"];
    assert!(looks <= 6 * seconds, "{looks} looks of 8 waiters in {seconds} s: {counts:?}");
});

/// Returns the tokens of the waiters that were granted the lock, in order, from the commands that the server has seen.
fn granted(seen: &[String], key: &str, waiting: &[String]) -> Vec<String> {
    let change = format!("\"ZADD\" \"{}\" ", redis_keys::holders(key));
    let mut granted: Vec<String> = Vec::new();
    for line in seen.iter().filter(|line| line.contains(&change)) {
        let token = line.rsplit('"').nth(1).expect("a token").to_owned();
        if waiting.contains(&token) && !granted.contains(&token) {
            granted.push(token);
        }
    }
    granted
}

/// Returns the places of waiters that were granted the lock after one behind them.
#[track_caller]
fn overtaken(granted: &[String], waiting: &[String]) -> Vec<usize> {
    assert_eq!(granted.len(), waiting.len());
    let places = granted.iter().filter_map(|token| waiting.iter().position(|other| other == token));
    let mut furthest = 0;
    places
        .filter(|place| {
            furthest = furthest.max(*place);
            *place < furthest
        })
        .collect()
}

// "Waiters get the lock in the order in which they came", with slots as without: it is granted to them in this order.
// "A hand-off costs a number of store commands that does not grow with the number of waiters, at most 5 sent by
// clients."
on_redis!(slots_are_granted_in_order_at_a_cost_that_does_not_grow, |store, redis| {
    for count in [50, 200] {
        let store = &store.another();
        let redis = store.as_redis().expect("a Redis");
        let (mut queue, held) = slots::wait_for_eight(store, "eight", count);
        queue.settles();
        let waiting = redis.waiting("eight");
        assert_eq!(waiting.len(), count);
        let monitor = Monitor::of(redis);
        held.into_iter().for_each(Slot::end);
        SharedRecord::read(&queue.all_end(), 8).in_any_order(0..count);
        queue.nothing_is_left();
        let seen = monitor.seen(redis);
        let overtaken = overtaken(&granted(&seen, "eight", &waiting), &waiting);
        if !overtaken.is_empty() {
            late(&format!("granted out of order: {overtaken:?}"));
        }
        let counts = monitor::count(&seen);
        let sent: usize = counts.values().sum();
        println!("{count} waiters: {sent} commands, {counts:?}");
        // Joining costs two more.
        let limit = count * 4 + count / 20 + 2 * 8;
        assert!(sent <= limit, "{sent} commands for {count} hand-offs: {counts:?}");
    }
});

// "`status` in a number of store commands that does not grow by more than a constant a key."
on_redis!(status_of_many_keys, |store, redis| {
    const KEYS: usize = 100;
    for number in 0..KEYS {
        token(store, &format!("key-{number}"), &["--ttl", "1h"]);
    }
    let monitor = Monitor::of(redis);
    assert_eq!(all(store).len(), KEYS);
    let counts = monitor.counts(redis);
    let sent: usize = counts.values().sum();
    assert!(sent <= KEYS + 20, "{counts:?}");
});

// "What that costs does not grow with the number of waiters": a living waiter that wants to be alone, and behind it
// twelve that do not, and could use the slots that it leaves unused.
on_redis!(watching_one_that_lives, |store, redis| {
    let call = Lockrun::new(store).key("watched").args(["--ttl", "10m"]);
    let holder = Slot::take(&call.args(["--slots", "3"]));
    let mut queue = Queue::new(store, "watched").with(&["--ttl", "10m"]);
    queue.join(1);
    let mut queue = queue.with(&["--slots", "3"]).doing(TELL);
    queue.join(12);
    queue.settles();
    let monitor = Monitor::of(redis);
    stays_in_time_for(Duration::from_secs(10), "the first one is not passed by", || queue.begun().is_empty());
    let counts = monitor.counts(redis);
    let sent: usize = counts.values().sum();
    // Two commands each in nine seconds, and those that follow their joining.
    assert!(sent <= 13 * 4, "{sent} commands: {counts:?}");
    holder.end();
    drop(queue.all_end());
});
