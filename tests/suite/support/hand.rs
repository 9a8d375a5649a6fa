//! Locks by hand, and the output of `lockrun status`.

use std::thread;

use serde_json::Value;

use super::deadline::{LONG, PAUSE, eventually};
use super::lockrun::Lockrun;
use super::output::Output;
use super::store::Store;

/// Returns a call of `lockrun acquire` for this key.
pub(crate) fn acquire(store: &Store, key: &str, options: &[&str]) -> Lockrun {
    Lockrun::other("acquire", store).key(key).args(options)
}

/// Acquires the lock by hand. Returns its token.
#[track_caller]
pub(crate) fn token(store: &Store, key: &str, options: &[&str]) -> String {
    let output = acquire(store, key, options).run().exited(0).silent();
    output.stdout().trim_end().to_owned()
}

#[track_caller]
pub(crate) fn renew(store: &Store, key: &str, token: &str, options: &[&str]) -> Output {
    Lockrun::other("renew", store).key(key).args(["--token", token]).args(options).run()
}

#[track_caller]
pub(crate) fn release(store: &Store, key: &str, token: &str) -> Output {
    Lockrun::other("release", store).key(key).args(["--token", token]).run()
}

/// Runs `lockrun break` for this key.
#[track_caller]
pub(crate) fn break_lock(store: &Store, key: &str, options: &[&str]) -> Output {
    Lockrun::other("break", store).key(key).args(options).run()
}

/// Returns what `lockrun status --json` prints for all keys.
#[track_caller]
pub(crate) fn all(store: &Store) -> Vec<Value> {
    let output = Lockrun::other("status", store).arg("--json").run().exited(0).silent();
    serde_json::from_slice(&output.stdout).expect("an array in JSON")
}

/// Returns what `lockrun status --json` prints for one key.
#[track_caller]
pub(crate) fn status(store: &Store, key: &str) -> Value {
    let output = Lockrun::other("status", store).key(key).arg("--json").run().silent();
    let mut keys: Vec<Value> = serde_json::from_slice(&output.stdout).expect("an array in JSON");
    assert_eq!(keys.len(), 1, "{output}");
    let status = keys.remove(0);
    let held = status["held"].as_bool().expect("a bool");
    let is_free = !held && status["withheld_ms"].is_null();
    assert_eq!(output.status, Some(if is_free { 0 } else { 75 }), "{output}");
    status
}

/// Returns whether the lock is held. Unlike an attempt to acquire it, this leaves no trace.
#[track_caller]
pub(crate) fn is_held(store: &Store, key: &str) -> bool {
    status(store, key)["held"].as_bool().expect("a bool")
}

/// Returns the number of holders.
#[track_caller]
pub(crate) fn holders(store: &Store, key: &str) -> usize {
    status(store, key)["holders"].as_array().expect("an array").len()
}

/// Returns how long the lease of the only holder still lasts, in ms; `None`: it never expires.
#[track_caller]
pub(crate) fn expires_in(store: &Store, key: &str) -> Option<u64> {
    let status = status(store, key);
    let holders = status["holders"].as_array().expect("an array");
    assert_eq!(holders.len(), 1, "{status}");
    holders[0]["expires_in_ms"].as_u64()
}

/// Waits until the lock has so many waiters.
#[track_caller]
pub(crate) fn until_waiting(store: &Store, key: &str, count: usize) {
    eventually(LONG, &format!("{count} wait for {key}"), || waiters(store, key).len() == count);
}

/// Returns what `lockrun status --json` prints of the waiters for one key.
#[track_caller]
pub(crate) fn waiters(store: &Store, key: &str) -> Vec<Value> {
    status(store, key)["waiters"].as_array().expect("an array").clone()
}

/// Calls `look` again and again until a lease of so many seconds has expired, by the store's own clock, and once more then:
/// anything that such a lease's end would change has changed by then.
#[track_caller]
pub(crate) fn throughout(store: &Store, seconds: u32, mut look: impl FnMut()) {
    const CLOCK: &str = "the clock of a test";
    // As long as it may take.
    let store_timeout = format!("{}ms", seconds * 900);
    token(store, CLOCK, &["--ttl", &seconds.to_string(), "--store-timeout", &store_timeout]);
    while is_held(store, CLOCK) {
        look();
        // What is wrong stays so for long enough: a loop without a pause would take a processor from the other tests.
        thread::sleep(PAUSE * 3);
    }
    look();
}
