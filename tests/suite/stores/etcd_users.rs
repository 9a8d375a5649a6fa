//! Users of etcd and their rights.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::support::{Etcd, LONG, LeaseServer, Lockrun, Output, eventually, stays_true_for};

fn run(url: &str) -> Output {
    Lockrun::at(url).key("k").command(["echo", "ran"]).run()
}

/// Returns the URL of an etcd with this text before and after its address.
fn url(etcd: &Etcd, before: &str, after: &str) -> String {
    format!("etcd://{before}127.0.0.1:{}{after}", etcd.port())
}

/// Adds a user who may read and write only the keys with this prefix.
fn add_user(etcd: &Etcd, name: &str, prefix: &str) {
    add_user_who_may(etcd, "READWRITE", name, prefix);
}

/// Adds a user who may do this with the keys with this prefix, and nothing else.
fn add_user_who_may(etcd: &Etcd, what: &str, name: &str, prefix: &str) {
    let (key, end) = (STANDARD.encode(format!("{prefix}/")), STANDARD.encode(format!("{prefix}0")));
    etcd.ask("/v3/auth/user/add", &json!({ "name": name, "password": "secret" }));
    etcd.ask("/v3/auth/role/add", &json!({ "name": name }));
    let permission = json!({ "permType": what, "key": key, "range_end": end });
    etcd.ask("/v3/auth/role/grant", &json!({ "name": name, "perm": permission }));
    etcd.ask("/v3/auth/user/grant", &json!({ "user": name, "role": name }));
}

/// Requires a password from now on.
fn enable_users(etcd: &Etcd) {
    etcd.ask("/v3/auth/user/add", &json!({ "name": "root", "password": "secret" }));
    etcd.ask("/v3/auth/role/add", &json!({ "name": "root" }));
    etcd.ask("/v3/auth/user/grant", &json!({ "user": "root", "role": "root" }));
    etcd.ask("/v3/auth/enable", &json!({}));
}

// "Rights": a user needs only those to the keys under the prefix.
#[test]
fn users_and_their_rights() {
    let etcd = Etcd::of(1);
    add_user(&etcd, "jobs", "lockrun");
    add_user(&etcd, "others", "others");
    run(&url(&etcd, "jobs:secret@", "")).exited(69).printed("").said("remove the user and the password");
    enable_users(&etcd);
    run(&url(&etcd, "jobs:secret@", "")).exited(0).printed("ran\n").silent();
    run(&url(&etcd, "others:secret@", "?prefix=others")).exited(0).printed("ran\n").silent();
    run(&url(&etcd, "others:secret@", ""))
        .exited(69)
        .printed("")
        .said("permission denied")
        .said("grant the user's role");
    run(&url(&etcd, "", "")).exited(69).printed("").said("name a user and its password");
    let wrong = run(&url(&etcd, "jobs:wrong@", "")).exited(69).printed("").said("check the user and the password");
    assert!(!wrong.stderr().contains("wrong@"), "{wrong}");
    // A single member fails once, and no other can answer instead.
    let doctor = Lockrun::bare().args(["doctor", "--store", &url(&etcd, "jobs:wrong@", "")]).run().exited(69);
    assert_eq!(doctor.stdout().matches("check the user and the password").count(), 1, "{doctor}");
    assert!(!doctor.stdout().contains("majority"), "{doctor}");
    let doctor = Lockrun::bare().args(["doctor", "--store", &url(&etcd, "jobs:secret@", "")]).run();
    assert!(doctor.exited(0).stdout().contains("acquired"));
}

// "An expired auth token": a restarted member knows no tokens, and a change of rights makes all of them out of date.
#[test]
fn log_ins_that_are_forgotten() {
    let etcd = Etcd::of(1);
    add_user(&etcd, "jobs", "lockrun");
    enable_users(&etcd);
    let call = Lockrun::at(&url(&etcd, "jobs:secret@", "")).key("k").args(["--ttl", "60s", "--renew-every", "200ms"]);
    let mut holder = call.clone().sh("echo ready; read line || :; exit 7").with_open_input();
    holder.run.wait_for_line("ready");
    etcd.kill();
    etcd.start_again_with_users();
    let waiter = call.arg("--wait").command(["echo", "ran"]).spawn();
    let before = etcd.requests();
    eventually(LONG, "the lease is renewed", || etcd.requests() > before + 8);
    etcd.ask_as("root", "/v3/auth/user/add", &json!({ "name": "new", "password": "secret" }));
    let before = etcd.requests();
    eventually(LONG, "the lease is renewed", || etcd.requests() > before + 8);
    holder.finish().exited(7).silent();
    waiter.wait().exited(0).printed("ran\n").silent();
}

// "Nothing is left": nor are leases of a run that may not write the lock.
#[test]
fn no_lease_is_left_of_a_run_without_rights() {
    let etcd = Etcd::of(1);
    add_user_who_may(&etcd, "READ", "reader", "lockrun");
    enable_users(&etcd);
    let url = url(&etcd, "reader:secret@", "");
    Lockrun::at(&url).key("k").args(["--ttl", "24h"]).command(["true"]).run().exited(69).said("permission denied");
    Lockrun::bare().args(["doctor", "--store", &url]).run().exited(69);
    assert!(etcd.ask_as("root", "/v3/lease/leases", &json!({}))["leases"].is_null());
}

// "`break`: the lock is free when the command has ended, at the latest with its lease": also if a user without any
// right keeps all leases of the cluster alive, as etcd allows, and the holder is dead.
#[test]
fn a_stranger_keeps_the_lease_of_a_dead_run_alive() {
    let etcd = Etcd::of(1);
    add_user(&etcd, "jobs", "lockrun");
    etcd.ask("/v3/auth/user/add", &json!({ "name": "stranger", "password": "secret" }));
    enable_users(&etcd);
    let terms = ["--ttl", "12s", "--kill-after", "1s", "--store-timeout", "5s"];
    let call = Lockrun::at(&url(&etcd, "jobs:secret@", "")).key("k").args(terms);
    let mut holder = call.clone().sh("echo ready; exec sleep 600").spawn();
    holder.wait_for_line("ready");
    holder.kill_everything();
    let keep_alive = || {
        let leases = etcd.ask_as("stranger", "/v3/lease/leases", &json!({}))["leases"].clone();
        for lease in leases.as_array().into_iter().flatten() {
            etcd.ask_as("stranger", "/v3/lease/keepalive", &json!({ "ID": lease["ID"] }));
        }
    };
    let runs = || {
        keep_alive();
        call.clone().command(["true"]).run().status == Some(0)
    };
    stays_true_for(Duration::from_secs(15), "it is held", || !runs());
    let broken = Lockrun::bare().args(["break", "k", "--store", &url(&etcd, "jobs:secret@", "")]).run().exited(0);
    // Whatever the record says: a keep-alive may just have renewed the lease of a run that lives.
    broken.said("it will be free when its command has been stopped, within 13s");
    eventually(LONG, "it is free", runs);
}
