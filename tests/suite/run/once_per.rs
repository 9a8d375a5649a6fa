//! A run that is wanted once per period, whichever server starts it.

use nix::sys::signal::Signal;

use crate::support::hand::{self, status};
use crate::support::store::on_every_store;
use crate::support::{Holder, LONG, Lockrun, Output, Queue, Store, eventually};

fn attempt(store: &Store, period: &str, script: &str) -> Output {
    Lockrun::new(store).key("job").args(["--once-per", period, "--fail"]).sh(script).run()
}

// "Skipped, silently and with 0, if a run that began less than DURATION ago ended with 0."
on_every_store!(a_success_makes_others_superfluous, |store| {
    attempt(store, "10m", "echo ran").exited(0).printed("ran\n").silent();
    attempt(store, "10m", "echo ran").exited(0).printed("").silent();
    assert!(!status(store, "job")["done_until"].is_null());
    let said = Lockrun::new(store).key("job").args(["--once-per", "10m", "-v"]).sh("echo ran").run();
    let said =
        said.exited(0).printed("").said("skipped: ").said("sh -c 'echo ran'").said(" ago and succeeded (--once-per)");
    said.said(" began ");
    // Each run applies its own period; one without `--once-per` runs in any case.
    Lockrun::new(store).key("job").sh("echo ran").run().exited(0).printed("ran\n");
    attempt(store, "1s", ":").exited(0);
    eventually(LONG, "a second is over", || attempt(store, "1s", "echo ran").exited(0).stdout() == "ran\n");
});

// "A failed, killed or lost run does not count."
on_every_store!(what_did_not_succeed_does_not_count, |store| {
    attempt(store, "10m", "exit 3").exited(3);
    attempt(store, "10m", "kill -9 $$").died_of(Signal::SIGKILL);
    // Also one that ends with 0 when it is stopped.
    let stopped = "trap 'exit 0' TERM; while :; do sleep 0.05; done";
    let call = Lockrun::new(store).key("job").args(["--once-per", "10m", "--max-runtime", "300ms"]);
    call.sh(stopped).run().exited(124);
    let mut killed = Holder::with(&Lockrun::new(store).key("job").args(["--ttl", "2s"]), &[]);
    killed.run().kill_everything();
    let free = || attempt(store, "10m", "exit 4").status == Some(4);
    eventually(LONG, "the lock of the killed run is free", free);
    assert!(status(store, "job")["done_until"].is_null());
    attempt(store, "10m", "echo ran").exited(0).printed("ran\n");
    // A later run without `--once-per` that fails does not hide it.
    Lockrun::new(store).key("job").sh("exit 5").run().exited(5);
    attempt(store, "10m", "echo ran").exited(0).printed("");
});

// "Runs without the option (an editor under the lock, a reader) do not count."
on_every_store!(only_runs_with_the_option_count, |store| {
    Lockrun::new(store).key("job").sh("echo edited").run().exited(0).printed("edited\n");
    Lockrun::new(store).key("job").arg("--shared").sh("echo read").run().exited(0).printed("read\n");
    assert!(status(store, "job")["done_until"].is_null());
    attempt(store, "10m", "echo ran").exited(0).printed("ran\n");
    attempt(store, "10m", "echo ran").exited(0).printed("");
});

// "`prune --done KEY` forgets the success, so that the next run is wanted."
on_every_store!(a_success_can_be_forgotten, |store| {
    let forget = |key: &str| Lockrun::other("prune", store).args(["--done", key]).run().exited(0).silent();
    forget("never-used").printed("");
    attempt(store, "10m", ":").exited(0);
    Lockrun::other("prune", store).arg("job").run().exited(75).said("lockrun prune --done KEY forgets its success");
    // Also while another run holds the lock.
    let holder = Holder::new(store, "job");
    forget("job").printed("job\n");
    forget("job").printed("");
    holder.end();
    assert!(status(store, "job")["done_until"].is_null());
    attempt(store, "10m", "echo ran").exited(0).printed("ran\n");
    attempt(store, "10m", "echo ran").exited(0).printed("");
});

// "A run that failed does not count": the next server that waits runs the job, also if the first one dies. Those that wait for a
// run that succeeds skip it.
on_every_store!(servers_that_wait_run_what_has_failed, |store| {
    let call = |script: &str| {
        let call = Lockrun::new(store).key("job").args(["--ttl", "2s", "--wait", "5m", "--once-per", "10m"]);
        call.sh(script).spawn()
    };
    let mut dies = call("echo ready; exec sleep 600");
    dies.wait_for_line("ready");
    let mut fails = call("echo ready; exit 3");
    fails.wait_until("a place", |_| hand::waiters(store, "job").len() == 1);
    let mut runs = call("echo ran");
    runs.wait_until("a place", |_| hand::waiters(store, "job").len() == 2);
    let mut skips = call("echo ran");
    skips.wait_until("a place", |_| hand::waiters(store, "job").len() == 3);
    dies.kill_everything();
    fails.wait().exited(3).printed("ready\n");
    runs.wait().exited(0).printed("ran\n");
    skips.wait().exited(0).printed("").silent();
});

// "A run that is still going on is held"; "decided in the same step as the acquisition, also when a wait ends".
on_every_store!(a_run_that_goes_on_is_held, |store| {
    let holder = Holder::with(&Lockrun::new(store).key("job").args(["--once-per", "10m"]), &[]);
    attempt(store, "10m", "echo ran").exited(75).printed("").said("is held by");
    holder.end();
    let call = Lockrun::new(store).key("job").args(["--once-per", "10m"]);
    let mut run = call.sh("echo ready; read line || :").with_open_input();
    run.run.wait_for_line("ready");
    let mut queue = Queue::new(store, "job").with(&["--once-per", "10m"]);
    queue.join(3);
    run.close().wait().exited(0);
    assert_eq!(queue.all_end(), "", "nobody runs any more");
    queue.nothing_is_left();
});

// A lock that is kept, or held by hand, does not count as a run; and a run counts as done even while another run holds
// the lock.
on_every_store!(what_is_done_is_done_while_the_lock_is_held, |store| {
    let token = hand::token(store, "job", &["--ttl", "10m"]);
    hand::release(store, "job", &token).exited(0);
    attempt(store, "10m", "echo ran").exited(0).printed("ran\n");
    let holder = Holder::new(store, "job");
    attempt(store, "10m", "echo ran").exited(0).printed("").silent();
    holder.end();
    Lockrun::new(store).key("kept").args(["--keep", "--ttl", "10m", "--once-per", "10m"]).sh(":").run().exited(0);
    let again = Lockrun::new(store).key("kept").args(["--once-per", "10m"]).sh("echo ran").run();
    again.exited(0).printed("").silent();
});

// "`prune` keeps what is still wanted": a key is not forgotten before its run is due again.
on_every_store!(what_is_done_is_not_pruned, |store| {
    attempt(store, "10m", ":").exited(0);
    // A run without `--once-per` does not change that.
    Lockrun::new(store).key("job").sh(":").run().exited(0);
    assert!(!status(store, "job")["done_until"].is_null());
    Lockrun::other("prune", store).args(["--older-than", "0"]).run().exited(0);
    attempt(store, "10m", "echo ran").exited(0).printed("");
});
