//! A waiter has a second process ready, the guardian of its command: when its turn comes nobody waits for a fork. It leaves no
//! trace when it is of no use.

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::processes::{children, is_alive, send, state};
use crate::support::proxy::{Mode, Proxy};
use crate::support::{Holder, LONG, Queue, Redis, Store, eventually};

/// Two in a queue whose lock is granted to the first one. It claims the lock, and the server stands still.
struct Scene<'a> {
    queue: Queue<'a>,
    redis: &'a Redis,
    /// What the first one has ready.
    guardian: i32,
}

impl<'a> Scene<'a> {
    fn new(store: &'a Store, key: &str, options: &[&str]) -> Self {
        let redis = store.as_redis().expect("a Redis");
        let holder = Holder::new(store, key);
        let mut queue = Queue::new(store, key).with(options);
        queue.join(2);
        let guardian = guardian_of(&mut queue, 0);
        queue.settles();
        let waiter = queue.waiter(0).pid();
        send(waiter, Signal::SIGSTOP);
        eventually(LONG, "the first one stands still", || state(waiter) == Some('T'));
        holder.end();
        redis.pause();
        let before = sleeps(waiter);
        send(waiter, Signal::SIGCONT);
        // There is mail, so what it waits for now is the answer to its claim.
        eventually(LONG, "its claim is on its way", || state(waiter) == Some('S') && sleeps(waiter) > before);
        Scene { queue, redis, guardian }
    }
}

/// The guardian that a waiter has ready.
fn guardian_of(queue: &mut Queue<'_>, number: usize) -> i32 {
    let waiter = queue.waiter(number).pid();
    eventually(LONG, "it has a guardian ready", || children(waiter).len() == 1);
    children(waiter)[0]
}

/// How often a process has gone to sleep so far.
fn sleeps(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).expect("a count");
    count.trim().parse().expect("a number")
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

// A wait that is cut short takes the guardian with it, before lockrun has ended.
#[test]
fn a_wait_that_ends_leaves_no_guardian() {
    let store = Store::redis();
    let holder = Holder::new(&store, "cut-short");
    let mut queue = Queue::new(&store, "cut-short");
    queue.join(1);
    let guardian = guardian_of(&mut queue, 0);
    let waiter = queue.take(0);
    waiter.signal(Signal::SIGTERM);
    waiter.wait().died_of(Signal::SIGTERM);
    assert!(!is_alive(guardian), "the guardian is still there");
    holder.end();
}

// "Signals reach COMMAND": not those that came before there was one.
#[test]
fn a_signal_before_its_turn_is_not_for_the_command() {
    let store = Store::redis();
    let holder = Holder::new(&store, "early-signal");
    let mut queue = Queue::new(&store, "early-signal");
    queue.join(1);
    send(guardian_of(&mut queue, 0), Signal::SIGTERM);
    holder.end();
    queue.end().in_order([0]);
}

// The guardian has lockrun's descriptors, and that of a connection that was given up is closed all the same: else the server would
// go on to write to it.
#[test]
fn a_connection_that_is_given_up_is_closed() {
    let store = Store::redis();
    let redis = store.as_redis().expect("a Redis");
    let proxy = Proxy::to(redis.port());
    let holder = Holder::new(&store, "given-up");
    let mut queue = Queue::through(&proxy.url(), &store, "given-up").with(&["--store-timeout", "300ms"]);
    queue.join(1);
    guardian_of(&mut queue, 0);
    queue.settles();
    let before = connections_of(redis);
    proxy.set(Mode::HoldUpTo(1));
    let waiter = redis.ask(&["ZRANGE", "lockrun:{given-up}:queue", "0", "0"]).list()[0].text().to_owned();
    redis.ask(&["RPUSH", &format!("lockrun:{{given-up}}:box:{waiter}"), "0 0"]);
    eventually(LONG, "it has another connection", || proxy.connections() == 2);
    proxy.set(Mode::Pass);
    eventually(LONG, "the first connection is closed", || connections_of(redis) == before);
    queue.settles();
    holder.end();
    queue.end().in_order([0]);
}

/// How many clients the server sees.
fn connections_of(redis: &Redis) -> String {
    let clients = redis.ask(&["INFO", "clients"]);
    clients.text().lines().find(|line| line.starts_with("connected_clients:")).expect("the server counts").to_owned()
}

// "Only a claim that the server confirms starts COMMAND": one that comes too late is refused.
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
    // It does not wait for a guardian that never comes back.
    queue.take(0).wait().exited(69).said("came too late");
    assert!(!is_alive(guardian), "the guardian is still there");
    queue.end().in_order([1]);
}
