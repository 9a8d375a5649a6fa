//! Connections to a Redis that fall silent, are closed, or carry requests that arrive when nobody expects them any more.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::holder::is_free;
use crate::support::proxy::{Mode, Proxy};
use crate::support::{Holder, LONG, Lockrun, Redis, Running, Store, eventually};

/// A server, a network before it, and a lock that was taken once: the server knows all scripts.
fn scene(key: &str) -> (Store, Proxy) {
    let store = Store::redis();
    let proxy = Proxy::to(server(&store).port());
    assert!(is_free(&store, key));
    (store, proxy)
}

fn server(store: &Store) -> &Redis {
    store.as_redis().expect("a server")
}

/// Waits for the lock over this proxy; returns when it says that it waits.
fn waiter(proxy: &Proxy, key: &str, script: &str) -> Running {
    let call = Lockrun::at(&proxy.url()).key(key).args(["--wait", "-v", "--store-timeout", "1s"]);
    let mut waiter = call.sh(script).spawn();
    waiter.wait_for_stderr("waiting");
    waiter
}

/// The same, and returns when it sleeps at the server: what it sends next is sent because it was woken.
fn sleeping_waiter(store: &Store, proxy: &Proxy, key: &str, script: &str) -> Running {
    let waiter = waiter(proxy, key, script);
    let is_asleep = || server(store).ask(&["INFO", "clients"]).text().contains("\r\nblocked_clients:1\r\n");
    eventually(LONG, "it sleeps at the server", is_asleep);
    waiter
}

// "A clean end frees the lock at once": also over a network that has forgotten the connection while it was idle.
#[test]
fn a_lock_is_released_over_a_connection_that_fell_silent() {
    let (store, proxy) = scene("idle");
    let directory = TempDir::new().expect("a temporary directory");
    let go = directory.path().join("go");
    let call = Lockrun::at(&proxy.url()).key("idle").args(["--ttl", "none", "--store-timeout", "2s"]);
    let script = format!("echo ready; while ! [ -e {} ]; do sleep 0.01; done", go.display());
    let mut run = call.sh(&script).spawn();
    run.wait_for_line("ready");
    proxy.set(Mode::SwallowUpTo(proxy.connections()));
    std::fs::write(&go, "").expect("our own directory");
    run.wait().exited(0).silent();
    assert!(is_free(&store, "idle"), "held by a run that has ended");
}

// "\"No answer\" is not: retry until it is time for TERM": so it is with an answer to a renewal that no script gives, however deep it
// is or large it claims to be. It is read on the small stack of a thread.
#[test]
fn renewals_whose_answers_are_beyond_all_bounds() {
    let (store, proxy) = scene("bounds");
    let call = Lockrun::at(&proxy.url()).key("bounds").args(["--ttl", "1h", "--renew-every", "100ms"]);
    let call = call.args(["--store-timeout", "1s"]);
    let mut run = call.sh("echo ready; read line || :").with_open_input();
    run.run.wait_for_line("ready");
    for answer in ["*1\r\n".repeat(99), "*1\r\n".repeat(100_000), "$2147483647\r\n".into(), "*1000000000\r\n".into()] {
        let before = server(&store).scripts_run();
        proxy.set(Mode::Answer(answer.leak().as_bytes()));
        eventually(LONG, "three renewals were answered so", || {
            assert!(!run.run.has_ended(), "{}", run.run.stderr());
            server(&store).scripts_run() >= before + 3
        });
    }
    proxy.set(Mode::Pass);
    run.finish().exited(0).silent();
    assert!(is_free(&store, "bounds"), "held by a run that has ended");
}

// "Unknown (an error, possibly done: clean up by token)": also when it is done only after it was cleaned up.
#[test]
fn a_request_that_arrives_after_its_withdrawal_takes_nothing() {
    let (store, proxy) = scene("late");
    for wait in [false, true] {
        let first = proxy.connections() + 1;
        proxy.set(Mode::HoldUpTo(first));
        let mut call = Lockrun::at(&proxy.url()).key("late").args(["--ttl", "none", "--store-timeout", "1s"]);
        if wait {
            call = call.arg("--wait");
        }
        call.command(["echo", "ran"]).run().exited(69).printed("").said("lockrun: ");
        assert!(proxy.connections() > first, "it is withdrawn over a connection that works");
        let before = server(&store).scripts_run();
        proxy.set(Mode::Pass);
        eventually(LONG, "the late request arrives", || server(&store).scripts_run() > before);
        assert!(is_free(&store, "late"), "held by a run that has ended");
    }
}

// The same for a value of a sequence: "unknown (an error, possibly done: clean up by token)".
#[test]
fn a_reservation_that_arrives_after_its_withdrawal_takes_nothing() {
    let (store, proxy) = scene("reserved");
    let first = proxy.connections() + 1;
    proxy.set(Mode::HoldUpTo(first));
    let call = Lockrun::bare().args(["reserve", "--store", &proxy.url(), "--from", "1"]).key("reserved");
    let call = call.args(["--ttl", "none", "--store-timeout", "1s"]).command(["echo", "ran"]);
    call.run().exited(69).printed("").said("lockrun: ");
    assert!(proxy.connections() > first, "it is withdrawn over a connection that works");
    let before = server(&store).scripts_run();
    proxy.set(Mode::Pass);
    eventually(LONG, "the late request arrives", || server(&store).scripts_run() > before);
    assert!(is_free(&store, "reserved"), "reserved for a run that has ended");
}

// "Nothing is left": what a waiter has sent over a connection that it gave up, and what arrives only when its run is over, takes
// no lock for it.
#[test]
fn late_requests_of_a_run_that_is_over_take_nothing() {
    let (store, proxy) = scene("over");
    let holder = Holder::new(&store, "over");
    let next = sleeping_waiter(&store, &proxy, "over", ":");
    proxy.set(Mode::HoldUpTo(proxy.connections()));
    holder.end();
    next.wait().exited(0);
    let before = server(&store).scripts_run();
    proxy.set(Mode::Pass);
    eventually(LONG, "a late request arrives", || server(&store).scripts_run() > before);
    assert!(is_free(&store, "over"), "held by a run that has ended");
}

// "Keep the lock at least this long from acquisition", and no longer: a claim that arrives when the run is over and its lock only
// stays for a while does not make it stay for ever.
#[test]
fn a_late_claim_does_not_prolong_a_lock_that_stays() {
    let (store, proxy) = scene("stays");
    // The server knows how a waiter claims.
    let holder = Holder::new(&store, "stays");
    let earlier = waiter(&proxy, "stays", ":");
    holder.end();
    earlier.wait().exited(0);
    let holder = Holder::new(&store, "stays");
    let call = Lockrun::at(&proxy.url()).key("stays").args(["--wait", "-v", "--store-timeout", "1s"]);
    let mut next = call.args(["--ttl", "none", "--min-hold", "10m"]).sh(":").spawn();
    next.wait_for_stderr("waiting");
    eventually(LONG, "it sleeps", || server(&store).ask(&["INFO", "clients"]).text().contains("blocked_clients:1"));
    proxy.set(Mode::HoldUpTo(proxy.connections()));
    holder.end();
    next.wait().exited(0);
    let before = server(&store).scripts_run();
    proxy.set(Mode::Pass);
    eventually(LONG, "the late claim arrives", || server(&store).scripts_run() > before);
    let ends =
        server(&store).ask(&["ZRANGE", "lockrun:{stays}:holders", "0", "0", "WITHSCORES"]).list()[1].text().to_owned();
    assert_ne!(ends, "inf", "the lock stays for ever");
}

// "Unknown (an error, possibly done: clean up by token)": what arrives after its withdrawal takes nothing, also if mail lies there that
// the waiter had not taken when its place in the queue was forgotten.
#[test]
fn a_withdrawal_is_not_hidden_behind_old_mail() {
    let (store, proxy) = scene("mail");
    let redis = server(&store);
    let holder = Holder::new(&store, "mail");
    let call = Lockrun::at(&proxy.url()).key("mail").args(["--wait", "--ttl", "none", "--store-timeout", "1s"]);
    let waiter = call.sh(":").spawn();
    eventually(LONG, "it sleeps", || redis.ask(&["INFO", "clients"]).text().contains("blocked_clients:1"));
    let token = redis.ask(&["ZRANGE", "lockrun:{mail}:queue", "0", "0"]).list()[0].text().to_owned();
    let mailbox = format!("lockrun:{{mail}}:mailbox:{token}");
    // It is cut off while it looks at the lock, mail comes, and it is not heard of for as long as the queue lasts.
    proxy.set(Mode::HoldUpTo(u64::MAX));
    redis.ask(&["RPUSH", &mailbox, "1 0"]);
    eventually(LONG, "it has tried another connection", || proxy.connections() >= 2);
    redis.ask(&["RPUSH", &mailbox, "1 granted"]);
    redis.ask(&["DEL", "lockrun:{mail}:queue", "lockrun:{mail}:heartbeats"]);
    waiter.signal(Signal::SIGTERM);
    waiter.wait().died_of(Signal::SIGTERM);
    // What it has sent last arrives first: that it has given up.
    proxy.set(Mode::HoldUpTo(proxy.connections() - 1));
    let letters = || redis.ask(&["LRANGE", &mailbox, "0", "-1"]).list().len();
    eventually(LONG, "its withdrawal arrives", || {
        letters() == 2 || redis.ask(&["LINDEX", &mailbox, "0"]).text() == "cancelled"
    });
    holder.end();
    let before = redis.scripts_run();
    proxy.set(Mode::Pass);
    eventually(LONG, "a late look arrives", || redis.scripts_run() > before);
    assert!(is_free(&store, "mail"), "held by a run that has ended");
}

// "Every write checks the token": what a waiter has sent over a connection that it gave up, and what arrives only when it
// holds the lock, does not take the lock from it.
#[test]
fn late_requests_of_a_waiter_do_not_harm_its_lock() {
    let (store, proxy) = scene("old");
    let holder = Holder::new(&store, "old");
    let mut next = sleeping_waiter(&store, &proxy, "old", "echo ready; exec sleep 600");
    proxy.set(Mode::HoldUpTo(proxy.connections()));
    holder.end();
    next.wait_for_line("ready");
    let before = server(&store).scripts_run();
    proxy.set(Mode::Pass);
    eventually(LONG, "a late request arrives", || server(&store).scripts_run() > before);
    for _ in 0..20 {
        assert!(!is_free(&store, "old"), "free while the command runs");
    }
    assert!(!next.has_ended());
    next.signal(Signal::SIGTERM);
    next.wait().died_of(Signal::SIGTERM);
    assert!(is_free(&store, "old"));
}

// "The waiter whose answer is lost asks again": whatever arrives twice, one command runs at a time.
#[test]
fn lost_answers_of_a_waiter_lead_to_no_overlap() {
    let (store, proxy) = scene("lost");
    let holder = Holder::new(&store, "lost");
    let mut next = sleeping_waiter(&store, &proxy, "lost", "echo ready; exec sleep 600");
    proxy.set(Mode::SwallowUpTo(proxy.connections()));
    holder.end();
    next.wait_for_line("ready");
    proxy.set(Mode::Pass);
    for _ in 0..20 {
        assert!(!is_free(&store, "lost"), "free while the command runs");
    }
    next.signal(Signal::SIGTERM);
    next.wait().died_of(Signal::SIGTERM);
    assert!(is_free(&store, "lost"));
}

// "69: the store refuses us": a user who may do all but wait is told so, and the server is left in peace.
#[test]
fn a_user_who_may_not_wait() {
    let (store, _) = scene("refused");
    let redis = server(&store);
    redis.ask(&["ACL", "SETUSER", "hasty", "on", ">pw", "~*", "+@all", "-blpop"]);
    let holder = Holder::new(&store, "refused");
    let before = redis.scripts_run();
    let call = Lockrun::at(&redis.url().replacen("://", "://hasty:pw@", 1)).key("refused").arg("--wait");
    let mut run = call.command(["echo", "ran"]).spawn();
    eventually(LONG, "the run has ended", || run.has_ended());
    run.wait().exited(69).printed("").said("blpop");
    let asked = redis.scripts_run() - before;
    assert!(asked <= 4, "asked {asked} times");
    holder.end();
    assert!(is_free(&store, "refused"), "it still stands in the queue");
}

// "Redis commands a second of one idle waiter": one whose connection is closed whenever it waits tries again, but not
// without a pause.
#[test]
fn a_connection_that_is_closed_at_each_wait() {
    let (store, proxy) = scene("closed");
    let holder = Holder::new(&store, "closed");
    proxy.set(Mode::CloseAt("\r\nBLPOP\r\n"));
    let next = waiter(&proxy, "closed", "echo ran");
    let (before, started) = (server(&store).scripts_run(), Instant::now());
    // On purpose: how often it asks in this time is what is measured.
    std::thread::sleep(Duration::from_secs(2));
    let asked = server(&store).scripts_run() - before;
    let most = 10 + started.elapsed().as_secs() * 4;
    assert!(asked <= most, "asked {asked} times in {:?}", started.elapsed());
    proxy.set(Mode::Pass);
    holder.end();
    next.wait().exited(0).printed("ran\n");
}
