//! Host names, which lockrun looks up by getent(1), a child of its own.

use std::fs;

use tempfile::TempDir;

use crate::support::holder::write_script;
use crate::support::processes::PATH;
use crate::support::{LONG, LeaseServer, Lockrun, Store, eventually, redis_keys};

/// Knows one name, and says so in a way that takes longer than it lives: its output ends when it has long been dead.
const GETENT: &str = "#!/bin/sh
echo \"$3\" >>\"$ASKED\"
[ \"$3\" = locks.test ] || exit 2
echo '127.0.0.1       STREAM locks.test'
sleep 0.3 &
";

// "Retry until it is time for TERM": a renewal that has to look up the server's name first is renewed at the first attempt, also
// while the guardian reaps what COMMAND has left.
#[test]
fn a_name_can_be_looked_up_while_a_command_runs() {
    let store = Store::redis();
    let redis = store.as_redis().expect("a Redis");
    let directory = TempDir::new().expect("a temporary directory");
    let at = |name: &str| directory.path().join(name);
    write_script(directory.path(), "getent", GETENT);
    let call = Lockrun::at(&format!("redis://locks.test:{}", redis.port())).key("named").args(["--ttl", "6s"]);
    let call = call.env("PATH", format!("{}:{PATH}", directory.path().display())).env("ASKED", at("asked"));
    let go = at("go");
    let mut run = call.sh(&format!("echo ready; while ! [ -e {} ]; do sleep 0.01; done", go.display())).spawn();
    run.wait_for_line("ready");
    let ends = || {
        let holders = redis.ask(&["ZRANGE", &redis_keys::holders("named"), "0", "0", "WITHSCORES"]);
        holders.list().get(1).map(|score| score.text().to_owned())
    };
    let (look_ups, before) = (|| fs::read_to_string(at("asked")).unwrap_or_default().lines().count(), ends());
    let asked = look_ups();
    redis.hang_up();
    eventually(LONG, "the lease is renewed, or lost", || ends() != before);
    fs::write(&go, "").expect("our own directory");
    run.wait().exited(0).silent();
    assert_eq!(look_ups(), asked + 1, "a look-up has failed");
}
