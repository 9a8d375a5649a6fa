//! Requests that PostgreSQL has not carried out, and that are repeated.

use crate::support::hand::{release, renew, token, until_waiting};
use crate::support::lockrun::waiting_for_its_end;
use crate::support::proxy::Mode;
use crate::support::store::on_postgres;
use crate::support::{LONG, Lockrun, Postgres, eventually};

// "Takes the lock from its holder": a `break` whose transaction was rolled back, and is repeated, takes nothing from
// the next holder.
on_postgres!(a_repeated_break_takes_nothing_from_the_next_holder, |store, postgres| {
    let held = token(store, "k", &["--ttl", "10m"]);
    postgres.ask(
        "CREATE SEQUENCE tries;
         CREATE FUNCTION refuse_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF nextval('public.tries') > 1 THEN RETURN new; END IF;
             PERFORM pg_advisory_xact_lock(7);
             RAISE EXCEPTION 'not now' USING ERRCODE = '40001';
         END $$",
    );
    let (proxy, hold_up) = (store.proxy(), postgres.transaction("SELECT pg_advisory_xact_lock(7)"));
    postgres.ask("CREATE TRIGGER refuse BEFORE UPDATE ON lockrun.locks FOR EACH ROW EXECUTE FUNCTION refuse_once()");
    let call = Lockrun::bare().args(["break", "--store", &proxy.url(), "--store-timeout", "60s"]);
    let broken = call.key("k").spawn();
    let blocked =
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'lockrun'";
    eventually(LONG, "it is about to be rolled back", || postgres.count(blocked) == 1);
    proxy.set(Mode::HoldAt("FOR UPDATE"));
    hold_up.commit();
    eventually(LONG, "it is repeated", || proxy.held() > 0);
    release(store, "k", &held).exited(0).silent();
    let next = token(store, "k", &["--ttl", "10m"]);
    proxy.set(Mode::Pass);
    broken.wait().exited(75).said("was passed on before it could be broken: it stays with ");
    renew(store, "k", &next, &[]).exited(0).silent();
});

/// Ends the one session of lockrun that waits for a lock of the server.
#[track_caller]
fn end_session_that_is_held_up(postgres: &Postgres) {
    let held_up = "FROM pg_stat_activity WHERE application_name = 'lockrun' AND wait_event_type = 'Lock'";
    eventually(LONG, "a session is held up", || postgres.count(&format!("SELECT count(*) {held_up}")) == 1);
    postgres.ask(&format!("SELECT pg_terminate_backend(pid) {held_up}"));
}

// "Backend terminated while it asks for the first time": in either half of its transaction, the run asks again.
on_postgres!(the_first_session_is_terminated, |store, postgres| {
    let call = Lockrun::new(store).key("k").args(["--store-timeout", "5s"]).command(["echo", "ran"]);
    call.run().exited(0);
    // The first half locks this row.
    let hold_up = postgres.transaction("SELECT FROM lockrun.locks FOR UPDATE");
    let run = call.spawn();
    end_session_that_is_held_up(postgres);
    drop(hold_up);
    run.wait().exited(0).printed("ran\n").silent();
    // The second half writes a new waiter's row.
    let holder = waiting_for_its_end(&Lockrun::new(store).key("k"));
    let hold_up = postgres.transaction("LOCK TABLE lockrun.waiters IN EXCLUSIVE MODE");
    let waiter = call.arg("--wait").spawn();
    end_session_that_is_held_up(postgres);
    drop(hold_up);
    until_waiting(store, "k", 1);
    holder.finish().exited(0).silent();
    waiter.wait().exited(0).printed("ran\n").silent();
});

// The same in the second half of a renewal by hand, which has the same outcome if it is carried out twice.
on_postgres!(the_session_of_a_renewal_is_terminated, |store, postgres| {
    let held = token(store, "k", &["--ttl", "10m"]);
    let hold_up = postgres.transaction("LOCK TABLE lockrun.locks IN SHARE MODE");
    let renewal = Lockrun::other("renew", store).key("k").args(["--token", &held]).spawn();
    end_session_that_is_held_up(postgres);
    drop(hold_up);
    renewal.wait().exited(0).silent();
});
