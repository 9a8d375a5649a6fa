//! What others see of a sequence, and what they can do to it.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::lockrun::PROGRAM;
use crate::support::sequence::{Reserver, fail, next, peek, reserve, reserved, status};
use crate::support::store::on_every_store;
use crate::support::{Holder, Lockrun, Store, eventually};

/// One of lockrun's other commands in this store.
fn other(store: &Store, words: &[&str]) -> Lockrun {
    Lockrun::bare().args(words).args(["--store", &store.url()])
}

// "COMMAND finds the value in LOCKRUN_VALUE", and key, token and fence as under a lock; fences grow.
on_every_store!(the_environment, |store| {
    let script = "echo \"$LOCKRUN_KEY $LOCKRUN_VALUE $LOCKRUN_TOKEN $LOCKRUN_FENCE\"";
    let mut last: (u64, String) = (0, String::new());
    for value in ["AA 1", "AA 2", "AA 3"] {
        let call = reserve(store, "AA 1").args(["--next", "sh"]);
        let program = TempDir::new().expect("a temporary directory");
        let text = "#!/bin/sh\necho \"AA $((${1#AA } + 1))\"\n";
        let path = crate::support::holder::write_script(program.path(), "next", text);
        let call = if value == "AA 1" { call } else { reserve(store, "AA 1").args(["--next", &path]) };
        let output = call.sh(script).run().exited(0).silent().stdout();
        let rest = output.trim().strip_prefix(&format!("seq {value} ")).expect("key and value").to_owned();
        let (token, fence) = rest.split_once(' ').expect("both");
        let fence = fence.parse().expect("a number");
        assert!(fence > last.0, "{fence} after {last:?}");
        assert!(token.len() == 36 && token != last.1, "{token} after {last:?}");
        last = (fence, token.to_owned());
    }
});

// "`status` shows the last value and what is reserved": as a table, of one key in full, and as JSON.
on_every_store!(status_shows_the_sequence, |store| {
    let call = reserve(store, "41").args(["--ttl", "1h"]);
    assert_eq!(next(&call), "41");
    let run = Reserver::begin(&call);
    assert_eq!(fail(&call), "43");
    let json = status(store);
    assert_eq!((&json["last_value"], &json["held"]), (&Value::from("41"), &Value::from(true)));
    let mut holders = json["holders"].as_array().expect("an array").clone();
    holders.sort_by_key(|holder| holder["value"].to_string());
    assert_eq!(holders.len(), 2);
    assert_eq!((&holders[0]["value"], &holders[1]["value"]), (&Value::from("42"), &Value::from("43")));
    assert!(holders[0]["slot"].is_null() && holders[0]["fence"].as_u64() < holders[1]["fence"].as_u64(), "{json}");
    assert!(holders[1]["expires_in_ms"].as_u64().is_some_and(|left| left > 1_000_000), "{json}");
    let table = other(store, &["status"]).run().exited(0).stdout();
    assert!(table.contains("last value 41") && table.contains("value 42: ") && table.contains("value 43: "), "{table}");
    let page = other(store, &["status", "--key", "seq"]).run().exited(75).stdout();
    assert!(page.contains("sequence  last value 41\n"), "{page}");
    assert!(page.contains("; value 42, fence ") && page.contains("; value 43, kept after its run, fence "), "{page}");
    run.end(0);
    assert_eq!(status(store)["last_value"], "42");
});

// A script under the token of a reservation's run gets the lock that the token holds.
on_every_store!(a_reservation_is_a_lock, |store| {
    let program = crate::support::lockrun::PROGRAM;
    let script = format!("{program} acquire --store '{}' --key seq --token $LOCKRUN_TOKEN | grep -c .", store.url());
    reserve(store, "41").sh(&script).run().exited(0).printed("1\n").silent();
    assert_eq!(status(store)["last_value"], "41");
});

// "A sequence is never forgotten": otherwise it would start again.
on_every_store!(prune_forgets_no_sequence, |store| {
    assert_eq!(next(&reserve(store, "5")), "5");
    Lockrun::new(store).key("lock").command(["true"]).run().exited(0);
    // The lock has been unused for a millisecond when it is pruned, and so has the sequence.
    eventually(crate::support::LONG, "the lock is forgotten", || {
        let pruned = other(store, &["prune", "--older-than", "1ms"]).run().exited(0).stdout();
        assert!(!pruned.contains("seq"), "{pruned}");
        pruned.contains("lock")
    });
    assert_eq!(next(&reserve(store, "5")), "6");
});

// "release: lets go of it by its token": also of a reservation that was kept; its value is then free.
on_every_store!(a_kept_reservation_can_be_released, |store| {
    let call = reserve(store, "1").args(["--ttl", "none"]);
    let token = call.clone().sh("echo \"$LOCKRUN_TOKEN\"; exit 1").run().exited(1).stdout();
    assert_eq!(peek(&call), "2");
    let release = |token: &str| other(store, &["release", "--key", "seq", "--token", token]).run();
    release("00000000-0000-4000-8000-000000000000").exited(79);
    assert_eq!(peek(&call), "2");
    release(token.trim()).exited(0);
    assert_eq!(next(&call), "1");
    release(token.trim()).exited(79);
    assert_eq!(next(&call), "2");
});

// "break: takes a lock away": one reservation that was kept, by its fence, or all of them.
on_every_store!(kept_reservations_can_be_revoked, |store| {
    let call = reserve(store, "1").args(["--ttl", "none"]);
    let fences = ["1", "2", "3"].map(|value| {
        let output = call.clone().sh("echo \"$LOCKRUN_VALUE $LOCKRUN_FENCE\"; exit 1").run().exited(1).stdout();
        output.trim().strip_prefix(&format!("{value} ")).expect("its value").to_owned()
    });
    other(store, &["break", "--key", "seq", "--fence", &fences[1]]).run().exited(0);
    assert_eq!(peek(&call), "2");
    other(store, &["break", "--key", "seq"]).run().exited(0);
    assert_eq!(reserved(store), Vec::<String>::new());
    assert_eq!(next(&call), "1");
});

// "release" of a reservation whose command still runs: it is released when that has ended, and not kept if it fails.
// One that succeeds has used its value.
on_every_store!(released_while_the_command_runs, |store| {
    let call = reserve(store, "1").args(["--ttl", "1h"]);
    let release = format!("{PROGRAM} release --store '{}'", store.url());
    let failed = call.clone().sh(&format!("{release}; exit 7")).run();
    assert_eq!(failed.status, Some(7), "{failed}");
    assert_eq!(peek(&call), "1");
    call.clone().sh(&release).run().exited(0);
    assert_eq!(next(&call), "2");
});

// "`--events FILE`: append one JSON object a line": with the value where a lock has none.
on_every_store!(events_tell_the_value, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let file = directory.path().join("events");
    let call = reserve(store, "7").arg("--events").arg(&file);
    assert_eq!(next(&call), "7");
    assert_eq!(fail(&call), "8");
    call.args(["--next", "false"]).command(["true"]).run().exited(125);
    let text = fs::read_to_string(&file).expect("events");
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    let names: Vec<&str> = events.iter().map(|event| event["event"].as_str().expect("a name")).collect();
    let both = ["acquired", "started", "finished", "released", "acquired", "started", "finished", "kept", "failed"];
    assert_eq!(names, both);
    assert_eq!((&events[0]["value"], &events[4]["value"]), (&Value::from("7"), &Value::from("8")));
    assert!(events[0]["fence"].as_u64() < events[4]["fence"].as_u64(), "{text}");
    assert_eq!(events[8]["key"], "seq");
});

// A lock and a sequence of the same name are two things to keep apart: a reservation keeps a lock of its name held, as
// a holder, but "does not respect" one.
on_every_store!(a_reservation_holds_a_lock_of_its_name, |store| {
    let call = reserve(store, "1");
    let run = Reserver::begin(&call);
    Lockrun::new(store).key("seq").command(["true"]).run().exited(75).said("is held by");
    run.end(0);
    Lockrun::new(store).key("seq").command(["true"]).run().exited(0).silent();
    let holder = Holder::new(store, "seq");
    assert_eq!(next(&call), "2");
    holder.end();
});
