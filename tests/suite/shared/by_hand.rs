//! Sharing a lock by hand.

use crate::support::hand::{acquire, release, renew, token};
use crate::support::readers::{SHARED, would_get};
use crate::support::store::on_every_store;

// "By hand as by a run": several share it, and it is free when the last of them has released it.
on_every_store!(a_lock_is_shared_by_hand, |store| {
    let tokens = [(); 3].map(|()| token(store, "hand", SHARED));
    acquire(store, "hand", &[]).run().exited(75).said("is held by");
    assert!(would_get(store, "hand", SHARED));
    renew(store, "hand", &tokens[0], &["--ttl", "10m"]).exited(0);
    for token in &tokens {
        assert!(!would_get(store, "hand", &[]));
        release(store, "hand", token).exited(0);
    }
    let writer = token(store, "hand", &["--exclusive"]);
    acquire(store, "hand", SHARED).run().exited(75);
    release(store, "hand", &writer).exited(0);
});

// "The same token has the same lock": asked again in another way, it stays as it was.
on_every_store!(asked_again_it_stays_as_it_was, |store| {
    let own = ["--token", "mine"];
    acquire(store, "again", &[&own[..], SHARED].concat()).run().exited(0);
    acquire(store, "again", &own).run().exited(0);
    assert!(would_get(store, "again", SHARED), "it is still shared");
    acquire(store, "again", &["--slots", "2", "--token", "other"]).run().exited(75);
    release(store, "again", "mine").exited(0);
});
