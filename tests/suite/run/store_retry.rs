//! A store that is away when a run starts (`--store-retry`) or while its command runs, and what a wait says of itself.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::calm::{held_in_time, judge, late};
use crate::support::events::{Events, number};
use crate::support::proxy::Mode;
use crate::support::store::{on_every_lease_store, on_redis};
use crate::support::{Holder, LeaseServer as _, Lockrun, Redis, Running, Store, eventually, sequence};

/// Waits until the run has found the store away.
#[track_caller]
fn finds_it_away(run: &mut Running) {
    run.wait_for_stderr("trying again for ");
}

/// Returns this call with a verbose run of a command that prints `ran`.
fn ran(call: Lockrun) -> Lockrun {
    call.arg("-v").command(["echo", "ran"])
}

// "For `--wait` a minute by default, for others where asked": a server that restarts in that time costs no run.
on_every_lease_store!(a_store_that_comes_back_costs_no_run, |store| {
    store.server().kill();
    let events = Events::new();
    let call = |options: &[&str]| Lockrun::new(store).args(["--ttl", "10m"]).args(options);
    let calls = [
        events.of(call(&["--key", "a", "--wait"])),
        call(&["--key", "b", "--wait", "10m"]),
        call(&["--key", "c", "--store-retry", "2m"]),
        call(&["--key", "d", "--skip", "--store-retry", "2m"]),
        call(&["--key", "e", "--once-per", "1h", "--fail"]).env("LOCKRUN_STORE_RETRY", "2m"),
        sequence::at(&store.url(), "7").args(["--store-retry", "2m"]),
    ];
    let mut runs: Vec<Running> = calls.into_iter().map(|call| ran(call).spawn()).collect();
    let mut by_hand = Lockrun::other("acquire", store).args(["--store-retry", "2m", "-v", "hand"]).spawn();
    runs.iter_mut().chain([&mut by_hand]).for_each(finds_it_away);
    store.server().start_again();
    for run in runs {
        run.wait().exited(0).printed("ran\n").said("trying again for ");
    }
    assert_eq!(by_hand.wait().exited(0).stdout().lines().count(), 1);
    let names = events.names();
    assert!(names.starts_with(&["outage", "recovered", "acquired"].map(str::to_owned)), "{names:?}");
    assert!(events.one("outage")["left_ms"].as_u64().is_some_and(|left| left > 0));
});

// After a failover, or after the start of a Redis that keeps nothing, the lock is withheld for a while: as if the store
// were still away.
#[test]
fn a_lock_that_is_withheld_is_tried_again() {
    judge(|| {
        let redis = Redis::start();
        let call = Lockrun::at(&format!("{}?grace=8s", redis.url())).key("a");
        let run = |options: &[&str]| call.clone().args(options).command(["echo", "ran"]).run();
        // A machine that stalls may start it later.
        held_in_time(run(&["--fail"]).status == Some(75), "it is withheld");
        run(&["--skip", "--store-retry", "1m"]).exited(0).printed("ran\n").silent();
    });
}

// "Silent but for `-v` and events."
on_every_lease_store!(a_retry_is_silent, |store| {
    store.server().kill();
    let mut watched = ran(Lockrun::new(store).key("a").args(["--wait"])).spawn();
    let silent = Lockrun::new(store).key("b").args(["--wait"]).command(["echo", "ran"]).spawn();
    finds_it_away(&mut watched);
    store.server().start_again();
    watched.wait().exited(0);
    silent.wait().exited(0).printed("ran\n").silent();
});

// "Then 69", and by default at once.
on_every_lease_store!(a_store_that_stays_away_is_given_up, |store| {
    store.server().kill();
    let run = |options: &[&str]| Lockrun::new(store).key("a").args(options).command(["echo", "ran"]).run();
    for options in [&[][..], &["--skip"], &["--wait", "--store-retry", "0"]] {
        let output = run(options).exited(69).printed("");
        assert!(!output.stderr().contains("tried for"), "{output}");
    }
    for options in [&["--store-retry", "1500ms"][..], &["--wait", "1500ms"], &["--wait", "--store-retry", "1500ms"]] {
        run(options).exited(69).printed("").said("; tried for ");
    }
});

// "A store that rejects the request is not tried again."
on_redis!(what_does_not_pass_is_not_tried_again, |store, _redis| {
    let wrong = store.url_with_password("wrong");
    let run = Lockrun::at(&wrong).key("a").args(["--wait", "--store-retry", "10m"]).command(["echo", "ran"]).run();
    run.exited(69).printed("").said("rejects");
});

// "Names that do not resolve": alike.
#[test]
fn a_name_that_does_not_resolve_is_looked_up_again() {
    let call = Lockrun::at("redis://nowhere.invalid").key("a").args(["--store-retry", "5s", "-v"]);
    let run = call.command(["echo", "ran"]).run().exited(69).printed("");
    run.said("trying again for ").said("; tried for ");
}

// A signal ends the wait for a store, too.
on_redis!(a_signal_ends_the_wait_for_a_store, |store, redis| {
    redis.kill();
    let mut run = ran(Lockrun::new(store).key("a").arg("--wait")).spawn();
    finds_it_away(&mut run);
    run.signal(Signal::SIGTERM);
    run.wait().died_of(Signal::SIGTERM).printed("");
});

// "With -v and in events, the first failed renewal, and until when it can last."
on_every_lease_store!(an_outage_under_the_lock_is_reported, |store| {
    let (proxy, events) = (store.proxy(), Events::new());
    let call = Lockrun::at(&proxy.url()).key("a").args(["--ttl", "20s", "--renew-every", "1s", "--kill-after", "2s"]);
    let call = events.of(call.args(["--store-timeout", "1s", "-v"]));
    let mut run = call.sh("echo ready; read line || :").with_open_input();
    run.run.wait_for_line("ready");
    proxy.set(Mode::Reset);
    run.run.wait_for_stderr("cannot renew the lease: ");
    proxy.set(Mode::Pass);
    if !run.run.comes_to(|run| run.stderr().contains("the store answers again")) {
        late(&format!("the run has ended: {}", run.run.stderr()));
    }
    run.finish().exited(0).said("lockrun: lock \"a\": cannot renew the lease: ").said("; trying again for ");
    let names = events.names();
    assert_eq!(names[..4], ["acquired", "started", "outage", "recovered"], "{names:?}");
    let all = events.all();
    let left = all.iter().find_map(|event| event["left_ms"].as_u64()).expect("a number");
    assert!(left <= 18_000, "{left}");
});

// "`--on-lost warn`: the lease is renewed until it ends": no time is needed to stop the command.
on_redis!(without_a_command_to_stop_the_lease_is_renewed_for_longer, |store, _redis| {
    let (proxy, events) = (store.proxy(), Events::new());
    let spans = ["--ttl=60s", "--renew-every=1s", "--kill-after=50s", "--store-timeout=1s"];
    let call = events.of(Lockrun::at(&proxy.url()).key("a").args(spans).arg("--on-lost=warn"));
    let mut run = call.sh("echo ready; read line || :").with_open_input();
    run.run.wait_for_line("ready");
    proxy.set(Mode::Reset);
    events.hear("outage", 1);
    proxy.set(Mode::Pass);
    run.finish().exited(0);
    // TERM would be due less than 9 s after the last renewal.
    let left = number(&events.one("outage"), "left_ms");
    assert!(left > 20_000, "given up after another {left} ms");
});

/// A run of a command under a lock that another run of the store holds.
fn waits(store: &Store) -> Lockrun {
    Lockrun::new(store).key("a").arg("--wait").command(["true"])
}

// "With -v, or in a CI, one line at the start of the wait and one a minute"; otherwise silent.
on_redis!(a_wait_in_a_ci_says_so, |store, _redis| {
    let holder = Holder::with(&Lockrun::new(store).key("a").args(["--ttl", "10m"]), &[]);
    let mut in_ci = waits(store).env("CI", "true").spawn();
    let mut verbose = waits(store).arg("-v").spawn();
    let plain = [waits(store), waits(store).env("CI", "false"), waits(store).env("CI", "true").arg("-q")];
    let plain: Vec<Running> = plain.into_iter().map(|call| call.spawn()).collect();
    let beginning = format!("waiting in {}: lock \"a\" is held by ", store.url());
    for run in [&mut in_ci, &mut verbose] {
        run.wait_for_stderr(&beginning);
    }
    eventually(Duration::from_secs(90), "a minute is over", || {
        in_ci.stderr().contains("waiting 1m") && verbose.stderr().contains("waiting 1m")
    });
    holder.end();
    let said = in_ci.wait().exited(0).said("in the queue: held by ");
    // A machine that stalls may add one.
    assert!((2..=3).contains(&said.stderr().lines().count()), "{said}");
    verbose.wait().exited(0);
    for run in plain {
        run.wait().exited(0).silent();
    }
});
