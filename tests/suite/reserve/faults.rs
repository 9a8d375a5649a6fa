//! What can go wrong while a value is reserved.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::hand::throughout;
use crate::support::proxy::Mode;
use crate::support::sequence::{Reserver, at, next, peek, reserve, reserved, status};
use crate::support::store::{on_every_lease_store, on_every_store};
use crate::support::{LONG, Lockrun, eventually};

// "The reservation is a lease, renewed while COMMAND runs."
on_every_lease_store!(a_long_command_keeps_its_value, |store| {
    let call = reserve(store, "1");
    let run = Reserver::begin(&call.clone().args(["--ttl", "2s"]));
    for _ in 0..2 {
        throughout(store, 2, || assert_eq!(peek(&call), "2"));
    }
    run.end(0);
    assert_eq!(next(&call), "2");
});

// "Nothing outlives lockrun": if it is killed, the command is dead before the value comes up again (lease store), or
// the value is reserved for as long as the command lives (files).
on_every_store!(lockrun_is_killed, |store| {
    let began = Instant::now();
    let call = reserve(store, "1");
    let mut run = call.clone().args(["--ttl", "2s"]).sh("echo ready; exec sleep 600").spawn();
    run.wait_for_line("ready");
    run.signal(Signal::SIGKILL);
    eventually(LONG, "lockrun is dead", || run.has_ended());
    if store.has_leases() {
        eventually(LONG, "1 is next again", || {
            let lives = !run.processes().is_empty();
            let comes_up = peek(&call) == "1";
            assert!(!(comes_up && lives), "the command has outlived its reservation");
            comes_up
        });
        assert!(began.elapsed() >= Duration::from_secs(2), "after {:?}", began.elapsed());
    } else {
        throughout(store, 2, || {
            assert_eq!(peek(&call), "2");
            assert!(!run.processes().is_empty(), "the command is dead");
        });
        run.kill_everything();
        assert_eq!(peek(&call), "1");
    }
    assert_eq!(next(&call), "1");
});

/// A command that exits with 0 when it is stopped.
const STUBBORN: &str = "exec 2>/dev/null; trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done";

// "79: the lease was lost while COMMAND ran, and COMMAND was stopped": its value is not used, whatever its exit status.
on_every_lease_store!(a_lost_lease_uses_no_value, |store| {
    let server = store.server();
    let call = reserve(store, "1").args(["--ttl", "3s"]);
    let mut run = call.clone().sh(STUBBORN).spawn();
    run.wait_for_line("ready");
    server.forget_holders("seq");
    run.wait().exited(79).said("lost");
    assert!(status(store)["last_value"].is_null());
    assert_eq!(next(&call), "1");
});

// "A value that succeeded never comes up again": also if its lease was lost, which only the release shows.
on_every_lease_store!(a_value_that_was_used_under_a_lost_lease, |store| {
    let server = store.server();
    let call = reserve(store, "1").args(["--ttl", "1h"]);
    let run = Reserver::begin(&call);
    server.expire("seq");
    run.end_with_message(0).said("was no longer this run's when it was released");
    assert_eq!(next(&call), "2");
});

// "79": also if the value was revoked; it is free once its command is dead.
on_every_lease_store!(a_revoked_value_is_not_used, |store| {
    let call = reserve(store, "1").args(["--ttl", "3s"]);
    let mut run = call.clone().sh(STUBBORN).spawn();
    run.wait_for_line("ready");
    Lockrun::bare().args(["break", "--key", "seq", "--store", &store.url()]).run().exited(0);
    run.wait().exited(79).said("revoked by");
    assert_eq!(next(&call), "1");
});

// If the store does not learn of the command's end, the value stays reserved for the lease; the command's own status
// counts.
on_every_lease_store!(the_store_is_gone_at_the_end, |store| {
    let proxy = store.proxy();
    let call = at(&proxy.url(), "1").args(["--ttl", "10s", "--store-timeout", "0.5s"]);
    let mut run = call.sh("echo ready; read line || :").with_open_input();
    run.run.wait_for_line("ready");
    proxy.set(Mode::Reset);
    let output =
        run.finish().exited(0).said("cannot release the value of the sequence \"seq\"").said("may come up again");
    // `renew --ttl none` may have made the lease endless.
    output.said("until its lease expires, or `lockrun break` frees it");
    assert_eq!(reserved(store), ["1"]);
    assert_eq!(peek(&reserve(store, "1")), "2");
});

// "No answer": 69, and a request that arrives afterwards reserves nothing.
on_every_lease_store!(a_request_that_comes_too_late_reserves_nothing, |store| {
    assert_eq!(next(&reserve(store, "1")), "1");
    let proxy = store.proxy();
    // The request is held up, and lockrun's cancellation overtakes it.
    proxy.set(Mode::HoldUpTo(proxy.next_number()));
    let call = at(&proxy.url(), "1").args(["--ttl", "none", "--store-timeout", "0.5s"]);
    call.command(["echo", "ran"]).run().exited(69).printed("").said("cannot reserve a value");
    let before = proxy.delivered();
    proxy.set(Mode::Pass);
    eventually(LONG, "the request has arrived", || proxy.delivered() > before);
    assert_eq!(reserved(store), Vec::<String>::new());
    assert_eq!(next(&reserve(store, "1")), "2");
});

// "A store restarted with its data": it has kept the last value, and what is reserved.
on_every_lease_store!(a_server_that_restarts_goes_on, |store| {
    let server = store.server();
    let call = reserve(store, "1").args(["--ttl", "1h"]);
    assert_eq!(next(&call), "1");
    let two = Reserver::begin(&call);
    server.kill();
    server.start_again();
    assert_eq!(next(&call), "3");
    two.end(0);
    assert_eq!(next(&call), "4");
});

// "69: the store cannot be reached; COMMAND was not started."
on_every_lease_store!(an_unreachable_store, |store| {
    let server = store.server();
    server.kill();
    let counted = reserve(store, "1").command(["echo", "ran"]).run();
    counted.exited(69).printed("").said("cannot reserve a value of the sequence \"seq\"");
    let asked = reserve(store, "1").args(["--next", "echo"]).command(["echo", "ran"]).run();
    asked.exited(69).printed("").said("cannot reserve a value");
});

// A signal that comes before the command has started ends lockrun, and nothing stays reserved.
on_every_store!(a_signal_between_value_and_command, |store| {
    let call = reserve(store, "1").args(["--ttl", "1h"]);
    for _ in 0..20 {
        let run = call.clone().command(["sleep", "600"]).spawn();
        run.signal(Signal::SIGTERM);
        run.wait().died_of(Signal::SIGTERM);
    }
    let kept = reserved(store).len();
    // Runs whose command had begun have failed; the others have left nothing.
    assert_eq!(next(&call), (kept + 1).to_string());
});

// Locks, and sequences, may be nested: an inner run of the same sequence has another value.
on_every_store!(nested, |store| {
    let call = reserve(store, "1");
    let words = call.clone().command(["printenv", "LOCKRUN_VALUE"]).words();
    assert_eq!(next_of(&call.clone().command(words)), "2");
    assert_eq!(next(&call), "3");
});

#[track_caller]
fn next_of(call: &Lockrun) -> String {
    call.run().exited(0).silent().stdout().trim().to_owned()
}
