//! Many waiters that come to one lock in PostgreSQL at the same time.

use std::time::Duration;

use crate::support::store::on_pooled;
use crate::support::{LONG, Lockrun, eventually, stays_true_for};

// A pooler accepts clients even if it has no session free. A waiter waits for that, too, and does not log in again and
// again, which would overload the pooler. A lock that is granted late is renewed at once.
on_pooled!(waiters_are_patient_with_a_pooler, |store, pooled| {
    let proxy = store.proxy();
    let call = Lockrun::at(&proxy.url()).key("k").args(["--wait", "--ttl", "12s", "--store-timeout", "2s"]);
    call.clone().command(["true"]).run().exited(0);
    let sessions = pooled.take_all_sessions();
    let before = proxy.connections();
    let waiter = call.clone().command(["echo", "ran"]).spawn();
    eventually(LONG, "it has connected", || proxy.connections() > before);
    stays_true_for(Duration::from_secs(3), "it does not log in again", || proxy.connections() == before + 1);
    drop(sessions);
    waiter.wait().exited(0).printed("ran\n").silent();
    // Nor does it give up when that takes too long.
    let sessions = pooled.take_all_sessions();
    let before = proxy.connections();
    let waiter = call.command(["echo", "ran"]).spawn();
    eventually(LONG, "it has logged in again", || proxy.connections() > before + 1);
    drop(sessions);
    waiter.wait().exited(0).printed("ran\n").silent();
});
