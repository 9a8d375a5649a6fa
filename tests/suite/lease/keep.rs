//! The lease: renewed while the command runs, ended soon after a crash; when it is lost, the command ends.

use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::calm::in_time;
use crate::support::hand::{expires_in, status, throughout, token};
use crate::support::holder::is_free;
use crate::support::proxy::Mode;
use crate::support::store::{on_every_lease_store, on_every_store};
use crate::support::{Holder, LONG, Lockrun, eventually, witness};

/// What a busy machine may add to a promised time, to start a process or two.
const ALLOWANCE: Duration = Duration::from_secs(2);

// "Keeps the lease alive from a background thread": a command that takes three times the lease's length never loses its
// lock.
on_every_store!(a_long_command_keeps_its_lock, |store| {
    let call = Lockrun::new(store).key("kept").args(["--ttl", "2s"]).sh("echo ready; read line || :");
    let mut run = call.with_open_input();
    run.run.wait_for_line("ready");
    for _ in 0..3 {
        throughout(store, 2, || assert!(!is_free(store, "kept"), "the lock was free while the command ran"));
    }
    run.finish().exited(0).silent();
    assert!(is_free(store, "kept"));
});

// "A crash frees it within ttl + 1 s on a lease store, at once on the file store."
on_every_store!(a_crash_frees_the_lock, |store| {
    let terms = ["--ttl", "2s", "--renew-every", "300ms", "--kill-after", "100ms", "--store-timeout", "1s"];
    let call = Lockrun::new(store).key("crash").args(terms);
    let mut holder = Holder::with(&call, &[]);
    assert!(!is_free(store, "crash"));
    holder.run().kill_everything();
    let dead = Instant::now();
    if store.has_leases() {
        eventually(LONG, "the lease has run out", || is_free(store, "crash"));
        let limit = Duration::from_secs(2 + 1) + ALLOWANCE;
        in_time(dead.elapsed(), limit, "free again");
    } else {
        assert!(is_free(store, "crash"), "held by the dead");
    }
});

// "`--ttl none`: it never expires."
on_every_lease_store!(a_lease_that_never_expires, |store| {
    let call = Lockrun::new(store).key("never").args(["--ttl", "none"]);
    let mut holder = Holder::with(&call, &[]);
    assert_eq!(expires_in(store, "never"), None);
    holder.run().kill_everything();
    throughout(store, 3, || assert!(!is_free(store, "never")));
});

// "'Not yours' is final: TERM at once." "79: the lease was lost while COMMAND ran, and COMMAND was stopped."
on_every_lease_store!(a_lost_lease_ends_the_command, |store| {
    let server = store.server();
    let mut run = Lockrun::new(store)
        .key("lost")
        .args(["--ttl", "3s"])
        .sh("exec 2>/dev/null; trap 'echo asked to end; exit 5' TERM; echo ready; while :; do sleep 0.01; done")
        .spawn();
    run.wait_for_line("ready");
    server.forget_everything();
    let output = run.wait().exited(79).said("lost");
    assert_eq!(output.stdout(), "ready\nasked to end\n");
});

// "TERM, then KILL": a command that does not listen is dead before the lock can pass on.
on_every_lease_store!(a_lost_lease_kills_a_stubborn_command, |store| {
    let server = store.server();
    let directory = TempDir::new().expect("a temporary directory");
    let record = directory.path().join("record");
    let call = Lockrun::new(store).key("stubborn");
    let mut run = call
        .clone()
        .args(["--ttl", "3s", "--kill-after", "500ms"])
        .command(witness::command(&record, "old", &["fork"]))
        .spawn();
    run.wait_for_line("ready");
    server.forget_everything();
    eventually(LONG, "the run has ended", || run.has_ended());
    let left = run.processes();
    assert_eq!(left, Vec::<i32>::new(), "they outlived their lock");
    run.wait().exited(79).said("lost");
    let next = witness::command(&record, "new", &[]);
    let mut next = call.command(next).spawn();
    next.wait_for_line("ready");
    next.kill_everything();
    let lives = witness::lives(&record);
    assert!(witness::smallest_margin(&lives) > Some(0), "{lives:?}");
});

// "'Not yours' is final": also if another run has since acquired the lock.
on_every_lease_store!(a_lost_lock_is_not_acquired_again, |store| {
    let server = store.server();
    let call = Lockrun::new(store).key("stolen").args(["--ttl", "3s"]);
    let mut first = call.clone().sh("echo ready; exec sleep 600").spawn();
    first.wait_for_line("ready");
    server.forget_everything();
    let second = Holder::with(&call, &[]);
    first.wait().exited(79).said("lost");
    assert!(!is_free(store, "stolen"), "the first one freed the lock of the second");
    second.end();
    assert!(is_free(store, "stolen"));
});

// "A server that is down for less than the lease and comes back with its data costs nothing."
on_every_lease_store!(a_short_outage_costs_nothing, |store| {
    let server = store.server();
    let proxy = store.proxy();
    let mut run = Lockrun::at(&proxy.url())
        .key("outage")
        .args(["--ttl", "30s", "--renew-every", "1s"])
        .sh("trap 'echo asked to end' TERM; echo ready; read line || :; exit 7")
        .with_open_input();
    run.run.wait_for_line("ready");
    server.kill();
    let tried = proxy.connections();
    eventually(LONG, "it has tried in vain to renew", || proxy.connections() >= tried + 2);
    server.start_again();
    eventually(LONG, "it has renewed", || server.requests() > 0);
    run.finish().exited(7).printed("ready\n");
    assert!(is_free(store, "outage"));
});

// "No lease, no command": a run whose store is gone for good is stopped, and ends with 79.
on_every_lease_store!(a_long_outage_ends_the_command, |store| {
    let server = store.server();
    let mut run = Lockrun::new(store)
        .key("gone")
        .args(["--ttl", "3s"])
        .sh("trap '' TERM; echo ready; while :; do sleep 0.01; done")
        .spawn();
    run.wait_for_line("ready");
    server.kill();
    let cut = Instant::now();
    run.wait().exited(79).said("lost");
    let limit = Duration::from_secs(3) + ALLOWANCE;
    in_time(cut.elapsed(), limit, "ended");
});

// "\"Not yours\" is final: TERM at once": long before the lease that the server had promised would have run out.
on_every_lease_store!(a_lease_that_is_not_ours_ends_the_command_at_once, |store| {
    let server = store.server();
    let call = Lockrun::new(store).key("taken").args(["--ttl", "10m", "--renew-every", "500ms"]);
    let mut run = call.sh("echo ready; exec sleep 600").spawn();
    run.wait_for_line("ready");
    server.forget_holders("taken");
    eventually(LONG, "the run has ended", || run.has_ended());
    run.wait().exited(79);
});

// "Each acquisition of a key gets a number greater than every earlier one": also an acquisition under the same token,
// after the holder's record was lost.
on_every_lease_store!(what_is_acquired_anew_has_a_greater_fence, |store| {
    let fence = || {
        token(store, "fence", &["--token", "callback:42", "--ttl", "10m"]);
        status(store, "fence")["holders"][0]["fence"].as_u64().expect("a number")
    };
    let first = fence();
    assert_eq!(fence(), first, "it held the lock");
    store.server().forget_holders("fence");
    assert!(fence() > first, "it did not hold the lock any more");
});

// "Keeps the lease alive from a background thread": also in a store that answers more slowly than renewals are due: it
// gets one request at a time, and none once the command has ended.
on_every_lease_store!(a_slow_store_is_asked_no_faster_than_it_answers, |store| {
    let server = store.server();
    let proxy = store.proxy();
    let latency = Duration::from_millis(600);
    // From now on a Redis server has the scripts.
    assert!(is_free(store, "slow"));
    let before = server.requests();
    proxy.set(Mode::Delay(latency));
    let call = Lockrun::at(&proxy.url()).key("slow").args(["--ttl", "30s", "--renew-every", "0.5s"]);
    let call = call.args(["--store-timeout", "10s", "--kill-after", "1s"]);
    // The lease is renewed however long the command takes.
    let mut run = call.sh("sleep 1; exit 7").spawn();
    eventually(LONG, "the run has ended", || run.has_ended());
    let output = run.wait().exited(7).silent();
    let most = output.took.as_millis() / latency.as_millis() + 1;
    let asked = server.requests() - before;
    assert!(u128::from(asked) <= most, "asked {asked} times: {output}");
    assert!(is_free(store, "slow"));
});

// "Values that cannot work together are refused": values that only just work still give a run that ends.
on_every_lease_store!(a_tight_lease_is_refused_or_kept, |store| {
    let server = store.server();
    for kill_after in ["27s", "27.6s", "27.9s", "28.2s"] {
        // Each run has its own key: on a busy machine a run may end without releasing its lock, and says so.
        let key = format!("tight-{kill_after}");
        let call = Lockrun::new(store).key(&key).args(["--ttl", "30s", "--kill-after", kill_after]);
        let call = call.args(["--renew-every", "0.9s", "--store-timeout", "0.6s"]);
        let before = server.requests();
        // The lease is renewed while the command runs, or it is lost.
        let mut run = call.sh("sleep 2; exit 7").spawn();
        eventually(LONG, "the run has ended", || run.has_ended());
        let output = run.wait();
        // The other statuses are those of a busy machine, on which so short a lease cannot be kept, or not even
        // acquired.
        assert!(matches!(output.status, Some(7 | 64 | 69 | 79)), "{output}");
        let asked = server.requests() - before;
        // A renewal every 20 ms is the most that a failing store would see.
        let most = output.took.as_millis() / 20 + 3;
        assert!(u128::from(asked) <= most, "asked {asked} times: {output}");
    }
});
