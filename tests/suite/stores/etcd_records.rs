//! Records in etcd that were deleted by hand, or contain nothing.

use crate::support::hand::{break_lock, is_held, release, renew, token};
use crate::support::{Etcd, LONG, Lockrun, Store, eventually, memory, witness};

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
    let mut next = next.spawn();
    old.wait().exited(79).said("is not ours any more");
    next.wait_for_line("ready");
    eventually(LONG, "the next holder stamps", || witness::lives(&record).len() == 2);
    next.kill_everything();
    let margin = witness::smallest_margin(&witness::lives(&record)).expect("two lives");
    assert!(margin > 0, "an overlap of {} ms", -margin / 1_000_000);
}

// "`break`: where a command runs, the lock is free when the command has ended; `--now` frees it at once": also a lock whose record was
// deleted, so that nobody knows what runs under it.
#[test]
fn a_lock_without_a_record_is_broken() {
    let store = Store::Etcd(Etcd::of(1));
    let etcd = store.as_etcd().expect("it is one");
    let held = token(&store, "k", &["--ttl", "10m"]);
    etcd.delete_record("k");
    // Its owner is told so, too.
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

// "`prune` removes what is left of locks": also a record in which nothing is left. A cancelled request whose first answer was lost leaves one.
#[test]
fn an_empty_record_is_pruned() {
    let store = Store::Etcd(Etcd::of(1));
    let etcd = store.as_etcd().expect("it is one");
    let prune = |options: &[&str]| Lockrun::other("prune", &store).args(["--older-than", "1d"]).args(options).run();
    etcd.put("lockrun/state/job-2026-11-26", r#"{"key":"","fence":0}"#);
    for options in [&["--dry-run"][..], &[]] {
        prune(options).exited(0).printed("job-2026-11-26\n").silent();
    }
    assert!(etcd.keys("lockrun/").is_empty());
    prune(&[]).exited(0).printed("").silent();
}
