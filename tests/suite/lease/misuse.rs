//! Changes to a lock, by hand or by a server's settings, while lockrun relies on it.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::calm::in_time;
use crate::support::hand::{acquire, break_lock, expires_in, is_held, renew, throughout, until_waiting};
use crate::support::holder::is_free;
use crate::support::lockrun::PROGRAM;
use crate::support::store::{on_every_lease_store, on_every_store};
use crate::support::{Holder, LONG, Lockrun, Running, Store, eventually};

// "From COMMAND's first instruction until COMMAND is dead, no other run holds the same key": commands by hand under the
// token, which COMMAND has in its environment, do not shorten the lease on which lockrun relies.
on_every_store!(a_lease_is_not_cut_short_under_its_command, |store| {
    for (key, ttl) in [("lasts", "30s"), ("for-ever", "none")] {
        let call = Lockrun::new(store).key(key).args(["--ttl", ttl]);
        let mut run = call.sh("echo $LOCKRUN_TOKEN; exec sleep 600").spawn();
        eventually(LONG, "the command tells its token", || run.stdout().ends_with('\n'));
        let ours = run.stdout().trim_end().to_owned();
        renew(store, key, &ours, &["--ttl", "1s"]).exited(0).silent();
        assert!(expires_in(store, key).is_none_or(|left| left > 25_000), "{key}");
        renew(store, key, &ours, &[]).exited(0).silent();
        acquire(store, key, &["--token", &ours, "--ttl", "1s"]).run().exited(0).silent();
        throughout(store, 1, || assert!(is_held(store, key) && !run.has_ended(), "{key}"));
        run.signal(Signal::SIGTERM);
        run.wait().died_of(Signal::SIGTERM);
    }
});

/// Starts a run that renews its lease all the time. Returns it, and the token that its command has.
#[track_caller]
fn renewing_run(store: &Store, key: &str) -> (Running, String) {
    let call = Lockrun::new(store).key(key).args(["--ttl", "30s", "--renew-every", "200ms"]);
    let run = call.sh("echo $LOCKRUN_TOKEN; exec sleep 600").spawn();
    eventually(LONG, "the command tells its token", || run.stdout().ends_with('\n'));
    let ours = run.stdout().trim_end().to_owned();
    (run, ours)
}

// The same if a renewal by hand makes the lease endless: later renewals by lockrun take nothing from it, and the end of
// the command ends it.
on_every_store!(a_lease_is_made_endless_under_its_command, |store| {
    let (mut run, ours) = renewing_run(store, "k");
    renew(store, "k", &ours, &["--ttl", "none"]).exited(0).silent();
    throughout(store, 1, || {
        assert_eq!(expires_in(store, "k"), None);
        assert!(!is_free(store, "k") && !run.has_ended(), "{}", run.stderr());
    });
    run.signal(Signal::SIGTERM);
    run.wait().died_of(Signal::SIGTERM);
    assert!(!is_held(store, "k"));
});

// "Where a command runs under a lease, the lock is free when the command has ended": a run whose lease was made endless
// by hand still renews it, so it learns of a `break`. "Nothing outlives lockrun": if lockrun is killed, its guardian
// releases such a lock.
on_every_lease_store!(a_lease_that_was_made_endless_ends_with_its_run, |store| {
    let (run, ours) = renewing_run(store, "broken");
    renew(store, "broken", &ours, &["--ttl", "none"]).exited(0).silent();
    let output = break_lock(store, "broken", &[]).exited(0).said("it will be free when its command has been stopped");
    assert!(!output.stderr().contains("may still be running"), "{output}");
    run.wait().exited(79).said("it was revoked by ");
    assert!(!is_held(store, "broken"));
    let (run, ours) = renewing_run(store, "killed");
    renew(store, "killed", &ours, &["--ttl", "none"]).exited(0).silent();
    run.signal(Signal::SIGKILL);
    eventually(LONG, "its guardian has released the lock", || !is_held(store, "killed"));
    drop(run);
});

// "`renew --ttl`: the new length of the lease": lockrun's own renewals, for less, do not undo it.
on_every_lease_store!(a_lease_is_made_longer_under_its_command, |store| {
    let (mut run, ours) = renewing_run(store, "k");
    renew(store, "k", &ours, &["--ttl", "10m"]).exited(0).silent();
    throughout(store, 1, || {
        assert!(expires_in(store, "k").is_some_and(|left| left > 500_000) && !run.has_ended(), "{}", run.stderr());
    });
    run.signal(Signal::SIGTERM);
    run.wait().died_of(Signal::SIGTERM);
    assert!(!is_held(store, "k"));
});

// "`break` takes the lock from its holder": a command that succeeds before its run learns of that keeps nothing, and
// lockrun says so. Nor is the lock kept if the command itself has released it, as it wanted.
on_every_lease_store!(a_revoked_lock_is_not_reported_as_kept, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let go = directory.path().join("go");
    let script = format!("echo ready; while ! [ -e '{}' ]; do sleep 0.01; done", go.display());
    let mut run = Lockrun::new(store).key("taken").args(["--keep", "-v"]).sh(&script).spawn();
    run.wait_for_line("ready");
    break_lock(store, "taken", &[]).exited(0);
    fs::write(&go, "").expect("our own directory");
    let output = run.wait().exited(0).said("could not be kept: this run no longer holds it");
    assert!(!output.stderr().contains("\" kept"), "{output}");
    assert!(!is_held(store, "taken"));
});

on_every_store!(a_released_lock_is_not_reported_as_kept, |store| {
    let script = format!("{PROGRAM} release -q --store {}", store.url());
    let output = Lockrun::new(store).key("let-go").args(["--keep", "-v"]).sh(&script).run().exited(0).said("released");
    assert!(!output.stderr().contains("kept"), "{output}");
    assert!(!is_held(store, "let-go"));
});

// "A crash frees it within ttl + 1 s": also if the first request to find the lease expired wants no lock, but a value
// of a sequence under the same key.
on_every_lease_store!(a_lock_that_a_reservation_finds_free_goes_to_the_next_waiter, |store| {
    let reserve = Lockrun::other("reserve", store).key("both");
    reserve.clone().args(["--from", "no integer", "--next", "true"]).command(["true"]).run().exited(0);
    let mut holder = Holder::with(&Lockrun::new(store).key("both").args(["--ttl", "6s"]), &[]);
    let waiter = Lockrun::new(store).key("both").args(["--ttl", "6s", "--wait"]).command(["true"]);
    let mut waiter = waiter.spawn();
    until_waiting(store, "both", 1);
    let killed_at = Instant::now();
    holder.run().signal(Signal::SIGKILL);
    // Each attempt removes what has expired, and reserves nothing. The contract has one second; the rest is for a busy
    // machine.
    let fails = reserve.args(["--from", "1"]).command(["true"]);
    while !waiter.has_ended() {
        fails.run().exited(125);
        in_time(killed_at.elapsed(), Duration::from_secs(6 + 3), "it waits for the lease once more");
    }
    waiter.wait().exited(0).silent();
});
