//! Faults of a PostgreSQL server and its tables, besides those of every store's server.

use std::time::Duration;

use serde_json::json;

use crate::support::calm::in_time;
use crate::support::crowd;
use crate::support::events::Events;
use crate::support::hand::{is_held, release, status, token};
use crate::support::holder::is_free;
use crate::support::lockrun::waiting_for_its_end;
use crate::support::places::keep_their_places;
use crate::support::postgres::Setup;
use crate::support::proxy::Mode;
use crate::support::store::on_postgres;
use crate::support::{Holder, LONG, LeaseServer, Lockrun, Postgres, Queue, Store, eventually};

/// Returns a call with a long lease that is renewed all the time.
fn busy(store: &Store, key: &str) -> Lockrun {
    Lockrun::new(store).key(key).args(["--ttl", "60s", "--renew-every", "200ms"])
}

/// Waits until the server has carried out two more requests.
#[track_caller]
fn is_renewed(postgres: &Postgres) {
    let before = postgres.requests();
    eventually(LONG, "the lease is renewed", || postgres.requests() >= before + 2);
}

// "Backend terminated while holding": each time, the holder comes back, and its command does not notice.
on_postgres!(backends_are_terminated_while_holding, |store, postgres| {
    let mut holder = waiting_for_its_end(&busy(store, "k"));
    for _ in 0..5 {
        postgres.hang_up();
        is_renewed(postgres);
    }
    assert!(!holder.run.has_ended());
    // And right before it releases the lock.
    postgres.hang_up();
    holder.finish().exited(0).silent();
    assert!(is_free(store, "k"));
});

// "Backend terminated while waiting": the places are kept, however the sessions end.
on_postgres!(backends_are_terminated_while_waiting, |store, postgres| {
    keep_their_places(store, |_| {
        let sessions = || postgres.ask("SELECT pid FROM pg_stat_activity WHERE application_name = 'lockrun'");
        let before = sessions();
        postgres.ask("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'lockrun'");
        postgres.hang_up();
        let is_new = |session: &str| !before.lines().any(|old| old == session);
        eventually(LONG, "all are back", || sessions().lines().filter(|session| is_new(session)).count() >= 10);
    });
});

// "Row deleted": the lease is lost, and "not yours" is final.
on_postgres!(the_row_is_deleted_under_a_holder, |store, postgres| {
    let holder = Holder::with(&busy(store, "k"), &[]);
    postgres.ask("DELETE FROM lockrun.locks");
    holder.wait().exited(79).said("lost");
    assert!(is_free(store, "k"));
});

// "Table dropped", and each other object of ours: the holder has lost its lock, and the next run creates the tables
// again.
on_postgres!(tables_are_dropped_under_a_holder, |store, postgres| {
    for dropped in ["TABLE lockrun.locks", "TABLE lockrun.waiters", "TABLE lockrun.version", "SCHEMA lockrun CASCADE"] {
        let mut holder = waiting_for_its_end(&busy(store, "k"));
        postgres.ask(&format!("DROP {dropped}"));
        // A holder loses nothing if its own row is left.
        if dropped.contains("locks") || dropped.contains("SCHEMA") {
            eventually(LONG, "it has ended", || holder.run.has_ended());
            holder.finish().exited(79).said("lost");
        } else {
            is_renewed(postgres);
            holder.finish().exited(0).silent();
        }
        let waiter = Lockrun::new(store).key("k").arg("--wait").command(["echo", "ran"]);
        waiter.run().exited(0).printed("ran\n").silent();
    }
});

// The same under waiters: all of them run, one at a time.
on_postgres!(tables_are_dropped_under_waiters, |store, postgres| {
    for dropped in ["TABLE lockrun.locks", "TABLE lockrun.waiters"] {
        let holder = Holder::with(&Lockrun::new(store).key("k").args(["--ttl", "3s", "--kill-after", "500ms"]), &[]);
        let mut queue = Queue::new(store, "k");
        queue.join(5);
        queue.settles();
        postgres.ask(&format!("DROP {dropped}"));
        if dropped.contains("waiters") {
            holder.end();
        }
        queue.end().in_any_order(0..5);
    }
});

// "A client that is stopped between the two round trips blocks the lock" for a moment, and no other lock at all.
on_postgres!(a_request_that_stops_half_way, |store, postgres| {
    assert!(is_free(store, "k"));
    let proxy = store.proxy();
    proxy.set(Mode::SwallowAt(postgres.word()));
    let call = Lockrun::at(&proxy.url()).key("k").args(["--ttl", "10m", "--store-timeout", "20s"]);
    let half = call.command(["echo", "ran"]).spawn();
    let transactions = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'";
    eventually(LONG, "it has the row", || postgres.count(transactions) == 1);
    assert!(is_free(store, "other"));
    let output = Lockrun::new(store).key("k").command(["echo", "ran"]).run().exited(0).printed("ran\n").silent();
    in_time(output.took, Duration::from_secs(4), "the lock was blocked");
    drop(half);
});

// "Lock times bounded": a row that another client has locked is an error in time, and a holder that cannot renew its
// lease ends its command before the lease expires.
on_postgres!(another_client_locks_the_row, |store, postgres| {
    let call = Lockrun::new(store).key("k").args(["--ttl", "4s", "--store-timeout", "500ms", "--kill-after", "500ms"]);
    let holder = Holder::with(&call, &[]);
    let other_client = postgres.transaction("SELECT 1 FROM lockrun.locks FOR UPDATE");
    let other = Lockrun::new(store).key("k").args(["--store-timeout", "500ms"]).command(["echo", "ran"]).run();
    other.exited(69).printed("");
    holder.wait().exited(79).said("lost");
    drop(other_client);
    eventually(LONG, "the lock is free", || is_free(store, "k"));
});

// "Statement times bounded": a table that is locked as a whole, as by a migration, holds up no one beyond that.
on_postgres!(another_client_locks_the_table, |store, postgres| {
    assert!(is_free(store, "k"));
    let other_client = postgres.transaction("LOCK TABLE lockrun.locks, lockrun.waiters IN ACCESS EXCLUSIVE MODE");
    let call = Lockrun::new(store).key("k").args(["--store-timeout", "1s"]);
    let output = call.clone().command(["echo", "ran"]).run().exited(69).printed("");
    in_time(output.took, Duration::from_secs(4), "it gave up");
    let waiter = call.arg("--wait").command(["echo", "ran"]).spawn();
    drop(other_client);
    // A waiter may sit it out, or not.
    let output = waiter.wait();
    assert!(matches!(output.status, Some(0 | 69)), "{output}");
    assert!(is_free(store, "k"));
});

// "Waiters wait": over a network so slow that the lock's row has no time for all of them, none fails, whether it joins
// or waits for longer than a place lasts.
on_postgres!(many_waiters_are_far_away, |store, postgres| {
    const MANY: usize = 80;
    let _turn = crowd::turn();
    let proxy = store.proxy();
    let holder = Holder::with(&Lockrun::new(store).key("far").args(["--ttl", "10m"]), &[]);
    proxy.set(Mode::Delay(Duration::from_millis(100)));
    let mut queue = Queue::through(&proxy.url(), store, "far").with(&["--ttl", "10m"]);
    queue.storm(MANY);
    eventually(LONG, "all have joined", || queue.length() == MANY);
    let joined_ms = postgres.count("SELECT max(ends_ms) FROM lockrun.waiters");
    let renewed = format!("SELECT count(*) FROM lockrun.waiters WHERE ends_ms > {joined_ms}");
    eventually(LONG, "all have renewed their places", || postgres.count(&renewed) == MANY as u64);
    proxy.set(Mode::Pass);
    holder.end();
    queue.end().in_any_order(0..MANY);
});

// "40P01, 40001": a transaction that is rolled back is repeated; if each attempt is, the last refusal is the failure,
// and a passing one.
on_postgres!(each_transaction_is_rolled_back, |store, postgres| {
    assert!(is_free(store, "free"));
    postgres.ask("CREATE SEQUENCE tries");
    for code in ["40P01", "40001"] {
        let held = token(store, "held", &["--ttl", "none"]);
        postgres.ask(&format!(
            "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 PERFORM nextval('public.tries'); RAISE EXCEPTION 'not now' USING ERRCODE = '{code}';
             END $$"
        ));
        postgres.ask("CREATE TRIGGER refuse BEFORE UPDATE ON lockrun.locks FOR EACH ROW EXECUTE FUNCTION refuse()");
        let output = Lockrun::new(store).key("free").command(["echo", "ran"]).run().exited(69).printed("");
        let said = format!("not now (SQLSTATE {code})");
        assert!(output.stderr().contains(&said) && !output.stderr().contains("is it a PostgreSQL"), "{output}");
        let tries = || postgres.count("SELECT last_value FROM tries");
        let before = tries();
        let release = Lockrun::other("release", store).key("held").args(["--token", &held, "--store-timeout", "60s"]);
        let release = release.spawn();
        eventually(LONG, "it has tried more often than one request does", || tries() > before + 5);
        postgres.ask("DROP TRIGGER refuse ON lockrun.locks");
        release.wait().exited(0);
        assert!(is_free(store, "held"));
    }
});

// "A broken record is an error, never a free lock": 69, and `status` still tells of the others.
on_postgres!(broken_records, |store, postgres| {
    token(store, "fine", &["--ttl", "none"]);
    let holder = |without: &str| {
        let mut holder = serde_json::json!({
            "token": "x", "fence": 1, "slot": 0, "who": {}, "since_ms": 1, "lease": {"ends_ms": null, "ttl_ms": null}
        });
        holder.as_object_mut().expect("it is one").remove(without);
        serde_json::json!({"holders": [holder]}).to_string()
    };
    let lacking = ["token", "fence", "slot", "who", "since_ms", "lease"].map(holder);
    let without = |field: &str| holder("nothing").replace(field, "other");
    let lacking = [&lacking[..], &["ends_ms", "ttl_ms"].map(without)].concat();
    let others = ["{}", "[]", "7", "\"x\"", "null", "{\"holders\": 7}", "{\"holders\": [{}]}", "{\"fence\": -1}"];
    for broken in others.into_iter().chain(lacking.iter().map(String::as_str)) {
        token(store, "broken", &["--ttl", "none"]);
        postgres.ask(&format!("UPDATE lockrun.locks SET state = '{broken}' WHERE key = 'broken'"));
        // In an empty record everything is gone, which cannot be distinguished from what never was.
        if broken != "{}" {
            let call = Lockrun::new(store).key("broken").command(["echo", "ran"]);
            let output = call.run();
            assert_eq!((output.status, output.stdout().as_str()), (Some(69), ""), "{broken}: {output}");
            assert!(
                output.stderr().contains("\"broken\"") && output.stderr().contains("column state"),
                "{broken}: {output}"
            );
            let all = Lockrun::other("status", store).run();
            assert!(all.stdout().contains("fine"), "{broken}: {all}");
        }
        postgres.ask("DELETE FROM lockrun.locks WHERE key = 'broken'");
    }
    assert!(is_held(store, "fine"));
});

// The same for waiters that another program has written.
on_postgres!(broken_waiters, |store, postgres| {
    for broken in ["{}", "[]", "null", "{\"token\": 7}"] {
        let store = &store.another();
        let postgres = store.as_postgres().unwrap_or(postgres);
        let holder = Holder::new(store, "k");
        postgres.ask(&format!(
            "INSERT INTO lockrun.waiters (key, token, waiter, ends_ms) VALUES ('k', 'x', '{broken}', 9000000000000)"
        ));
        let newcomer = Lockrun::new(store).key("k").command(["echo", "ran"]).run();
        assert_eq!(newcomer.status, Some(69), "{broken}: {newcomer}");
        assert!(
            newcomer.stderr().contains("\"k\"") && newcomer.stderr().contains("column waiter"),
            "{broken}: {newcomer}"
        );
        postgres.ask("DELETE FROM lockrun.waiters");
        holder.end();
        assert!(is_free(store, "k"), "{broken}");
    }
});

// "A server restarted" by an administrator who lets the clients finish: no one loses anything.
on_postgres!(the_server_is_restarted_in_peace, |store, postgres| {
    let mut holder = waiting_for_its_end(&busy(store, "k"));
    let events = Events::new();
    let waiter = events.of(Lockrun::new(store).key("k").arg("--wait")).command(["echo", "ran"]).spawn();
    events.hear("waiting", 1);
    let fence = status(store, "k")["holders"][0]["fence"].clone();
    postgres.stop_in_peace();
    postgres.start_again();
    is_renewed(postgres);
    assert!(!holder.run.has_ended());
    assert_eq!(status(store, "k")["holders"][0]["fence"], fence);
    holder.finish().exited(0).silent();
    waiter.wait().exited(0).printed("ran\n").silent();
});

// "The server killed": a lock that lockrun has reported as released is, and it was handed to the waiter.
#[test]
fn a_hand_off_outlives_a_crash() {
    // The server writes to its disk only when a commit waits for that.
    let settings = vec!["wal_writer_delay=10s".to_owned(), "bgwriter_delay=10s".to_owned()];
    let store = Store::Postgres(Postgres::with(&Setup { settings, ..Setup::default() }));
    let postgres = store.as_postgres().expect("just made");
    let ours = token(&store, "k", &["--ttl", "none"]);
    let waiter = json!({ "token": "waiter", "who": {}, "mode": { "slots": 1 }, "joined_ms": 1, "place_ms": 90000, "ends_ms": 1 });
    postgres.add_waiter("k", &waiter);
    release(&store, "k", &ours).exited(0).silent();
    postgres.kill();
    postgres.start_again();
    assert_eq!(postgres.ask("SELECT state->'holders'->0->>'token' FROM lockrun.locks WHERE key = 'k'"), "waiter\n");
    assert_eq!(postgres.count("SELECT count(*) FROM lockrun.waiters"), 0);
}
