//! A cluster of etcd in the place of another.

use crate::support::{Etcd, Holder, LONG, LeaseServer, Lockrun, Store, eventually};

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
