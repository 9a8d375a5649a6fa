//! Sharing a lock by hand.

use serde_json::Value;

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

// "No weaker lock by accident": a token that shares the lock is not told that it holds it alone, and a token that holds
// it alone loses nothing.
on_every_store!(the_token_of_a_shared_holder_gets_no_exclusive_lock, |store| {
    let own = ["--token", "mine"];
    acquire(store, "again", &[&own[..], SHARED].concat()).run().exited(0);
    // Not even one that would wait for ever, or would wait unless others did.
    let waits = [&["--wait", "1"][..], &["--wait"], &["--wait", "--max-waiting", "7"]];
    for alone in [&[][..], &["--exclusive"], &["--slots", "2"]].into_iter().chain(waits) {
        let refused = acquire(store, "again", &[&own[..], alone].concat()).run().exited(75).printed("");
        let refused = refused.said("is held by").said("this token shares it already");
        assert!(!refused.stderr().contains("for it already"), "nobody waits");
        let is_to_wait = alone.contains(&"--wait");
        assert_eq!(refused.stderr().contains("did not wait"), is_to_wait, "{alone:?}: {}", refused.stderr());
    }
    acquire(store, "again", &[&own[..], SHARED].concat()).run().exited(0);
    assert!(would_get(store, "again", SHARED), "it is still shared");
    release(store, "again", "mine").exited(0);
    let answer = |options: &[&str]| {
        let output = acquire(store, "again", &[&own[..], &["--json"], options].concat()).run().exited(0);
        let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (json["shared"].as_bool(), json["slot"].clone(), output.stderr())
    };
    assert_eq!(answer(&[]), (Some(false), Value::Null, String::new()));
    for (other, wish) in [(SHARED, "to share it"), (&["--slots", "2"], "for a slot")] {
        let (is_shared, slot, said) = answer(other);
        assert_eq!((is_shared, slot), (Some(false), Value::Null), "{other:?}");
        assert!(
            said.contains(&format!("is held alone by this token, as before: {wish}, release it first")),
            "{other:?}: {said}"
        );
    }
    assert!(!would_get(store, "again", SHARED), "it is held alone");
    release(store, "again", "mine").exited(0);
    assert_eq!(answer(SHARED), (Some(true), Value::Null, String::new()));
    assert_eq!(answer(SHARED), (Some(true), Value::Null, String::new()), "asked again");
    release(store, "again", "mine").exited(0);
});

// A setting that a script does not know of must not make it share a lock that it expects to hold alone.
on_every_store!(sharing_by_hand_is_typed, |store| {
    for (variable, value) in [("LOCKRUN_SHARED", "true"), ("LOCKRUN_SLOTS", "2")] {
        let acquire = || acquire(store, "typed", &[]).env(variable, value).run();
        let holder = acquire().exited(0).stdout();
        acquire().exited(75).said("is held by");
        assert!(!would_get(store, "typed", SHARED), "{variable}");
        release(store, "typed", holder.trim()).exited(0);
    }
});
