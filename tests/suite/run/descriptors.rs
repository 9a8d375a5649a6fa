//! A machine or a shell with tight limits: few descriptors, few processes.

use std::path::Path;
use std::time::Duration;

use nix::sys::resource::Resource;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::birth::Birth;
use crate::support::calm::held_in_time;
use crate::support::holder::is_free;
use crate::support::lockrun::program_for_all;
use crate::support::processes::{a_user_without_processes, is_traced, need_root, send};
use crate::support::store::{on_every_lease_store, on_every_store};
use crate::support::{LONG, Lockrun, Running, Store, eventually, stays_true_for};

// "125: lockrun itself failed": with too few descriptors for its own work, it leaves neither an unsupervised command
// nor a lock behind, and does not crash.
on_every_store!(few_descriptors_leave_nothing_behind, |store| {
    let mut statuses = Vec::new();
    for limit in 3..=24 {
        let key = format!("few-{limit}");
        // The command does not end by itself: if it were left behind, it would still be there.
        let call = Lockrun::new(store).key(&key).args(["--ttl", "60s", "--max-runtime", "300ms"]);
        let call = call.command(["sleep", "600"]);
        let limits = vec![(Resource::RLIMIT_NOFILE, limit, limit)];
        let mut run = call.birth(Birth { limits, ..Birth::default() }).spawn();
        eventually(LONG, "the run has ended", || run.has_ended());
        assert_eq!(run.processes(), Vec::<i32>::new(), "left behind with {limit}");
        let output = run.wait();
        let allowed = [69, 124, 125, 126, 127];
        assert!(output.status.is_some_and(|status| allowed.contains(&status)), "limit {limit}: {output}");
        assert!(!output.stderr().contains("not mounted"), "limit {limit}: {output}");
        assert!(is_free(store, &key), "the lock is left with {limit}: {output}");
        statuses.push(output.status);
    }
    assert_eq!(statuses.last(), Some(&Some(124)), "{statuses:?}");
});

/// Processes in sessions of their own: one records TERM in the file `$1.term` and ends, the other one ignores it.
/// `$1.up` says that they are there. A shell needs more descriptors than lockrun, and may have them.
const FAR: &str = "ulimit -n 64
setsid sh -c 'trap \"echo term >>$1.term; exit\" TERM; echo up >>$1.up; while :; do sleep 0.02; done' sh $1 & records=$!
setsid sh -c 'trap \"\" TERM; echo up >>$1.up; while :; do sleep 0.02; done' sh $1 & ignores=$!
until [ \"$(wc -l <$1.up)\" = 2 ]; do sleep 0.01; done 2>/dev/null
echo ran
";

/// Runs a command that begins with [`FAR`] with each limit on descriptors, and checks that the run is refused or
/// `works`. At some limit it must work.
#[track_caller]
fn is_refused_or_works(store: &Store, options: &[&str], script: &str, works: impl Fn(&mut Running, &Path)) {
    let mut refused = Vec::new();
    for limit in 3..=24 {
        let directory = TempDir::new().expect("a temporary directory");
        let file = directory.path().join("far");
        let key = format!("far-{limit}");
        let command = ["sh", "-c", &format!("{FAR}{script}"), "sh", file.to_str().expect("a plain path")];
        let call = Lockrun::new(store).key(&key).args(["--ttl", "60s", "--kill-after", "300ms"]).args(options);
        let limits = vec![(Resource::RLIMIT_NOFILE, limit, 1000)];
        let mut run = call.command(command).birth(Birth { limits, ..Birth::default() }).spawn();
        if run.comes_to(|run| run.has_line("ran")) {
            works(&mut run, &file);
            assert_eq!(run.processes(), Vec::<i32>::new(), "left behind with {limit}");
        } else {
            let output = run.wait();
            let is_refusal = matches!(output.status, Some(69 | 125 | 126)) && output.stderr().starts_with("lockrun: ");
            assert!(is_refusal, "limit {limit}: {output}");
            refused.push(limit);
        }
        assert!(is_free(store, &key), "the lock is left with {limit}");
    }
    assert!(!refused.contains(&24), "{refused:?}");
}

/// Returns whether the process that records TERM has done so.
fn has_term(file: &Path) -> bool {
    file.with_extension("term").exists()
}

// "`--max-runtime DURATION`: then TERM, KILL, exit 124": with few descriptors a run is refused, or its command is ended
// like any other.
on_every_store!(a_limit_holds_with_few_descriptors, |store| {
    is_refused_or_works(store, &["--max-runtime", "1s"], "sleep 600", |run, file| {
        eventually(LONG, "the run has ended", || run.has_ended());
        run.end().exited(124);
        held_in_time(has_term(file), "TERM comes first, and the process handles it before KILL comes");
    });
});

// "`--descendants`: hold the lock until the last has gone, or end them first": the same.
on_every_store!(descendants_are_ended_with_few_descriptors, |store| {
    is_refused_or_works(store, &["--descendants", "kill"], "exit 3", |run, file| {
        eventually(LONG, "the run has ended", || run.has_ended());
        run.end().exited(3);
        held_in_time(has_term(file), "TERM comes first, and the process handles it before KILL comes");
    });
});

#[test]
fn descendants_are_awaited_with_few_descriptors() {
    let store = Store::file();
    let script = "(setsid sh -c 'sleep 0.3; echo end >>$1.end' sh $1 &); kill -KILL $records $ignores; exit 3";
    is_refused_or_works(&store, &["--descendants", "wait"], script, |run, file| {
        eventually(LONG, "the run has ended", || run.has_ended());
        run.end().exited(3);
        assert!(file.with_extension("end").exists(), "the last has gone");
    });
}

// "COMMAND and everything it started": processes that lockrun cannot see, because it can open no more files, are not
// taken to be dead. Here a shell with a child executes lockrun, which then has to look in /proc to find COMMAND's
// processes.
#[test]
fn unseen_descendants_are_not_taken_for_dead() {
    need_root("trace a process");
    let store = Store::file();
    let call = Lockrun::new(&store).key("unseen").args(["--descendants", "wait"]);
    let call = call.sh("sleep 600 & echo $!; echo ready; read line || :").in_shell("sleep 600 & exec \"$@\"");
    let mut run = call.alone_with_open_input();
    run.run.wait_for_line("ready");
    let descendant = run.run.stdout().lines().next().and_then(|pid| pid.parse().ok()).expect("a process id");
    let pid = run.run.pid();
    // It may still read its own state and open /proc. Which call opens a file depends on the C library.
    let inject = "inject=?open,openat:error=EMFILE:when=3+";
    let tracer = ["strace", "-qq", "-o", "/dev/null", "-e", inject, "-p", &pid.to_string()].map(str::to_owned);
    let tracer = Lockrun::bare().command(tracer).spawn_alone();
    eventually(LONG, "lockrun is traced", || is_traced(pid));
    let mut run = run.close();
    eventually(LONG, "the command has ended", || run.processes().len() <= 3);
    stays_true_for(Duration::from_millis(500), "lockrun waits for its descendant", || run.processes().len() == 3);
    drop(tracer);
    send(descendant, Signal::SIGKILL);
    eventually(LONG, "lockrun has ended", || run.has_ended());
    run.wait().exited(0);
}

// "125: lockrun itself failed", "69: the store cannot be reached": under a lease that cannot be renewed, COMMAND does
// not start.
on_every_lease_store!(a_lease_that_could_not_be_kept_starts_nothing, |store| {
    let call = Lockrun::new(store).key("eight").args(["--ttl", "60s"]).command(["echo", "ran"]);
    let limits = vec![(Resource::RLIMIT_NOFILE, 8, 8)];
    let output = call.birth(Birth { limits, ..Birth::default() }).run();
    assert!(matches!(output.status, Some(69 | 125)), "{output}");
    output.printed("").said("lockrun: ");
    assert!(is_free(store, "eight"));
});

// "125: lockrun itself failed": if the user may have one process or thread too few, COMMAND is not started only to be
// killed, at whatever step lockrun fails.
on_every_lease_store!(too_few_processes_start_nothing, |store| {
    need_root("become another user");
    let (_place, program) = program_for_all();
    let mut statuses = Vec::new();
    for limit in 1..=5 {
        let key = format!("processes-{limit}");
        let user = a_user_without_processes().to_string();
        let limit = format!("--nproc={limit}");
        let url = store.url();
        let words = ["setpriv", "--reuid", &user, "--clear-groups", "prlimit", &limit, &program, "--store", &url];
        let call = ["--key", &key, "--ttl", "60s", "--", "/bin/sh", "-c", "echo begun; read -r line; echo ran"];
        let output = Lockrun::bare().command(words.into_iter().chain(call)).stdin("\n").alone();
        match output.status {
            Some(0) => assert_eq!(output.stdout(), "begun\nran\n", "{limit}: {output}"),
            Some(125) => assert_eq!(output.stdout(), "", "{limit}: {output}"),
            _ => panic!("{limit}: {output}"),
        }
        assert!(!output.stderr().to_lowercase().contains("again"), "{limit}: {output}");
        assert!(is_free(store, &key), "the lock is left with {limit}: {output}");
        statuses.push(output.status);
    }
    // With too low a limit the run fails, with one that is high enough it works.
    assert_eq!((statuses[0], statuses[4]), (Some(125), Some(0)), "{statuses:?}");
});
