//! Waiting in turn for one of several slots: the order, and what it costs.

use crate::support::monitor::{self, Monitor};
use crate::support::slots::{SharedRecord, Slot, TELL};
use crate::support::{Lockrun, Queue, Redis, Store};

/// The options of all. The lease is so long that its renewals are not among what is counted.
const OPTIONS: [&str; 4] = ["--slots", "8", "--ttl", "10m"];

/// Lets as many wait for eight slots that are held, all of which then come free.
fn wait_for_eight<'a>(store: &'a Store, key: &str, count: usize) -> (Queue<'a>, Vec<Slot>) {
    let call = Lockrun::new(store).key(key).args(OPTIONS);
    let held = (0..8).map(|_| Slot::take(&call)).collect();
    let mut queue = Queue::new(store, key).with(&OPTIONS).doing(TELL);
    queue.join(count);
    (queue, held)
}

/// The tokens of those to whom the lock was granted while they waited, in this order, as the server was told to write it down.
fn granted(seen: &[String], key: &str, waiting: &[String]) -> Vec<String> {
    let change = format!("\"ZADD\" \"lockrun:{{{key}}}:holders\" ");
    let mut granted: Vec<String> = Vec::new();
    for line in seen.iter().filter(|line| line.contains(&change)) {
        let token = line.rsplit('"').nth(1).expect("a token").to_owned();
        if waiting.contains(&token) && !granted.contains(&token) {
            granted.push(token);
        }
    }
    granted
}

/// The places of those who were granted the lock after one behind them.
#[track_caller]
fn late(granted: &[String], waiting: &[String]) -> Vec<usize> {
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

fn in_the_queue(redis: &Redis, key: &str) -> Vec<String> {
    let queue = redis.ask(&["ZRANGE", &format!("lockrun:{{{key}}}:queue"), "0", "-1"]);
    queue.list().iter().map(|token| token.text().to_owned()).collect()
}

// "Waiters get the lock in the order in which they came", with slots as without: it is granted to them in this order.
// "A hand-off costs a number of store commands that does not grow with the number of waiters, at most 6 sent by clients."
#[test]
fn slots_are_granted_in_order_at_a_cost_that_does_not_grow() {
    for count in [50, 200] {
        let store = Store::redis();
        let redis = store.as_redis().expect("a Redis");
        let (mut queue, held) = wait_for_eight(&store, "eight", count);
        queue.settles();
        let waiting = in_the_queue(redis, "eight");
        assert_eq!(waiting.len(), count);
        let monitor = Monitor::of(redis);
        held.into_iter().for_each(Slot::end);
        SharedRecord::read(&queue.all_end(), 8).in_any_order(0..count);
        queue.nothing_is_left();
        let seen = monitor.seen(redis);
        let late = late(&granted(&seen, "eight", &waiting), &waiting);
        assert!(late.is_empty(), "granted out of order: {late:?}");
        let counts = monitor::count(&seen);
        let sent: usize = counts.values().sum();
        println!("{count} waiters: {sent} commands, {counts:?}");
        // To join had cost two more.
        let limit = count * 4 + count / 20 + 2 * 8;
        assert!(sent <= limit, "{sent} commands for {count} hand-offs: {counts:?}");
    }
}

// "With slots: at most N do", also when many wait for a lock on files; all of them get it.
#[test]
fn many_wait_for_slots_on_files() {
    let store = Store::file();
    let (mut queue, held) = wait_for_eight(&store, "eight", 200);
    held.into_iter().for_each(Slot::end);
    SharedRecord::read(&queue.all_end(), 8).in_any_order(0..200);
}
