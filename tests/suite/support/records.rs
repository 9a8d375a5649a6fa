//! Foreign changes of a lock's record, in each store's own form.

use serde_json::{Value, json};

use super::hand::token;
use super::lock_file;
use super::lockrun::Lockrun;
use super::redis_keys::{info, last, places, queue};
use super::store::Store;

/// Makes a lock whose holder, waiter and last run have this hostile text as host, user and command.
#[track_caller]
pub(crate) fn plant(store: &Store, key: &str, hostile: &str) {
    let who = json!({ "host": hostile, "pid": 7, "user": hostile, "command": hostile.repeat(5) });
    // A last run, and a holder whose lease never expires.
    Lockrun::new(store).key(key).command(["true"]).run().exited(0);
    token(store, key, &["--ttl", "none", "--token", "planted"]);
    match store {
        Store::File(_) => lock_file::edit(&lock_file::path(store, key), |record| {
            record["holders"][0]["who"] = who.clone();
            record["last"]["who"] = who;
        }),
        Store::Redis(_) | Store::Sentinel(_) | Store::Cluster(_) => {
            let redis = store.as_redis().expect("it is one");
            let mut held: Value =
                serde_json::from_str(redis.ask(&["HGET", &info(key), "planted"]).text()).expect("JSON");
            held["who"] = who.clone();
            redis.ask(&["HSET", &info(key), "planted", &held.to_string()]);
            redis.ask(&["SET", &last(key), &json!({ "who": who, "started": 1, "ended": 2, "status": 0 }).to_string()]);
            let waiter = json!({ "who": who, "joined": 1, "slots": 1, "ttl": 30_000 });
            redis.ask(&["HSET", &info(key), "waiter", &waiter.to_string()]);
            redis.ask(&["ZADD", &queue(key), "1", "waiter"]);
            redis.ask(&["ZADD", &places(key), "9000000000000", "waiter"]);
        }
        Store::Postgres(_) | Store::Pooled(_) => {
            let postgres = store.as_postgres().expect("it is one");
            postgres.edit(key, |state| {
                state["holders"][0]["who"] = who.clone();
                state["last"]["who"] = who.clone();
            });
            postgres.add_waiter(key, &waiting(&who));
        }
        Store::Mariadb(mariadb) => {
            mariadb.edit(key, |state| {
                state["holders"][0]["who"] = who.clone();
                state["last"]["who"] = who.clone();
            });
            mariadb.add_waiter(key, &waiting(&who));
        }
        Store::Etcd(etcd) => {
            etcd.edit(key, |state| {
                state["holders"][0]["who"] = who.clone();
                state["last"]["who"] = who.clone();
            });
            etcd.add_waiter(key, &waiting(&who));
        }
    }
}

/// Returns the state of a waiter whose place lasts for long.
fn waiting(who: &Value) -> Value {
    let ends_ms = 9_000_000_000_000_u64;
    json!({ "token": "waiter", "joined_ms": 1, "mode": { "slots": 1 }, "who": who, "place_ms": 30_000, "ends_ms": ends_ms })
}

/// Sets the beginning and the end of a lock's last run to this time, in milliseconds since 1970.
#[track_caller]
pub(crate) fn set_last_run(store: &Store, key: &str, at: u64) {
    match store {
        Store::File(_) => lock_file::edit(&lock_file::path(store, key), |record| {
            record["last"]["started_unix_ms"] = json!(at);
            record["last"]["ended_unix_ms"] = json!(at);
        }),
        Store::Redis(_) | Store::Sentinel(_) | Store::Cluster(_) => {
            let redis = store.as_redis().expect("it is one");
            let who = json!({ "host": "h", "pid": 1, "user": "u", "command": "c" });
            let run = json!({ "who": who, "started": at, "ended": at, "status": 0 }).to_string();
            redis.ask(&["SET", &last(key), &run]);
        }
        Store::Postgres(_) | Store::Pooled(_) => store.as_postgres().expect("it is one").edit(key, |state| {
            state["last"]["started_unix_ms"] = json!(at);
            state["last"]["ended_unix_ms"] = json!(at);
        }),
        Store::Mariadb(mariadb) => mariadb.edit(key, |state| {
            state["last"]["started_unix_ms"] = json!(at);
            state["last"]["ended_unix_ms"] = json!(at);
        }),
        Store::Etcd(etcd) => etcd.edit(key, |state| {
            state["last"]["started_unix_ms"] = json!(at);
            state["last"]["ended_unix_ms"] = json!(at);
        }),
    }
}
