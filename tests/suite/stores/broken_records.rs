//! Records in Redis that are partly lost, or were written by another program.

use serde_json::{Value, json};

use crate::support::hand::{acquire, break_lock, is_held, release, renew, status, token, until_waiting};
use crate::support::holder::is_free;
use crate::support::sequence::{Reserver, reserve};
use crate::support::store::on_redis;
use crate::support::{Holder, LONG, LeaseServer, Lockrun, Output, Redis, Store, eventually, redis_keys};

fn server(store: &Store) -> &Redis {
    store.as_redis().expect("a server")
}

/// One of lockrun's other commands in this store.
fn other(store: &Store, words: &[&str]) -> Output {
    Lockrun::other(words[0], store).args(&words[1..]).run()
}

/// A change of a lock's record, by the name of a key.
type Damage = fn(&Redis, &str);
/// Destroys the details of all holders and waiters of the lock.
const DAMAGES: [Damage; 3] = [
    |redis, info| drop(redis.ask(&["DEL", info])),
    |redis, info| overwrite(redis, info, "no JSON"),
    |redis, info| overwrite(redis, info, "[1]"),
];

fn overwrite(redis: &Redis, info: &str, text: &str) {
    for token in redis.ask(&["HKEYS", info]).texts() {
        redis.ask(&["HSET", info, &token, text]);
    }
}

// "A broken record is an error, never a free lock" (69): here only the holder's lease is known. `status` shows the lock
// as held, and `break` frees it.
#[test]
fn a_holder_whose_particulars_are_lost() {
    for damage in DAMAGES {
        let store = Store::redis();
        let its = token(&store, "lost", &["--ttl", "none"]);
        damage(server(&store), &redis_keys::info("lost"));
        for options in [&[][..], &["--wait"], &["--slots", "2"], &["--skip"]] {
            let call = Lockrun::new(&store).key("lost").args(options).command(["echo", "ran"]);
            call.run().exited(69).printed("").said("nothing is known of a holder").said("lockrun break");
        }
        let reserve = Lockrun::bare().args(["reserve", "--store", &store.url(), "--from", "1"]).key("lost");
        reserve.command(["echo", "ran"]).run().exited(69).printed("").said("lockrun break");
        let page = other(&store, &["status", "--key", "lost"]).exited(75).silent().stdout();
        assert!(page.contains("state     held\n") && !page.contains("pid 0"), "{page}");
        let table = other(&store, &["status"]).exited(0).silent().stdout();
        assert!(table.contains("held") && !table.contains("pid 0"), "{table}");
        let told = status(&store, "lost");
        let holder = &told["holders"][0];
        for field in ["host", "pid", "user", "command"] {
            assert_eq!(holder[field], Value::Null, "{told}");
        }
        renew(&store, "lost", &its, &[]).exited(69).said("nothing is known of a holder");
        break_lock(&store, "lost", &["--fence", "1"]).exited(75).said("stays with");
        assert!(is_held(&store, "lost"));
        break_lock(&store, "lost", &[]).exited(0).said("was taken from").said("make sure that it has ended");
        assert!(!is_held(&store, "lost") && is_free(&store, "lost"));
    }
}

/// Replaces the particulars of the one holder.
fn edit_info(redis: &Redis, key: &str, edit: impl Fn(String) -> String) {
    let info = redis_keys::info(key);
    let its = redis.ask(&["HKEYS", &info]).texts().remove(0);
    let text = redis.ask(&["HGET", &info, &its]).text().to_owned();
    redis.ask(&["HSET", &info, &its, &edit(text)]);
}

fn set_fence(redis: &Redis, key: &str, fence: &Value) {
    edit_info(redis, key, |text| {
        let mut info: Value = serde_json::from_str(&text).expect("is JSON");
        info["fence"] = fence.clone();
        info.to_string()
    });
}

fn change_type(redis: &Redis, key: &str, name: &str) {
    let part = redis_keys::part(key, name);
    redis.ask(&["DEL", &part]);
    redis.ask(&["RPUSH", &part, "x"]);
}

/// What another program may write so that lockrun cannot read it.
const EDITS: [Damage; 8] = [
    |redis, key| edit_info(redis, key, |text| text.replacen('{', "{\"odd\":nan,", 1)),
    |redis, key| set_fence(redis, key, &json!("12x")),
    |redis, key| set_fence(redis, key, &json!([1])),
    |redis, key| drop(redis.ask(&["SET", &redis_keys::fence(key), "no number"])),
    |redis, key| {
        let (info, holders) = (redis_keys::info(key), redis_keys::holders(key));
        let its = redis.ask(&["HKEYS", &info]).texts().remove(0);
        let text = redis.ask(&["HGET", &info, &its]).text().to_owned();
        redis.ask(&["DEL", &info, &holders]);
        redis.ask(&["HSET", &info, "no token", &text]);
        redis.ask(&["ZADD", &holders, "inf", "no token"]);
    },
    |redis, key| change_type(redis, key, "last"),
    |redis, key| change_type(redis, key, "sequence"),
    |redis, key| change_type(redis, key, "queue"),
];

// "`break` takes the lock from its holder": also if its record, or another of the lock's, cannot be read.
#[test]
fn a_lock_that_cannot_be_read_is_broken() {
    for (number, edit) in EDITS.iter().enumerate() {
        let store = Store::redis();
        token(&store, "odd", &["--ttl", "none"]);
        edit(server(&store), "odd");
        let output = break_lock(&store, "odd", &[]);
        let left = server(&store).ask(&["ZCARD", &redis_keys::holders("odd")]).number();
        assert_eq!(left, 0, "edit {number}: {output}");
        output.exited(0).said("was taken from");
    }
}

// The same for a lock under which a command runs: the command goes on, and its end frees the lock.
#[test]
fn a_run_whose_particulars_are_lost() {
    for damage in DAMAGES {
        let store = Store::redis();
        let call = Lockrun::new(&store).key("run").args(["--ttl", "1h", "--renew-every", "100ms"]);
        let holder = Holder::with(&call, &[]);
        damage(server(&store), &redis_keys::info("run"));
        let before = server(&store).requests();
        eventually(LONG, "it is renewed", || server(&store).requests() >= before + 3);
        acquire(&store, "run", &[]).run().exited(69).said("lockrun break");
        holder.end().silent();
        assert!(is_free(&store, "run"));
    }
}

// "`break`: where a command runs under a lease, the holder loses the right to renew, and the lock is free when the
// command has ended": also if nothing else is known of it.
#[test]
fn a_run_whose_particulars_are_lost_is_broken() {
    let store = Store::redis();
    let call = Lockrun::new(&store).key("broken").args(["--ttl", "1h", "--renew-every", "1s"]);
    let run = Holder::with(&call, &[]);
    server(&store).ask(&["DEL", &redis_keys::info("broken")]);
    break_lock(&store, "broken", &[])
        .exited(0)
        .said("was taken from")
        .said("it will be free when its command has been stopped");
    assert!(is_held(&store, "broken"), "its command may still run");
    run.wait().exited(79).said("it was revoked by ");
    assert!(is_free(&store, "broken"));
}

// The token of such a lock still works.
#[test]
fn particulars_that_are_lost_come_back() {
    let store = Store::redis();
    let its = token(&store, "again", &["--ttl", "none"]);
    server(&store).ask(&["DEL", &redis_keys::info("again")]);
    token(&store, "again", &["--ttl", "none", "--token", &its]);
    acquire(&store, "again", &[]).run().exited(75).said("is held by");
    release(&store, "again", &its).exited(0).silent();
    assert!(is_free(&store, "again"));
}

/// Locks that were used once.
#[track_caller]
fn used(keys: &[&str]) -> Store {
    let store = Store::redis();
    for key in keys {
        Lockrun::new(&store).key(key).command(["true"]).run().exited(0);
    }
    store
}

// "What cannot be read is named, and the others are told of all the same": here one key has another type of value.
#[test]
fn a_key_of_another_type_spoils_no_other() {
    for (name, what) in [("holders", "WRONGTYPE"), ("last", "WRONGTYPE"), ("sequence", "WRONGTYPE"), ("fence", "")] {
        let store = used(&["a", "b", "c", "d"]);
        for key in ["a", "c"] {
            let spoiled = redis_keys::part(key, name);
            server(&store).ask(&["DEL", &spoiled]);
            if what.is_empty() {
                server(&store).ask(&["SET", &spoiled, "no number"]);
            } else {
                server(&store).ask(&["RPUSH", &spoiled, "x"]);
            }
        }
        let about = |output: Output| {
            for key in ["a", "c"] {
                let line = output.stderr().lines().find(|line| line.contains(&format!("\"{key}\""))).map(str::to_owned);
                assert!(line.expect("it is named").contains(what), "{name}: {output}");
            }
            assert_eq!(output.stderr().lines().count(), 2, "{name}: {output}");
            output
        };
        let table = about(other(&store, &["status"]).exited(69)).stdout();
        let keys: Vec<&str> = table.lines().skip(1).filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(keys, ["b", "d"], "{name}");
        let json = about(other(&store, &["status", "--json"]).exited(69)).stdout();
        assert_eq!(serde_json::from_str::<Value>(&json).expect("JSON").as_array().map(Vec::len), Some(2));
        other(&store, &["status", "--key", "a"]).exited(69).printed("").said(what);
        other(&store, &["status", "--key", "b"]).exited(0).silent();
        if what.is_empty() {
            acquire(&store, "a", &[]).run().exited(69).said("is no number");
        } else {
            about(other(&store, &["prune", "--older-than", "0"]).exited(69).printed("b\nd\n"));
        }
    }
}

// A user who lacks a right is told so once, not for each key.
#[test]
fn a_missing_right_is_reported_once() {
    let store = used(&["a", "b", "c"]);
    server(&store).ask(&["ACL", "SETUSER", "blind", "on", ">pw", "~*", "+@all", "-zrangebyscore"]);
    let url = server(&store).url().replacen("://", "://blind:pw@", 1);
    let output = Lockrun::bare().args(["status", "--store", &url]).run().exited(69).printed("");
    assert_eq!(output.stderr().lines().count(), 1, "{output}");
}

// A last run that another program has written is shown as far as possible, and blocks no one.
#[test]
fn a_last_run_that_cannot_be() {
    let who = json!({"host": "web-1", "pid": 7, "user": "u", "command": "c"});
    for last in [
        json!({"who": who, "started": 1, "ended": 253_402_300_800_000_u64}),
        json!({"who": who, "started": u64::MAX, "ended": u64::MAX}),
        json!({"who": who, "started": 1e300, "ended": 1e300, "status": 300}),
        json!({"who": who, "started": "x", "ended": "y"}),
        json!({"who": 7, "started": [], "ended": {}}),
        json!([]),
        json!("x"),
    ] {
        let store = used(&["k", "z"]);
        let name = &redis_keys::last("k");
        server(&store).ask(&["SET", name, &last.to_string()]);
        for words in
            [&["status"][..], &["status", "--json"], &["status", "--key", "k"], &["status", "--key", "k", "--json"]]
        {
            let output = other(&store, words).exited(0).silent();
            assert!(output.stdout().contains('k'), "{output}");
        }
        let pruned = other(&store, &["prune", "--older-than", "0", "--dry-run"]).exited(0).silent().stdout();
        assert!(pruned.ends_with("z\n"), "{pruned}");
        // Waiting, running and releasing all have to look at it.
        let holder = Holder::new(&store, "k");
        let next = Lockrun::new(&store).key("k").arg("--wait").command(["echo", "next"]).spawn();
        until_waiting(&store, "k", 1);
        server(&store).ask(&["SET", name, &last.to_string()]);
        holder.end().silent();
        next.wait().exited(0).printed("next\n").silent();
    }
}

/// The fence of a run.
#[track_caller]
fn next_fence(store: &Store, options: &[&str]) -> u64 {
    let call = Lockrun::new(store).key("fence").args(options).sh("echo $LOCKRUN_FENCE");
    call.run().exited(0).silent().stdout().trim().parse().expect("a number")
}

// "Each acquisition of a key gets a number greater than every earlier one": also beyond the numbers that are exact in
// Lua, as far as the server can count.
#[test]
fn a_fence_beyond_what_lua_can_count() {
    let store = Store::redis();
    let set = |fence: u64| server(&store).ask(&["SET", &redis_keys::fence("fence"), &fence.to_string()]);
    for start in [999_999_999_999_999, 9_007_199_254_740_991, 9_007_199_254_740_993, 1_999_999_999_999_999_999] {
        set(start);
        assert_eq!(next_fence(&store, &[]), start + 1);
        assert_eq!(next_fence(&store, &["--wait"]), start + 2);
        let its = token(&store, "fence", &["--ttl", "none"]);
        let told = status(&store, "fence");
        assert_eq!((&told["holders"][0]["fence"], &told["fence"]), (&json!(start + 3), &json!(start + 3)));
        // A waiter that claims the lock in its turn.
        let next = Lockrun::new(&store).key("fence").arg("--wait").sh("echo $LOCKRUN_FENCE").spawn();
        until_waiting(&store, "fence", 1);
        release(&store, "fence", &its).exited(0).silent();
        next.wait().exited(0).printed(&format!("{}\n", start + 4));
        let reserve = Lockrun::bare().args(["reserve", "--store", &store.url(), "--from", "1"]).key("fence");
        reserve.sh("echo $LOCKRUN_FENCE").run().exited(0).printed(&format!("{}\n", start + 5)).silent();
        token(&store, "fence", &["--ttl", "none"]);
        break_lock(&store, "fence", &["--fence", &(start + 5).to_string()]).exited(75);
        break_lock(&store, "fence", &["--fence", &(start + 6).to_string()]).exited(0);
    }
    set(9_223_372_036_854_775_806);
    assert_eq!(next_fence(&store, &[]), 9_223_372_036_854_775_807);
    let output = Lockrun::new(&store).key("fence").command(["echo", "ran"]).run().exited(69).printed("");
    output.said("9223372036854775807").said("use another key");
    assert!(!is_held(&store, "fence"));
}

// "... also after the store has lost all its data", by `prune`: a fence that is ahead of the clock is not forgotten.
#[test]
fn a_fence_ahead_of_the_clock_is_not_forgotten() {
    let store = Store::redis();
    server(&store).ask(&["SET", &redis_keys::fence("fence"), "9007199254740993"]);
    assert_eq!(next_fence(&store, &[]), 9_007_199_254_740_994);
    other(&store, &["prune", "--older-than", "0"]).exited(0).printed("").silent();
    assert_eq!(next_fence(&store, &[]), 9_007_199_254_740_995);
}

// "What comes out of a store was written by another machine: control characters are escaped before a terminal sees
// them."
on_redis!(hostile_values_are_escaped, |store, redis| {
    let hostile = "\x1b[31m\u{202e}x\nlockrun: all is well";
    let _run = Reserver::begin(&reserve(store, "\u{202e}held").args(["--next", "echo"]));
    redis.ask(&["HSET", &redis_keys::sequence("seq"), "last", hostile]);
    let harmless = |text: &str| {
        assert!(!text.contains(['\x1b', '\u{202e}']) && !text.contains("\nlockrun: all is well"), "{text:?}");
    };
    for words in [&["status"][..], &["status", "--key", "seq"], &["status", "--json"]] {
        let output = other(store, words);
        assert!(output.stdout().contains("all is well") && output.stdout().contains("held"), "{output}");
        harmless(&output.stdout());
    }
    let counted = reserve(store, "1").command(["true"]).run().exited(125).said("all is well");
    harmless(&counted.stderr());
    let asked = reserve(store, "1").args(["--next", "false"]).command(["true"]).run().exited(125).said("all is well");
    harmless(&asked.stderr());
    let told = reserve(store, "1").args(["--next", "/no\x1b[31m"]).command(["true"]).run().exited(125).said("/no");
    harmless(&told.stderr());
    // Nor may a command get a hostile value.
    redis.ask(&["HSET", &redis_keys::sequence("seq"), "last", "1"]);
    let verbose =
        reserve(store, "1").arg("-v").command(["true"]).run().exited(0).said("value \"2\" of \"seq\" reserved");
    harmless(&verbose.stderr());
});
