//! Records of locks that very many hold at once.

use serde_json::{Value, json};

use crate::support::hand::{acquire, break_lock, release, renew, status, token};
use crate::support::store::on_postgres;
use crate::support::{Etcd, Lockrun, Store};

/// The longest record that an acquisition leaves.
const ACQUIRED: usize = 1 << 20;

/// Makes this many copies of the lock's holder hold it, too.
fn copy_holder(state: &mut Value, copies: usize) {
    let holders = state["holders"].as_array_mut().expect("there are holders");
    let holder = holders[0].clone();
    for number in 0..copies {
        let mut copy = holder.clone();
        copy["token"] = json!(format!("copy-{number:06}"));
        copy["who"]["command"] = json!("x".repeat(512));
        // The latest holder stays the last one.
        holders.insert(0, copy);
    }
}

/// Makes as many copies that the record has this length, in bytes.
fn fill(state: &mut Value, length: usize) {
    let length_with = |copies: usize| {
        let mut full = state.clone();
        copy_holder(&mut full, copies);
        full.to_string().len()
    };
    let each = length_with(2) - length_with(1);
    let copies = (length - length_with(0)) / each;
    copy_holder(state, copies);
    let rest = length - state.to_string().len();
    state["holders"][0]["who"]["command"] = json!("x".repeat(512 + rest));
    assert!(state.to_string().len() == length && copies > 1000);
}

/// Changes the record of the lock `k`.
fn edit(store: &Store, change: impl FnOnce(&mut Value)) {
    if let Some(etcd) = store.as_etcd() {
        return etcd.edit("k", change);
    }
    let postgres = store.as_postgres().expect("one of the two");
    let mut state =
        serde_json::from_str(&postgres.ask("SELECT state FROM lockrun.locks WHERE key = 'k'")).expect("JSON");
    change(&mut state);
    postgres.ask(&format!("UPDATE lockrun.locks SET state = '{state}' WHERE key = 'k'"));
}

/// "A lock that too many hold at once takes no further holder; all else works": none of the holders is locked in.
fn takes_no_further_holder(store: &Store) {
    let shared = ["--shared", "--ttl", "none"];
    let its = token(store, "k", &shared);
    edit(store, |state| fill(state, ACQUIRED));
    acquire(store, "k", &shared).run().exited(69).said("too many runs hold this lock at once");
    let run = Lockrun::new(store).key("k").args(["--shared", "--wait", "--ttl", "10m"]).command(["true"]).run();
    run.exited(69).said("spread the runs over several keys");
    renew(store, "k", &its, &["--ttl", "10m"]).exited(0).silent();
    assert!(status(store, "k")["holders"].as_array().expect("a list").len() > 1000);
    release(store, "k", "copy-000000").exited(0).silent();
    release(store, "k", "copy-000001").exited(0).silent();
    // Now there is room.
    let new = token(store, "k", &shared);
    release(store, "k", &new).exited(0).silent();
    break_lock(store, "k", &["--now"]).exited(0);
    let new = token(store, "k", &["--ttl", "10m"]);
    release(store, "k", &new).exited(0).silent();
}

on_postgres!(a_lock_of_very_many_holders_in_postgres, |store, _postgres| takes_no_further_holder(store));

#[test]
fn a_lock_of_very_many_holders_in_etcd() {
    takes_no_further_holder(&Store::Etcd(Etcd::of(1)));
}

// "A lease ends by itself": also if the record is longer than any that lockrun leaves.
on_postgres!(very_many_leases_have_ended, |store, _postgres| {
    token(store, "k", &["--shared", "--ttl", "10m"]);
    edit(store, |state| {
        state["holders"][0]["lease"]["ends_ms"] = json!(1);
        fill(state, 3 << 19);
    });
    let its = token(store, "k", &["--ttl", "10m"]);
    release(store, "k", &its).exited(0).silent();
});

// "`break` revokes the lock from all its holders": also if that makes a long record longer.
on_postgres!(very_many_runs_are_revoked, |store, _postgres| {
    let its = token(store, "k", &["--shared", "--ttl", "10m"]);
    edit(store, |state| {
        // A run.
        state["holders"][0].as_object_mut().expect("a holder").remove("purpose");
        fill(state, ACQUIRED);
    });
    break_lock(store, "k", &[]).exited(0);
    renew(store, "k", &its, &[]).exited(79);
    break_lock(store, "k", &["--now"]).exited(0);
    acquire(store, "k", &["--ttl", "10m"]).run().exited(0);
});
