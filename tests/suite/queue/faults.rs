//! Waiting in turn when waiters, the holder, the server or the connections fail.

use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::calm::in_time;
use crate::support::crowd;
use crate::support::hand::{renew, token};
use crate::support::places::keep_their_places;
use crate::support::proxy::Mode;
use crate::support::queue::{Record, now};
use crate::support::store::on_every_lease_store;
use crate::support::{Holder, LONG, Lockrun, Queue, Store, eventually};

/// The lease of the runs, and so the place of the waiters, where some of them fail.
const TTL: Duration = Duration::from_secs(4);
const SHORT: [&str; 2] = ["--ttl", "4s"];

/// For how long the dead, stopped and cut off may keep the lock unused, however many they are.
const UNUSED: Duration = TTL.saturating_add(Duration::from_secs(1));

/// The extra time that a busy machine may need to start and run a few programs.
const ALLOWANCE: Duration = Duration::from_millis(1500);

/// Which of forty waiters are killed: some alone, some with their neighbours, the very first and the last.
const VICTIMS: [usize; 20] = [0, 1, 2, 5, 7, 8, 11, 12, 13, 14, 15, 16, 20, 23, 24, 28, 31, 33, 38, 39];

/// Returns a queue of waiters with short places.
fn short_places<'a>(store: &'a Store, key: &str) -> Queue<'a> {
    Queue::new(store, key).with(&SHORT)
}

// "However many died": of forty waiters twenty are killed while they wait; the others run in order.
on_every_lease_store!(killed_waiters_cost_one_lease, |store| {
    let _turn = crowd::turn_at(store);
    let holder = Holder::new(store, "killed");
    let mut queue = short_places(store, "killed");
    queue.join(40);
    for number in VICTIMS {
        queue.kill(number);
    }
    let freed_at = now();
    holder.end();
    let survivors = (0..40).filter(|number| !VICTIMS.contains(number));
    queue.end().in_order(survivors).without_gap(freed_at, UNUSED + ALLOWANCE);
});

// "A wait that is cut short" by KILL blocks no one for longer, neither if the first waiter was killed nor if all were.
on_every_lease_store!(the_next_waits_for_the_dead_for_one_lease, |store| {
    for (waiting, killed) in [(3, 1), (3, 2), (8, 8)] {
        let store = &store.another();
        let holder = Holder::new(store, "dead");
        let mut queue = short_places(store, "dead");
        queue.join(waiting);
        for number in 0..killed {
            queue.kill(number);
        }
        let freed_at = now();
        holder.end();
        queue.storm(1);
        queue.end().in_order(killed..=waiting).without_gap(freed_at, UNUSED + ALLOWANCE);
    }
});

// "A crash frees the lock within ttl + 1 s": the first waiter gets it, and after it the others in order.
on_every_lease_store!(the_holder_is_killed, |store| {
    const TTL: Duration = Duration::from_secs(2);
    let call = Lockrun::new(store).key("crash").args(["--ttl", "2s"]);
    let mut holder = Holder::with(&call, &[]);
    let mut queue = Queue::new(store, "crash");
    queue.join(5);
    let killed_at = now();
    holder.run().kill_everything();
    let limit = TTL + Duration::from_secs(1) + ALLOWANCE;
    queue.end().in_order(0..5).without_gap(killed_at, limit);
});

// "A waiter that lets its place run out has lost it": one that is stopped when the lock is handed to it keeps the lock
// unused until its lease has ended. Once continued, it starts nothing, and waits behind the others.
on_every_lease_store!(a_stopped_waiter_loses_its_place, |store| {
    let holder = Holder::new(store, "still");
    let mut queue = short_places(store, "still");
    let gates = tempfile::TempDir::new().expect("a temporary directory");
    let gate = gates.path().join("gate");
    queue.join_to("");
    queue.join_to(&format!("until [ -e '{}' ]; do sleep 0.01; done", gate.display()));
    queue.join(2);
    queue.stop(0..1);
    let freed_at = now();
    holder.end();
    queue.have_begun(&["1"]);
    queue.signal_all(Signal::SIGCONT);
    eventually(LONG, "the first one waits again, like the others", || queue.length() == 3);
    std::fs::write(&gate, "").expect("the gate opens");
    queue.end().in_order([1, 2, 3, 0]).without_gap(freed_at, UNUSED + ALLOWANCE);
});

// One that is stopped for a moment, before, while and after the lock is handed to it, starts nothing after its lease.
// If it was stopped when it was about to start its command, it says so.
on_every_lease_store!(a_waiter_is_stopped_around_its_turn, |store| {
    for moment in [-40, -20, -10, -5, 0, 2, 5, 10, 20, 40] {
        let store = &store.another();
        let holder = Holder::new(store, "around");
        let mut queue = Queue::new(store, "around").with(&["--ttl", "1s"]);
        queue.join(2);
        let span = Duration::from_millis(i64::unsigned_abs(moment));
        if moment < 0 {
            queue.stop(0..1);
            thread::sleep(span);
            holder.end();
        } else {
            holder.end();
            thread::sleep(span);
            queue.waiter(0).signal(Signal::SIGSTOP);
        }
        eventually(LONG, "the second one runs", || queue.begun().iter().any(|tag| tag == "1"));
        queue.signal_all(Signal::SIGCONT);
        let first = queue.take(0).wait();
        let has_run = queue.begun().iter().any(|tag| tag == "0");
        match first.status {
            Some(0) => assert!(has_run, "{moment} ms: {first}"),
            Some(69) => assert!(!has_run && first.stderr().contains("too little of its lease"), "{moment} ms: {first}"),
            _ => panic!("{moment} ms: {first}"),
        }
        // Reading the record checks that no two ran at once.
        Record::read(&queue.all_end());
    }
});

/// How many moments are tried: `SUITE_RUNS` asks for more.
fn moments() -> usize {
    let asked = std::env::var("SUITE_RUNS").ok();
    asked.map_or(4, |asked| asked.parse().expect("SUITE_RUNS is a number"))
}

// "From COMMAND's first instruction no other run holds the same key": the first waiter is stopped, or cut off from the
// store, at a random moment around its turn, and for a random time around the length of its lease.
on_every_lease_store!(a_waiter_is_disturbed_around_its_turn, |store| {
    let mut random = fastrand::Rng::new();
    for _ in 0..moments() {
        let (turn, moment) = (Duration::from_millis(40), Duration::from_micros(random.u64(0..80_000)));
        let (span, is_cut_off) = (Duration::from_millis(random.u64(0..1800)), random.bool());
        let what = format!(
            "{} {moment:?} after the start, its turn came after {turn:?}",
            ["stopped", "cut off"][usize::from(is_cut_off)]
        );
        let store = &store.another();
        let proxy = store.proxy();
        let holder = Holder::new(store, "disturbed");
        let mut queue = Queue::through(&proxy.url(), store, "disturbed").with(&["--ttl", "1s"]);
        queue.join_and_hear(1);
        queue = queue.by(&store.url()).with(&["--ttl", "1s"]);
        queue.join(1);
        let mut disturb =
            || if is_cut_off { proxy.set(Mode::Swallow) } else { queue.waiter(0).signal(Signal::SIGSTOP) };
        if moment < turn {
            thread::sleep(moment);
            disturb();
            thread::sleep(turn.saturating_sub(moment));
            holder.end();
        } else {
            thread::sleep(turn);
            holder.end();
            thread::sleep(moment.saturating_sub(turn));
            disturb();
        }
        thread::sleep(span);
        proxy.set(Mode::Pass);
        queue.signal_all(Signal::SIGCONT);
        let first = queue.take(0).wait();
        let written = queue.all_end();
        match first.status {
            Some(0) => Record::read(&written).in_any_order(0..2),
            // Too little of its lease was left to start its command.
            Some(69) => Record::read(&written).in_any_order(1..2),
            // Its command was killed before the lease ended: it has not stamped its end.
            Some(79) => Record::read(
                written.strip_prefix("in 0").and_then(|rest| rest.split_once('\n')).expect("it ran first").1,
            ),
            _ => panic!("{what}: {first}"),
        };
    }
});

/// Kills the first waiters just as the lock is handed to the first of them: after the server has woken it, and before
/// it could act. The others run soon enough.
#[track_caller]
fn die_when_handed_the_lock(store: &Store, dead: usize) {
    let holder = Holder::new(store, "handed");
    let mut queue = short_places(store, "handed");
    queue.join(dead + 4);
    queue.stop(0..dead);
    let freed_at = now();
    holder.end();
    for number in 0..dead {
        queue.kill(number);
    }
    queue.end().in_order(dead..dead + 4).without_gap(freed_at, UNUSED + ALLOWANCE);
}

// "A dead waiter costs what a dead holder costs", also with its neighbours, as when the machine on which they wait
// fails.
on_every_lease_store!(waiters_die_when_the_lock_is_handed_to_them, |store| {
    for dead in [1, 3, 6, 12] {
        die_when_handed_the_lock(&store.another(), dead);
    }
});

// "However many others died with it": the holder and the first waiters die together.
on_every_lease_store!(the_holder_and_the_first_waiters_die, |store| {
    let options = ["--ttl", "4s", "--kill-after", "500ms", "--store-timeout", "600ms"];
    let call = Lockrun::new(store).key("machine").args(options);
    let mut holder = Holder::with(&call, &[]);
    let mut queue = Queue::new(store, "machine").with(&options);
    queue.join(12 + 3);
    let killed_at = now();
    holder.run().kill_everything();
    for number in 0..12 {
        queue.kill(number);
    }
    queue.end().in_order(12..15).without_gap(killed_at, UNUSED + ALLOWANCE);
});

// The same where a lease ends sooner than the waiters knew, and the first waiters have died.
on_every_lease_store!(the_first_waiters_have_died_when_a_lease_is_shortened, |store| {
    let ours = token(store, "shorter", &["--ttl", "1h"]);
    let mut queue = short_places(store, "shorter");
    queue.join(6);
    queue.settles();
    for number in 0..5 {
        queue.kill(number);
    }
    let shortened_at = now();
    renew(store, "shorter", &ours, &["--ttl", "1s"]).exited(0).silent();
    queue.end().in_order(5..6).without_gap(shortened_at, UNUSED + ALLOWANCE);
});

// The waiters of two machines alternate, and one machine was cut off before the lock was released.
on_every_lease_store!(every_other_waiter_is_cut_off, |store| {
    let proxy = store.proxy();
    let holder = Holder::new(store, "turns");
    let mut queue = Queue::new(store, "turns");
    for number in 0..8 {
        queue = queue.by(&if number % 2 == 0 { proxy.url() } else { store.url() }).with(&SHORT);
        queue.join_and_hear(1);
    }
    queue.settles();
    proxy.set(Mode::Swallow);
    let freed_at = now();
    holder.end();
    eventually(LONG, "those that are not cut off have run", || queue.written().lines().count() == 2 * 4);
    let ran = Record::read(&queue.written());
    proxy.set(Mode::Pass);
    queue.all_end();
    ran.in_order([1, 3, 5, 7]).without_gap(freed_at, UNUSED + ALLOWANCE);
});

// Others are stopped, too, and the server does not notice: the first and the second, more than half of all, and all but
// the last.
on_every_lease_store!(neighbours_are_stopped_when_the_lock_is_handed_over, |store| {
    for still in [0..2, 0..5, 0..7] {
        let store = &store.another();
        let holder = Holder::new(store, "still");
        let mut queue = short_places(store, "still");
        queue.join(8);
        queue.stop(still.clone());
        let freed_at = now();
        holder.end();
        eventually(LONG, "the others have run", || queue.begun().len() == 8 - still.len());
        queue.signal_all(Signal::SIGCONT);
        let record = queue.end();
        let others: Vec<String> = (still.end..8).map(|number| number.to_string()).collect();
        record.first_in_order(&others);
        let gap = record.0[0].began.saturating_sub(freed_at);
        in_time(gap, UNUSED + ALLOWANCE, &format!("nobody ran when {still:?} stood still"));
    }
});

// "CLIENT KILL while waiting keeps the place in the queue."
on_every_lease_store!(the_server_hangs_up, |store| {
    keep_their_places(store, |proxy| {
        let connections = proxy.connections();
        store.server().hang_up();
        eventually(LONG, "all have come back", || proxy.connections() >= connections + 10);
    });
});

// "A restarted server keeps the places in the queue", if it keeps its data.
on_every_lease_store!(the_server_restarts, |store| {
    keep_their_places(store, |_| {
        store.server().kill();
        store.server().start_again();
    });
});

// "A lost connection while waiting keeps the place": connections are reset, and for a while new ones, too.
on_every_lease_store!(connections_are_reset_while_waiting, |store| {
    keep_their_places(store, |proxy| {
        let connections = proxy.connections();
        proxy.set(Mode::Reset);
        eventually(LONG, "all have tried again", || proxy.connections() >= connections + 30);
        proxy.set(Mode::Pass);
    });
});

// "It cannot hold when the store forgets": yet all waiters run, one at a time.
on_every_lease_store!(everything_is_deleted, |store| {
    let call =
        Lockrun::new(store).key("deleted").args(["--ttl", "3s", "--kill-after", "500ms", "--store-timeout", "1s"]);
    let mut holder = Holder::with(&call, &[]);
    let mut queue = Queue::new(store, "deleted");
    queue.join(10);
    store.server().forget_everything();
    queue.end().in_any_order(0..10);
    eventually(LONG, "the holder has noticed", || holder.run().has_ended());
});
