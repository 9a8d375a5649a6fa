//! Host names, which lockrun looks up with getent(1), a child of its own.

use std::fs;

use tempfile::TempDir;

use crate::support::calm::held_in_time;
use crate::support::holder::write_script;
use crate::support::processes::PATH;
use crate::support::store::on_every_lease_store;
use crate::support::{LONG, Lockrun, eventually};

/// Knows one name, and its output outlives it: the output ends long after the process is dead.
const GETENT: &str = "#!/bin/sh
echo \"$3\" >>\"$ASKED\"
[ \"$3\" = locks.test ] || exit 2
echo '127.0.0.1       STREAM locks.test'
sleep 0.3 &
";

// "Retry until it is time for TERM": a renewal that first has to look up the server's name succeeds at the first
// attempt, also while the guardian reaps what COMMAND has left behind.
on_every_lease_store!(a_name_can_be_looked_up_while_a_command_runs, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let at = |name: &str| directory.path().join(name);
    write_script(directory.path(), "getent", GETENT);
    let call = Lockrun::at(&store.url().replacen("127.0.0.1", "locks.test", 1)).key("named").args(["--ttl", "6s"]);
    let call = call.env("PATH", format!("{}:{PATH}", directory.path().display())).env("ASKED", at("asked"));
    let go = at("go");
    let mut run = call.sh(&format!("echo ready; while ! [ -e {} ]; do sleep 0.01; done", go.display())).spawn();
    run.wait_for_line("ready");
    let look_ups = || fs::read_to_string(at("asked")).unwrap_or_default().lines().count();
    let asked = look_ups();
    store.server().hang_up();
    let before = store.server().requests();
    eventually(LONG, "the lease is renewed", || store.server().requests() > before);
    fs::write(&go, "").expect("our own directory");
    run.wait().exited(0).silent();
    let again = usize::try_from(store.server().connections_of_a_client()).expect("a few");
    held_in_time(look_ups() == asked + again, "each look-up was answered");
});
