//! A Redis that keeps no data, with a grace in the URL.

use crate::support::hand::status;
use crate::support::store::on_redis;
use crate::support::{LONG, Lockrun, Queue, Redis, eventually};

/// Returns for how many seconds the server has been running.
fn uptime(redis: &Redis) -> u64 {
    let report = redis.ask(&["INFO", "server"]);
    let uptime = report.text().lines().find_map(|line| line.strip_prefix("uptime_in_seconds:"));
    uptime.expect("it says so").trim().parse().expect("a number")
}

// "Nothing is granted for that long after the server's start": neither to a run that does not wait, nor by hand, nor of
// a sequence, and waiters get the lock in turn when that time is over.
on_redis!(nothing_is_granted_soon_after_a_start, |store, redis| {
    let grace = uptime(redis) + 8;
    let url = format!("{}?grace={grace}s", store.url());
    let refused = Lockrun::at(&url).key("grace").command(["true"]).run().exited(75);
    refused.said("its server has started").said("an earlier holder may still run");
    let acquire = Lockrun::bare().args(["acquire", "--store", &url]).key("grace");
    acquire.run().exited(75).said("its server has started");
    let reserve = Lockrun::bare().args(["reserve", "--store", &url, "--from", "1"]).key("numbers").command(["true"]);
    reserve.run().exited(75).said("its server has started");
    let mut queue = Queue::through(&url, store, "grace");
    queue.join(2);
    assert!(queue.begun().is_empty() || uptime(redis) >= grace, "it was granted");
    eventually(LONG, "both have run", || queue.begun().len() == 2);
    assert!(uptime(redis) >= grace, "it was granted after {} of {grace} s", uptime(redis));
    queue.end().in_order([0, 1]);
    Lockrun::at(&url).key("grace").command(["true"]).run().exited(0).silent();
    assert_eq!(status(store, "grace")["held"], false);
});
