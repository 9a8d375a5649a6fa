//! Records in etcd that were deleted by hand, or contain nothing.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::support::hand::{all, break_lock, is_held, release, renew, token, until_waiting};
use crate::support::proxy::Mode;
use crate::support::{Etcd, LONG, Lockrun, Output, Store, eventually, memory, stays_true_for, witness};

// "The command is dead before the lock passes to anyone else": if only the record is deleted, the run stops its command
// when it learns of that, and a run that comes meanwhile waits until the command is dead.
#[test]
fn a_record_is_deleted_under_a_command_that_ends_slowly() {
    let store = Store::Etcd(Etcd::of(1));
    let etcd = store.as_etcd().expect("it is one");
    let records = memory::directory();
    let record = records.path().join("record");
    let terms = ["--ttl", "60s", "--renew-every", "200ms", "--kill-after", "3s"];
    let old = Lockrun::new(&store).key("k").args(terms).command(witness::command(&record, "old", &[]));
    let mut old = old.spawn();
    old.wait_for_line("ready");
    etcd.delete_record("k");
    let next = Lockrun::new(&store).key("k").arg("--wait").command(witness::command(&record, "next", &[]));
    let next = next.spawn();
    old.wait().exited(79).said("no longer holds it");
    witness::begins_after_the_other(next, &record);
}

// "`break`: where a command runs, the lock is free when the command has ended; `--now` frees it at once": also a lock
// whose record was deleted, so that nobody knows what runs under it.
#[test]
fn a_lock_without_a_record_is_broken() {
    let store = Store::Etcd(Etcd::of(1));
    let etcd = store.as_etcd().expect("it is one");
    let held = token(&store, "k", &["--ttl", "10m"]);
    etcd.delete_record("k");
    // Its owner learns of it, too.
    for output in [release(&store, "k", &held), renew(&store, "k", &held, &[])] {
        output.exited(79).said("not held under this token").said("`lockrun break --now`");
    }
    let output =
        break_lock(&store, "k", &[]).exited(0).said("it will be free when its command has been stopped, within ");
    // As long as the lease still lasts.
    assert!(["within 10m", "within 9m"].iter().any(|words| output.stderr().contains(words)), "{output}");
    assert!(is_held(&store, "k"));
    break_lock(&store, "k", &["--now"]).exited(0).said("its command may still be running");
    assert!(!is_held(&store, "k") && etcd.lease_keys("k").is_empty());
}

// "`prune` removes what is left of locks": also a record in which nothing is left, or only a cancelled request that can
// no longer arrive.
#[test]
fn an_empty_record_is_pruned() {
    let store = Store::Etcd(Etcd::of(1));
    let etcd = store.as_etcd().expect("it is one");
    let prune = |options: &[&str]| Lockrun::other("prune", &store).args(["--older-than", "1d"]).args(options).run();
    let cancelled = json!([{ "token": "", "until_ms": 1 }]);
    for record in [json!({ "key": "", "fence": 0 }), json!({ "key": "", "fence": 0, "cancelled": cancelled })] {
        etcd.put("lockrun/state/job-2026-11-26", &record.to_string());
        for options in [&["--dry-run"][..], &[]] {
            prune(options).exited(0).printed("job-2026-11-26\n").silent();
        }
    }
    assert!(etcd.keys("lockrun/").is_empty());
    prune(&[]).exited(0).printed("").silent();
}

// "No answer": 69, and a request that arrives afterwards acquires nothing, also if `prune` or `break` has looked at the
// lock meanwhile: only the record that the cancelled request leaves makes it fail.
#[test]
fn a_record_of_a_recent_cancelled_request_stays() {
    for command in [&["prune", "--older-than", "365d"][..], &["prune", "--key", "k"], &["break", "--key", "k"]] {
        let store = Store::Etcd(Etcd::of(1));
        let (etcd, proxy) = (store.as_etcd().expect("it is one"), store.proxy());
        proxy.set(Mode::HoldUpTo(proxy.next_number()));
        let call = Lockrun::at(&proxy.url()).key("k").args(["--ttl", "10m", "--store-timeout", "4s"]);
        call.command(["true"]).run().exited(69);
        assert_eq!(proxy.held(), 1);
        Lockrun::bare().args(command).args(["--store", &store.url()]).run().printed("");
        assert_eq!(etcd.keys("lockrun/state/").len(), 1, "{command:?}");
        let before = proxy.delivered();
        proxy.set(Mode::Pass);
        eventually(LONG, "the late request arrives", || proxy.delivered() > before);
        assert!(all(&store).is_empty(), "a lock that was never held");
        stays_true_for(Duration::from_secs(1), "nobody holds the lock", || etcd.lease_keys("k").is_empty());
    }
}

// "Another team's keys are not lockrun's": what lies among the keys of a lock, and is not as lockrun writes it, breaks
// no lock, and neither `break` nor `prune` deletes it, nor advises to.
#[test]
fn other_keys_lie_among_those_of_a_lock() {
    let store = Store::Etcd(Etcd::of(1));
    let etcd = store.as_etcd().expect("it is one");
    let others = [
        "lockrun/lease/k/any",
        "lockrun/lease/k/lease/x/t",
        "lockrun/lease/k/state/x",
        "lockrun/queue/k/0/state/x",
        "lockrun/queue/k/0000000000000001-t/state/x",
        "lockrun/queue/k/queue/x/0000000000000001-t",
        "lockrun/queue/k/state/x",
        "lockrun/state/%6b",
        "lockrun/state/k/state/x",
    ];
    for key in others {
        etcd.put(key, r#"{"key":"x","fence":7}"#);
    }
    let run = || Lockrun::new(&store).key("k").command(["echo", "ran"]).run().exited(0).printed("ran\n").silent();
    run();
    break_lock(&store, "k", &[]).exited(0).said("there is nothing to break");
    break_lock(&store, "k", &["--now"]).exited(0).said("there is nothing to break");
    let held = token(&store, "k", &["--ttl", "10m"]);
    let waiter = Lockrun::new(&store).key("k").arg("--wait").command(["echo", "next"]).spawn();
    until_waiting(&store, "k", 1);
    assert_eq!(all(&store).len(), 1, "one lock");
    release(&store, "k", &held).exited(0);
    waiter.wait().exited(0).printed("next\n").silent();
    Lockrun::other("prune", &store).args(["--older-than", "0s", "k"]).run().exited(0);
    run();
    let left: Vec<String> = etcd.keys("lockrun/").into_iter().map(|stored| stored.key).collect();
    assert!(others.iter().all(|key| left.iter().any(|it| it == key)), "{left:?}");
}

// "64": a prefix that lies among the keys of another one.
#[test]
fn a_prefix_lies_among_the_keys_of_another_one() {
    let store = Store::Etcd(Etcd::of(1));
    for prefix in ["lockrun/queue/job", "lockrun/lease/job", "lockrun/state", "a/b/queue"] {
        let url = format!("{}?prefix={prefix}", store.url());
        let output = Lockrun::at(&url).key("k").command(["echo", "ran"]).run();
        output.exited(64).printed("").said("lies among the keys of another one");
    }
    let etcd = store.as_etcd().expect("it is one");
    assert!(etcd.keys("lockrun").is_empty() && etcd.keys("a/").is_empty());
    let url = format!("{}?prefix=queue/lifetime", store.url());
    Lockrun::at(&url).key("k").command(["echo", "ran"]).run().exited(0).printed("ran\n");
}

/// Sets the last fence of a lock to one that a member whose clock is ahead by this time would have given out. Returns
/// it.
fn set_ahead(etcd: &Etcd, key: &str, time: Duration) -> u64 {
    let ahead = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later") + time;
    let fence = u64::try_from(ahead.as_millis()).expect("it fits");
    etcd.edit(key, |record| record["fence"] = json!(fence));
    fence
}

/// Returns the fence of another run.
fn fence(store: &Store, key: &str) -> u64 {
    fence_of(Lockrun::new(store).key(key).sh(SAY_FENCE).run())
}

const SAY_FENCE: &str = "echo \"$LOCKRUN_FENCE\"";

fn fence_of(output: Output) -> u64 {
    output.exited(0).silent().stdout().trim().parse().expect("a number")
}

/// Prunes until only the records of so many locks are left.
fn prune_to(store: &Store, left: usize) {
    let etcd = store.as_etcd().expect("it is one");
    eventually(LONG, "the others are pruned", || {
        Lockrun::other("prune", store).args(["--older-than", "1s"]).run().exited(0);
        etcd.keys("lockrun/state/").len() == left
    });
}

// "The fence is greater than every earlier one": also if a lock is pruned whose last fence came from a member whose
// clock is ahead, and is acquired through another one after that; and `prune` of a lock with a smaller fence takes
// nothing from it.
#[test]
fn a_lock_is_pruned_whose_fence_is_ahead_of_the_clock() {
    let store = Store::Etcd(Etcd::of(1));
    let etcd = store.as_etcd().expect("it is one");
    fence(&store, "small");
    fence(&store, "k");
    let mut last = set_ahead(etcd, "k", Duration::from_hours(12));
    for key in ["k", "small", "k"] {
        prune_to(&store, 0);
        let next = fence(&store, key);
        assert!(next > last, "{next} after {last}");
        last = next;
    }
}

// The same of a fence that is further ahead than any clock should be: such a lock is not pruned, so that the fences of
// all other locks stay near the time.
#[test]
fn a_lock_whose_fence_is_far_ahead_of_the_clock_is_not_pruned() {
    let store = Store::Etcd(Etcd::of(1));
    let etcd = store.as_etcd().expect("it is one");
    fence(&store, "other");
    fence(&store, "k");
    let far = set_ahead(etcd, "k", Duration::from_hours(48));
    prune_to(&store, 1);
    assert!(etcd.keys("lockrun/state/k").len() == 1, "it is the one");
    let other = fence(&store, "other");
    assert!(other < far, "{other} is as far ahead");
    let next = fence(&store, "k");
    assert!(next > far, "{next} after {far}");
}

// The same of a request that found no record, and arrives when the lock has been acquired and pruned by others.
#[test]
fn a_lock_is_acquired_and_pruned_before_a_late_request() {
    let store = Store::Etcd(Etcd::of(1));
    let proxy = store.proxy();
    proxy.set(Mode::HoldUpTo(proxy.next_number()));
    let late = Lockrun::at(&proxy.url()).key("k").args(["--ttl", "10m", "--store-timeout", "1m"]).sh(SAY_FENCE).spawn();
    eventually(LONG, "its request is on its way", || proxy.held() == 1);
    let first = fence(&store, "k");
    prune_to(&store, 0);
    proxy.set(Mode::Pass);
    let second = fence_of(late.wait());
    assert!(second > first, "{second} after {first}");
}
