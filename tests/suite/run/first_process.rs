//! lockrun as the first process of a container, which inherits what others leave behind there.

use std::process::Command;

use nix::sys::signal::Signal;

use crate::support::deadline::eventually_some;
use crate::support::namespace::as_first_process;
use crate::support::processes::{children, find_program, need_root, send, state};
use crate::support::store::on_files_and_redis;
use crate::support::{Holder, LONG, Lockrun, eventually};

/// Leaves so many processes to the first process of a container, `first`, as a health check may. Returns their ids when
/// they are there.
#[track_caller]
fn leave_orphans(first: i32, count: usize) -> Vec<i32> {
    let before = children(first);
    let script = format!("i=0; while [ $i -lt {count} ]; do sleep 600 >/dev/null 2>&1 & i=$((i+1)); done");
    let mut enter = Command::new(find_program("nsenter"));
    enter.args(["--target", &first.to_string(), "--pid", "sh", "-c", &script]);
    assert!(enter.status().expect("nsenter(1) starts").success(), "they are left");
    eventually_some(LONG, "the first process has inherited them", || {
        let orphans: Vec<i32> = children(first).into_iter().filter(|pid| !before.contains(pid)).collect();
        (orphans.len() == count).then_some(orphans)
    })
}

/// Leaves more processes that die at once than are reaped at once.
#[track_caller]
fn reaps_many(first: i32) {
    let orphans = leave_orphans(first, 300);
    send(first, Signal::SIGSTOP);
    for pid in &orphans {
        send(*pid, Signal::SIGKILL);
    }
    let are_dead = || orphans.iter().all(|pid| state(*pid) == Some('Z'));
    eventually(LONG, "all are dead", are_dead);
    send(first, Signal::SIGCONT);
    eventually(LONG, "all are reaped", || orphans.iter().all(|pid| state(*pid).is_none()));
}

// "Nothing is left": as any first process, lockrun reaps what it inherits, while it waits and while the command runs.
// Otherwise a container could start no process any more when its limit (pids.max) is reached.
on_files_and_redis!(what_others_leave_behind_is_reaped, |store| {
    need_root("enter a PID namespace");
    let holder = Holder::new(store, "first");
    let call = Lockrun::new(store).key("first").args(["--wait", "-v"]).sh("echo ready; exec sleep 600");
    let mut run = call.in_shell(&as_first_process()).spawn_alone();
    run.wait_for_stderr("waiting");
    let [lockrun] = children(run.pid())[..] else { panic!("unshare(1) has one child") };
    let reaps = || {
        let [orphan] = leave_orphans(lockrun, 1)[..] else { panic!("it is one") };
        send(orphan, Signal::SIGKILL);
        eventually(LONG, "the orphan is reaped", || state(orphan).is_none());
    };
    reaps();
    holder.end();
    run.wait_for_line("ready");
    reaps();
    reaps_many(lockrun);
    send(lockrun, Signal::SIGTERM);
    run.wait().exited(128 + Signal::SIGTERM as i32);
});
