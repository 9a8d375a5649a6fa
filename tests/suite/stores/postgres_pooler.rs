//! pgbouncer in transaction mode before PostgreSQL: what is specific to it, besides the contract of every lease store.

use std::time::Duration;

use crate::support::calm::in_time;
use crate::support::crowd;
use crate::support::hand::{release, token, until_waiting};
use crate::support::holder::is_free;
use crate::support::lockrun::waiting_for_its_end;
use crate::support::places::keep_their_places;
use crate::support::postgres::{SESSIONS, Setup};
use crate::support::store::on_pooled;
use crate::support::{Holder, LONG, LeaseServer, Lockrun, Pooled, Postgres, Queue, Store, eventually, stays_true_for};

/// Counts the pooler's sessions at the server.
const POOLED: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND application_name <> 'suite'";

// "No prepared statements that a transaction pooler would lose", and many waiters share its ten connections, in turn.
on_pooled!(many_waiters_over_few_sessions, |store, pooled| {
    let _turn = crowd::turn();
    let holder = Holder::new(store, "many");
    let mut queue = Queue::new(store, "many");
    queue.join(60);
    assert!(pooled.postgres().count(POOLED) <= SESSIONS);
    holder.end();
    queue.end().in_order(0..60);
    assert!(pooled.postgres().count(POOLED) <= SESSIONS);
});

// "Nothing is left" in a session that others will use: no lock, no channel, no setting, no transaction.
on_pooled!(sessions_are_left_as_they_were, |store, pooled| {
    let postgres = pooled.postgres();
    let holder = Holder::new(store, "clean");
    let mut queue = Queue::new(store, "clean");
    queue.join(12);
    queue.settles();
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    let in_transaction = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'
        AND clock_timestamp() - state_change > interval '200ms'";
    stays_true_for(Duration::from_secs(2), "no session is kept", || postgres.count(in_transaction) == 0);
    eventually(LONG, "no lock is kept", || postgres.count(locks) == 0);
    let settings =
        pooled.ask_each_session("SELECT current_setting('lock_timeout'), current_setting('statement_timeout')");
    assert!(settings.iter().all(|line| line == "0|0\n"), "{settings:?}");
    let channels = pooled.ask_each_session("SELECT count(*) FROM pg_listening_channels()");
    assert!(channels.iter().all(|line| line == "0\n"), "{channels:?}");
    holder.end();
    queue.end().in_order(0..12);
});

// "Polling at a flat, bounded rate": two reads a second by each of the first waiters, and one by each of the others.
on_pooled!(waiters_poll_at_a_bounded_rate, |store, pooled| {
    let postgres = pooled.postgres();
    let _holder = Holder::with(&Lockrun::new(store).key("rate").args(["--ttl", "10m"]), &[]);
    let mut queue = Queue::new(store, "rate").with(&["--ttl", "10m"]);
    queue.join(20);
    queue.settles();
    let statements = || postgres.count("SELECT sum(calls) FROM pg_stat_statements WHERE query LIKE '%lockrun%'");
    let before = statements();
    let span = Duration::from_secs(5);
    stays_true_for(span, "all wait", || queue.begun().is_empty());
    let sent = statements() - before;
    // 4 x 2 + 16 x 1 a second, and each renews its place every 10 s.
    assert!(sent <= 27 * span.as_secs(), "{sent} statements of 20 waiters");
    assert!(sent >= 20, "they do poll: {sent}");
});

/// Holds a lock, disturbs the server or the pooler, and checks that the lease is renewed all the same.
#[track_caller]
fn is_held_all_along(store: &Store, pooled: &Pooled, disturb: impl FnOnce()) {
    let call = Lockrun::new(store).key("held").args(["--ttl", "60s", "--renew-every", "200ms"]);
    let mut held = waiting_for_its_end(&call);
    disturb();
    let before = pooled.requests();
    eventually(LONG, "the lease is renewed", || pooled.requests() > before);
    assert!(!held.run.has_ended());
    held.finish().exited(0).silent();
}

// The pooler goes away for a moment and comes back: holders and waiters reconnect.
on_pooled!(the_pooler_restarts, |store, pooled| {
    let restart = || {
        pooled.pooler().kill();
        pooled.pooler().start_again();
    };
    keep_their_places(store, |_| restart());
    is_held_all_along(store, pooled, restart);
});

// The server behind it restarts, while the pooler keeps accepting connections.
on_pooled!(the_server_behind_the_pooler_restarts, |store, pooled| {
    let restart = || {
        pooled.postgres().kill();
        pooled.postgres().start_again();
    };
    keep_their_places(store, |proxy| {
        pooled.postgres().kill();
        let before = proxy.connections();
        eventually(LONG, "all have tried in vain", || proxy.connections() >= before + 10);
        pooled.postgres().start_again();
    });
    is_held_all_along(store, pooled, restart);
});

// "69: the store does not answer in time": a pooler whose server is gone makes its clients wait.
on_pooled!(the_server_behind_the_pooler_is_gone, |store, pooled| {
    assert!(is_free(store, "gone"));
    pooled.postgres().kill();
    for options in [&[][..], &["--wait", "1s"]] {
        let call = Lockrun::new(store).key("gone").args(["--store-timeout", "1s"]).args(options);
        let output = call.command(["echo", "ran"]).run().exited(69).printed("");
        in_time(output.took, Duration::from_secs(6), "it gave up");
    }
    pooled.postgres().start_again();
    eventually(LONG, "the pooler has noticed", || {
        Lockrun::new(store).key("gone").command(["true"]).run().status == Some(0)
    });
});

// A pooler reports its server's role from when the two first connected, until it reads its configuration again. A
// standby that is promoted behind it is used all the same.
#[test]
fn the_standby_behind_the_pooler_is_promoted() {
    let pooled = Pooled::before(Postgres::with(&Setup { follows: Some(0), ..Setup::default() }));
    let call = Lockrun::at(&pooled.url_at(pooled.port())).key("promoted").command(["echo", "ran"]);
    call.clone().run().exited(69).printed("").said("is a standby");
    pooled.postgres().ask("SELECT pg_promote()");
    call.run().exited(0).printed("ran\n").silent();
}

// And if a primary becomes a standby behind it, the other hosts are tried within the same request, each of them.
#[test]
fn the_primary_behind_the_pooler_is_demoted() {
    let demoted = [Pooled::start(), Pooled::start()];
    let other = Postgres::start();
    let run = |hosts: &[&dyn LeaseServer]| {
        let hosts: Vec<String> = hosts.iter().map(|host| format!("127.0.0.1:{}", host.port())).collect();
        let url = format!("postgres://postgres@{}/postgres?sslmode=disable", hosts.join(","));
        Lockrun::at(&url).key("demoted").command(["echo", "ran"]).run()
    };
    for pooled in &demoted {
        run(&[pooled, &other]).exited(0).printed("ran\n").silent();
        pooled.postgres().demote();
        run(&[pooled]).exited(69).printed("").said("this is a standby");
    }
    run(&[&demoted[0], &demoted[1], &other]).exited(0).printed("ran\n").silent();
    assert_eq!(other.count("SELECT count(*) FROM lockrun.locks"), 1);
}

// One client that stops between the two halves of a request keeps one session of the pool, for a moment; the others go
// on.
on_pooled!(requests_that_stop_half_way, |store, pooled| {
    assert!(is_free(store, "other"));
    let proxy = store.proxy();
    proxy.set(crate::support::proxy::Mode::SwallowAt(pooled.word()));
    let call = |key: &str| Lockrun::at(&proxy.url()).key(key).args(["--ttl", "10m", "--store-timeout", "20s"]);
    let halves: Vec<_> =
        (0..SESSIONS).map(|number| call(&format!("half-{number}")).command(["true"]).spawn()).collect();
    let transactions = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'";
    eventually(LONG, "they have all sessions", || pooled.postgres().count(transactions) == SESSIONS);
    let output = Lockrun::new(store).key("other").command(["echo", "ran"]).run().exited(0).printed("ran\n").silent();
    in_time(output.took, Duration::from_secs(4), "the pool was blocked");
    drop(halves);
});

// "Waiters keep their places", also while the lock's row is not free: a waiter renews its place without it.
on_pooled!(waiters_that_cannot_get_to_the_row, |store, pooled| {
    let postgres = pooled.postgres();
    let its = token(store, "k", &["--ttl", "none"]);
    let call = Lockrun::new(store).key("k").args(["--wait", "--ttl", "6s", "--store-timeout", "1s"]);
    let waiter = call.command(["echo", "ran"]).spawn();
    until_waiting(store, "k", 1);
    let other_client = postgres.transaction("SELECT 1 FROM lockrun.locks FOR UPDATE");
    let ends_ms = || postgres.count("SELECT max(ends_ms) FROM lockrun.waiters");
    let before = ends_ms();
    eventually(LONG, "it renews its place", || ends_ms() > before);
    drop(other_client);
    release(store, "k", &its).exited(0).silent();
    waiter.wait().exited(0).printed("ran\n").silent();
});

// "A hundred first users create the tables once": a session that knows everything but the schema does not notice that
// another creates it.
on_pooled!(the_schema_is_created_by_another, |store, pooled| {
    let postgres = pooled.postgres();
    let call = Lockrun::new(store).key("k").args(["--ttl", "5m", "--store-timeout", "20s"]).command(["echo", "ran"]);
    call.run().exited(0);
    postgres.forget_everything();
    let other = postgres.transaction("CREATE SCHEMA lockrun");
    let run = call.spawn();
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = 'transactionid'";
    eventually(LONG, "it waits to create it", || postgres.count(waits) == 1);
    other.commit();
    run.wait().exited(0).printed("ran\n").silent();
});
