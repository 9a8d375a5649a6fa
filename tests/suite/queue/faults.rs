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
use crate::support::store::{on_every_lease_store, on_postgres, on_redis};
use crate::support::{Holder, LONG, Lockrun, Queue, Store, eventually, redis_keys};

/// How long the lock may be unused because a waiter that was granted it does not claim it.
const UNCLAIMED: Duration = Duration::from_secs(2);

/// The extra time that a busy machine may need to start and run a few programs.
const ALLOWANCE: Duration = Duration::from_millis(1500);

/// Which of forty waiters are killed: some alone, some with their neighbours, the very first and the last.
const VICTIMS: [usize; 20] = [0, 1, 2, 5, 7, 8, 11, 12, 13, 14, 15, 16, 20, 23, 24, 28, 31, 33, 38, 39];

// "A hand-off skips dead ones": of forty waiters twenty are killed while they wait; the others run in order, and no gap is
// longer than 2 s.
on_every_lease_store!(killed_waiters_are_skipped, |store| {
    let _turn = crowd::turn();
    let holder = Holder::new(store, "killed");
    let mut queue = Queue::new(store, "killed");
    queue.join(40);
    for number in VICTIMS {
        queue.kill(number);
    }
    let freed_at = now();
    holder.end();
    let survivors = (0..40).filter(|number| !VICTIMS.contains(number));
    queue.end().in_order(survivors).without_gap(freed_at, UNCLAIMED + ALLOWANCE);
});

// "A wait that is cut short" by KILL blocks no one, neither if the first waiter was killed nor if all were.
on_every_lease_store!(the_next_does_not_wait_for_the_dead, |store| {
    for (waiting, killed) in [(3, 1), (3, 2), (8, 8)] {
        let store = &store.another();
        let holder = Holder::new(store, "dead");
        let mut queue = Queue::new(store, "dead");
        queue.join(waiting);
        for number in 0..killed {
            queue.kill(number);
        }
        let freed_at = now();
        holder.end();
        queue.storm(1);
        queue.end().in_order(killed..=waiting).without_gap(freed_at, UNCLAIMED + ALLOWANCE);
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

// "2 s for a grant nobody claims": a waiter that is stopped when it is granted the lock is passed over. It keeps its place: once continued,
// it is the next.
on_every_lease_store!(a_stopped_waiter_is_passed_over, |store| {
    let holder = Holder::new(store, "still");
    let mut queue = Queue::new(store, "still");
    let gates = tempfile::TempDir::new().expect("a temporary directory");
    let gate = gates.path().join("gate");
    queue.join_to("");
    queue.join_to(&format!("until [ -e '{}' ]; do sleep 0.01; done", gate.display()));
    queue.join(2);
    queue.stop(0..1);
    let freed_at = now();
    holder.end();
    queue.have_begun(&["1"]);
    assert_eq!(queue.length(), 3, "one has left the queue: the one that runs");
    queue.signal_all(Signal::SIGCONT);
    eventually(LONG, "the first one waits again, like the others", || queue.asleep() == 3);
    std::fs::write(&gate, "").expect("the gate opens");
    queue.end().in_order([1, 0, 2, 3]).without_gap(freed_at, UNCLAIMED + ALLOWANCE);
});

/// Kills the first waiters just as the first of them is granted the lock: after the server has notified them, and before they could act.
/// The others run soon enough.
#[track_caller]
fn die_when_granted(store: &Store, dead: usize, limit: Duration) {
    let holder = Holder::new(store, "granted");
    let mut queue = Queue::new(store, "granted");
    queue.join(dead + 4);
    queue.stop(0..dead);
    let freed_at = now();
    holder.end();
    for number in 0..dead {
        queue.kill(number);
    }
    queue.end().in_order(dead..dead + 4).without_gap(freed_at, limit + ALLOWANCE);
}

// "2 s for a grant nobody claims": also if the waiter dies between the grant and its claim.
on_every_lease_store!(a_waiter_dies_with_the_lock_granted, |store| {
    die_when_granted(store, 1, UNCLAIMED);
});

// The same if several die with it, as when the machine on which they wait fails, among them those that were to check whether the lock is
// claimed. No waiter is passed over because of them.
on_every_lease_store!(many_die_with_the_lock_granted, |store| {
    for dead in [5, 6, 7, 8, 9, 12] {
        // Behind a pooler only their silence shows that they are dead: it is noticed for seven at a time.
        let times = if store.as_pooled().is_some() && dead > 7 { 2 } else { 1 };
        die_when_granted(&store.another(), dead, UNCLAIMED * times);
    }
});

// Also if the first in the queue are known to be dead, so that waiters are asked that are behind all those usually read.
on_postgres!(many_die_behind_those_that_are_known_to_be_dead, |store, postgres| {
    let holder = Holder::new(store, "granted");
    let mut queue = Queue::new(store, "granted");
    queue.join(16 + 10 + 4);
    queue.settles();
    for number in 0..16 {
        queue.kill(number);
    }
    queue.stop(16..16 + 10);
    let freed_at = now();
    holder.end();
    for number in 16..16 + 10 {
        queue.kill(number);
    }
    queue.end().in_order(26..30).without_gap(freed_at, UNCLAIMED + ALLOWANCE);
});

// "A crash frees it within ttl + 1 s", and "a waiter that died keeps the others from a lock that is free for 2 s at most": also if the
// first waiters die with the holder, as when the machine on which they wait fails.
on_every_lease_store!(the_holder_and_the_first_waiters_die, |store| {
    const TTL: Duration = Duration::from_secs(3);
    let call =
        Lockrun::new(store).key("machine").args(["--ttl", "3s", "--kill-after", "500ms", "--store-timeout", "1s"]);
    let mut holder = Holder::with(&call, &[]);
    let mut queue = Queue::new(store, "machine");
    queue.join(12 + 3);
    let killed_at = now();
    holder.run().kill_everything();
    for number in 0..12 {
        queue.kill(number);
    }
    // The first of them is granted the lock. Behind a pooler only their silence shows that they are dead: it is noticed for seven at a
    // time.
    let rounds = if store.as_pooled().is_some() { 2 } else { 1 };
    let limit = TTL + Duration::from_secs(1) + UNCLAIMED * rounds + ALLOWANCE;
    queue.end().in_order(12..15).without_gap(killed_at, limit);
});

// The same where a lease ends sooner than the waiters knew, and the first waiters have died.
on_every_lease_store!(the_first_waiters_have_died_when_a_lease_is_shortened, |store| {
    const TTL: Duration = Duration::from_secs(1);
    let ours = token(store, "shorter", &["--ttl", "1h"]);
    let mut queue = Queue::new(store, "shorter");
    queue.join(6);
    queue.settles();
    for number in 0..5 {
        queue.kill(number);
    }
    let shortened_at = now();
    renew(store, "shorter", &ours, &["--ttl", "1s"]).exited(0).silent();
    queue.end().in_order(5..6).without_gap(shortened_at, TTL + UNCLAIMED + ALLOWANCE);
});

// Also if more of them have died than are usually read, a moment ago or so long ago that they have missed a look.
on_redis!(very_many_have_died_when_a_lease_is_shortened, |store, redis| {
    const TTL: Duration = Duration::from_secs(1);
    let _turn = crowd::turn();
    for (count, alive, have_missed_looks) in [(36, 35, false), (37, 35, true)] {
        let store = &store.another();
        let redis = store.as_redis().expect("a server");
        let ours = token(store, "shorter", &["--ttl", "1h"]);
        let mut queue = Queue::new(store, "shorter");
        queue.join(count);
        queue.settles();
        let heartbeats = redis_keys::heartbeats("shorter");
        let waiters = redis.ask(&["ZRANGE", &redis_keys::queue("shorter"), "0", "-1"]);
        for number in (0..count).filter(|number| *number != alive) {
            queue.kill(number);
            if have_missed_looks {
                // As if more time had passed than there is between two looks.
                redis.ask(&["ZINCRBY", &heartbeats, "-15000", waiters.list()[number].text()]);
            }
        }
        let shortened_at = now();
        renew(store, "shorter", &ours, &["--ttl", "1s"]).exited(0).silent();
        queue.end().in_order([alive]).without_gap(shortened_at, TTL + UNCLAIMED + ALLOWANCE);
    }
});

// "A waiter that died, wherever in the queue": also if the waiters of two machines alternate, and one machine was cut off before the lock
// was released.
on_every_lease_store!(every_other_waiter_is_cut_off, |store| {
    let proxy = store.proxy();
    let holder = Holder::new(store, "turns");
    let mut queue = Queue::new(store, "turns");
    for number in 0..8 {
        queue = queue.by(&if number % 2 == 0 { proxy.url() } else { store.url() });
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
    ran.in_order([1, 3, 5, 7]).without_gap(freed_at, UNCLAIMED + ALLOWANCE);
});

// Also if its neighbours die with it, as they do if they run on one machine.
on_every_lease_store!(neighbours_die_with_the_lock_granted, |store| {
    die_when_granted(store, 3, UNCLAIMED);
});

// Also if it and others are stopped and the server does not notice, since the kernel still accepts their mail: the first and the second,
// more than half of all, and all but the last. They keep their places.
on_every_lease_store!(neighbours_are_stopped_with_the_lock_granted, |store| {
    for still in [0..2, 0..5, 0..7] {
        let store = &store.another();
        let holder = Holder::new(store, "still");
        let mut queue = Queue::new(store, "still");
        queue.join(8);
        queue.stop(still.clone());
        let freed_at = now();
        holder.end();
        eventually(LONG, "the others have run", || queue.begun().len() == 8 - still.len());
        assert_eq!(queue.length(), still.len());
        queue.signal_all(Signal::SIGCONT);
        let record = queue.end();
        let others: Vec<String> = (still.end..8).map(|number| number.to_string()).collect();
        record.first_in_order(&others);
        let gap = record.0[0].began.saturating_sub(freed_at);
        in_time(gap, UNCLAIMED + ALLOWANCE, &format!("nobody ran when {still:?} stood still"));
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

// The same in an outage that is longer than their usual silence, but not longer than their patience.
on_redis!(an_outage_of_half_a_minute_costs_no_place, |store, redis| {
    const OUTAGE: Duration = Duration::from_secs(35);
    keep_their_places(store, |proxy| {
        proxy.set(Mode::Reset);
        thread::sleep(OUTAGE);
        proxy.set(Mode::Pass);
    });
});

// "It cannot hold when the store forgets": yet all waiters run, one at a time.
on_every_lease_store!(everything_is_deleted, |store| {
    let call = Lockrun::new(store).key("deleted").args(["--ttl", "3s", "--kill-after", "500ms"]);
    let mut holder = Holder::with(&call, &[]);
    let mut queue = Queue::new(store, "deleted");
    queue.join(10);
    store.server().forget_everything();
    queue.end().in_any_order(0..10);
    eventually(LONG, "the holder has noticed", || holder.run().has_ended());
});
