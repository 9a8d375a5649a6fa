//! What lives on when lockrun or its command has gone.

use std::fs;
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::guardian::stop;
use crate::support::hand::{break_lock, is_held, status};
use crate::support::holder::is_free;
use crate::support::processes::{is_alive, send, state};
use crate::support::steps::end_in_steps;
use crate::support::store::{on_every_lease_store, on_files_and_redis};
use crate::support::{LONG, Lockrun, Running, Store, eventually, stays_true_for};

/// Returns the process id that the command has written into this file.
fn written(file: &std::path::Path) -> i32 {
    let mut pid = None;
    eventually(LONG, "the command has written its id", || {
        let text = fs::read_to_string(file).unwrap_or_default();
        pid = text.strip_suffix('\n').and_then(|text| text.parse().ok());
        pid.is_some()
    });
    pid.expect("just found")
}

fn start(store: &Store, script: &str) -> Running {
    let mut run = Lockrun::new(store).key("outliving").args(["--ttl", "3s"]).sh(script).spawn();
    run.wait_for_line("ready");
    run
}

// "On the file store the kernel's lock passes to the command, so it stays held for as long as the command lives and not
// a moment longer."
#[test]
fn the_command_of_a_killed_lockrun_keeps_the_file_lock() {
    let store = Store::file();
    let directory = TempDir::new().expect("a temporary directory");
    let id = directory.path().join("id");
    let mut run = start(&store, &format!("echo $$ >{}; echo ready; exec sleep 600", id.display()));
    let command = written(&id);
    run.signal(Signal::SIGKILL);
    eventually(LONG, "lockrun is dead", || run.has_ended());
    for _ in 0..20 {
        assert!(is_alive(command), "the command has nothing to fear");
        assert!(!is_free(&store, "outliving"), "free while the command lives");
    }
    send(command, Signal::SIGKILL);
    eventually(LONG, "the command is dead", || !is_alive(command));
    assert!(is_free(&store, "outliving"), "held by the dead");
}

// "... also when lockrun is stopped": a stopped lockrun holds the lock of its running command.
#[test]
fn a_stopped_lockrun_keeps_the_file_lock() {
    let store = Store::file();
    let mut run = start(&store, "echo ready; exec sleep 600");
    run.signal(Signal::SIGSTOP);
    assert!(!is_free(&store, "outliving"));
    run.signal(Signal::SIGCONT);
    run.signal(Signal::SIGTERM);
    eventually(LONG, "the run has ended", || run.has_ended());
    run.wait().died_of(Signal::SIGTERM);
    assert!(is_free(&store, "outliving"));
}

// "A normal end unlocks explicitly, so a daemon that inherited the descriptor holds nothing." "`--descendants leave`:
// release anyway."
on_files_and_redis!(a_daemon_that_was_left_behind_holds_nothing, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let id = directory.path().join("id");
    let script = format!(
        "setsid sh -c 'echo $$ >{0}; exec sleep 600' & while ! [ -s {0} ]; do sleep 0.01; done; echo ready",
        id.display()
    );
    let run = start(store, &script);
    let daemon = written(&id);
    run.wait_and_leave(|output| {
        output.exited(0).silent();
        assert!(is_alive(daemon), "the daemon is left alone");
        assert!(is_free(store, "outliving"), "held by a daemon");
    });
});

// "It stays held ... and not a moment longer": also if lockrun is killed in the middle of its release. A daemon then
// holds the lock, as any process of the command would, and others see that.
#[test]
fn a_daemon_does_not_keep_the_record_in_use() {
    let store = Store::file();
    let directory = TempDir::new().expect("a temporary directory");
    let id = directory.path().join("id");
    let call = Lockrun::new(&store).key("outliving");
    // From now on each run writes the record twice: when it has acquired the lock, and when it releases it.
    call.clone().command(["true"]).run().exited(0);
    let script = format!("setsid sleep 600 >/dev/null 2>&1 & echo $! >{}", id.display());
    let killed = "exec strace -qqq -o /dev/null -e trace=pwrite64 -e inject=pwrite64:signal=KILL:when=2 \"$@\"";
    call.sh(&script).in_shell(killed).spawn_alone().wait_and_leave(|output| {
        output.died_of(Signal::SIGKILL);
        let daemon = written(&id);
        assert!(is_alive(daemon) && !is_free(&store, "outliving"));
        send(daemon, Signal::SIGKILL);
        eventually(LONG, "the daemon is dead", || !is_alive(daemon));
        assert!(is_free(&store, "outliving"));
    });
}

// ... or just before it frees its slot: the record says that the run has ended.
#[test]
fn a_daemon_that_keeps_a_slot_is_named() {
    let store = Store::file();
    let directory = TempDir::new().expect("a temporary directory");
    let id = directory.path().join("id");
    let script = format!("setsid sleep 600 >/dev/null 2>&1 & echo $! >{}; echo ready; read line || :", id.display());
    let mut run = Lockrun::new(&store).key("outliving").sh(&script).with_open_input();
    run.run.wait_for_line("ready");
    let daemon = written(&id);
    let mut is_recorded = false;
    let (run, killed) = end_in_steps(run, |_, call| {
        is_recorded |= call == libc::SYS_pwrite64;
        is_recorded && call == libc::SYS_fcntl
    });
    assert!(killed, "its slot is not free");
    run.wait_and_leave(|output| {
        output.died_of(Signal::SIGKILL);
        let told = status(&store, "outliving");
        assert_eq!((&told["held"], &told["last"]["status"]), (&true.into(), &0.into()), "{told}");
        assert_eq!(told["holders"][0]["pid"], daemon, "{told}");
        break_lock(&store, "outliving", &[]).exited(75).said("stays with ").said(&format!("kill {daemon}\n"));
        Lockrun::other("prune", &store).key("outliving").run().exited(75).printed("").said("it is held");
        Lockrun::other("prune", &store).args(["--older-than", "0"]).run().exited(0).printed("").silent();
        send(daemon, Signal::SIGKILL);
        eventually(LONG, "the daemon is dead", || !is_alive(daemon));
        assert!(!is_held(&store, "outliving") && is_free(&store, "outliving"));
    });
}

// "`--descendants wait`: hold the lock until the last has gone."
on_files_and_redis!(descendants_can_be_waited_for, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let id = directory.path().join("id");
    let call = Lockrun::new(store).key("outliving").args(["--descendants", "wait"]);
    let script = format!("(echo ready; exec sleep 600) & echo $! >{}; exit 3", id.display());
    let mut run = call.sh(&script).spawn();
    run.wait_for_line("ready");
    let left = written(&id);
    for _ in 0..20 {
        assert!(!is_free(store, "outliving"), "free while a process was left");
    }
    assert!(!run.has_ended());
    send(left, Signal::SIGTERM);
    run.wait().exited(3).silent();
    assert!(is_free(store, "outliving"));
});

// A run that waits for what its command left behind can be ended, also where that has left for a session of its own.
on_files_and_redis!(descendants_that_are_waited_for_can_be_ended, |store| {
    for signal in [Signal::SIGTERM, Signal::SIGQUIT] {
        let directory = TempDir::new().expect("a temporary directory");
        let [command, first, second] = ["command", "first", "second"].map(|name| directory.path().join(name));
        let script = format!(
            "echo $$ >{}; env --default-signal sleep 600 & echo $! >{}; \
             setsid env --default-signal sh -c 'echo $$ >{}; exec sleep 600' & \
             while ! [ -s {2} ]; do sleep 0.01; done; exit 3",
            command.display(),
            first.display(),
            second.display()
        );
        let run = Lockrun::new(store).key("outliving").args(["--descendants", "wait"]).sh(&script).spawn();
        let [command, first, second] = [command, first, second].map(|file| written(&file));
        eventually(LONG, "the command has ended", || !is_alive(command));
        assert!(is_alive(first) && is_alive(second) && !is_free(store, "outliving"));
        run.signal(signal);
        run.wait().exited(3).silent();
        assert!(is_free(store, "outliving"));
    }
});

// "`--descendants kill`: end them first", those too that left for a session of their own.
on_files_and_redis!(descendants_can_be_killed, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let (first, second) = (directory.path().join("first"), directory.path().join("second"));
    let call = Lockrun::new(store).key("outliving");
    let call = call.args(["--descendants", "kill", "--kill-after", "300ms"]);
    let script = format!(
        "sh -c 'trap \"\" TERM; echo $$ >{}; while :; do sleep 0.05; done' & \
         setsid sh -c 'echo $$ >{}; exec sleep 600' & \
         while ! [ -s {0} ] || ! [ -s {1} ]; do sleep 0.01; done; exit 3",
        first.display(),
        second.display()
    );
    let run = call.sh(&script).spawn();
    run.wait_and_leave(|output| {
        output.exited(3);
        for id in [&first, &second] {
            assert!(!is_alive(written(id)), "{} was left", id.display());
        }
        assert!(is_free(store, "outliving"));
    });
});

// "`--max-runtime DURATION`: then TERM, KILL, exit 124."
on_files_and_redis!(a_command_can_be_given_a_limit, |store| {
    // Long enough for a shell to set its trap, also on a busy machine.
    let call = Lockrun::new(store).key("outliving").args(["--max-runtime", "1500ms"]);
    let polite = "exec 2>/dev/null; trap 'echo asked; exit 9' TERM; while :; do sleep 0.01; done";
    call.clone().sh(polite).run().exited(124).printed("asked\n").said("1s 500ms");
    assert!(is_free(store, "outliving"));
    let stubborn = "exec 2>/dev/null; trap '' TERM; sleep 600 & while :; do sleep 0.05; done";
    let run = call.clone().args(["--kill-after", "300ms"]).sh(stubborn).spawn();
    run.wait_and_leave(|output| {
        output.exited(124).printed("");
    });
    assert!(is_free(store, "outliving"));
    let call = Lockrun::new(store).key("outliving").args(["--max-runtime", "60s"]);
    call.sh("exit 4").run().exited(4).silent();
});

// "COMMAND's own: it ran and ended": a command that ended in time has, even if the process that watches it notices only
// after the limit.
on_files_and_redis!(an_end_in_time_is_no_end_by_the_limit, |store| {
    // A busy machine needs more time than another.
    let in_time = [3, 12, 48].into_iter().any(|limit| noticed_late(store, limit));
    assert!(in_time, "this machine is too busy: a command that does nothing took longer than 48 s");
});

/// Ends a command, and lets its parent notice only after its limit, in seconds. Returns false if the command did not
/// end before that.
#[track_caller]
fn noticed_late(store: &Store, limit: u64) -> bool {
    let (option, limit) = (format!("--max-runtime={limit}s"), Duration::from_secs(limit));
    let directory = TempDir::new().expect("a temporary directory");
    let go = directory.path().join("go");
    let call = Lockrun::new(store).key("outliving").arg(option);
    let script = "echo $PPID >parent; echo $$ >id; echo ready; while ! [ -e go ]; do sleep 0.01; done; exit 3";
    let before = Instant::now();
    let mut run = call.directory(directory.path()).sh(script).spawn();
    run.wait_for_line("ready");
    let started = Instant::now();
    let (parent, command) = (written(&directory.path().join("parent")), written(&directory.path().join("id")));
    stop(parent);
    fs::write(&go, "").expect("our own directory");
    eventually(LONG, "the command has ended", || !is_alive(command));
    let in_time = before.elapsed() < limit;
    // The process that watches it is stopped until the limit has passed.
    let stands_still = || state(parent) == Some('T');
    stays_true_for(limit.saturating_sub(started.elapsed()), "its parent is stopped", stands_still);
    send(parent, Signal::SIGCONT);
    let output = run.wait();
    if in_time {
        output.exited(3).silent();
    }
    in_time
}

// "`--on-lost kill|warn`: what a lost lease does to COMMAND."
on_every_lease_store!(a_lost_lease_can_be_left_at_a_warning, |store| {
    let server = store.server();
    let call = Lockrun::new(store).key("outliving").args(["--ttl", "2s", "--on-lost", "warn"]);
    let mut run = call.sh("trap 'echo asked' TERM; echo ready; read line || :; exit 6").with_open_input();
    run.run.wait_for_line("ready");
    server.forget_everything();
    run.run.wait_for_stderr("lost");
    run.finish().exited(6).printed("ready\n").said("lost");
});

// "The file store needs no guardian, and must not pay for one": one process besides the command.
#[test]
fn the_file_store_starts_no_other_process() {
    let store = Store::file();
    // The command executes no program: a process that does is invisible for a moment.
    let mut run = Lockrun::new(&store).key("outliving").sh("echo ready; read line || :").with_open_input();
    run.run.wait_for_line("ready");
    assert_eq!(run.run.processes().len(), 2, "lockrun and its command");
    run.finish().exited(0);
}
