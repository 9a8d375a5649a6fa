//! What a lock leaves on Redis, and where.

use crate::support::store::on_redis;
use crate::support::{Holder, Lockrun, Redis, Store, redis_keys};

/// Returns the fence that a run's command saw.
#[track_caller]
fn fence_of_a_run(store: &Store) -> String {
    let run = Lockrun::new(store).key("clean").sh("printf %s \"$LOCKRUN_FENCE\"").run();
    run.exited(0).silent().stdout()
}

// What a free lock leaves does not expire, except for the last run.
on_redis!(the_fence_has_no_expiry, |store, redis| {
    fence_of_a_run(store);
    assert_eq!(redis.keys(), redis_keys::lasting("clean"));
    assert_eq!(redis.ask(&["PTTL", &redis_keys::fence("clean")]).number(), -1);
});

// "`--ttl none`: it never expires": no key of such a lock does.
on_redis!(a_lease_that_never_expires_has_no_expiry, |store, redis| {
    let _holder = Holder::with(&Lockrun::new(store).key("never").args(["--ttl", "none"]), &[]);
    for key in redis.keys() {
        let left = redis.ask(&["PTTL", &key]).number();
        assert!(left == -1 || key == redis_keys::last("never"), "{key} expires in {left} ms");
    }
});

// "Greater of last + 1 and the server's clock": a server whose clock goes back does not take the fence back.
on_redis!(the_fence_does_not_follow_a_clock_back, |store, redis| {
    let fence = redis_keys::fence("clean");
    fence_of_a_run(store);
    // A clock that goes back leaves a fence from the future behind.
    let future: u64 = 9_000_000_000_000;
    let kind = redis.ask(&["TYPE", &fence]);
    assert_eq!(kind.text(), "string", "the fence is a plain number");
    redis.ask(&["SET", &fence, &future.to_string()]);
    assert_eq!(fence_of_a_run(store), (future + 1).to_string());
    assert_eq!(fence_of_a_run(store), (future + 2).to_string());
});

// "Common query parameters: `prefix` (Redis, default `lockrun`)": nothing outside of it.
#[test]
fn all_keys_lie_under_the_prefix() {
    let redis = Redis::start();
    let url = format!("{}?prefix=team-a", redis.url());
    Lockrun::at(&url).key("clean").command(["true"]).run().exited(0).silent();
    assert_eq!(redis.keys(), redis_keys::lasting("clean").map(|key| key.replacen("lockrun", "team-a", 1)));
}
