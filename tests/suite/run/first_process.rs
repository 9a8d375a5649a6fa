//! lockrun as the first process of a container, which inherits what others leave behind there.

use std::process::Command;

use nix::sys::signal::Signal;

use crate::support::deadline::eventually_some;
use crate::support::namespace::as_first_process;
use crate::support::processes::{children, find_program, need_root, send, state};
use crate::support::store::on_files_and_redis;
use crate::support::{Holder, LONG, Lockrun, eventually};

/// Leaves a process to the first process of a container, `first`, as a health check may. Returns its id when it is
/// there.
#[track_caller]
fn leave_orphan(first: i32) -> i32 {
    let before = children(first);
    let mut enter = Command::new(find_program("nsenter"));
    enter.args(["--target", &first.to_string(), "--pid", "sh", "-c", "sleep 600 >/dev/null 2>&1 &"]);
    assert!(enter.status().expect("nsenter(1) starts").success(), "it is left");
    eventually_some(LONG, "the first process has inherited it", || {
        children(first).into_iter().find(|pid| !before.contains(pid))
    })
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
        let orphan = leave_orphan(lockrun);
        send(orphan, Signal::SIGKILL);
        eventually(LONG, "the orphan is reaped", || state(orphan).is_none());
    };
    reaps();
    holder.end();
    run.wait_for_line("ready");
    reaps();
    send(lockrun, Signal::SIGTERM);
    run.wait().exited(128 + Signal::SIGTERM as i32);
});
