//! Processes that were there before lockrun: it takes the place of a shell by exec, and inherits the shell's children.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::support::holder::is_free;
use crate::support::processes::is_alive;
use crate::support::store::on_every_store;
use crate::support::{LONG, Lockrun, Running, eventually};

/// Executes this call in a shell that has a child already; gives the child's id too.
fn with_a_child(call: &Lockrun, directory: &Path) -> (Running, i32) {
    let id = directory.join("id");
    let run = call.in_shell(&format!("sleep 600 & echo $! >{}; exec \"$@\"", id.display())).spawn_alone();
    let mut pid = None;
    eventually(LONG, "the shell has written the id", || {
        let text = fs::read_to_string(&id).unwrap_or_default();
        pid = text.strip_suffix('\n').and_then(|text| text.parse().ok());
        pid.is_some()
    });
    (run, pid.expect("just found"))
}

/// The run ends with this status while the child of before lives on.
#[track_caller]
fn spares(call: &Lockrun, status: i32) {
    let directory = TempDir::new().expect("a temporary directory");
    let (mut run, stranger) = with_a_child(call, directory.path());
    eventually(LONG, "the run has ended", || run.has_ended());
    assert!(is_alive(stranger), "a process was ended that is none of lockrun's");
    run.wait().exited(status);
}

// "`--max-runtime DURATION`: then TERM, KILL, exit 124": for COMMAND and all that it started, and nobody else.
on_every_store!(a_limit_spares_them, |store| {
    let call = Lockrun::new(store).key("before").args(["--max-runtime", "0.5", "--kill-after", "1s"]);
    spares(&call.clone().command(["sleep", "600"]), 124);
    assert!(is_free(store, "before"));
    // What descends from the command is ended all the same.
    let call = call.sh("trap '' TERM; sleep 600 & while :; do sleep 0.05; done");
    spares(&call, 124);
    assert!(is_free(store, "before"));
});

// "`--descendants wait`: hold the lock until the last has gone": the last that COMMAND left behind.
on_every_store!(they_are_not_waited_for, |store| {
    let call = Lockrun::new(store).key("before").args(["--descendants", "wait"]);
    spares(&call.clone().sh("exit 3"), 3);
    spares(&call.clone().sh("(sleep 0.5; exec true) & exit 3"), 3);
    assert!(is_free(store, "before"));
});

// "`--descendants kill`: end them first": processes that COMMAND left behind.
on_every_store!(they_are_not_killed, |store| {
    let call = Lockrun::new(store).key("before").args(["--descendants", "kill", "--kill-after", "1s"]);
    spares(&call.clone().sh("exit 3"), 3);
    let elsewhere = "{ setsid sh -c 'echo there; exec sleep 600 >/dev/null' & } | read there";
    spares(&call.clone().sh(&format!("sleep 600 & {elsewhere}; exit 3")), 3);
    assert!(is_free(store, "before"));
});
