//! Many waiters that come to one lock in PostgreSQL at the same time.

use std::time::Duration;

use crate::support::calm::in_time;
use crate::support::hand::token;
use crate::support::store::{on_pooled, on_postgres};
use crate::support::{Holder, LONG, Lockrun, Queue, eventually, stays_true_for};

// Waiters that only join do not wait for each other: here another transaction always holds a shared lock on the row.
on_postgres!(waiters_join_beside_each_other, |store, postgres| {
    let holder = Holder::with(&Lockrun::new(store).key("k").args(["--ttl", "10m"]), &[]);
    let other = postgres.transaction("SELECT FROM lockrun.locks WHERE key = 'k' FOR SHARE");
    let mut queue = Queue::new(store, "k").with(&["--ttl", "10m"]);
    queue.join(3);
    drop(other);
    holder.end();
    queue.end().in_order(0..3);
});

// What was read without locking the row may be out of date: a waiter that joined by it could wait for no one.
on_postgres!(a_lock_that_is_released_while_a_waiter_joins, |store, postgres| {
    token(store, "k", &["--ttl", "10m"]);
    let release = postgres.transaction("UPDATE lockrun.locks SET state = (state::jsonb - 'holders')::json");
    let waiter = Lockrun::new(store).key("k").args(["--wait", "--ttl", "10m"]).command(["echo", "ran"]).spawn();
    let joins =
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'INSERT INTO%waiters%' AND wait_event_type = 'Lock'";
    eventually(LONG, "the waiter is about to join", || postgres.count(joins) > 0);
    release.commit();
    let output = waiter.wait().exited(0).printed("ran\n");
    in_time(output.took, Duration::from_secs(30), "it ran");
    assert_eq!(postgres.count("SELECT count(*) FROM lockrun.waiters"), 0);
});

// A pooler accepts clients even if it has no session free. A waiter waits for that, too, and does not log in again and again, which would
// overload the pooler. A lock that is granted late is renewed at once.
on_pooled!(waiters_are_patient_with_a_pooler, |store, pooled| {
    let proxy = store.proxy();
    let call = Lockrun::at(&proxy.url()).key("k").args(["--wait", "--ttl", "12s", "--store-timeout", "2s"]);
    call.clone().command(["true"]).run().exited(0);
    let sessions = pooled.take_all_sessions();
    let before = proxy.connections();
    let waiter = call.clone().command(["echo", "ran"]).spawn();
    eventually(LONG, "it has connected", || proxy.connections() > before);
    stays_true_for(Duration::from_secs(3), "it does not log in again", || proxy.connections() == before + 1);
    drop(sessions);
    waiter.wait().exited(0).printed("ran\n").silent();
    // Nor does it give up when that takes too long.
    let sessions = pooled.take_all_sessions();
    let before = proxy.connections();
    let waiter = call.command(["echo", "ran"]).spawn();
    eventually(LONG, "it has logged in again", || proxy.connections() > before + 1);
    drop(sessions);
    waiter.wait().exited(0).printed("ran\n").silent();
});
