//! The JSON that lockrun prints is what the schemas in `docs/` say.

use serde_json::Value;
use tempfile::TempDir;

use crate::support::hand::{acquire, token, until_waiting};
use crate::support::schema::must_fit;
use crate::support::store::on_every_store;
use crate::support::{Holder, Lockrun, Store};

fn json(store: &Store, subcommand: &str) -> Value {
    let output = Lockrun::other(subcommand, store).arg("--json").run();
    serde_json::from_slice(&output.stdout).expect("JSON")
}

// "JSON of status, doctor, acquire, events checked against a JSON schema in docs/."
on_every_store!(json_fits_its_schemas, |store| {
    let events = TempDir::new().expect("a directory");
    let file = events.path().join("events");
    let run = |key: &str| Lockrun::new(store).key(key).arg("--events").arg(&file);
    must_fit("status", &[json(store, "status")]);
    run("failed").sh("exit 3").run().exited(3);
    run("killed").sh("kill -9 $$").run();
    run("once").args(["--once-per", "1h"]).command(["true"]).run().exited(0);
    run("once").args(["--once-per", "1h"]).command(["true"]).run().exited(0);
    run("timed-out").args(["--max-runtime", "0.2"]).command(["sleep", "60"]).run().exited(124);
    run("kept").args(["--keep", "--ttl", "10m"]).command(["true"]).run().exited(0);
    run("min").args(["--min-hold", "10m", "--slots", "3"]).command(["true"]).run().exited(0);
    run("missing").command(["/nonexistent"]).run().exited(127);
    Lockrun::other("reserve", store)
        .key("sequence")
        .args(["--from", "7"])
        .arg("--events")
        .arg(&file)
        .command(["true"])
        .run()
        .exited(0);
    let acquired = |options: &[&str]| -> Value {
        let output = acquire(store, "hand", options).arg("--json").run().exited(0);
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    must_fit("acquire", &[acquired(&["--slots", "3", "--ttl", "none"]), acquired(&["--slots", "3", "--ttl", "10m"])]);
    let _shared = token(store, "shared", &["--shared", "--ttl", "10m"]);
    let holder = Holder::new(store, "busy");
    run("busy").command(["true"]).run().exited(75);
    run("busy").arg("--skip").command(["true"]).run().exited(0);
    run("busy").args(["--wait", "0.1"]).command(["true"]).run().exited(75);
    let waiter = run("busy").arg("--wait").command(["true"]).spawn();
    until_waiting(store, "busy", 1);
    run("busy").args(["--wait", "--max-waiting", "1"]).command(["true"]).run().exited(75);
    must_fit("status", &[json(store, "status")]);
    holder.end();
    waiter.wait().exited(0);
    let lines = std::fs::read_to_string(&file).expect("events");
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for event in ["waiting", "acquired", "started", "held", "skipped", "killed", "finished", "released", "kept"] {
        assert!(lines.iter().any(|line| line["event"] == event), "no {event}: {lines:?}");
    }
    must_fit("events", &lines);
    must_fit("doctor", &[json(store, "doctor")]);
});

// A diagnostic of a store that cannot be used is the same object.
#[test]
fn a_failed_diagnosis_fits_its_schema() {
    let output = Lockrun::bare().args(["doctor", "--json", "--store", "redis://127.0.0.1:1"]).run().exited(69);
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(told["worst"], "unusable");
    must_fit("doctor", &[told]);
}
