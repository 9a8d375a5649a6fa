//! Several etcd clusters where there should be one.

use crate::support::hand::{release, token};
use crate::support::{Etcd, Holder, LONG, LeaseServer, Lockrun, Store, eventually};

// One member in the URL was wiped, and started as a cluster of its own. `doctor` says so, and a run that has heard of one cluster takes
// no lock in the other.
#[test]
fn a_member_of_another_cluster_is_not_asked() {
    let (store, other) = (Store::Etcd(Etcd::of(1)), Etcd::of(1));
    let etcd = store.as_etcd().expect("it is one");
    let url = format!("etcd://127.0.0.1:{},127.0.0.1:{}", etcd.port(), other.port());
    let doctor = Lockrun::bare().args(["doctor", "--store", &url]).run().exited(2).stdout();
    assert!(doctor.contains("fail  the members in the URL belong to 2 clusters"), "{doctor}");
    let held = token(&store, "k", &["--ttl", "10m"]);
    let call = Lockrun::at(&url).key("k").args(["--wait", "-v", "--store-timeout", "2s"]);
    let mut waiter = call.command(["echo", "ran"]).spawn();
    waiter.wait_for_stderr("waiting");
    let before = other.requests();
    etcd.kill();
    eventually(LONG, "the other cluster is asked", || other.requests() > before || waiter.has_ended());
    etcd.start_again();
    release(&store, "k", &held).exited(0);
    waiter.wait().exited(0).printed("ran\n");
    assert!(other.keys("lockrun/state/k").is_empty());
}

// A cluster that was restored from a snapshot is another one, and has the locks of the old one.
#[test]
fn a_restored_cluster_keeps_its_locks() {
    let store = Store::Etcd(Etcd::of(1));
    let etcd = store.as_etcd().expect("it is one");
    let url = format!("etcd://127.0.0.1:{0},localhost:{0}", etcd.port());
    let call = Lockrun::at(&url).key("k").args(["--ttl", "2m", "--renew-every", "200ms"]);
    let holder = Holder::with(&call, &[]);
    etcd.restore();
    let before = etcd.requests();
    eventually(LONG, "the lease is renewed", || etcd.requests() > before + 8);
    Lockrun::new(&store).key("k").command(["true"]).run().exited(75);
    holder.end().silent();
}
