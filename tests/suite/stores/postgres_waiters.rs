//! Waiters in a PostgreSQL database when something goes wrong as they get the lock, or while they sleep.

use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::calm::{held_in_time, in_time, stays_in_time_for};
use crate::support::hand::{acquire, break_lock, is_held, release, token, until_waiting};
use crate::support::holder::is_free;
use crate::support::lockrun::waiting_for_its_end;
use crate::support::processes::state;
use crate::support::proxy::Mode;
use crate::support::store::on_postgres;
use crate::support::{LONG, LeaseServer, Lockrun, Postgres, Queue, Store, eventually, stays_true_for};

/// How late a waiter learns that it has the lock: later than `--store-timeout`, but not too late for one that has just logged in.
const LATE: Duration = Duration::from_secs(4);

/// Counts the requests that wait for the row of a lock.
const LOOKS: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'SELECT state, key FROM%FOR UPDATE'";

/// Returns a call that waits for the lock.
fn waits(url: &str) -> Lockrun {
    Lockrun::at(url).key("k").args(["--wait", "--store-timeout", "2s"])
}

// "One at a time", also if a waiter learns so late that it has the lock that it has lost it again. It goes on waiting.
on_postgres!(a_late_grant_that_is_lost_by_then, |store, postgres| {
    assert!(is_free(store, "k"));
    let proxy = store.proxy();
    let lose: [fn(&Store, &Postgres); 2] = [
        |store, _| drop(break_lock(store, "k", &["--now"]).exited(0)),
        |_, postgres| drop(postgres.ask("DELETE FROM lockrun.locks")),
    ];
    for lose in lose {
        proxy.set(Mode::DelayAnswers(LATE));
        let waiter = waits(&proxy.url()).args(["--ttl", "none"]).command(["echo", "ran"]).spawn();
        eventually(LONG, "the lock is its own, and it does not know yet", || is_held(store, "k"));
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
    eventually(LONG, "the lock is its own, and it does not know yet", || is_held(store, "k"));
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
    eventually(LONG, "the lock is its own, and it does not know yet", || is_held(store, "k"));
    proxy.set(Mode::Pass);
    waiter.wait().exited(0).printed("ran\n").silent();
});

// A late grant is confirmed before COMMAND starts. If the connection is lost just then, the waiter asks again.
on_postgres!(a_late_grant_that_cannot_be_confirmed, |store, postgres| {
    assert!(is_free(store, "k"));
    let proxy = store.proxy();
    proxy.set(Mode::DelayAnswers(LATE));
    let waiter = waits(&proxy.url()).args(["--ttl", "10m"]).command(["echo", "ran"]).spawn();
    eventually(LONG, "the lock is its own, and it does not know yet", || is_held(store, "k"));
    let before = proxy.connections();
    proxy.set(Mode::CloseAt(postgres.word()));
    eventually(LONG, "it has connected again", || proxy.connections() > before);
    proxy.set(Mode::Pass);
    waiter.wait().exited(0).printed("ran\n").silent();
});

// "Nothing stays unused": a waiter that was silent for a while, as on a paused machine, was passed over when a slot became free, and no one
// notifies it. It sees the slot by itself when it is back.
on_postgres!(a_slot_that_was_released_while_a_waiter_was_silent, |store, postgres| {
    let slots = ["--slots", "2", "--ttl", "10m"];
    let first = token(store, "k", &slots);
    let second = token(store, "k", &slots);
    let waiter = Lockrun::new(store).key("k").args(slots).arg("--wait").command(["echo", "ran"]).spawn();
    eventually(LONG, "it sleeps", || postgres.asleep() == 1);
    // Its heartbeat is long overdue.
    postgres.ask("UPDATE lockrun.waiters SET looks_at_ms = 0");
    release(store, "k", &first).exited(0).silent();
    waiter.wait().exited(0).printed("ran\n").silent();
    release(store, "k", &second).exited(0).silent();
});

/// Makes the server reject notifications, as if its queue of 8 GB were full. Those sent by `notify_others` arrive.
fn fill_queue_of_notifications(postgres: &Postgres) {
    postgres.ask(
        "ALTER FUNCTION pg_catalog.pg_notify(text, text) RENAME TO notify_others;
         CREATE FUNCTION pg_catalog.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS
             $$ BEGIN RAISE 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000'; END $$",
    );
}

// If the server's queue of notifications is full, because a client listens and does not read, it rejects further ones. Since they are only
// hints, they are left out: locks are released and handed off all the same, if not at once.
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

// "In turn", also then: a waiter that does not know yet that it was granted the lock is not passed over.
on_postgres!(the_queue_of_notifications_is_full_for_two_waiters, |store, postgres| {
    let its = token(store, "k", &["--ttl", "none"]);
    let mut queue = Queue::new(store, "k").with(&["--ttl", "none"]);
    queue.join(2);
    eventually(LONG, "they sleep", || queue.asleep() == 2);
    fill_queue_of_notifications(postgres);
    let released_ms = postgres.count("SELECT (extract(epoch FROM now()) * 1000)::bigint");
    release(store, "k", &its).exited(0).silent();
    // Longer than a notified waiter may take.
    let is_over = format!("SELECT count(*) WHERE extract(epoch FROM now()) * 1000 > {released_ms} + 2500");
    eventually(LONG, "the first one has not heard of it for long", || postgres.count(&is_over) == 1);
    let show = |order| {
        postgres.ask(&format!(
            "SELECT notify_others('lockrun_' || to_hex(session), 'show')
             FROM (SELECT session FROM lockrun.waiters ORDER BY place {order} LIMIT 1) AS it"
        ))
    };
    show("DESC");
    let unheard = format!("SELECT count(*) FROM lockrun.waiters WHERE looked_at_ms < {released_ms}");
    eventually(LONG, "the second one is heard of", || postgres.count(&unheard) < 2);
    stays_in_time_for(Duration::from_secs(1), "nobody is passed over", || !queue.begun().contains(&"1".to_owned()));
    show("ASC");
    postgres.ask(
        "DROP FUNCTION pg_catalog.pg_notify(text, text);
         ALTER FUNCTION pg_catalog.notify_others(text, text) RENAME TO pg_notify",
    );
    queue.end().in_order(0..2);
});

// The same for a waiter that leaves unused what those behind it could have: it does not hear that it is called.
on_postgres!(the_queue_of_notifications_is_full_for_a_writer, |store, postgres| {
    let its = token(store, "k", &["--shared", "--ttl", "none"]);
    let writer = Lockrun::new(store).key("k").args(["--wait", "--ttl", "none"]).command(["echo", "ran"]).spawn();
    eventually(LONG, "it sleeps", || postgres.asleep() == 1);
    fill_queue_of_notifications(postgres);
    let reader = Lockrun::new(store).key("k").args(["--shared", "--wait", "4s"]).command(["true"]).run();
    held_in_time(reader.status == Some(75), "the writer was passed over");
    release(store, "k", &its).exited(0).silent();
    writer.wait().exited(0).printed("ran\n").silent();
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

// A waiter whose claim is rolled back still listens, and the others see that it lives.
on_postgres!(a_claim_that_is_rolled_back, |store, postgres| {
    let its = token(store, "k", &["--ttl", "none"]);
    let url = postgres.url_as("postgres", "sslmode=disable&application_name=waiter");
    let waiter = Lockrun::at(&url).key("k").arg("--wait").command(["echo", "ran"]).spawn();
    eventually(LONG, "it sleeps", || postgres.asleep() == 1);
    forbid_commits(postgres, "waiter", "55P03");
    release(store, "k", &its).exited(0).silent();
    let mut other = String::new();
    eventually(LONG, "the grant has ended, and another one has the lock", || {
        let output = acquire(store, "k", &["--ttl", "none"]).run();
        output.stdout().trim_end().clone_into(&mut other);
        output.status == Some(0)
    });
    eventually(LONG, "it sleeps again", || postgres.asleep() == 1);
    postgres.ask("DROP FUNCTION forbid CASCADE");
    release(store, "k", &other).exited(0).silent();
    waiter.wait().exited(0).printed("ran\n").silent();
});

// "Every role of the database can send" a notification, in a database without an encoding also one that is no text. That ends no wait.
on_postgres!(notifications_that_are_no_text, |store, postgres| {
    postgres.ask("CREATE DATABASE raw ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0");
    let url = store.url().replacen("/postgres?", "/raw?", 1);
    let mut holder = waiting_for_its_end(&Lockrun::at(&url).key("k"));
    let mut waiter = Lockrun::at(&url).key("k").arg("--wait").command(["echo", "ran"]).spawn();
    let send = || {
        let text = "SELECT pg_notify('lockrun_' || to_hex(session), E'\\xff') FROM lockrun.waiters";
        let mut psql = Command::new("psql");
        psql.args(["-qAt", "-h", "127.0.0.1", "-U", "postgres", "-p", &postgres.port().to_string(), "-c", text, "raw"]);
        psql.output().expect("psql(1) is there").status.success()
    };
    let listens = "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database
        WHERE datname = 'raw' AND locktype = 'advisory' AND granted";
    eventually(LONG, "it waits", || postgres.count(listens) == 1);
    for _ in 0..5 {
        assert!(send(), "it was sent");
    }
    stays_true_for(Duration::from_secs(1), "it waits", || !waiter.has_ended());
    assert!(!holder.run.has_ended());
    holder.finish().exited(0).silent();
    waiter.wait().exited(0).printed("ran\n").silent();
});

// A waiter sits out passing errors of the server.
on_postgres!(troubles_of_the_server_that_pass, |store, postgres| {
    let url = postgres.url_as("postgres", "sslmode=disable&application_name=waiter");
    // configuration_limit_exceeded, io_error, internal_error
    for code in ["53400", "58030", "XX000"] {
        let its = token(store, "k", &["--ttl", "none"]);
        let mut waiter = Lockrun::at(&url).key("k").arg("--wait").command(["echo", "ran"]).spawn();
        eventually(LONG, "it sleeps", || postgres.asleep() == 1);
        forbid_commits(postgres, "waiter", code);
        release(store, "k", &its).exited(0).silent();
        stays_true_for(Duration::from_secs(1), "it goes on waiting", || !waiter.has_ended());
        postgres.ask("DROP FUNCTION forbid CASCADE");
        waiter.wait().exited(0).printed("ran\n").silent();
    }
});

// "In turn", also right after a restart of the server: a newcomer does not overtake waiters that are about to reconnect.
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

// The same where the server has to recover from a crash first, for longer than the waiters' heartbeats can wait.
on_postgres!(the_server_recovers_before_a_newcomer, |store, postgres| {
    let its = token(store, "k", &["--ttl", "none"]);
    let waiter = Lockrun::new(store).key("k").arg("--wait").command(["echo", "ran"]).spawn();
    eventually(LONG, "it sleeps", || postgres.asleep() == 1);
    waiter.signal(Signal::SIGSTOP);
    eventually(LONG, "it stands still", || state(waiter.pid()) == Some('T'));
    postgres.stop_in_peace();
    postgres.start_again();
    postgres.ask("UPDATE lockrun.waiters SET looked_at_ms = looked_at_ms - 20000, looks_at_ms = looks_at_ms - 20000");
    let has_recovered = "SELECT count(*) WHERE now() > pg_postmaster_start_time() + interval '2 s'";
    eventually(LONG, "it was started long ago", || postgres.count(has_recovered) == 1);
    release(store, "k", &its).exited(0).silent();
    let newcomer = acquire(store, "k", &["--ttl", "none"]).run();
    held_in_time(newcomer.status == Some(75), "it was overtaken");
    waiter.signal(Signal::SIGCONT);
    waiter.wait().exited(0).printed("ran\n").silent();
});

/// Leaves a waiter in the queue that is dead, and keeps a reader from the lock.
fn leave_a_dead_writer(store: &Store, postgres: &Postgres) {
    token(store, "k", &["--shared", "--ttl", "none"]);
    let writer = Lockrun::new(store).key("k").arg("--wait").command(["true"]).spawn();
    eventually(LONG, "it sleeps", || postgres.asleep() == 1);
    drop(writer);
    eventually(LONG, "it is dead", || postgres.asleep() == 0);
}

/// Checks that a reader does not wait for the dead writer for long.
fn passes_the_dead_writer(store: &Store) {
    let reader = Lockrun::new(store).key("k").args(["--shared", "--wait"]).command(["true"]).run().exited(0);
    in_time(reader.took, Duration::from_secs(9), "it waits for the dead");
}

// A waiter that has died before a restart keeps the others waiting only as long as those that live may need to come back.
on_postgres!(a_waiter_dies_before_the_server_is_restarted, |store, postgres| {
    leave_a_dead_writer(store, postgres);
    postgres.stop_in_peace();
    postgres.start_again();
    passes_the_dead_writer(store);
});

// Nor does it seem to be about to come back for as long as the server's clock was set back.
on_postgres!(a_server_that_was_started_in_the_future, |store, postgres| {
    leave_a_dead_writer(store, postgres);
    postgres.ask(
        "ALTER FUNCTION pg_catalog.pg_postmaster_start_time() RENAME TO started_at;
         CREATE FUNCTION pg_catalog.pg_postmaster_start_time() RETURNS timestamptz LANGUAGE sql AS
             $$ SELECT pg_catalog.now() + interval '1 h' $$",
    );
    passes_the_dead_writer(store);
});

// "It keeps its place": one that cannot get to the lock's row shows that it is alive long before the others count it as dead, however
// long it may wait for an answer.
on_postgres!(a_row_that_is_locked_for_long, |store, postgres| {
    let its = token(store, "k", &["--ttl", "none"]);
    let call = Lockrun::new(store).key("k").args(["--wait", "--ttl", "1h", "--store-timeout", "5m"]);
    let waiter = call.command(["echo", "ran"]).spawn();
    eventually(LONG, "it sleeps", || postgres.asleep() == 1);
    let other = postgres.transaction("SELECT FROM lockrun.locks WHERE key = 'k' FOR UPDATE");
    postgres.ask("SELECT pg_notify('lockrun_' || to_hex(session), 'look 0') FROM lockrun.waiters");
    eventually(LONG, "it wants to look", || postgres.count(LOOKS) == 1);
    let looks_ms = postgres.count("SELECT (extract(epoch FROM now()) * 1000)::bigint");
    let heard = format!("SELECT count(*) FROM lockrun.waiters WHERE looked_at_ms > {looks_ms}");
    eventually(LONG, "it is heard of", || postgres.count(&heard) == 1);
    drop(other);
    release(store, "k", &its).exited(0).silent();
    waiter.wait().exited(0).printed("ran\n").silent();
});
