//! What is done to a lock, by hand or by a server's settings, while lockrun counts on it.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::hand::{expires_in, is_held, renew};
use crate::support::store::on_every_store;
use crate::support::{Holder, LONG, Lockrun, Queue, Redis, Store, eventually};

// "From COMMAND's first instruction until COMMAND is dead, no other run holds the same key": a renewal by hand, for which
// COMMAND has key and token in its environment, does not cut the lease short on which lockrun counts.
on_every_store!(a_lease_is_not_cut_short_under_its_command, |store| {
    for (key, ttl) in [("lasts", "30s"), ("for-ever", "none")] {
        let call = Lockrun::new(store).key(key).args(["--ttl", ttl]);
        let mut run = call.sh("echo $LOCKRUN_TOKEN; exec sleep 600").spawn();
        eventually(LONG, "the command tells its token", || run.stdout().ends_with('\n'));
        let ours = run.stdout().trim_end().to_owned();
        renew(store, key, &ours, &["--ttl", "1s"]).exited(0).silent();
        assert!(expires_in(store, key).is_none_or(|left| left > 25_000), "{key}");
        renew(store, key, &ours, &[]).exited(0).silent();
        std::thread::sleep(Duration::from_millis(1500));
        assert!(is_held(store, key) && !run.has_ended(), "{key}");
        run.signal(Signal::SIGTERM);
        run.wait().died_of(Signal::SIGTERM);
    }
});

// "All changes are Lua scripts": also on a server that does not let them be called by their hash.
#[test]
fn a_server_without_evalsha() {
    let store = Store::Redis(Redis::with_options(&["--rename-command", "EVALSHA", ""]));
    let holder = Holder::new(&store, "renamed");
    let mut queue = Queue::new(&store, "renamed");
    queue.join(2);
    holder.end();
    queue.end().in_order([0, 1]);
}
