//! Requests that PostgreSQL has not carried out, and that are repeated.

use crate::support::hand::{token, until_waiting};
use crate::support::lockrun::waiting_for_its_end;
use crate::support::store::on_postgres;
use crate::support::{LONG, Lockrun, Postgres, eventually};

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
