//! Connections to a store that fall silent, are closed, or deliver requests when no one expects them any more.

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::calm::held_in_time;
use crate::support::hand::expires_in;
use crate::support::holder::is_free;
use crate::support::proxy::{Mode, Proxy};
use crate::support::store::on_every_lease_store;
use crate::support::{Holder, LONG, Lockrun, Running, Store, eventually};

/// Returns a proxy in front of the store's server. The lock was used once, so that a Redis server has the scripts.
fn scene(store: &Store, key: &str) -> Proxy {
    let proxy = store.proxy();
    assert!(is_free(store, key));
    proxy
}

/// Waits for the lock over this proxy; returns when it says that it waits.
fn waiter(proxy: &Proxy, key: &str, script: &str) -> Running {
    let call = Lockrun::at(&proxy.url()).key(key).args(["--wait", "-v", "--store-timeout", "2s"]);
    let mut waiter = call.sh(script).spawn();
    waiter.wait_for_stderr("waiting");
    waiter
}

/// The same, but returns when it sleeps at the server: what it sends next, it sends because it was woken.
fn sleeping_waiter(store: &Store, proxy: &Proxy, key: &str, script: &str) -> Running {
    let waiter = waiter(proxy, key, script);
    eventually(LONG, "it sleeps at the server", || store.server().asleep() == 1);
    waiter
}

// "A clean end frees the lock at once": also over a network that dropped the connection while it was idle.
on_every_lease_store!(a_lock_is_released_over_a_connection_that_fell_silent, |store| {
    let proxy = scene(store, "idle");
    let directory = TempDir::new().expect("a temporary directory");
    let go = directory.path().join("go");
    let call = Lockrun::at(&proxy.url()).key("idle").args(["--ttl", "none", "--store-timeout", "2s"]);
    let script = format!("echo ready; while ! [ -e {} ]; do sleep 0.01; done", go.display());
    let mut run = call.sh(&script).spawn();
    run.wait_for_line("ready");
    proxy.set(Mode::SwallowUpTo(proxy.connections()));
    std::fs::write(&go, "").expect("our own directory");
    run.wait().exited(0).silent();
    assert!(is_free(store, "idle"), "held by a run that has ended");
});

// "Unknown (an error, possibly done: clean up by token)": also when it is done only after it was cleaned up.
on_every_lease_store!(a_request_that_arrives_after_its_cancellation_acquires_nothing, |store| {
    let proxy = scene(store, "late");
    for wait in [false, true] {
        let first = proxy.next_number();
        proxy.set(Mode::HoldUpTo(first));
        let mut call = Lockrun::at(&proxy.url()).key("late").args(["--ttl", "none", "--store-timeout", "2s"]);
        if wait {
            call = call.arg("--wait");
        }
        let output = call.command(["echo", "ran"]).run();
        if wait && output.status == Some(0) {
            // The store had begun to answer, so the run asked again, and ran.
            output.printed("ran\n");
        } else {
            output.exited(69).printed("").said("lockrun: ");
        }
        held_in_time(proxy.connections() > first, "it is withdrawn over a connection that works");
        let before = proxy.delivered();
        proxy.set(Mode::Pass);
        eventually(LONG, "the late request arrives", || proxy.delivered() > before);
        held_in_time(is_free(store, "late"), "no run that has ended holds it");
    }
});

// The same for a value of a sequence: "unknown (an error, possibly done: clean up by token)".
on_every_lease_store!(a_reservation_that_arrives_after_its_cancellation_reserves_nothing, |store| {
    let proxy = scene(store, "reserved");
    let first = proxy.next_number();
    proxy.set(Mode::HoldUpTo(first));
    let call = Lockrun::bare().args(["reserve", "--store", &proxy.url(), "--from", "1"]).key("reserved");
    let call = call.args(["--ttl", "none", "--store-timeout", "2s"]).command(["echo", "ran"]);
    call.run().exited(69).printed("").said("lockrun: ");
    held_in_time(proxy.connections() > first, "it is withdrawn over a connection that works");
    let before = proxy.delivered();
    proxy.set(Mode::Pass);
    eventually(LONG, "the late request arrives", || proxy.delivered() > before);
    held_in_time(is_free(store, "reserved"), "it is not reserved for a run that has ended");
});

// "Nothing is left": a request that a waiter sent over a connection that it has given up, and that arrives only when
// its run is over, acquires no lock.
on_every_lease_store!(late_requests_of_a_run_that_is_over_acquire_nothing, |store| {
    let proxy = scene(store, "over");
    let holder = Holder::new(store, "over");
    let next = sleeping_waiter(store, &proxy, "over", ":");
    proxy.set(Mode::HoldUpTo(proxy.connections()));
    holder.end();
    next.wait().exited(0);
    let before = proxy.delivered();
    proxy.set(Mode::Pass);
    eventually(LONG, "a late request arrives", || proxy.delivered() > before);
    held_in_time(is_free(store, "over"), "no run that has ended holds it");
});

// "Keep the lock at least this long from acquisition", and no longer: a claim that arrives when the run is over and its
// lock stays only for a while does not make it stay for ever.
on_every_lease_store!(a_late_claim_does_not_extend_a_lock_that_stays, |store| {
    let proxy = scene(store, "stays");
    // From now on a Redis server has the scripts of a waiter's claim.
    let holder = Holder::new(store, "stays");
    let earlier = waiter(&proxy, "stays", ":");
    holder.end();
    earlier.wait().exited(0);
    let holder = Holder::new(store, "stays");
    let call = Lockrun::at(&proxy.url()).key("stays").args(["--wait", "-v", "--store-timeout", "2s"]);
    let mut next = call.args(["--ttl", "none", "--min-hold", "10m"]).sh(":").spawn();
    next.wait_for_stderr("waiting");
    eventually(LONG, "it sleeps", || store.server().asleep() == 1);
    proxy.set(Mode::HoldUpTo(proxy.connections()));
    holder.end();
    next.wait().exited(0);
    let before = proxy.delivered();
    proxy.set(Mode::Pass);
    eventually(LONG, "the late claim arrives", || proxy.delivered() > before);
    assert!(expires_in(store, "stays").is_some(), "the lock stays for ever");
});

// "Every write checks the token": a request that a waiter sent over a connection that it has given up, and that arrives
// only when it holds the lock, does not take the lock from it.
on_every_lease_store!(late_requests_of_a_waiter_do_not_harm_its_lock, |store| {
    let proxy = scene(store, "old");
    let holder = Holder::new(store, "old");
    let mut next = sleeping_waiter(store, &proxy, "old", "echo ready; exec sleep 600");
    proxy.set(Mode::HoldUpTo(proxy.connections()));
    if store.as_etcd().is_none() {
        // A waiter changes nothing when the lock is handed to it, but when it renews its place.
        eventually(LONG, "a request is held back", || proxy.held() > 0);
    }
    holder.end();
    next.wait_for_line("ready");
    if store.as_etcd().is_some() {
        eventually(LONG, "a renewal is held back: its waiter sent nothing", || proxy.held() > 0);
    }
    let before = proxy.delivered();
    proxy.set(Mode::Pass);
    eventually(LONG, "a late request arrives", || proxy.delivered() > before);
    for _ in 0..20 {
        assert!(!is_free(store, "old"), "free while the command runs");
    }
    assert!(!next.has_ended());
    next.signal(Signal::SIGTERM);
    next.wait().died_of(Signal::SIGTERM);
    assert!(is_free(store, "old"));
});

// "The waiter whose answer is lost asks again": whatever arrives twice, one command runs at a time.
on_every_lease_store!(lost_answers_of_a_waiter_lead_to_no_overlap, |store| {
    let proxy = scene(store, "lost");
    let holder = Holder::new(store, "lost");
    let mut next = sleeping_waiter(store, &proxy, "lost", "echo ready; exec sleep 600");
    proxy.set(Mode::SwallowUpTo(proxy.connections()));
    holder.end();
    next.wait_for_line("ready");
    proxy.set(Mode::Pass);
    for _ in 0..20 {
        assert!(!is_free(store, "lost"), "free while the command runs");
    }
    next.signal(Signal::SIGTERM);
    next.wait().died_of(Signal::SIGTERM);
    held_in_time(is_free(store, "lost"), "it is released");
});
