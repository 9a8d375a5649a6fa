//! What the kernel does for lockrun while its processes cannot act, and how the process list shows which process is
//! which. For runs all of whose processes are stopped see `faults` and `suspended`.

use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::guardian::stop;
use crate::support::deadline::eventually_some;
use crate::support::holder::is_free;
use crate::support::lockrun::PROGRAM;
use crate::support::processes::{children, send, state};
use crate::support::store::on_every_lease_store;
use crate::support::{LONG, Lockrun, Redis, Running, eventually, stays_true_for};

// "`--on-lost warn`" and "`--ttl none`": no lease ends the command, so nothing ends its parent either, however long
// that is stopped.
on_every_lease_store!(a_guardian_that_ends_no_command_may_be_stopped, |store| {
    for options in [["--ttl=1s", "--on-lost=warn"], ["--ttl=none", "--on-lost=kill"]] {
        let mut run =
            Lockrun::new(store).key("patient").args(options).sh("echo ready; read line; exit 7").with_open_input();
        run.run.wait_for_line("ready");
        let ours = [children(run.run.pid())[0], run.run.pid()];
        for pid in ours {
            stop(pid);
        }
        // For longer than the lease.
        let stand_still = || ours.map(state) == [Some('T'); 2];
        stays_true_for(Duration::from_millis(1500), &format!("both are stopped: {options:?}"), stand_still);
        for pid in ours {
            send(pid, Signal::SIGCONT);
        }
        run.finish().exited(7);
    }
});

// "A second process, the guardian": a search for lockrun's command line finds lockrun alone; no password is in the
// guardian's.
#[test]
fn the_guardian_has_a_command_line_of_its_own() {
    let redis = Redis::with_password("secret-word");
    let url = redis.url().replace("://", "://:secret-word@");
    let run = Lockrun::at(&url).key("named").sh("read line; exit 7").with_open_input();
    let line = command_line_of_guardian(&run.run);
    assert_eq!(line.trim_end_matches('\0'), format!("guardian of {}", run.run.pid()));
    run.finish().exited(7).silent();
    // The guardian's name is cut off if lockrun's own command line is shorter.
    let call = Lockrun::bare().env("LOCKRUN_STORE", &url).env("LOCKRUN_COMMAND", "read line; exit 7");
    let call = call.command(["bash", "-c", "exec -a l \"$0\" -ka", PROGRAM]);
    let run = call.alone_with_open_input();
    assert_eq!(command_line_of_guardian(&run.run), "guard\0");
    run.finish().exited(7).silent();
}

// "Nothing outlives lockrun": a process that is about to execute COMMAND may be stopped before its parent's death would
// end it. The guardian, which waits for it, is killed, and the copies of the guardian's descriptors in that process
// must not hide this from lockrun.
on_every_lease_store!(the_commands_process_is_stopped_before_it_begins, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let trace = directory.path().join("trace");
    let call = Lockrun::new(store).key("unborn").args(["--ttl", "2s", "--kill-after", "100ms"]);
    // The first thing that it does is to lead a group of its own.
    let strace = "exec strace -f -qqq -o \"$TRACE\" -e trace=setpgid -e inject=setpgid:signal=SIGSTOP:when=1 \"$@\"";
    let run = call.sh("echo begun").env("TRACE", &trace).in_shell(strace).spawn_alone();
    eventually(LONG, "it is stopped", || {
        std::fs::read_to_string(&trace).is_ok_and(|lines| lines.contains("stopped by SIGSTOP"))
    });
    run.wait().exited(79).printed("").said("lost");
    assert!(is_free(store, "unborn"));
});

/// Returns the command line of this run's guardian, once its command runs.
fn command_line_of_guardian(run: &Running) -> String {
    let only = |pid| Some(children(pid)).filter(|all| all.len() == 1).map(|all| all[0]);
    let guardian = || only(run.pid()).filter(|guardian| only(*guardian).is_some_and(|command| comm(command) == "sh"));
    let guardian = eventually_some(LONG, "the command runs", guardian);
    String::from_utf8(std::fs::read(format!("/proc/{guardian}/cmdline")).expect("it is there")).expect("plain text")
}

/// The name of a process.
fn comm(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}
