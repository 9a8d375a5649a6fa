//! Commands whose processes live for a moment each and are replaced by others, which no search of /proc can keep up
//! with.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::resource::Resource;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::birth::Birth;
use crate::support::hand::break_lock;
use crate::support::holder::write_script;
use crate::support::processes::{a_user_without_processes, children, find_program, send};
use crate::support::store::{on_files_and_redis, on_redis};
use crate::support::user::User;
use crate::support::{LONG, Lockrun, Running, Store, eventually, stays_true_for};

/// Waits until no other of these tests runs its command: each keeps a processor busy, and users without real-time
/// priority share what is left.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ignores TERM. Six chains of processes write `alive` to a file: each process lives for about a millisecond, starts
/// the next one, which begins a session of its own, and ends. Beside them are sleeping processes, each in a session of
/// its own. Should a test fail, all of them end by themselves.
const CHAINS: &str = "
import os, signal, sys, time
path, sleepers = sys.argv[1], int(sys.argv[2])
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    signal.signal(number, signal.SIG_IGN)
log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
end = time.monotonic() + 100
for _ in range(sleepers):
    if os.fork() == 0:
        os.setsid()
        time.sleep(100)
        os._exit(0)
for _ in range(6):
    if os.fork() == 0:
        while time.monotonic() < end:
            os.write(log, b'alive\\n')
            time.sleep(0.0005)
            if os.fork() != 0:
                os._exit(0)
            os.setsid()
        os._exit(0)
print('ready', flush=True)
time.sleep(float(sys.argv[3]))
";

/// A shell script that writes `alive` and starts itself again, as a child in a session of its own and then in its own
/// place, for a while.
const RESTARTS: &str = "#!/bin/sh
trap '' TERM HUP INT QUIT
echo alive >>\"$1\"
left=$(($2 - 1))
[ $left -gt 0 ] || exit 0
if [ $((left % 2)) = 0 ]; then exec \"$0\" \"$1\" $left; fi
setsid \"$0\" \"$1\" $left &
";

/// A directory that every user may write to, with a record of who was alive when.
struct Record(TempDir);

impl Record {
    fn new() -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).expect("our own");
        Self(directory)
    }

    fn path(&self) -> String {
        self.0.path().join("record").to_str().expect("a plain path").to_owned()
    }

    fn lines(&self) -> Vec<String> {
        let record = fs::read_to_string(self.path()).unwrap_or_default();
        record.lines().map(str::to_owned).collect()
    }

    /// Returns the words of a command of chains whose own process lives for this time.
    fn chains(&self, sleepers: u32, seconds: &str) -> Vec<String> {
        let python = find_program("python3").to_str().expect("a plain path").to_owned();
        [&python, "-c", CHAINS, &self.path(), &sleepers.to_string(), seconds].map(str::to_owned).to_vec()
    }

    /// Returns the words of a command of scripts that start themselves again and again.
    fn restarts(&self) -> Vec<String> {
        let script = write_script(self.0.path(), "restarts", RESTARTS);
        let start = format!("for i in 1 2 3 4; do setsid {script} {} 20000 & done; echo ready; sleep 600", self.path());
        ["sh", "-c", &start].map(str::to_owned).to_vec()
    }

    /// Waits until the command has begun to write.
    #[track_caller]
    fn until_alive(&self) {
        eventually(LONG, "it is alive", || self.lines().len() > 20);
    }

    /// Checks that nothing of the command is alive any more.
    #[track_caller]
    fn is_over(&self) {
        let lines = self.lines().len();
        stays_true_for(Duration::from_millis(300), "nothing is alive", || self.lines().len() == lines);
    }

    /// Checks that nothing of the first command was alive when the next one began, which has waited for the lock and
    /// says so.
    #[track_caller]
    fn is_over_before(&self, next: &mut Running) {
        next.wait_for_line("next");
        let is_last = || self.lines().last().is_some_and(|line| line == "next");
        stays_true_for(Duration::from_millis(300), "nothing is alive beside the next run", is_last);
    }

    /// Returns the command of the next run.
    fn next(&self) -> String {
        format!("echo next >>{}; echo next; exec sleep 600", self.path())
    }
}

/// Starts this many processes that sleep until the result is dropped.
#[track_caller]
fn others(count: u32) -> Running {
    let sleepers = "
import os, sys, time
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
print('ready', flush=True)
time.sleep(600)
";
    let python = find_program("python3");
    let words = [python.to_str().expect("a plain path"), "-c", sleepers, &count.to_string()].map(str::to_owned);
    let mut run = Lockrun::bare().command(words).spawn_alone();
    run.wait_for_line("ready");
    run
}

/// How the first run loses its lock.
#[derive(Clone, Copy)]
enum Loss {
    Broken,
    LockrunKilled,
    GuardianKilled,
}

/// Lets a run of this command lose its lock while another one waits, as root if `user` is none, and checks that they do
/// not overlap.
#[track_caller]
fn does_not_overlap(store: &Store, user: Option<&User>, command: &dyn Fn(&Record) -> Vec<String>, loss: Loss) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let _alone = alone();
    // The run that waits is killed in the end, and its lease outlives it.
    let key = &format!("short-{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let record = Record::new();
    let call = Lockrun::new(store).key(key).args(["--ttl", "5s", "--kill-after", "200ms"]);
    let call = call.command(command(&record));
    let mut first = match user {
        Some(user) => user.call(&call).spawn_alone(),
        None => call.spawn(),
    };
    first.wait_for_line("ready");
    record.until_alive();
    let wait = Lockrun::new(store).key(key).args(["--ttl", "5s", "--wait", "60s"]);
    let mut next = wait.sh(&record.next()).spawn();
    eventually(LONG, "it waits", || store.server().waiting(key).len() == 1);
    match loss {
        Loss::Broken => {
            break_lock(store, key, &[]).exited(0);
        }
        Loss::LockrunKilled => first.signal(Signal::SIGKILL),
        Loss::GuardianKilled => send(children(first.pid())[0], Signal::SIGKILL),
    }
    record.is_over_before(&mut next);
    eventually(LONG, "the first run has ended", || first.has_ended());
    assert_eq!(first.processes(), Vec::<i32>::new(), "left behind");
    let output = first.wait();
    assert!(!output.stderr().contains("cannot be killed"), "{output}");
    next.kill_everything();
}

// "From COMMAND's first instruction until COMMAND and all that lockrun must stop is dead, no other run holds the same
// key": also if its processes live for a moment each, on a machine with many other processes, for a user who may have
// no real-time priority.
on_redis!(do_not_outlive_a_broken_lock, |store, redis| {
    let _others = others(1500);
    let user = User::new(a_user_without_processes(), &[]);
    for _ in 0..3 {
        does_not_overlap(store, Some(&user), &|record| record.chains(300, "600"), Loss::Broken);
    }
    does_not_overlap(store, None, &|record| record.chains(300, "600"), Loss::Broken);
});

// The same if lockrun or its guardian is killed, and the other one has to end them.
on_redis!(do_not_outlive_lockrun, |store, redis| {
    let user = User::new(a_user_without_processes(), &[]);
    for loss in [Loss::LockrunKilled, Loss::GuardianKilled] {
        for user in [Some(&user), None] {
            does_not_overlap(store, user, &|record| record.chains(20, "600"), loss);
        }
    }
});

// The same for scripts that start themselves again and again.
on_redis!(scripts_that_start_themselves_again_do_not_overlap, |store, redis| {
    let user = User::new(a_user_without_processes(), &[]);
    for loss in [Loss::Broken, Loss::LockrunKilled, Loss::GuardianKilled] {
        does_not_overlap(store, Some(&user), &Record::restarts, loss);
    }
});

/// Returns a call for this store, which a user with this id can reach.
fn call_of(uid: u32, store: &Store) -> Lockrun {
    if let Store::File(directory) = store {
        chown(directory.path(), Some(uid), Some(uid)).expect("our own");
    }
    Lockrun::new(store).key("short").args(["--kill-after", "200ms"])
}

// "`--max-runtime DURATION`: then TERM, KILL, exit 124", "`--descendants kill`: end them first": on files, too, where
// lockrun itself is their parent.
on_files_and_redis!(are_ended_with_their_command, |store| {
    let _alone = alone();
    let uid = a_user_without_processes();
    let user = User::new(uid, &[]);
    let call = call_of(uid, store).args(["--ttl", "60s"]);
    let cases = [(["--max-runtime", "1s"], "600", 124), (["--descendants", "kill"], "0.5", 0)];
    for (options, seconds, status) in cases {
        let record = Record::new();
        let call = call.clone().args(options).command(record.chains(20, seconds));
        let mut run = user.call(&call).spawn_alone();
        eventually(LONG, "the run has ended", || run.has_ended());
        record.is_over();
        assert_eq!(run.processes(), Vec::<i32>::new(), "left behind");
        run.wait().exited(status);
    }
});

// The same where a shell has executed lockrun and its other children are spared.
on_files_and_redis!(are_ended_beside_others, |store| {
    let _alone = alone();
    let record = Record::new();
    let call = Lockrun::new(store).key("short").args(["--max-runtime", "1s", "--kill-after", "200ms"]);
    let call = call.command(record.chains(20, "600"));
    let mut run = call.in_shell("sleep 600 & exec \"$@\"").spawn_alone();
    eventually(LONG, "the run has ended", || run.has_ended());
    record.is_over();
    assert_eq!(run.processes().len(), 1, "the shell's child alone is left");
    run.wait().exited(124);
});

/// Forks as fast as it can, in sessions of their own, up to the limit of the user's processes, for a while.
const BOMB: &str = "
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('ready', flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        pass
";

// The same for a fork bomb, also where lockrun, without priority, has to share the processors with it.
#[test]
fn a_fork_bomb_is_ended() {
    let _alone = alone();
    for store in [Store::file(), Store::redis()] {
        let uid = a_user_without_processes();
        let user = User::new(uid, &[]);
        let call = call_of(uid, &store).args(["--ttl", "90s", "--max-runtime", "1s"]);
        let python = find_program("python3");
        let call = user.call(&call.command([python.to_str().expect("a plain path"), "-c", BOMB]));
        // Few: each session gets as much of a processor as all other tests together (sched(7), "The autogroup feature").
        let limits = vec![(Resource::RLIMIT_NPROC, 60, 60)];
        let mut run = call.birth(Birth { limits, ..Birth::default() }).spawn_alone();
        eventually(2 * LONG, "the run has ended", || run.has_ended());
        assert_eq!(run.processes(), Vec::<i32>::new(), "left behind");
        run.wait().exited(124);
    }
}
