//! Waiting in turn: the order, what it costs, and that nobody jumps the queue.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::monitor::Monitor;
use crate::support::proxy::{Mode, Proxy};
use crate::support::{Holder, LONG, Lockrun, Queue, Redis, Store, eventually};

// "Waiters get the lock in the order in which they came", one at a time, and "of a lock nothing is left" but its fence
// and its last run.
#[test]
fn waiters_run_in_the_order_in_which_they_came() {
    for count in [40, 150] {
        let store = Store::redis();
        let holder = Holder::new(&store, "order");
        let mut queue = Queue::new(&store, "order");
        queue.join(count);
        holder.end();
        queue.end().in_order(0..count);
    }
}

// "A hand-off costs a number of store commands that does not grow with the number of waiters": at most 6 that clients
// send, joining the queue included.
#[test]
fn a_hand_off_costs_the_same_however_many_wait() {
    for count in [10, 100] {
        let store = Store::redis();
        let redis = store.as_redis().expect("a Redis");
        // A lease so long that its renewals are not among what is counted.
        let call = Lockrun::new(&store).key("cost").args(["--ttl", "10m"]);
        let holder = Holder::with(&call, &[]);
        let monitor = Monitor::of(redis);
        let mut queue = Queue::new(&store, "cost").with(&["--ttl", "10m"]);
        queue.join(count);
        queue.settles();
        holder.end();
        queue.end().in_order(0..count);
        let counts = monitor.counts(redis);
        let sent: usize = counts.values().sum();
        // The holder itself lets go by two more. On a busy machine now and then one who is told to wake up is not asleep
        // again yet, and the one behind it is told instead.
        let limit = count * 6 + 2 + count / 20;
        assert!(sent <= limit, "{sent} commands for {count} hand-offs: {counts:?}");
    }
}

/// What as many waiters send, command by command, while for ten seconds or more a holder with a lease of `ttl` has the lock; and
/// how many seconds it were.
#[track_caller]
fn sent_by_idle(waiters: usize, ttl: &str) -> (BTreeMap<String, usize>, usize) {
    let store = Store::redis();
    let redis = store.as_redis().expect("a Redis");
    let call = Lockrun::new(&store).key("idle").args(["--ttl", ttl]);
    let holder = Holder::with(&call, &[]);
    let mut queue = Queue::new(&store, "idle");
    queue.join(waiters);
    queue.settles();
    let started = Instant::now();
    let monitor = Monitor::of(redis);
    // On purpose: what is sent while nothing happens is what is measured.
    thread::sleep(Duration::from_secs(10));
    let counts = monitor.counts(redis);
    let seconds = usize::try_from(started.elapsed().as_secs()).expect("a short time");
    holder.end();
    queue.end().in_order(0..waiters);
    (counts, seconds)
}

// "An idle waiter sends at most 0.5 commands a second", the first in the queue as well as the others.
#[test]
fn idle_waiters_are_quiet() {
    let (counts, seconds) = sent_by_idle(4, "10m");
    let sent: usize = counts.values().sum();
    assert!(sent <= 4 * seconds / 2, "{sent} commands of 4 waiters in {seconds} s: {counts:?}");
}

// Behind the shortest lease that cannot be kept, since its end has to be noticed within a second; but it is enough if two look,
// 1.4 s after their last look at the earliest, and the others need not.
#[test]
fn idle_waiters_share_the_watch_over_a_short_lease() {
    let (counts, seconds) = sent_by_idle(6, "1s");
    // The holder renews its lease with EVAL; a waiter sleeps again after each look.
    let looks = counts["blpop"];
    assert!(looks <= 2 * seconds, "{looks} looks of 6 waiters in {seconds} s: {counts:?}");
}

// "A Redis user (ACL) needs no more than this".
#[test]
fn the_rights_in_the_readme_are_enough() {
    let readme = include_str!("../../../README.md");
    let (_, rest) = readme.split_once("ACL SETUSER").expect("the README names the rights");
    let words: Vec<&str> = rest.split("```").next().expect("some text").split_whitespace().collect();

    for ttl in ["none", "30s"] {
        let store = Store::redis();
        let redis = store.as_redis().expect("a Redis");
        redis.ask(&[&["ACL", "SETUSER"], &words[..]].concat());
        let url = format!("redis://{}:{}@127.0.0.1:{}", words[0], words[2].trim_start_matches('>'), redis.port());
        let holder = Holder::with(&Lockrun::at(&url).key("rights").args(["--ttl", ttl]), &[]);
        let mut queue = Queue::through(&url, &store, "rights").with(&["--ttl", ttl]);
        queue.join(5);
        // So that there are some who have to be passed over.
        queue.kill(0);
        queue.waiter(1).signal(Signal::SIGSTOP);
        holder.end();
        eventually(LONG, "three have run", || queue.begun().len() == 3);
        queue.signal_all(Signal::SIGCONT);
        queue.end().in_order([2, 3, 4, 1]);
    }
}

/// What is tried by those who come later.
const NEWCOMERS: [&[&str]; 3] = [&["--fail", "-q"], &["--skip"], &["--wait", "30ms", "-q"]];

// "In turn": as long as somebody waits, nobody who comes later runs, also in the moment when the lock is free and its
// new holder has not heard of it yet. Here that moment is long, since the waiters' network is slow, and there is always a
// newcomer.
#[test]
fn a_newcomer_does_not_overtake_during_hand_offs() {
    const WAITERS: usize = 15;
    let store = Store::redis();
    let proxy = Proxy::to(store.as_redis().expect("a Redis").port());
    let holder = Holder::new(&store, "hand-off");
    let mut queue = Queue::through(&proxy.url(), &store, "hand-off");
    queue.join(WAITERS);
    proxy.set(Mode::Delay(Duration::from_millis(30)));
    let (started, over, tried) = (Instant::now(), AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|threads| {
        for options in NEWCOMERS {
            let call = queue.newcomer("new", options);
            let (over, tried) = (&over, &tried);
            threads.spawn(move || {
                // If the test fails, nobody says that it is over.
                while !over.load(Ordering::Relaxed) && started.elapsed() < LONG {
                    let output = call.run().silent();
                    assert!(matches!(output.status, Some(0 | 75)), "{output}");
                    tried.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        holder.end();
        let all_have_run = || queue.begun().iter().filter(|tag| *tag != "new").count() == WAITERS;
        eventually(LONG, "all waiters have run", all_have_run);
        over.store(true, Ordering::Relaxed);
    });
    let record = queue.end();
    let ran: Vec<&str> = record.tags();
    let overtaken = ran.iter().take(WAITERS).filter(|tag| **tag == "new").count();
    assert_eq!(overtaken, 0, "{ran:?}");
    let refused = tried.into_inner() - (ran.len() - WAITERS);
    assert!(refused >= WAITERS, "only {refused} newcomers came meanwhile");
}

// "In turn": the lock of a holder that died is the first waiter's, also if a newcomer is the first to ask.
#[test]
fn a_newcomer_does_not_overtake_when_a_lease_has_run_out() {
    for options in NEWCOMERS {
        let store = Store::redis();
        let redis = store.as_redis().expect("a Redis");
        let proxy = Proxy::to(redis.port());
        let call = Lockrun::at(&proxy.url()).key("expired").args(["--ttl", "1s"]);
        let mut holder = Holder::with(&call, &[]);
        let mut queue = Queue::new(&store, "expired");
        queue.join(3);
        // So that the waiters do not see it by themselves.
        queue.signal_all(Signal::SIGSTOP);
        // One of its processes may see another one die, and release the lock before it dies itself.
        proxy.set(Mode::Swallow);
        holder.run().kill_everything();
        eventually(LONG, "the lease has run out", || {
            let now = format!("({}", redis.ask(&["TIME"]).list()[0].number() * 1000);
            redis.ask(&["ZCOUNT", "lockrun:{expired}:holders", &now, "+inf"]).number() == 0
        });
        let newcomer = queue.newcomer("new", options).run().silent();
        queue.signal_all(Signal::SIGCONT);
        let status = if options.contains(&"--skip") { 0 } else { 75 };
        newcomer.exited(status);
        queue.end().in_any_order(0..3);
    }
}

// "A thousand waiters joining at once: no time-outs, no lost places"; here as many as a small machine can start.
#[test]
fn a_storm_of_waiters() {
    const WAITERS: usize = 300;
    let store = Store::redis();
    let mut queue = Queue::new(&store, "storm");
    queue.storm(WAITERS);
    queue.end().in_any_order(0..WAITERS);
}

/// How many places, signs of life, mailboxes and particulars the server keeps for a lock.
fn kept(redis: &Redis, key: &str) -> [i64; 4] {
    let base = format!("lockrun:{{{key}}}:");
    let count = |command: &str, name: &str| redis.ask(&[command, &format!("{base}{name}")]).number();
    let boxes = redis.keys().iter().filter(|name| name.contains(":mailbox:")).count();
    [count("ZCARD", "queue"), count("ZCARD", "heartbeats"), boxes.try_into().expect("a count"), count("HLEN", "info")]
}

// "A wait that is cut short leaves the queue", by a signal or by its time, whatever its place; those behind move up.
#[test]
fn a_wait_that_is_cut_short_leaves_nothing() {
    let store = Store::redis();
    let redis = store.as_redis().expect("a Redis");
    let holder = Holder::new(&store, "cut");
    let mut queue = Queue::new(&store, "cut");
    queue.join(3);
    let hasty = queue.newcomer("hasty", &["--wait", "300ms"]).run().exited(75);
    hasty.said("is held by");
    assert_eq!(kept(redis, "cut"), [3, 3, 0, 4], "after a wait that ran out");
    for (number, signal) in [(0, Signal::SIGTERM), (1, Signal::SIGINT)] {
        let waiter = queue.take(number);
        waiter.signal(signal);
        waiter.wait().died_of(signal).silent();
        let left = 2 - i64::try_from(number).expect("a small number");
        assert_eq!(kept(redis, "cut"), [left, left, 0, left + 1], "after {signal}");
    }
    holder.end();
    queue.end().in_order([2]);
}

// "Waiters get the lock in the order in which they came", on files as the kernel keeps it: all run, one at a time, and a
// wait is cut short by its time and by a signal.
#[test]
fn waiters_on_files() {
    const WAITERS: usize = 30;
    let store = Store::file();
    let holder = Holder::new(&store, "files");
    let mut queue = Queue::new(&store, "files");
    queue.join(WAITERS);
    let asked_at = Instant::now();
    let hasty = queue.newcomer("hasty", &["--wait", "1s"]).run().exited(75).said("is held by");
    assert!(asked_at.elapsed() >= Duration::from_secs(1), "{hasty}");
    let waiter = queue.take(7);
    waiter.signal(Signal::SIGTERM);
    waiter.wait().died_of(Signal::SIGTERM);
    holder.end();
    let record = queue.end();
    assert_eq!(record.0.len(), WAITERS - 1);
    assert!(!record.tags().contains(&"7"));
}
