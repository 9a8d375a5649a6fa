//! `--keep`: a lock that stays when its command has succeeded.

use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::events::Events;
use crate::support::hand::{break_lock, expires_in, is_held, release, renew, status, token};
use crate::support::holder::{is_free, write_script};
use crate::support::store::{on_every_lease_store, on_every_store};
use crate::support::{LONG, Lockrun, Store, eventually};

/// Returns a run whose lock is kept if this script succeeds; the script prints its token first.
fn keep(store: &Store, options: &[&str], script: &str) -> Lockrun {
    Lockrun::new(store).key("kept").arg("--keep").args(options).sh(&format!("echo $LOCKRUN_TOKEN; {script}"))
}

// "When COMMAND ends with 0 the lock stays, for `release` by its token from anywhere, until its ttl."
on_every_store!(a_kept_lock_is_released_by_its_token, |store| {
    let output = keep(store, &["--ttl", "10m"], ":").run().exited(0).silent();
    let ours = output.stdout().trim_end().to_owned();
    assert!(!is_free(store, "kept"));
    let told = status(store, "kept");
    assert_eq!((&told["last"]["status"], &told["holders"][0]["fence"]), (&0.into(), &told["fence"]));
    assert!(expires_in(store, "kept").expect("it ends") > 300_000);
    renew(store, "kept", &ours, &["--ttl", "1h"]).exited(0).silent();
    release(store, "kept", &ours).exited(0).silent();
    assert!(is_free(store, "kept"));
});

// "A release never overwrites how the kept run ended"; nor does `break`.
on_every_store!(how_a_kept_run_ended_stays_known, |store| {
    for is_broken in [false, true] {
        let ours = keep(store, &["--ttl", "10m"], ":").run().exited(0).silent().stdout();
        let before = status(store, "kept")["last"].clone();
        if is_broken {
            break_lock(store, "kept", &[]).exited(0);
        } else {
            release(store, "kept", ours.trim_end()).exited(0).silent();
        }
        assert!(!is_held(store, "kept"));
        assert_eq!(status(store, "kept")["last"], before);
        assert_eq!(before["status"], 0);
    }
});

// "... otherwise it is released."
on_every_store!(a_failure_is_not_kept, |store| {
    for script in ["exit 3", "kill -TERM $$"] {
        keep(store, &[], script).run();
        assert!(!is_held(store, "kept"), "{script}");
    }
    keep(store, &["--max-runtime", "100ms"], "exec sleep 600").run().exited(124);
    assert!(!is_held(store, "kept"), "it was stopped");
    Lockrun::new(store).key("kept").args(["--keep", "/nonexistent/program"]).run().exited(127);
    assert!(!is_held(store, "kept"), "it was never started");
});

// "... until its ttl", counted from the end of COMMAND.
on_every_store!(a_kept_lock_ends_with_its_ttl, |store| {
    let started = Instant::now();
    keep(store, &["--ttl", "2s"], ":").run().exited(0);
    let next = Lockrun::new(store).key("kept").arg("--wait").command(["echo", "next"]).run();
    next.exited(0).printed("next\n").silent();
    assert!(started.elapsed() >= Duration::from_secs(2), "{:?}", started.elapsed());
    let ours = keep(store, &["--ttl", "none"], ":").run().exited(0).stdout();
    assert_eq!(expires_in(store, "kept"), None);
    release(store, "kept", ours.trim_end()).exited(0).silent();
});

// "The deployment in docs/recipes.md: `--keep`, a background script on another host that releases by token, a second
// deployment that waits for it."
on_every_store!(a_deployment_that_ends_elsewhere, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let log = directory.path().join("log");
    // The other host gets only the token; it works until the test ends it.
    let fifo = directory.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a fifo");
    let elsewhere = write_script(
        directory.path(),
        "elsewhere.sh",
        &format!(
            "#!/bin/sh\nread go <{}\necho elsewhere >>{}\nexec {} release --store '{}' --key deploy --token \"$1\"\n",
            fifo.display(),
            log.display(),
            crate::support::lockrun::PROGRAM,
            store.url()
        ),
    );
    let script =
        format!("setsid env -i {elsewhere} $LOCKRUN_TOKEN </dev/null >/dev/null 2>&1 & echo first >>{}", log.display());
    let first = Lockrun::new(store).key("deploy").args(["--keep", "--ttl", "10m"]).sh(&script).spawn();
    first.wait_and_leave(|output| {
        output.exited(0).silent();
        let call = Lockrun::new(store).key("deploy").args(["--wait", "-v"]);
        let mut second = call.sh(&format!("echo second >>{}", log.display())).spawn();
        second.wait_for_stderr("waiting");
        assert!(is_held(store, "deploy"));
        std::fs::write(&fifo, "go\n").expect("the other host hears");
        second.wait().exited(0);
    });
    assert_eq!(std::fs::read_to_string(&log).expect("all have run"), "first\nelsewhere\nsecond\n");
});

// "It is released when that has ended": a release while the command runs overrides `--keep` and `--min-hold`.
on_every_store!(a_release_overrides_keep, |store| {
    for options in [&["--keep"][..], &["--min-hold", "10m"], &["--keep", "--min-hold", "10m"]] {
        let events = Events::new();
        let call = events.of(Lockrun::new(store)).key("kept").args(["--ttl", "10m"]).args(options);
        let mut run = call.sh("echo $LOCKRUN_TOKEN; echo ready; read line || :").with_open_input();
        run.run.wait_for_line("ready");
        let ours = run.run.stdout().lines().next().expect("a token").to_owned();
        release(store, "kept", &ours).exited(0).said("will be released when");
        run.finish().exited(0);
        assert!(!is_held(store, "kept"), "{options:?}");
        assert!(events.one("released")["min_hold_ms"].is_null(), "{options:?}");
    }
});

// "`break` takes the lock from its holder": a holder that has not learned of it yet cannot keep the lock.
on_every_lease_store!(a_revoked_lock_is_not_kept, |store| {
    for options in [&["--keep"][..], &["--min-hold", "10m"], &["--keep", "--min-hold", "10m"]] {
        let call =
            Lockrun::new(store).key("kept").args(["--ttl", "10m"]).args(options).sh("echo ready; read line || :");
        let mut run = call.with_open_input();
        run.run.wait_for_line("ready");
        break_lock(store, "kept", &[]).exited(0).said("was taken from");
        assert!(is_held(store, "kept"), "its command still runs");
        run.finish().exited(0);
        assert!(!is_held(store, "kept"), "{options:?}");
    }
});

// "Renewing never creates a lock", nor does keeping: a lost lock stays lost, and with its next holder.
on_every_lease_store!(a_lost_lock_is_not_kept, |store| {
    let call = keep(store, &["--ttl", "10m", "--on-lost", "warn"], "echo ready; read line || :");
    let mut run = call.with_open_input();
    run.run.wait_for_line("ready");
    break_lock(store, "kept", &["--now"]).exited(0).said("was taken from");
    let next = token(store, "kept", &["--ttl", "10m"]);
    let fence = status(store, "kept")["holders"][0]["fence"].clone();
    run.finish().exited(0);
    assert_eq!(status(store, "kept")["holders"][0]["fence"], fence);
    release(store, "kept", &next).exited(0).silent();
    assert!(!is_held(store, "kept"));
});

// "Keep the lock at least this long": also when `--keep` would end earlier.
on_every_store!(keep_is_no_shorter_than_min_hold, |store| {
    keep(store, &["--ttl", "2s", "--min-hold", "10m"], ":").run().exited(0);
    assert!(expires_in(store, "kept").expect("it ends") > 60_000);
    token(store, "other", &["--ttl", "2s"]);
    eventually(LONG, "a lease as long as the ttl has run out", || !is_held(store, "other"));
    assert!(!is_free(store, "kept"));
});
