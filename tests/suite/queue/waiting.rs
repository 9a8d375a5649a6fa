//! Waiting for a lock that another run holds.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::store::on_every_store;
use crate::support::{Holder, LONG, Lockrun, Output, Running, Store, eventually};

/// Starts a run that waits for the lock; returns when it says that it waits.
fn wait_for(store: &Store, key: &str, script: &str) -> Running {
    wait_by(&Lockrun::new(store).key(key), script)
}

/// As [`wait_for`], by this call.
fn wait_by(call: &Lockrun, script: &str) -> Running {
    let mut waiter = call.clone().args(["--wait", "-v"]).sh(script).spawn();
    waiter.wait_for_stderr("waiting");
    waiter
}

fn run(store: &Store, words: &[&str]) -> Output {
    Lockrun::new(store).key("waited").args(words).run()
}

// "`-w, --wait [DURATION]`: wait that long, then as `--fail`." "75: the wait ran out."
on_every_store!(a_wait_runs_out, |store| {
    let _holder = Holder::new(store, "waited");
    for words in [
        &["--wait", "1", "echo", "ran"][..],
        &["--wait=1", "--", "echo", "ran"],
        &["-w", "1000ms", "--", "echo", "ran"],
    ] {
        // From before the process exists: on a busy machine it may run before we do.
        let started = Instant::now();
        let output = run(store, words).exited(75).printed("").said("is held by");
        assert!(started.elapsed() >= Duration::from_secs(1), "{output}");
    }
});

// "`--wait`: wait for ever": COMMAND runs when the lock is freed.
on_every_store!(a_waiter_runs_when_the_lock_is_freed, |store| {
    let holder = Holder::new(store, "waited");
    let waiter = wait_for(store, "waited", "echo ran");
    assert_eq!(waiter.stdout(), "");
    holder.end();
    let output = waiter.wait().exited(0).printed("ran\n");
    assert!(output.took < LONG, "{output}");
});

// "A crash frees it": a waiter gets the lock of a holder that was killed with all that it started.
on_every_store!(a_waiter_runs_when_the_holder_is_killed, |store| {
    let call = Lockrun::new(store).key("waited").args(["--ttl", "2s"]);
    let mut holder = Holder::with(&call, &[]);
    let waiter = wait_for(store, "waited", "echo ran");
    holder.run().kill_everything();
    waiter.wait().exited(0).printed("ran\n");
});

// "`0` is `--fail`."
on_every_store!(waiting_no_time_is_failing, |store| {
    let _holder = Holder::new(store, "waited");
    for words in [
        &["-w", "0", "echo", "ran"][..],
        &["-w0", "echo", "ran"],
        &["--wait", "0s", "echo", "ran"],
        &["--wait=0", "-n", "echo", "ran"],
    ] {
        let output = run(store, words);
        if words.contains(&"-n") {
            // Either two ways to say the same, or two options that exclude each other; in no case a wait.
            assert!(matches!(output.status, Some(64 | 75)), "{output}");
        } else {
            output.exited(75).printed("").said("is held by");
        }
    }
});

// "Parsing of options stops at `--` and at the first word that is not an option": what follows `--wait` is its value
// only when it is a duration.
on_every_store!(the_command_is_not_taken_for_a_duration, |store| {
    run(store, &["--wait", "--", "echo", "5"]).exited(0).printed("5\n").silent();
    run(store, &["--wait", "echo", "5"]).exited(0).printed("5\n").silent();
    run(store, &["-w", "sh", "-c", "exit 3"]).exited(3).silent();
    run(store, &["-w", "5", "echo", "-w"]).exited(0).printed("-w\n").silent();
    run(store, &["-w5", "echo", "6"]).exited(0).printed("6\n").silent();
    run(store, &["--wait=5", "echo", "7"]).exited(0).printed("7\n").silent();
    run(store, &["--wait", "-v", "echo", "8"]).exited(0).printed("8\n");
});

// "A wait that is cut short leaves the queue"; a signal ends a wait as it ends any program.
on_every_store!(a_signal_ends_a_wait, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let trace = directory.path().join("trace");
    let holder = Holder::new(store, "cut");
    let left = || store.lease_server().map(|server| server.left("cut", true));
    let before = left();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        let waiter = wait_for(store, "cut", &format!("touch {}", trace.display()));
        waiter.signal(signal);
        let output = waiter.wait().died_of(signal);
        assert!(!output.core, "{output}");
        assert_eq!(left(), before, "after {signal}");
    }
    holder.end();
    assert_eq!(left().unwrap_or_default(), Vec::<String>::new());
    let output = Lockrun::new(store).key("cut").command(["echo", "ran"]).run();
    output.exited(0).printed("ran\n").silent();
    assert!(!trace.exists(), "a command started that nobody waited for any more");
});

// "A wait that is cut short leaves the queue": also a waiter that is killed blocks no one.
on_every_store!(a_killed_waiter_is_passed_over, |store| {
    let call = Lockrun::new(store).key("killed").args(["--ttl", "4s"]);
    let holder = Holder::with(&call, &[]);
    let mut dead = wait_by(&call, "echo dead");
    let living = wait_by(&call, "echo living");
    dead.kill_everything();
    holder.end();
    living.wait().exited(0).printed("living\n");
});

// "Exclusion": of several waiters one runs at a time, and all run.
on_every_store!(waiters_run_one_at_a_time, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let log = directory.path().join("log");
    let holder = Holder::new(store, "several");
    // Long enough for another run to come between the two, if it got the lock.
    let script = format!("echo in >>{0}; sleep 0.02; echo out >>{0}", log.display());
    let waiters: Vec<Running> = (0..6).map(|_| wait_for(store, "several", &script)).collect();
    assert!(!log.exists());
    holder.end();
    for waiter in waiters {
        waiter.wait().exited(0);
    }
    let seen = std::fs::read_to_string(&log).expect("all have run");
    assert_eq!(seen, "in\nout\n".repeat(6));
});

// "Output: nothing of the kind where stderr is not a terminal": a waiter in a pipe or a log is silent.
on_every_store!(a_waiter_is_silent, |store| {
    let holder = Holder::new(store, "silent");
    let call = Lockrun::new(store).key("silent").arg("--wait");
    let waiter = call.command(["echo", "ran"]).spawn();
    let verbose = wait_for(store, "silent", ":");
    holder.end();
    waiter.wait().exited(0).printed("ran\n").silent();
    verbose.wait().exited(0);
});

// "A wait that is cut short": a waiter that is stopped and continued waits on.
on_every_store!(a_waiter_survives_a_stop, |store| {
    let holder = Holder::new(store, "stopped");
    let waiter = wait_for(store, "stopped", "echo ran");
    waiter.signal(Signal::SIGSTOP);
    eventually(LONG, "the waiter is stopped", || crate::support::processes::state(waiter.pid()) == Some('T'));
    waiter.signal(Signal::SIGCONT);
    holder.end();
    waiter.wait().exited(0).printed("ran\n");
});
