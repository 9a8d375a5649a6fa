//! A waiter that is about to get the lock makes a second process ready, the guardian of its command. It leaves no trace when it
//! is of no use.

use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::processes::{children, is_alive, send, state};
use crate::support::{Holder, LONG, Queue, Store, eventually};

/// Three in a queue: the command of the first one runs until the gate is opened, and the second one is next.
struct Scene<'a> {
    queue: Queue<'a>,
    gate: TempDir,
}

impl<'a> Scene<'a> {
    fn new(store: &'a Store, key: &str) -> Self {
        let holder = Holder::new(store, key);
        let mut scene = Scene { queue: Queue::new(store, key), gate: TempDir::new().expect("a temporary directory") };
        let opened = scene.gate.path().join("opened");
        scene.queue.join_to(&format!("until [ -e '{}' ]; do sleep 0.01; done", opened.display()));
        scene.queue.join(2);
        holder.end();
        scene
    }

    /// Waits until the next one is ready, and gives its guardian.
    fn ready(&mut self) -> i32 {
        let waiter = self.queue.waiter(1).pid();
        eventually(LONG, "the next one is ready", || !children(waiter).is_empty());
        let guardians = children(waiter);
        assert_eq!(guardians.len(), 1, "one process more");
        guardians[0]
    }

    /// Opens the gate, and looks whether all run in this order.
    fn end_in_order(self, numbers: impl IntoIterator<Item = usize>) {
        std::fs::write(self.gate.path().join("opened"), "").expect("the gate opens");
        self.queue.end().in_order(numbers);
    }
}

// "A waiter is one process": only the next one is more, and only for a moment.
#[test]
fn the_next_is_ready_for_a_moment() {
    let store = Store::redis();
    let mut scene = Scene::new(&store, "moment");
    scene.ready();
    let (next, last) = (scene.queue.waiter(1).pid(), scene.queue.waiter(2).pid());
    assert!(children(last).is_empty(), "the last one need not be ready");
    eventually(Duration::from_secs(5), "not even a zombie is left", || children(next).is_empty());
    assert_eq!(scene.queue.length(), 2, "it waits on");
    scene.end_in_order(0..3);
}

// "Nothing outlives lockrun": killed while its guardian is ready, it takes that with it, and the others go on.
#[test]
fn killed_while_ready() {
    let store = Store::redis();
    let mut scene = Scene::new(&store, "killed-ready");
    let guardian = scene.ready();
    scene.queue.kill(1);
    eventually(LONG, "the guardian has gone, too", || !is_alive(guardian));
    scene.end_in_order([0, 2]);
}

// "A wait that is cut short leaves the queue", and no process.
#[test]
fn interrupted_while_ready() {
    let store = Store::redis();
    let mut scene = Scene::new(&store, "interrupted-ready");
    let guardian = scene.ready();
    let waiter = scene.queue.take(1);
    waiter.signal(Signal::SIGTERM);
    waiter.wait().died_of(Signal::SIGTERM);
    assert_eq!(state(guardian), None, "the guardian has gone before it");
    assert_eq!(scene.queue.length(), 1);
    scene.end_in_order([0, 2]);
}

// A guardian that was killed before it was needed is replaced.
#[test]
fn the_guardian_is_killed_while_ready() {
    let store = Store::redis();
    let mut scene = Scene::new(&store, "guardian-killed");
    send(scene.ready(), Signal::SIGKILL);
    scene.end_in_order(0..3);
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
