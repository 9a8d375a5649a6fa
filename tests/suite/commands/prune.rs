//! `lockrun prune`: removes keys that are free and have not been used for long.

use std::fs::{self, File};
use std::time::{Duration, SystemTime};

use nix::fcntl::{Flock, FlockArg};

use crate::support::hand::{all, is_held, release, token, until_waiting};
use crate::support::lock_file::{self, path};
use crate::support::records::set_last_run;
use crate::support::store::on_every_store;
use crate::support::{Holder, LONG, Lockrun, Output, Store, eventually};

fn prune(store: &Store, options: &[&str]) -> Output {
    Lockrun::other("prune", store).args(options).run()
}

fn names(store: &Store) -> Vec<String> {
    all(store).iter().map(|one| one["key"].as_str().expect("a key").to_owned()).collect()
}

// "`lockrun prune --older-than D`: forgets keys that are free and have not been used for that long."
on_every_store!(old_keys_are_pruned, |store| {
    prune(store, &["--older-than", "0"]).exited(0).printed("").silent();
    for key in ["a", "b c", "z"] {
        Lockrun::new(store).key(key).command(["true"]).run().exited(0);
    }
    let _holder = Holder::new(store, "held");
    let hand = token(store, "hand", &["--ttl", "none"]);
    prune(store, &["--older-than", "1h"]).exited(0).printed("").silent();
    prune(store, &["--older-than", "0", "--dry-run"]).exited(0).printed("a\nb c\nz\n").silent();
    assert_eq!(names(store), ["a", "b c", "hand", "held", "z"]);
    prune(store, &["--older-than", "0"]).exited(0).printed("a\nb c\nz\n").silent();
    assert_eq!(names(store), ["hand", "held"]);
    assert!(is_held(store, "hand") && is_held(store, "held"));
    if let Some(server) = store.lease_server() {
        let left = server.left("hand", true);
        assert!(left.iter().all(|name| name.contains("hand") || name.contains("held")), "{left:?}");
    } else {
        assert_eq!(std::fs::read_dir(store.locks()).expect("ours").count(), 2);
    }
    release(store, "hand", &hand).exited(0);
    prune(store, &[]).exited(64).said("--older-than");
});

// "... and have not been used for that long", to the second.
on_every_store!(young_keys_stay, |store| {
    Lockrun::new(store).key("young").command(["true"]).run().exited(0);
    prune(store, &["--older-than", "10m"]).exited(0).printed("").silent();
    eventually(LONG, "it has aged", || prune(store, &["--older-than", "1s"]).exited(0).stdout() == "young\n");
    assert_eq!(names(store), [] as [&str; 0]);
});

// "Locks that are held or waited for are left alone", and a lease that has run out keeps nothing.
on_every_store!(what_is_in_use_is_left_alone, |store| {
    let holder = Holder::new(store, "busy");
    let waiter = Lockrun::new(store).key("busy").arg("--wait").command(["echo", "ran"]).spawn();
    until_waiting(store, "busy", 1);
    prune(store, &["--older-than", "0"]).exited(0).printed("").silent();
    holder.end();
    waiter.wait().exited(0).printed("ran\n");
    token(store, "short", &["--ttl", "1s"]);
    eventually(LONG, "the lease has run out", || !is_held(store, "short"));
    assert_eq!(prune(store, &["--older-than", "0"]).exited(0).silent().stdout(), "busy\nshort\n");
});

// "With KEY: the lock ... cannot be removed yet": a key that stays is no success, whatever keeps it.
on_every_store!(a_key_that_stays_is_reported, |store| {
    Lockrun::new(store).key("stays").command(["true"]).run().exited(0);
    let in_an_hour = SystemTime::now() + Duration::from_hours(1);
    let in_an_hour = in_an_hour.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_millis();
    set_last_run(store, "stays", in_an_hour.try_into().expect("in this age"));
    prune(store, &["stays"]).exited(75).printed("").said("\"stays\" is left alone").said("clock");
    prune(store, &["--older-than", "0"]).exited(0).printed("").silent();
    assert_eq!(names(store), ["stays"]);
    set_last_run(store, "stays", 1);
    prune(store, &["stays"]).exited(0).printed("stays\n").silent();
    prune(store, &["stays"]).exited(0).printed("").silent();
});

// "Fence: each acquisition of a key gets a number greater than every earlier one", also of a key that was forgotten.
on_every_store!(the_fence_grows_on, |store| {
    let fence = || {
        let output = Lockrun::new(store).key("fence").sh("echo $LOCKRUN_FENCE").run().exited(0);
        output.stdout().trim().parse::<u64>().expect("a number")
    };
    let mut last = 0;
    for _ in 0..5 {
        let now = fence();
        assert!(now > last, "{now} after {last}");
        last = now;
        prune(store, &["--older-than", "0"]).exited(0).printed("fence\n");
    }
});

// "Exclusion", while the key is pruned all the time.
on_every_store!(no_run_slips_in_meanwhile, |store| {
    let directory = tempfile::TempDir::new().expect("a temporary directory");
    let log = directory.path().join("log");
    // Between `in` and `out` no one else may write.
    let script = format!("echo in >>{0}; sleep 0.005; echo out >>{0}", log.display());
    let once = "for i in 1 2 3 4 5 6 7 8 9 10; do \"$@\" || exit; done";
    let runs: Vec<_> = (0..4)
        .map(|_| Lockrun::new(store).key("race").args(["--wait"]).sh(&script).in_shell(once).spawn_alone())
        .collect();
    let endless = Lockrun::other("prune", store).args(["--older-than", "0"]);
    let mut pruning = endless.in_shell("while :; do \"$@\" >/dev/null || exit; done").spawn_alone();
    for run in runs {
        run.wait().exited(0).silent();
    }
    assert!(!pruning.has_ended(), "{}", pruning.stderr());
    let seen = std::fs::read_to_string(&log).expect("all have run");
    assert_eq!(seen, "in\nout\n".repeat(40));
});

// "The file that has the name is the lock": a file that `prune` removed before we locked it is not, even if a hard link
// keeps it.
#[test]
fn a_hard_link_is_no_name() {
    let store = Store::file();
    let file = path(&store, "linked");
    Lockrun::new(&store).key("linked").command(["true"]).run().exited(0);
    fs::hard_link(&file, store.locks().join(".backup")).expect("a hard link");
    // The test holds the turnstile, as `prune` does when it removes the name.
    let turnstile =
        Flock::lock(File::open(&file).expect("the lock has a file"), FlockArg::LockExclusive).expect("a lock");
    let mut waiter =
        Lockrun::new(&store).key("linked").arg("--wait").sh("echo ready; read line || :").with_open_input();
    until_waiting(&store, "linked", 1);
    fs::remove_file(&file).expect("it is there");
    drop(turnstile);
    waiter.run.wait_for_line("ready");
    Lockrun::new(&store).key("linked").command(["echo", "ran"]).run().exited(75).printed("").said("is held by");
    waiter.finish().exited(0).silent();
}

// The same for a fence that is ahead of the clock, after which the next one would be lower.
#[test]
fn a_fence_ahead_of_the_clock_is_reported() {
    let store = Store::file();
    Lockrun::new(&store).key("ahead").command(["true"]).run().exited(0);
    lock_file::edit(&path(&store, "ahead"), |record| record["fence"] = (1_u64 << 53).into());
    prune(&store, &["ahead"]).exited(75).printed("").said("\"ahead\" is left alone").said("fencing token");
}
