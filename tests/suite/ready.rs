//! A waiter that claims the lock makes a second process ready meanwhile, the guardian of its command. It leaves no trace when
//! it is of no use.

use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::processes::{children, is_alive, send, state};
use crate::support::{Holder, LONG, Queue, Redis, Store, eventually};

/// Two in a queue whose lock is granted to the first one. It claims the lock, and the server stands still.
struct Scene<'a> {
    queue: Queue<'a>,
    redis: &'a Redis,
    /// What the first one has made ready.
    guardian: i32,
}

impl<'a> Scene<'a> {
    fn new(store: &'a Store, key: &str, options: &[&str]) -> Self {
        let redis = store.as_redis().expect("a Redis");
        let holder = Holder::new(store, key);
        let mut queue = Queue::new(store, key).with(options);
        queue.join(2);
        let waiter = queue.waiter(0).pid();
        send(waiter, Signal::SIGSTOP);
        eventually(LONG, "the first one stands still", || state(waiter) == Some('T'));
        holder.end();
        redis.pause();
        assert!(children(waiter).is_empty(), "a waiter is one process");
        send(waiter, Signal::SIGCONT);
        eventually(LONG, "it has a guardian ready", || children(waiter).len() == 1);
        Scene { guardian: children(waiter)[0], queue, redis }
    }
}

// "Nothing outlives lockrun": killed while its guardian is ready, it takes that with it. Its claim may arrive yet, so the next
// one goes on when that lease has run out.
#[test]
fn killed_while_ready() {
    let store = Store::redis();
    let Scene { mut queue, redis, guardian } = Scene::new(&store, "killed-ready", &["--ttl", "3s"]);
    // Whatever looks at the queue asks the server.
    send(queue.waiter(0).pid(), Signal::SIGKILL);
    eventually(LONG, "the guardian has gone, too", || !is_alive(guardian));
    redis.resume();
    queue.kill(0);
    queue.end().in_order([1]);
}

// A guardian that was killed before it was needed is replaced.
#[test]
fn the_guardian_is_killed_while_ready() {
    let store = Store::redis();
    let Scene { queue, redis, guardian } = Scene::new(&store, "guardian-killed", &[]);
    send(guardian, Signal::SIGKILL);
    eventually(LONG, "the guardian is dead", || !is_alive(guardian));
    redis.resume();
    queue.end().in_any_order(0..2);
}

// "Unknown (an error, possibly done)": without an answer there is nothing to be ready for.
#[test]
fn unanswered_while_ready() {
    let store = Store::redis();
    let Scene { mut queue, redis, .. } = Scene::new(&store, "unanswered-ready", &["--store-timeout", "500ms"]);
    let waiter = queue.waiter(0).pid();
    eventually(LONG, "not even a zombie is left", || children(waiter).is_empty());
    redis.resume();
    queue.end().in_any_order(0..2);
}

// "Only a claim that the server confirms starts COMMAND": one that comes too late is refused, and its guardian goes.
#[test]
fn refused_when_ready() {
    let store = Store::redis();
    let holder = Holder::new(&store, "refused");
    let mut queue = Queue::new(&store, "refused");
    let gate = TempDir::new().expect("a temporary directory");
    let opened = gate.path().join("opened");
    queue.join(1);
    queue.join_to(&format!("until [ -e '{}' ]; do sleep 0.01; done", opened.display()));
    let late = queue.waiter(0).pid();
    queue.waiter(0).signal(Signal::SIGSTOP);
    eventually(LONG, "the first one stands still", || state(late) == Some('T'));
    holder.end();
    eventually(LONG, "the second one runs", || queue.begun() == ["1"]);
    let asleep = queue.asleep();
    queue.waiter(0).signal(Signal::SIGCONT);
    eventually(LONG, "the first one waits again", || queue.asleep() > asleep);
    eventually(Duration::from_secs(5), "not even a zombie is left", || children(late).is_empty());
    assert_eq!(queue.begun(), ["1"], "its command has not begun");
    std::fs::write(&opened, "").expect("the gate opens");
    queue.end().in_order([1, 0]);
}

// "From COMMAND's first instruction no other run holds the same key": a lease that was over before COMMAND could begin is no
// lease that was lost while it ran, whatever that would do to it.
#[test]
fn nothing_begins_when_the_lease_is_over() {
    let store = Store::redis();
    let options = ["--ttl", "2s", "--on-lost", "warn"];
    let Scene { mut queue, redis, guardian } = Scene::new(&store, "too-late", &options);
    send(guardian, Signal::SIGSTOP);
    eventually(LONG, "the guardian stands still", || state(guardian) == Some('T'));
    redis.resume();
    eventually(LONG, "the second one runs", || queue.begun() == ["1"]);
    send(guardian, Signal::SIGCONT);
    queue.take(0).wait().exited(69).said("came too late");
    queue.end().in_order([1]);
}
