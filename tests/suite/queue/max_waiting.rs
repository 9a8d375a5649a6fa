//! A queue that is bounded.

use nix::sys::signal::Signal;

use crate::support::hand::status;
use crate::support::queue::WAIT_FOR_THE_END;
use crate::support::store::{on_every_store, on_redis};
use crate::support::{Holder, LONG, Lockrun, Queue, Redis, Running, Store, eventually, redis_keys};

// "`--max-waiting N`: if N wait already, as `--fail` at once."
on_every_store!(one_too_many_does_not_wait, |store| {
    let holder = Holder::new(store, "short");
    let mut queue = Queue::new(store, "short").with(&["--max-waiting", "2"]);
    queue.join(2);
    for limit in ["0", "1", "2"] {
        let refused = queue.newcomer("new", &["--wait", "--max-waiting", limit]).run().exited(75);
        refused.said("is held by").said("for it already").said(&format!("(--max-waiting {limit})"));
    }
    let refused = queue.newcomer("new", &["-w", "10m", "--max-waiting", "2", "-q", "-E", "9"]).run().exited(9);
    refused.silent();
    // Each waiter applies its own limit.
    let mut queue = queue.by(&store.url()).with(&["--max-waiting", "3"]);
    queue.join(1);
    holder.end();
    queue.end().in_any_order(0..3);
    queue_is_empty(store);
});

#[track_caller]
fn queue_is_empty(store: &Store) {
    assert_eq!(status(store, "short")["waiters"].as_array().map(Vec::len), Some(0));
}

// "A waiter that died is none": it does not count.
on_every_store!(the_dead_do_not_count, |store| {
    let holder = Holder::new(store, "dead");
    let mut queue = Queue::new(store, "dead").with(&["--max-waiting", "1"]);
    queue.join(1);
    let gone = queue.take(0);
    gone.signal(Signal::SIGTERM);
    gone.wait().died_of(Signal::SIGTERM);
    let mut waiter =
        Lockrun::new(store).key("dead").args(["--wait", "--max-waiting", "1", "-v"]).sh("echo ran").spawn();
    waiter.wait_for_stderr("waiting");
    holder.end();
    waiter.wait().exited(0).printed("ran\n");
});

/// Lets the places of the waiters end so many milliseconds sooner.
fn age(redis: &Redis, key: &str, ms: u32) {
    let places = redis_keys::places(key);
    for waiter in redis.ask(&["ZRANGE", &places, "0", "-1"]).texts() {
        redis.ask(&["ZINCRBY", &places, &format!("-{ms}"), &waiter]);
    }
}

// The same for a waiter that was killed, once its place has ended, 30 s after it last asked at the latest: until then
// it may be alive.
on_redis!(a_killed_waiter_soon_does_not_count, |store, redis| {
    let holder = Holder::new(store, "killed");
    let mut queue = Queue::new(store, "killed");
    queue.join(1);
    queue.settles();
    queue.kill(0);
    let newcomer = queue.newcomer("new", &["--wait", "10ms", "--max-waiting", "1"]);
    age(redis, "killed", 10_000);
    newcomer.run().exited(75).said("for it already");
    age(redis, "killed", 20_000);
    assert!(!newcomer.run().exited(75).stderr().contains("for it already"), "a newcomer waits");
    assert_eq!(queue.length(), 0, "the place of the one that was killed has ended");
    holder.end();
});

// "If N wait already": also if they wait behind very many that have died.
on_redis!(a_waiter_behind_many_dead_counts, |store, redis| {
    let holder = Holder::new(store, "many");
    let mut queue = Queue::new(store, "many");
    queue.join(1);
    let (queued, places) = (redis_keys::queue("many"), redis_keys::places("many"));
    let living = redis.ask(&["ZRANGE", &queued, "0", "-1"]).texts().remove(0);
    let ends: i64 = redis.ask(&["ZSCORE", &places, &living]).text().parse().expect("a number");
    for number in 0..150 {
        let dead = format!("dead-{number}");
        redis.ask(&["ZADD", &places, &(ends - 45_000).to_string(), &dead]);
        redis.ask(&["ZADD", &queued, "0", &dead]);
    }
    queue.newcomer("new", &["--wait", "10ms", "--max-waiting", "1"]).run().exited(75).said("for it already");
    assert_eq!(queue.length(), 1, "the places of the dead have ended");
    holder.end();
    queue.end().in_order(0..1);
});

// "Decided atomically with joining it": of many that come at once one runs, one waits, and the others are refused.
on_every_store!(of_many_that_come_at_once_one_waits, |store| {
    const ARRIVALS: usize = 20;
    for round in 0..3 {
        let key = format!("burst-{round}");
        let queue = Queue::new(store, &key);
        let options = ["--wait", "--max-waiting", "1", "--ttl", "10m"];
        // All start at once; the first to arrive runs until all the others have ended.
        let gate = queue.newcomer_doing("first", &options, WAIT_FOR_THE_END);
        let mut runs: Vec<Running> = (0..ARRIVALS).map(|_| gate.spawn()).collect();
        eventually(LONG, "all but two have ended", || {
            runs.iter_mut().map(|run| usize::from(!run.has_ended())).sum::<usize>() == 2
        });
        assert_eq!(queue.begun().len(), 1, "one runs, and one waits");
        queue.let_them_end();
        let ended: Vec<_> = runs.into_iter().map(|run| run.wait().status).collect();
        let count = |status| ended.iter().filter(|ended| **ended == Some(status)).count();
        assert_eq!((count(0), count(75)), (2, ARRIVALS - 2), "{ended:?}");
    }
});
