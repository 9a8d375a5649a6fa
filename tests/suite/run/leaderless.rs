//! Processes whose main thread has ended while others go on: /proc calls them zombies, and they live.

use std::fs::File;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::support::holder::{is_free, write_script};
use crate::support::processes::holds_lock_on;
use crate::support::store::on_files_and_redis;
use crate::support::{Lockrun, Store};

/// Locks the file that it is called with, starts a thread, and ends the main one.
const LEADERLESS: &str = "#!/usr/bin/env python3
import ctypes, fcntl, os, sys, threading, time
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
threading.Thread(target=time.sleep, args=[120]).start()
ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)
";

/// A program of this kind, and the file whose lock shows that it lives.
struct Leaderless {
    directory: TempDir,
    program: String,
}

impl Leaderless {
    fn new() -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let program = write_script(directory.path(), "leaderless", LEADERLESS);
        File::create(directory.path().join("lives")).expect("our own directory");
        Self { directory, program }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("lives")
    }

    /// Returns shell code that starts it in a session of its own and goes on when its main thread has ended; its id is
    /// in `$pid`.
    fn starts(&self) -> String {
        let (program, file) = (&self.program, self.file());
        let start = format!("setsid {program} {} & pid=$!", file.display());
        format!("{start}; until grep -q '^State:.Z' /proc/$pid/status; do sleep 0.01; done")
    }

    fn lives(&self) -> bool {
        holds_lock_on(&self.file())
    }
}

/// Returns a call whose command leaves a process of this kind behind.
fn call(store: &Store, leaderless: &Leaderless) -> Lockrun {
    let call = Lockrun::new(store).key("leaderless").args(["--descendants", "kill", "--kill-after", "300ms"]);
    call.sh(&format!("{}; exit 3", leaderless.starts()))
}

// "`--descendants kill`: end them first": living processes are ended, whatever /proc calls them.
on_files_and_redis!(it_is_ended, |store| {
    let leaderless = Leaderless::new();
    call(store, &leaderless).run().exited(3).silent();
    assert!(!leaderless.lives(), "it was left");
    assert!(is_free(store, "leaderless"));
});

// "... hold the lock until the last has gone": also if lockrun has children of its own, and has to look which processes
// are left.
on_files_and_redis!(it_is_no_dead_one, |store| {
    let leaderless = Leaderless::new();
    let run = call(store, &leaderless).in_shell("sleep 600 & exec \"$@\"").spawn_alone();
    run.wait_and_leave(|output| {
        output.exited(3);
        assert!(!leaderless.lives(), "it was left");
    });
});

// "After TERM comes CONT, or a stopped command never sees it."
on_files_and_redis!(it_is_continued, |store| {
    let leaderless = Leaderless::new();
    let stopped = "until grep -q '^State:.T' /proc/$pid/task/*/status; do sleep 0.01; done";
    let script = format!("{}; kill -STOP $pid; {stopped}; echo ready; exec sleep 600", leaderless.starts());
    let call = Lockrun::new(store)
        .key("leaderless")
        .args(["--ttl", "1h", "--kill-after", "10m"])
        .args(["--max-runtime", "3s"]);
    let run = call.sh(&script).spawn();
    run.wait_and_leave(|output| {
        output.exited(124).printed("ready\n");
        assert!(!leaderless.lives(), "it was left");
    });
});
