//! A PostgreSQL database that others use, too: they must not make two runs hold one lock, nor block lockrun for ever.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::calm::in_time;
use crate::support::hand::{acquire, is_held, release, renew, token, until_waiting};
use crate::support::holder::is_free;
use crate::support::lockrun::{Running, waiting_for_its_end};
use crate::support::proxy::Mode;
use crate::support::store::on_postgres;
use crate::support::{LONG, LeaseServer, Lockrun, eventually};

/// Asserts that one of these has acquired the lock, and that the other has found it held.
#[track_caller]
fn one_of(both: [Running; 2]) {
    let both = both.map(Running::wait);
    let mut statuses = both.each_ref().map(|output| output.status);
    statuses.sort();
    assert_eq!(statuses, [Some(0), Some(75)], "{}\n{}", both[0], both[1]);
}

// "One at a time", also for a new key: two first requests are on their way at the same time.
on_postgres!(two_first_users_of_one_key, |store, _postgres| {
    // This creates the tables.
    assert!(is_free(store, "other"));
    let proxies = [store.proxy(), store.proxy()];
    for proxy in &proxies {
        proxy.set(Mode::Delay(Duration::from_millis(150)));
    }
    for round in 0..3 {
        let key = format!("new-{round}");
        let words = ["acquire", "--key", &key, "--ttl", "10m", "--store-timeout", "20s"];
        let ask = |url: &str| Lockrun::bare().args(words).args(["--store", url]).spawn();
        one_of(proxies.each_ref().map(|proxy| ask(&proxy.url())));
    }
});

// "One at a time", also if another client deletes the row while two requests wait for it.
on_postgres!(the_row_is_deleted_under_requests, |store, postgres| {
    assert!(is_free(store, "k"));
    let its = token(store, "k", &[]);
    release(store, "k", &its).exited(0);
    let mut psql = Command::new("psql");
    psql.args(["-q", "-h", "127.0.0.1", "-U", "postgres", "-p", &postgres.port().to_string()]);
    let mut other_client = psql.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("psql(1) is there");
    let mut say = other_client.stdin.take().expect("a pipe");
    say.write_all(b"BEGIN; DELETE FROM lockrun.locks;\n").expect("it reads");
    let transactions = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'";
    eventually(LONG, "it has deleted the row", || postgres.count(transactions) == 1);
    let both = [(); 2].map(|()| acquire(store, "k", &["--ttl", "10m", "--store-timeout", "20s"]).spawn());
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    eventually(LONG, "both wait for the row", || postgres.count(waiting) == 2);
    say.write_all(b"COMMIT;\n").expect("it reads");
    drop(say);
    one_of(both);
    assert!(other_client.wait().expect("our own child").success());
});

// Names mean the server's own functions and operators: here another user's clock gains an hour at each call, and texts
// are never equal.
on_postgres!(functions_of_the_same_name, |store, postgres| {
    assert!(is_free(store, "k"));
    postgres.ask(
        "CREATE SCHEMA theirs; CREATE SEQUENCE theirs.hours;
         CREATE FUNCTION theirs.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
             $$ SELECT pg_catalog.clock_timestamp() + nextval('theirs.hours') * interval '1 hour' $$;
         CREATE FUNCTION theirs.never(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT false';
         CREATE OPERATOR theirs.= (LEFTARG = text, RIGHTARG = text, FUNCTION = theirs.never);
         ALTER DATABASE postgres SET search_path = theirs, pg_catalog",
    );
    let its = token(store, "k", &["--ttl", "10m"]);
    for _ in 0..3 {
        acquire(store, "k", &[]).run().exited(75);
    }
    let waiter = Lockrun::new(store).key("k").arg("--wait").command(["echo", "ran"]).spawn();
    until_waiting(store, "k", 1);
    release(store, "k", &its).exited(0).silent();
    waiter.wait().exited(0).printed("ran\n").silent();
    assert_eq!(postgres.count("SELECT last_value FROM theirs.hours WHERE is_called UNION SELECT 0 LIMIT 1"), 0);
});

// A lock that was not stored is not acquired: another user's trigger or rule discards the write.
on_postgres!(what_is_written_is_swallowed, |store, postgres| {
    assert!(is_free(store, "k"));
    let trigger = "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
        CREATE TRIGGER swallow BEFORE UPDATE ON lockrun.locks FOR EACH ROW EXECUTE FUNCTION swallow()";
    let rule = "CREATE RULE swallow AS ON UPDATE TO lockrun.locks DO INSTEAD NOTHING";
    for (create, drop) in [(trigger, "DROP FUNCTION swallow CASCADE"), (rule, "DROP RULE swallow ON lockrun.locks")] {
        postgres.ask(create);
        Lockrun::new(store).key("k").command(["echo", "ran"]).run().exited(69).printed("").said("lockrun: ");
        postgres.ask(drop);
        Lockrun::new(store).key("k").command(["echo", "ran"]).run().exited(0).printed("ran\n").silent();
    }
});

// A lock that could not be committed is not acquired: a deferred constraint forbids it.
on_postgres!(what_is_written_is_not_committed, |store, postgres| {
    assert!(is_free(store, "k"));
    postgres.ask(
        "CREATE FUNCTION forbid() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no more locks'; END $$;
         CREATE CONSTRAINT TRIGGER forbid AFTER UPDATE ON lockrun.locks
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION forbid()",
    );
    Lockrun::new(store).key("k").command(["echo", "ran"]).run().exited(69).printed("").said("no more locks");
    postgres.ask("DROP FUNCTION forbid CASCADE");
    assert!(!is_held(store, "k"));
});

// A client is cut off in the middle of a message, with its row locked: the server ends its session, and the next one
// gets the lock soon.
on_postgres!(a_request_is_cut_in_the_middle, |store, postgres| {
    assert!(is_free(store, "k"));
    let proxy = store.proxy();
    proxy.set(Mode::CutAt(postgres.word()));
    let call = Lockrun::at(&proxy.url()).key("k").args(["--ttl", "10m", "--store-timeout", "20s"]);
    let half = call.command(["echo", "ran"]).spawn();
    let transactions = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'";
    eventually(LONG, "it has the row", || postgres.count(transactions) == 1);
    let output = Lockrun::new(store).key("k").command(["echo", "ran"]).run().exited(0).printed("ran\n").silent();
    in_time(output.took, Duration::from_secs(4), "the lock was blocked");
    drop(half);
});

// "Lock times bounded", also for creating the tables: another client has begun that, and does not finish.
on_postgres!(the_creation_of_tables_is_blocked, |store, postgres| {
    let other_client = postgres.transaction("CREATE SCHEMA lockrun");
    let call = Lockrun::new(store).key("k").args(["--store-timeout", "1s"]).command(["echo", "ran"]);
    let output = call.clone().run().exited(69).printed("").said("another transaction").said("pg_stat_activity");
    in_time(output.took, Duration::from_secs(4), "it gave up");
    let waiting = || postgres.count("SELECT count(*) FROM pg_locks WHERE NOT granted");
    eventually(LONG, "its session does not wait any longer", || waiting() == 0);
    drop(other_client);
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'";
    eventually(LONG, "the other one has gone", || postgres.count(sessions) == 0);
    call.run().exited(0).printed("ran\n").silent();
});

// A role without any right cannot keep others from creating the tables: no lock that it may take is in the way.
on_postgres!(advisory_locks_of_others, |store, postgres| {
    // The number under which an earlier lockrun created them, and all others of that kind.
    let _theirs = postgres.transaction("SELECT pg_advisory_xact_lock(7813573191644048896)");
    let call = Lockrun::new(store).key("k").args(["--ttl", "1m", "--store-timeout", "2s"]).command(["echo", "ran"]);
    call.run().exited(0).printed("ran\n").silent();
});

// A deadlock of two clients that create the tables is no reason to fail: the server ends one of the transactions, which
// is tried again.
on_postgres!(a_deadlock_while_the_tables_are_created, |store, postgres| {
    postgres.ask("ALTER ROLE postgres SET deadlock_timeout = '2s'; CREATE SCHEMA lockrun");
    let mut psql = Command::new("psql");
    psql.args(["-q", "-h", "127.0.0.1", "-U", "postgres", "-p", &postgres.port().to_string()]);
    let mut other_client = psql.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("psql(1) is there");
    let mut say = other_client.stdin.take().expect("a pipe");
    // It leaves it to lockrun's session to notice the deadlock.
    say.write_all(b"SET deadlock_timeout = '10min'; BEGIN; CREATE TABLE lockrun.waiters ();\n").expect("it reads");
    let transactions = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'";
    eventually(LONG, "it has created a table", || postgres.count(transactions) == 1);
    let call = Lockrun::new(store).key("k").args(["--ttl", "10m", "--store-timeout", "30s"]).command(["echo", "ran"]);
    let run = call.spawn();
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    eventually(LONG, "lockrun waits for that", || postgres.count(waiting) == 1);
    say.write_all(b"CREATE TABLE lockrun.version ();\n").expect("it reads");
    eventually(LONG, "the deadlock is noticed", || postgres.log().contains("deadlock detected"));
    say.write_all(b"ROLLBACK;\n").expect("it reads");
    drop(say);
    run.wait().exited(0).printed("ran\n").silent();
    assert!(other_client.wait().expect("our own child").success());
});

// "Others can get to the row": a broken record is repaired under its holder, whose renewals fail until then, and which
// goes on.
on_postgres!(a_record_is_repaired_under_its_holder, |store, postgres| {
    let proxy = &store.proxy();
    let call = Lockrun::at(&proxy.url()).key("k").args(["--ttl", "12s", "--store-timeout", "2s"]);
    let run = waiting_for_its_end(&call);
    postgres.ask("CREATE TABLE kept AS SELECT key, state FROM lockrun.locks; UPDATE lockrun.locks SET state = '[]'");
    let before = proxy.flights();
    eventually(LONG, "it was to be renewed twice", || proxy.flights() >= before + 2);
    Lockrun::new(store).key("k").command(["echo", "ran"]).run().exited(69).printed("").said("broken");
    postgres.ask(
        "SET lock_timeout = '700ms';
         UPDATE lockrun.locks AS broken SET state = kept.state FROM kept WHERE broken.key = kept.key",
    );
    acquire(store, "k", &[]).run().exited(75);
    run.close().wait().exited(0).silent();
    assert!(is_free(store, "k"));
});

// "Nothing stays locked" by dead waiters: however many are in the queue, they are removed.
on_postgres!(thousands_of_dead_waiters, |store, postgres| {
    let its = token(store, "k", &["--ttl", "10m"]);
    let waiter = Lockrun::new(store).key("k").args(["--wait", "--ttl", "4s"]).command(["true"]).spawn();
    until_waiting(store, "k", 1);
    postgres.ask(
        "INSERT INTO lockrun.waiters (key, token, waiter, ends_ms)
             SELECT key, 't' || number, replace(waiter::text, token, 't' || number)::json, 0
             FROM lockrun.waiters, generate_series(1, 20000) AS number",
    );
    drop(waiter);
    release(store, "k", &its).exited(0).silent();
    let call = Lockrun::new(store).key("k").args(["--wait", "--ttl", "10m", "--store-timeout", "20s"]);
    call.command(["echo", "ran"]).run().exited(0).printed("ran\n").silent();
    assert_eq!(postgres.count("SELECT count(*) FROM lockrun.waiters WHERE ends_ms = 0"), 0);
});

// "A waiter hears that it is its turn": a renewal under its token, which holds nothing yet, leaves its row as it is,
// and with it the channel on which it listens.
on_postgres!(a_renewal_under_a_token_that_waits, |store, postgres| {
    const OURS: &str = "0123456789abcdef0123456789abcdef";
    let its = token(store, "k", &["--ttl", "10m"]);
    let waiter = acquire(store, "k", &["--wait", "--ttl", "10m", "--token", OURS]).spawn();
    until_waiting(store, "k", 1);
    let row = || postgres.ask("SELECT waiter, ends_ms, channel FROM lockrun.waiters");
    let before = row();
    assert!(before.contains("lockrun_"), "it listens: {before}");
    renew(store, "k", OURS, &[]).exited(79).said("is held by");
    release(store, "k", OURS).exited(79).said("is held by");
    assert_eq!(row(), before);
    release(store, "k", &its).exited(0).silent();
    waiter.wait().exited(0).silent();
});
