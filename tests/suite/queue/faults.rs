//! Waiting in turn when waiters, the holder, the server or the connections fail.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::proxy::{Mode, Proxy};
use crate::support::queue::{Record, now};
use crate::support::{Holder, LONG, Lockrun, Queue, Redis, Store, eventually, processes};

/// How long the lock may stand unused because somebody to whom it was granted does not claim it.
const UNCLAIMED: Duration = Duration::from_secs(2);

/// What a busy machine may take besides, to start a few programs and to run them.
const ALLOWANCE: Duration = Duration::from_millis(1500);

/// Those of forty who are killed: some alone, some with their neighbours, the first of all and the last.
const VICTIMS: [usize; 20] = [0, 1, 2, 5, 7, 8, 11, 12, 13, 14, 15, 16, 20, 23, 24, 28, 31, 33, 38, 39];

// "A hand-off skips dead ones": of forty waiters twenty are killed while they wait; the others run in order, and no gap is
// longer than 2 s.
#[test]
fn killed_waiters_are_skipped() {
    let store = Store::redis();
    let holder = Holder::new(&store, "killed");
    let mut queue = Queue::new(&store, "killed");
    queue.join(40);
    for number in VICTIMS {
        queue.kill(number);
    }
    let freed_at = now();
    holder.end();
    let survivors = (0..40).filter(|number| !VICTIMS.contains(number));
    queue.end().in_order(survivors).without_gap(freed_at, UNCLAIMED + ALLOWANCE);
}

// "A wait that is cut short" by KILL stands in nobody's way, the first in the queue as little as all that were there.
#[test]
fn the_next_does_not_wait_for_the_dead() {
    for (waiting, killed) in [(3, 1), (3, 2), (8, 8)] {
        let store = Store::redis();
        let holder = Holder::new(&store, "dead");
        let mut queue = Queue::new(&store, "dead");
        queue.join(waiting);
        for number in 0..killed {
            queue.kill(number);
        }
        let freed_at = now();
        holder.end();
        queue.storm(1);
        queue.end().in_order(killed..=waiting).without_gap(freed_at, UNCLAIMED + ALLOWANCE);
    }
}

// "A crash frees the lock within ttl + 1 s": the first waiter gets it, and after it the others in order.
#[test]
fn the_holder_is_killed() {
    const TTL: Duration = Duration::from_secs(2);
    let store = Store::redis();
    let call = Lockrun::new(&store).key("crash").args(["--ttl", "2s"]);
    let mut holder = Holder::with(&call, &[]);
    let mut queue = Queue::new(&store, "crash");
    queue.join(5);
    let killed_at = now();
    holder.run().kill_everything();
    let limit = TTL + Duration::from_secs(1) + ALLOWANCE;
    queue.end().in_order(0..5).without_gap(killed_at, limit);
}

/// Stops the first waiters while they sleep at the server, and returns when they do stand still.
fn stop(queue: &mut Queue<'_>, count: usize) {
    queue.settles();
    for number in 0..count {
        let waiter = queue.waiter(number);
        waiter.signal(Signal::SIGSTOP);
        eventually(LONG, "the waiter stands still", || processes::state(waiter.pid()) == Some('T'));
    }
}

// "2 s for a grant nobody claims": a waiter that stands still when the lock is granted to it is passed over. It keeps its
// place: when it goes on, it is the next.
#[test]
fn a_waiter_that_stands_still_is_passed_over() {
    let store = Store::redis();
    let holder = Holder::new(&store, "still");
    let mut queue = Queue::new(&store, "still");
    let gates = tempfile::TempDir::new().expect("a temporary directory");
    let gate = gates.path().join("gate");
    queue.join_to("");
    queue.join_to(&format!("until [ -e '{}' ]; do sleep 0.01; done", gate.display()));
    queue.join(2);
    stop(&mut queue, 1);
    let freed_at = now();
    holder.end();
    eventually(LONG, "the second one runs", || queue.begun() == ["1"]);
    assert_eq!(queue.length(), 3, "one has left the queue: the one that runs");
    let asleep = queue.asleep();
    queue.signal_all(Signal::SIGCONT);
    eventually(LONG, "the first one waits again", || queue.asleep() > asleep);
    std::fs::write(&gate, "").expect("the gate opens");
    queue.end().in_order([1, 0, 2, 3]).without_gap(freed_at, UNCLAIMED + ALLOWANCE);
}

/// The first waiters die in the moment when the lock is granted to the first of them: after the server has told them, and
/// before they could do anything. The others run, and soon enough.
#[track_caller]
fn die_when_granted(dead: usize, limit: Duration) {
    let store = Store::redis();
    let holder = Holder::new(&store, "granted");
    let mut queue = Queue::new(&store, "granted");
    queue.join(dead + 4);
    stop(&mut queue, dead);
    let freed_at = now();
    holder.end();
    for number in 0..dead {
        queue.kill(number);
    }
    queue.end().in_order(dead..dead + 4).without_gap(freed_at, limit + ALLOWANCE);
}

// "2 s for a grant nobody claims": also if the waiter dies after it was granted the lock and before it claims it.
#[test]
fn a_waiter_dies_with_the_lock_granted() {
    die_when_granted(1, UNCLAIMED);
}

// "A crash leaves nothing behind": also of a lock without an end that was handed on to one that was dead already, by one that died
// right after that.
#[test]
fn who_hands_a_lock_without_an_end_on_to_the_dead_dies_too() {
    let store = Store::redis();
    let proxy = Proxy::to(store.as_redis().expect("a Redis").port());
    let holder = Holder::new(&store, "both");
    let mut queue = Queue::through(&proxy.url(), &store, "both").with(&["--ttl", "none"]);
    queue.join_to("exec sleep 600");
    holder.end();
    eventually(LONG, "the first one runs", || queue.begun() == ["0"]);
    eventually(LONG, "the lock is its own", || queue.length() == 0);
    let mut second = Lockrun::new(&store).key("both").arg("--wait").sh(":").spawn();
    eventually(LONG, "the second one waits", || queue.length() == 1 && queue.asleep() == 1);
    second.signal(Signal::SIGSTOP);
    eventually(LONG, "the waiter stands still", || processes::state(second.pid()) == Some('T'));
    // The release arrives; what asks after the waiter to whom the lock was granted does not.
    let redis = store.as_redis().expect("a Redis");
    let granted = redis.ask(&["ZRANGE", "lockrun:{both}:queue", "0", "0"]).texts().remove(0);
    proxy.set(Mode::CloseAt(granted.leak()));
    queue.waiter(0).signal(Signal::SIGTERM);
    let first = queue.take(0);
    first.wait().died_of(Signal::SIGTERM);
    second.kill_everything();
    queue.leaves_only_what_goes();
}

// "A waiter that died, wherever in the queue": also if the waiters of two machines take turns, and one of the two was cut off before the
// lock was released.
#[test]
fn every_other_waiter_is_cut_off() {
    let store = Store::redis();
    let proxy = Proxy::to(store.as_redis().expect("a Redis").port());
    let holder = Holder::new(&store, "turns");
    let mut queue = Queue::new(&store, "turns");
    for number in 0..7 {
        queue = queue.by(&if number % 2 == 0 { proxy.url() } else { store.url() });
        queue.join(1);
    }
    queue.settles();
    proxy.set(Mode::Swallow);
    let freed_at = now();
    holder.end();
    eventually(LONG, "those that are not cut off have run", || Record::read(&queue.written()).tags().len() == 3);
    let ran = Record::read(&queue.written());
    proxy.set(Mode::Pass);
    queue.all_end();
    assert_eq!(ran.tags(), ["1", "3", "5"]);
    ran.without_gap(freed_at, UNCLAIMED + ALLOWANCE);
}

// Also if its neighbours die with it, as those do that run on one machine.
#[test]
fn neighbours_die_with_the_lock_granted() {
    die_when_granted(3, UNCLAIMED);
}

// Also if it and others stand still and the server does not notice, since the kernel goes on to take their mail: the first and
// the second, more than half of all, and all but the last. They keep their places.
#[test]
fn neighbours_stand_still_with_the_lock_granted() {
    for still in [0..2, 0..5, 0..7] {
        let store = Store::redis();
        let holder = Holder::new(&store, "still");
        let mut queue = Queue::new(&store, "still");
        queue.join(8);
        stop(&mut queue, still.len());
        let freed_at = now();
        holder.end();
        eventually(LONG, "the others have run", || queue.begun().len() == 8 - still.len());
        assert_eq!(queue.length(), still.len());
        queue.signal_all(Signal::SIGCONT);
        let record = queue.end();
        let others: Vec<String> = (still.end..8).map(|number| number.to_string()).collect();
        assert_eq!(record.tags()[..others.len()], others);
        let gap = record.0[0].began.saturating_sub(freed_at);
        assert!(gap <= UNCLAIMED + ALLOWANCE, "nobody ran for {gap:?} when {still:?} stood still");
    }
}

// "2 s for a grant nobody claims", once: a waiter whose mail is taken, and who never claims what it was granted, does not get
// it again before the others had it.
#[test]
fn mail_that_is_taken_is_no_claim() {
    let store = Store::redis();
    let redis = store.as_redis().expect("a Redis");
    let holder = Holder::new(&store, "taken");
    let mut queue = Queue::new(&store, "taken");
    queue.join(2);
    stop(&mut queue, 1);
    let first = redis.ask(&["ZRANGE", "lockrun:{taken}:queue", "0", "0"]).list()[0].text().to_owned();
    let mailbox = format!("lockrun:{{taken}}:mailbox:{first}");
    let freed_at = now();
    holder.end();
    eventually(LONG, "the second one has run", || {
        redis.ask(&["BLPOP", &mailbox, "0.05"]);
        queue.begun() == ["1"]
    });
    queue.signal_all(Signal::SIGCONT);
    queue.end().in_order([1, 0]).without_gap(freed_at, LONG);
}

/// Lets ten wait over a network that can be disturbed, does something to the server or the network, and looks whether
/// they run in order all the same, as soon as all of them are back.
#[track_caller]
fn keep_their_places(disturb: impl FnOnce(&Redis, &Proxy)) {
    let store = Store::Redis(Redis::durable());
    let redis = store.as_redis().expect("a Redis");
    let proxy = Proxy::to(redis.port());
    let holder = Holder::new(&store, "places");
    let mut queue = Queue::through(&proxy.url(), &store, "places");
    queue.join(10);
    queue.settles();
    disturb(redis, &proxy);
    queue.settles();
    assert_eq!(queue.length(), 10);
    holder.end();
    queue.end().in_order(0..10);
}

// "CLIENT KILL while waiting keeps the place in the queue."
#[test]
fn the_server_hangs_up() {
    keep_their_places(|redis, proxy| {
        let connections = proxy.connections();
        redis.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
        eventually(LONG, "all have come back", || proxy.connections() >= connections + 10);
    });
}

// "SCRIPT FLUSH while waiting": the server forgets the scripts that it knew.
#[test]
fn the_server_forgets_the_scripts() {
    keep_their_places(|redis, _| {
        redis.ask(&["SCRIPT", "FLUSH"]);
    });
}

// "A restarted server keeps the places in the queue", if it keeps its data.
#[test]
fn the_server_restarts() {
    keep_their_places(|redis, _| {
        redis.kill();
        redis.start_again();
    });
}

// "A lost connection while waiting keeps the place": connections are reset, and for a while new ones, too.
#[test]
fn connections_are_reset_while_waiting() {
    keep_their_places(|_, proxy| {
        let connections = proxy.connections();
        proxy.set(Mode::Reset);
        eventually(LONG, "all have tried again", || proxy.connections() >= connections + 30);
        proxy.set(Mode::Pass);
    });
}

/// Waits until all ten sleep at the server.
#[track_caller]
fn all_sleep(redis: &Redis) {
    let asleep = || redis.ask(&["INFO", "clients"]).text().contains("\r\nblocked_clients:10\r\n");
    eventually(LONG, "all sleep", asleep);
}

// "When Redis goes away, a waiter goes on asking for a minute": so it does when the server is demoted for a moment, and
// rejects what it cannot do as a replica.
#[test]
fn the_server_is_demoted_for_a_moment() {
    keep_their_places(|redis, proxy| {
        all_sleep(redis);
        let connections = proxy.connections();
        redis.ask(&["REPLICAOF", "127.0.0.1", "1"]);
        eventually(LONG, "all have asked the replica", || proxy.connections() >= connections + 20);
        redis.ask(&["REPLICAOF", "NO", "ONE"]);
        all_sleep(redis);
    });
}

// The same with every answer by which a server rejects a request for a while, to what a waiter asks and to its waiting.
#[test]
fn requests_are_rejected_for_a_while() {
    keep_their_places(|redis, proxy| {
        for answer in [
            "-LOADING Redis is loading the dataset in memory\r\n",
            "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n",
            "-READONLY You can't write against a read only replica.\r\n",
            "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
            "-CLUSTERDOWN The cluster is down\r\n",
            "-MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.\r\n",
            "-ERR Error running script (call to f_0): @user_script:9: @user_script: 9: -READONLY You can't write\r\n",
            "-ERR max number of clients reached\r\n",
        ] {
            all_sleep(redis);
            let connections = proxy.connections();
            proxy.set(Mode::Answer(answer.as_bytes()));
            let clients = redis.ask(&["CLIENT", "LIST"]);
            for client in clients.text().lines().filter(|client| client.contains("cmd=blpop")) {
                let id = client.split(' ').next().and_then(|id| id.strip_prefix("id=")).expect("an id");
                redis.ask(&["CLIENT", "UNBLOCK", id]);
            }
            eventually(LONG, "all have tried again", || proxy.connections() >= connections + 20);
            proxy.set(Mode::Pass);
        }
        all_sleep(redis);
    });
}

// "It cannot hold when the store forgets": the waiters go on, though, one at a time, all of them.
#[test]
fn everything_is_deleted() {
    let store = Store::redis();
    let call = Lockrun::new(&store).key("deleted").args(["--ttl", "3s", "--kill-after", "500ms"]);
    let mut holder = Holder::with(&call, &[]);
    let mut queue = Queue::new(&store, "deleted");
    queue.join(10);
    store.as_redis().expect("a Redis").ask(&["FLUSHALL"]);
    queue.end().in_any_order(0..10);
    eventually(LONG, "the holder has noticed", || holder.run().has_ended());
}
