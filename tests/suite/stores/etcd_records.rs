//! Records in etcd that were deleted by hand, or contain nothing.

use std::time::Duration;

use serde_json::json;

use crate::support::hand::{all, break_lock, is_held, release, renew, token};
use crate::support::proxy::Mode;
use crate::support::{Etcd, LONG, Lockrun, Store, eventually, memory, stays_true_for, witness};

// "The command is dead before the lock passes to anyone else": if only the record is deleted, the run stops its command when it learns of
// that, and a run that comes meanwhile waits until the command is dead.
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
    old.wait().exited(79).said("is not ours any more");
    witness::begins_after_the_other(next, &record);
}

// "`break`: where a command runs, the lock is free when the command has ended; `--now` frees it at once": also a lock whose record was
// deleted, so that nobody knows what runs under it.
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
    assert!(!is_held(&store, "k") && etcd.lives("k").is_empty());
}

// "`prune` removes what is left of locks": also a record in which nothing is left, or only a cancelled request that can no longer arrive.
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

// "No answer": 69, and a request that arrives afterwards acquires nothing, also if `prune` or `break` has looked at the lock meanwhile: only
// the record that the cancelled request leaves makes it fail.
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
        stays_true_for(Duration::from_secs(1), "nobody holds the lock", || etcd.lives("k").is_empty());
    }
}
