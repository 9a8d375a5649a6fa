//! Waiters in a PostgreSQL database when something goes wrong as they get the lock, or while they sleep.

use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::calm::{held_in_time, in_time};
use crate::support::hand::{acquire, break_lock, is_held, release, token, until_waiting};
use crate::support::holder::is_free;
use crate::support::lockrun::waiting_for_its_end;
use crate::support::processes::state;
use crate::support::proxy::{Mode, Proxy};
use crate::support::store::on_postgres;
use crate::support::{LONG, LeaseServer, Lockrun, Postgres, Queue, Store, eventually, stays_true_for};

/// How late a waiter learns that it has the lock: later than `--store-timeout`, but not too late for one that has just
/// logged in.
const LATE: Duration = Duration::from_secs(4);

/// Returns a call that waits for the lock.
fn waits(url: &str) -> Lockrun {
    Lockrun::at(url).key("k").args(["--wait", "--store-timeout", "2s"])
}

/// Waits until the lock is held, and the answer that says so is on its way through the proxy, which delays it.
fn until_it_is_held_unknowingly(store: &Store, proxy: &Proxy) {
    eventually(LONG, "the lock is its own, and it does not know yet", || proxy.delayed() > 0 && is_held(store, "k"));
}

// "One at a time", also if a waiter learns so late that it has the lock that it has lost it again. It goes on waiting.
on_postgres!(a_late_grant_that_is_lost_by_then, |store, postgres| {
    assert!(is_free(store, "k"));
    let lose: [fn(&Store, &Postgres); 2] = [
        |store, _| drop(break_lock(store, "k", &["--now"]).exited(0)),
        |_, postgres| drop(postgres.ask("DELETE FROM lockrun.locks")),
    ];
    for lose in lose {
        let proxy = store.proxy();
        proxy.set(Mode::DelayAnswers(LATE));
        let waiter = waits(&proxy.url()).args(["--ttl", "none"]).command(["echo", "ran"]).spawn();
        until_it_is_held_unknowingly(store, &proxy);
        proxy.set(Mode::Pass);
        lose(store, postgres);
        let other = token(store, "k", &["--ttl", "none"]);
        until_waiting(store, "k", 1);
        assert_eq!(waiter.stdout(), "");
        release(store, "k", &other).exited(0).silent();
        waiter.wait().exited(0).printed("ran\n");
    }
});

// The same if the lock was revoked meanwhile: no command is started only to be ended.
on_postgres!(a_late_grant_that_is_revoked_by_then, |store, _postgres| {
    assert!(is_free(store, "k"));
    let proxy = store.proxy();
    proxy.set(Mode::DelayAnswers(LATE));
    let waiter = waits(&proxy.url()).args(["--ttl", "10m"]).command(["echo", "ran"]).spawn();
    until_it_is_held_unknowingly(store, &proxy);
    proxy.set(Mode::Pass);
    break_lock(store, "k", &[]).exited(0);
    waiter.wait().exited(69).printed("").said("revoked");
    assert!(is_free(store, "k"));
});

// The same if the lease has expired by then: nothing was lost, and the waiter asks again.
on_postgres!(a_late_grant_whose_lease_is_over_by_then, |store, _postgres| {
    assert!(is_free(store, "k"));
    let proxy = store.proxy();
    proxy.set(Mode::DelayAnswers(Duration::from_secs(7)));
    let call = Lockrun::at(&proxy.url()).key("k").args(["--wait", "--ttl", "6s", "--store-timeout", "4s"]);
    let waiter = call.args(["--renew-every", "500ms", "--kill-after", "500ms"]).command(["echo", "ran"]).spawn();
    until_it_is_held_unknowingly(store, &proxy);
    proxy.set(Mode::Pass);
    waiter.wait().exited(0).printed("ran\n").silent();
});

// A late grant is confirmed before COMMAND starts. If the connection is lost just then, the waiter asks again.
on_postgres!(a_late_grant_that_cannot_be_confirmed, |store, postgres| {
    assert!(is_free(store, "k"));
    let proxy = store.proxy();
    proxy.set(Mode::DelayAnswers(LATE));
    let waiter = waits(&proxy.url()).args(["--ttl", "10m"]).command(["echo", "ran"]).spawn();
    until_it_is_held_unknowingly(store, &proxy);
    let before = proxy.connections();
    proxy.set(Mode::CloseAt(postgres.word()));
    eventually(LONG, "it has connected again", || proxy.connections() > before);
    proxy.set(Mode::Pass);
    waiter.wait().exited(0).printed("ran\n").silent();
});

// "Nothing stays unused": a waiter that has lost its place, as on a paused machine, was passed over when a slot became
// free, and no one notifies it. It sees the slot by itself when it asks.
on_postgres!(a_slot_that_was_released_after_a_place_was_lost, |store, postgres| {
    let slots = ["--slots", "2", "--ttl", "10m"];
    let first = token(store, "k", &slots);
    let second = token(store, "k", &slots);
    let waiter = Lockrun::new(store).key("k").args(slots).arg("--wait").command(["echo", "ran"]).spawn();
    eventually(LONG, "it sleeps", || postgres.asleep() == 1);
    postgres.ask("UPDATE lockrun.waiters SET ends_ms = 0");
    release(store, "k", &first).exited(0).silent();
    waiter.wait().exited(0).printed("ran\n").silent();
    release(store, "k", &second).exited(0).silent();
});

// "Very many simultaneous waiters do not keep the holder from renewing": none of those that ask for the lock waits for
// its row for a second (`deadlock_timeout`), after which the server compares it with all others that do.
on_postgres!(nobody_waits_for_the_row_until_the_server_looks_for_a_deadlock, |store, postgres| {
    let keys = ["k", "l"];
    assert!(keys.iter().all(|key| is_free(store, key)));
    postgres.ask("ALTER SYSTEM SET log_lock_waits = on");
    postgres.ask("SELECT pg_reload_conf()");
    let rows = postgres.transaction("SELECT FROM lockrun.locks FOR UPDATE");
    let call = Lockrun::new(store).args(["--ttl", "10m", "--store-timeout", "1m"]);
    let runs = [call.clone().key("k"), call.key("l").arg("--wait")].map(|call| call.command(["echo", "ran"]).spawn());
    let tries = || postgres.log().matches("canceling statement due to lock timeout").count();
    eventually(LONG, "both have tried again and again", || tries() >= 5);
    rows.commit();
    for run in runs {
        run.wait().printed("ran\n").silent();
    }
    held_in_time(!postgres.log().contains("still waiting for"), "the server looks for no deadlock");
});

// "A waiter keeps its place if the store comes back with its data", also if it has to wait for the lock's row then: it
// renews its place before it asks.
on_postgres!(a_waiter_that_connects_anew_keeps_its_place, |store, postgres| {
    let its = token(store, "k", &["--ttl", "none"]);
    let waiter = Lockrun::new(store).key("k").args(["--wait", "--ttl", "6s"]).command(["echo", "ran"]).spawn();
    eventually(LONG, "it sleeps", || postgres.asleep() == 1);
    let row = postgres.transaction("SELECT FROM lockrun.locks FOR UPDATE");
    postgres.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lockrun'");
    let ends_ms = || postgres.count("SELECT ends_ms FROM lockrun.waiters");
    let before = ends_ms();
    eventually(LONG, "it renews its place", || ends_ms() > before);
    row.commit();
    release(store, "k", &its).exited(0).silent();
    waiter.wait().exited(0).printed("ran\n").silent();
});

// A run that does not wait uses all of its time for that, however short that is.
on_postgres!(a_run_waits_for_the_row_until_its_time_is_over, |store, postgres| {
    assert!(is_free(store, "k"));
    let row = postgres.transaction("SELECT FROM lockrun.locks FOR UPDATE");
    let run = Lockrun::new(store).key("k").args(["--store-timeout", "2s"]).command(["echo", "ran"]).spawn();
    let has_tried = || postgres.log().contains("canceling statement due to lock timeout");
    eventually(LONG, "it has waited for a while", has_tried);
    row.commit();
    let output = run.wait();
    held_in_time(output.status == Some(0), &format!("it has waited once more: {output}"));
});

/// Makes the server reject notifications, as if its queue of 8 GB were full.
fn fill_queue_of_notifications(postgres: &Postgres) {
    postgres.ask(
        "ALTER FUNCTION pg_catalog.pg_notify(text, text) RENAME TO notify_others;
         CREATE FUNCTION pg_catalog.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS
             $$ BEGIN RAISE 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000'; END $$",
    );
}

// If the server's queue of notifications is full, because a client listens and does not read, it rejects further ones.
// Since they are only hints, they are left out: locks are released and handed off all the same, if not at once.
on_postgres!(the_queue_of_notifications_is_full, |store, postgres| {
    let its = token(store, "k", &["--ttl", "none"]);
    let waiter = Lockrun::new(store).key("k").args(["--wait", "--ttl", "none"]).command(["echo", "ran"]).spawn();
    eventually(LONG, "it sleeps", || postgres.asleep() == 1);
    fill_queue_of_notifications(postgres);
    release(store, "k", &its).exited(0).silent();
    waiter.wait().exited(0).printed("ran\n").silent();
    token(store, "k", &["--ttl", "none"]);
    let waiter = Lockrun::new(store).key("k").args(["--wait", "--ttl", "none"]).command(["echo", "ran"]).spawn();
    eventually(LONG, "it sleeps", || postgres.asleep() == 1);
    break_lock(store, "k", &["--now"]).exited(0);
    waiter.wait().exited(0).printed("ran\n").silent();
});

// "In turn", also then: each of them finds out when it renews its place.
on_postgres!(the_queue_of_notifications_is_full_for_two_waiters, |store, postgres| {
    let its = token(store, "k", &["--ttl", "none"]);
    let mut queue = Queue::new(store, "k").with(&["--ttl", "6s"]);
    queue.join(2);
    eventually(LONG, "they sleep", || queue.asleep() == 2);
    fill_queue_of_notifications(postgres);
    release(store, "k", &its).exited(0).silent();
    queue.end().in_order(0..2);
});

/// Lets the server refuse to commit what the program of this name changes of a lock.
fn forbid_commits(postgres: &Postgres, program: &str, code: &str) {
    postgres.ask(&format!(
        "CREATE FUNCTION forbid() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF current_setting('application_name') = '{program}' THEN
                 RAISE 'not now' USING ERRCODE = '{code}';
             END IF;
             RETURN NULL;
         END $$;
         CREATE CONSTRAINT TRIGGER forbid AFTER UPDATE ON lockrun.locks
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION forbid()"
    ));
}

// A waiter's session has prepared what a hand-off takes: what the waiter reads when it is woken, and what it sends when
// it hands the lock on.
on_postgres!(what_a_hand_off_takes_is_prepared, |store, postgres| {
    postgres.ask("ALTER DATABASE postgres SET log_statement = 'all'");
    let its = token(store, "k", &["--ttl", "none"]);
    let mut queue = Queue::new(store, "k");
    queue.join(2);
    eventually(LONG, "they sleep", || queue.asleep() == 2);
    release(store, "k", &its).exited(0).silent();
    queue.end().in_order(0..2);
    let log = postgres.log();
    for at in 0..6 {
        let name = format!("_{at}: ");
        assert!(log.lines().any(|line| line.contains("execute lockrun_") && line.contains(&name)), "{at}\n{log}");
    }
});

// A session may lose what it has prepared, as by DISCARD ALL: the waiter gets the lock, renews it and releases it all
// the same.
on_postgres!(a_session_that_loses_what_it_has_prepared, |store, postgres| {
    assert!(is_free(store, "k"));
    postgres.ask(
        "CREATE SEQUENCE losses;
         CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             DEALLOCATE ALL;
             PERFORM nextval('public.losses');
             RETURN NULL;
         END $$;",
    );
    let lose = |table: &str| {
        postgres
            .ask(&format!("CREATE TRIGGER lose AFTER UPDATE ON lockrun.{table} FOR EACH ROW EXECUTE FUNCTION lose()"));
    };
    let losses = || postgres.count("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM losses");
    let options = ["--wait", "--ttl", "6s", "--renew-every", "500ms", "--kill-after", "500ms"];
    // While it sleeps, and while it holds the lock.
    for table in ["waiters", "locks"] {
        let its = token(store, "k", &["--ttl", "none"]);
        let proxy = store.proxy();
        let waiter =
            Lockrun::at(&proxy.url()).key("k").args(options).command(["sh", "-c", "sleep 4; echo ran"]).spawn();
        eventually(LONG, "it sleeps", || postgres.asleep() == 1);
        if table == "waiters" {
            lose(table);
            let before = losses();
            eventually(LONG, "it has renewed its place", || losses() > before);
        }
        release(store, "k", &its).exited(0).silent();
        if table == "locks" {
            lose(table);
            let before = losses();
            eventually(LONG, "it has renewed the lock twice", || losses() > before + 1);
        }
        waiter.wait().exited(0).printed("ran\n").silent();
        assert_eq!(proxy.connections(), 1, "it needs no new session");
        assert!(is_free(store, "k"));
        postgres.ask(&format!("DROP TRIGGER lose ON lockrun.{table}"));
    }
});

// "Every role of the database can send" a notification, in a database without an encoding also one that is no text.
// That ends no wait.
on_postgres!(notifications_that_are_no_text, |store, postgres| {
    postgres.create_database("raw ENCODING 'SQL_ASCII' LOCALE 'C'");
    let url = store.url().replacen("/postgres?", "/raw?", 1);
    let mut holder = waiting_for_its_end(&Lockrun::at(&url).key("k"));
    let mut waiter = Lockrun::at(&url).key("k").arg("--wait").command(["echo", "ran"]).spawn();
    let send = || {
        let text = "SELECT pg_notify(channel, E'\\xff') FROM lockrun.waiters";
        let mut psql = Command::new("psql");
        psql.args(["-qAt", "-h", "127.0.0.1", "-U", "postgres", "-p", &postgres.port().to_string(), "-c", text, "raw"]);
        psql.output().expect("psql(1) is there").status.success()
    };
    let idle = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'raw' AND state = 'idle'";
    eventually(LONG, "one holds the lock and one waits", || postgres.count(idle) == 2);
    for _ in 0..5 {
        assert!(send(), "it was sent");
    }
    stays_true_for(Duration::from_secs(1), "it waits", || !waiter.has_ended());
    assert!(!holder.run.has_ended());
    holder.finish().exited(0).silent();
    waiter.wait().exited(0).printed("ran\n").silent();
});

/// Makes all waiters look at the lock, whose lease has ended.
fn expire_and_notify(store: &Store, postgres: &Postgres) {
    store.server().expire("k");
    postgres.ask("SELECT pg_notify(channel, '') FROM lockrun.waiters");
}

// A waiter sits out passing errors of the server.
on_postgres!(troubles_of_the_server_that_pass, |store, postgres| {
    let url = postgres.url_as("postgres", "sslmode=disable&application_name=waiter");
    // lock_not_available, configuration_limit_exceeded, io_error, internal_error
    for code in ["55P03", "53400", "58030", "XX000"] {
        token(store, "k", &["--ttl", "none"]);
        let mut waiter = Lockrun::at(&url).key("k").arg("--wait").command(["echo", "ran"]).spawn();
        eventually(LONG, "it sleeps", || postgres.asleep() == 1);
        forbid_commits(postgres, "waiter", code);
        expire_and_notify(store, postgres);
        stays_true_for(Duration::from_secs(1), "it goes on waiting", || !waiter.has_ended());
        postgres.ask("DROP FUNCTION forbid CASCADE");
        waiter.wait().exited(0).printed("ran\n").silent();
    }
});

// "In turn", also right after a restart of the server: a newcomer does not overtake waiters that are about to
// reconnect.
on_postgres!(the_server_is_restarted_before_a_newcomer, |store, postgres| {
    let its = token(store, "k", &["--ttl", "none"]);
    let waiter = Lockrun::new(store).key("k").arg("--wait").command(["echo", "ran"]).spawn();
    eventually(LONG, "it sleeps", || postgres.asleep() == 1);
    // It is slow to reconnect.
    waiter.signal(Signal::SIGSTOP);
    eventually(LONG, "it stands still", || state(waiter.pid()) == Some('T'));
    postgres.stop_in_peace();
    postgres.start_again();
    release(store, "k", &its).exited(0).silent();
    let newcomer = acquire(store, "k", &["--ttl", "none"]).run();
    held_in_time(newcomer.status == Some(75), "it was overtaken");
    waiter.signal(Signal::SIGCONT);
    waiter.wait().exited(0).printed("ran\n").silent();
});

// A waiter that has died before a restart keeps the others waiting until its place has ended.
on_postgres!(a_waiter_dies_before_the_server_is_restarted, |store, postgres| {
    token(store, "k", &["--shared", "--ttl", "none"]);
    let writer = Lockrun::new(store).key("k").args(["--wait", "--ttl", "4s"]).command(["true"]).spawn();
    eventually(LONG, "it sleeps", || postgres.asleep() == 1);
    drop(writer);
    postgres.stop_in_peace();
    postgres.start_again();
    let reader = Lockrun::new(store).key("k").args(["--shared", "--wait"]).command(["true"]).run().exited(0);
    in_time(reader.took, Duration::from_secs(9), "it waits for the dead");
});

// "It keeps its place": one that cannot get to the lock's row renews its place, however long it may wait for an
// answer.
on_postgres!(a_row_that_is_locked_for_long, |store, postgres| {
    token(store, "k", &["--ttl", "none"]);
    let call = Lockrun::new(store).key("k").args(["--wait", "--ttl", "6s", "--store-timeout", "1s"]);
    let waiter = call.command(["echo", "ran"]).spawn();
    eventually(LONG, "it sleeps", || postgres.asleep() == 1);
    store.server().expire("k");
    let other = postgres.transaction("SELECT FROM lockrun.locks WHERE key = 'k' FOR UPDATE");
    let now_ms = || postgres.count("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint");
    let from_ms = now_ms();
    let lasts = "SELECT count(*) FROM lockrun.waiters WHERE ends_ms > extract(epoch FROM clock_timestamp()) * 1000";
    eventually(LONG, "its place would have ended", || {
        assert_eq!(postgres.count(lasts), 1, "it has lost its place");
        now_ms() > from_ms + 8000
    });
    drop(other);
    waiter.wait().exited(0).printed("ran\n").silent();
});

// "The waiter waits or holds the lock until its place ends": also if it renews its place while the lock is handed to
// it, after its row was read. The lease ends no sooner than the place, whether the renewal is complete before the
// row is moved or not.
on_postgres!(a_place_is_renewed_during_the_hand_off, |store, postgres| {
    let proxy = store.proxy();
    let waiter =
        json!({ "token": "w", "who": {}, "mode": { "slots": 1 }, "joined_ms": 1, "place_ms": 90000, "ends_ms": 1 });
    for is_complete in [true, false] {
        let its = token(store, "k", &["--ttl", "none"]);
        postgres.add_waiter("k", &waiter);
        postgres.ask("UPDATE lockrun.waiters SET ends_ms = extract(epoch FROM clock_timestamp()) * 1000 + 60000");
        proxy.set(Mode::HoldAt("DELETE FROM"));
        let call = Lockrun::bare().args(["release", "--key", "k", "--token", &its, "--store", &proxy.url()]);
        let release = call.spawn();
        eventually(LONG, "it has read the row", || proxy.held() > 0);
        thread::sleep(Duration::from_millis(300));
        // At least until then: the renewal begins later.
        let promised_ms = postgres.count("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint + 90000");
        let renewed = postgres
            .transaction("UPDATE lockrun.waiters SET ends_ms = extract(epoch FROM clock_timestamp()) * 1000 + 90000");
        if is_complete {
            renewed.commit();
            proxy.set(Mode::Pass);
        } else {
            proxy.set(Mode::Pass);
            let blocked =
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%DELETE FROM%'";
            eventually(LONG, "it waits for the renewal", || postgres.count(blocked) == 1);
            renewed.commit();
        }
        release.wait().exited(0).silent();
        let ends_ms = postgres.count("SELECT state->'holders'->0->'lease'->>'ends_ms' FROM lockrun.locks");
        assert!(ends_ms >= promised_ms, "the lease ends {} ms too soon", promised_ms - ends_ms);
        assert_eq!(postgres.count("SELECT count(*) FROM lockrun.waiters"), 0);
        postgres.ask("DELETE FROM lockrun.locks");
    }
});

// A place that was lost is not renewed by a request that arrives late: the waiter joins at the end.
on_postgres!(a_place_that_has_ended_is_not_renewed, |store, postgres| {
    let its = token(store, "k", &["--ttl", "none"]);
    let mut queue = Queue::new(store, "k").with(&["--ttl", "6s"]);
    queue.join(2);
    queue.settles();
    let first = "place = (SELECT min(place) FROM lockrun.waiters)";
    postgres.ask(&format!("UPDATE lockrun.waiters SET ends_ms = 0 WHERE {first}"));
    let before = postgres.ask("SELECT min(place) FROM lockrun.waiters");
    eventually(LONG, "it has joined anew", || postgres.ask("SELECT min(place) FROM lockrun.waiters") != before);
    eventually(LONG, "both wait", || queue.length() == 2);
    release(store, "k", &its).exited(0).silent();
    queue.end().in_order([1, 0]);
});
