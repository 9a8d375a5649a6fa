//! Requests that a server does not answer, or rejects for a while: what is cancelled, and what is tried again.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::calm::held_in_time;
use crate::support::hand::{acquire, expires_in, is_held, release, renew, status, token, until_waiting};
use crate::support::holder::is_free;
use crate::support::lockrun::{Open, waiting_for_its_end};
use crate::support::proxy::{Mode, Proxy};
use crate::support::sequence::{at, next, reserve};
use crate::support::store::on_every_lease_store;
use crate::support::{Holder, LONG, Lockrun, Output, eventually, processes};

const OURS: &str = "callback:42";

/// Runs `lockrun acquire` under this token, through the proxy, which loses the requests or the answers of the first
/// connection.
#[track_caller]
fn ask_in_vain(proxy: &Proxy, key: &str, token: &str, options: &[&str]) {
    let number = || proxy.next_number();
    let ways: [&dyn Fn() -> Mode; 2] =
        [&|| Mode::SwallowUpTo(number()), &|| Mode::LoseAnswer(number(), Duration::from_millis(10))];
    for way in ways {
        let before = proxy.connections();
        proxy.set(way());
        let call = Lockrun::bare().args(["acquire", "--store", &proxy.url(), "--store-timeout", "2s"]).key(key);
        call.args(["--token", token]).args(options).run().exited(69).printed("");
        proxy.set(Mode::Pass);
        // On a busy machine the time may be over before anything is sent.
        held_in_time(proxy.connections() >= before + 2, "it is taken back over a connection that works");
    }
}

// "Unknown (an error, possibly done: cancel by token)": what the token held before the request stays held, and what
// only the request acquired does not.
on_every_lease_store!(a_repeated_request_without_an_answer_keeps_what_the_first_acquired, |store| {
    // From now on a Redis server has the scripts.
    assert!(is_free(store, "again"));
    let proxy = &store.proxy();
    for options in [&[][..], &["--wait", "--store-retry", "0"], &["--ttl", "none"]] {
        ask_in_vain(proxy, "again", OURS, options);
        // On a busy machine it may not be cancelled in time.
        held_in_time(!is_held(store, "again"), &format!("nothing is held: {options:?}"));
        token(store, "again", &["--token", OURS, "--ttl", "10m"]);
        let fence = status(store, "again")["holders"][0]["fence"].clone();
        ask_in_vain(proxy, "again", OURS, options);
        assert_eq!(status(store, "again")["holders"][0]["fence"], fence, "{options:?}");
        acquire(store, "again", &[]).run().exited(75);
        release(store, "again", OURS).exited(0).silent();
    }
});

// "Nothing stays locked": a lock that may be held, and that no lease would end, is reported.
on_every_lease_store!(a_lock_that_may_be_held_for_ever_is_reported, |store| {
    assert!(is_free(store, "none"));
    let proxy = &store.proxy();
    for (ttl, is_said) in [("none", true), ("10m", false)] {
        let before = proxy.changes();
        proxy.set(Mode::LoseAnswer(u64::MAX, Duration::from_secs(5)));
        let call = Lockrun::at(&proxy.url()).key(ttl).args(["--ttl", ttl, "--store-timeout", "2s"]);
        let run = call.command(["echo", "ran"]).spawn();
        eventually(LONG, "it has asked for the lock", || proxy.changes() > before);
        // Otherwise it could see, once it has taken the lock back, that it is free.
        proxy.set(Mode::Swallow);
        let output = run.wait().exited(69).printed("");
        held_in_time(output.stderr().contains("lockrun break") == is_said, &format!("{ttl}: {output}"));
        proxy.set(Mode::Pass);
    }
});

// The same where the first request was not answered either, but acquired the lock.
on_every_lease_store!(a_late_cancel_keeps_a_lock_that_was_acquired_again, |store| {
    assert!(is_free(store, "twice"));
    let proxy = &store.proxy();
    // No answer comes, and the cancel hangs on its way.
    proxy.set(Mode::LoseAnswer(proxy.next_number(), Duration::from_secs(5)));
    let call = Lockrun::bare().args(["acquire", "--store", &proxy.url(), "--store-timeout", "2s", "--token", OURS]);
    let first = call.key("twice").spawn();
    eventually(LONG, "the lock is taken", || is_held(store, "twice"));
    proxy.set(Mode::HoldUpTo(u64::MAX));
    first.wait().exited(69);
    token(store, "twice", &["--token", OURS, "--ttl", "10m"]);
    let before = proxy.delivered();
    proxy.set(Mode::Pass);
    eventually(LONG, "the late cancel arrives", || proxy.delivered() > before);
    renew(store, "twice", OURS, &[]).exited(0).silent();
});

// Inside a run: under the token of the run itself, as a script in it may use it.
on_every_lease_store!(a_request_under_the_token_of_a_run_keeps_its_lock, |store| {
    let proxy = &store.proxy();
    let call = Lockrun::new(store).key("run").args(["--ttl", "1h"]);
    let mut run = call.sh("echo $LOCKRUN_TOKEN; echo ready; read line || :").with_open_input();
    run.run.wait_for_line("ready");
    let its = run.run.stdout().lines().next().expect("a token").to_owned();
    for options in [&[][..], &["--wait", "--store-retry", "0"]] {
        if store.as_etcd().is_some() {
            // Nothing has to be written, so nothing goes unanswered.
            token(store, "run", &[&["--token", &its], options].concat());
        } else {
            ask_in_vain(proxy, "run", &its, options);
        }
        assert!(!is_free(store, "run"), "free while the command runs");
    }
    run.finish().exited(0).silent();
    assert!(is_free(store, "run"));
});

// "A wait that is cut short leaves the queue": a request that was not answered, or whose connection was closed,
// acquires nothing if it arrives after the wait has ended, whatever later requests were answered.
on_every_lease_store!(a_request_that_arrives_after_the_wait_gets_nothing, |store| {
    for closes in [false, true] {
        let proxy = &store.proxy();
        let holder = Holder::new(store, "late");
        // More than the time for which a server of MariaDB may keep the lock's row after a request that was cut off.
        let call = Lockrun::at(&proxy.url()).key("late").args(["--wait", "6s", "--store-timeout", "2s"]);
        let mut waiter = call.arg("-v").command(["true"]).spawn();
        // Not only until its row is there: the answer to that request must have arrived.
        waiter.wait_for_stderr("waiting");
        until_waiting(store, "late", 1);
        eventually(LONG, "it sleeps", || store.server().asleep() == 1);
        let before_held = proxy.held();
        if closes {
            // Its last request, over the same connection.
            proxy.set(Mode::CloseAndHoldUpTo(proxy.connections()));
        } else {
            proxy.set(Mode::Reset);
            let before = proxy.connections();
            eventually(LONG, "it has tried again", || proxy.connections() > before);
            proxy.set(Mode::HoldUpTo(proxy.next_number()));
        }
        waiter.wait().exited(75);
        holder.end();
        // A waiter at etcd only reads, until the lock is granted to it.
        if store.as_etcd().is_some() {
            assert!(is_free(store, "late"));
            proxy.set(Mode::Pass);
            continue;
        }
        held_in_time(proxy.held() > before_held, "it has sent something that could be held back");
        let before = proxy.delivered();
        proxy.set(Mode::Pass);
        eventually(LONG, "the late request arrives", || proxy.delivered() > before);
        let what = format!("no run that has ended holds the lock (its connection was closed: {closes})");
        held_in_time(is_free(store, "late"), &what);
    }
});

// The same where its guardian, which alone knew of the request, was killed while it held a lock that a later request
// had acquired: lockrun takes over, and the late request acquires nothing.
on_every_lease_store!(a_request_that_arrives_after_the_take_over_gets_nothing, |store| {
    let proxy = &store.proxy();
    let holder = Holder::new(store, "orphan");
    let call = Lockrun::at(&proxy.url()).key("orphan").args(["--wait", "-v", "--ttl", "1h", "--store-timeout", "1s"]);
    let mut waiter = call.sh("echo ready; read line || :").with_open_input();
    waiter.run.wait_for_stderr("waiting");
    eventually(LONG, "it sleeps", || store.server().asleep() == 1);
    let before_held = proxy.held();
    proxy.set(Mode::Reset);
    let before = proxy.connections();
    eventually(LONG, "it has tried again", || proxy.connections() > before);
    proxy.set(Mode::HoldUpTo(proxy.next_number()));
    let before = proxy.connections();
    eventually(LONG, "it has given a request up", || proxy.connections() >= before + 2);
    holder.end();
    waiter.run.wait_for_line("ready");
    processes::send(processes::children(waiter.run.pid())[0], Signal::SIGKILL);
    waiter.close().wait().exited(125);
    assert!(is_free(store, "orphan"), "lockrun has taken over");
    // A waiter at etcd only reads, until the lock is granted to it.
    if store.as_etcd().is_none() {
        held_in_time(proxy.held() > before_held, "it has sent something that could be held back");
    }
    let (is_late, before) = (proxy.held() > before_held, proxy.delivered());
    proxy.set(Mode::Pass);
    if is_late {
        eventually(LONG, "the late request arrives", || proxy.delivered() > before);
    }
    held_in_time(is_free(store, "orphan"), "no run that has ended holds the lock");
});

/// Ends the command of a run while the server is away, lets the server come back once lockrun has tried again, and
/// returns the run's output.
#[track_caller]
fn end_while_away(run: Open, proxy: &Proxy) -> Output {
    proxy.set(Mode::Reset);
    let before = proxy.connections();
    let run = run.close();
    eventually(LONG, "it has tried again", || proxy.connections() >= before + 2);
    proxy.set(Mode::Pass);
    run.wait().exited(0)
}

// "A clean end frees the lock at once", also if the server is away just then: release is tried again within
// `--store-timeout`.
on_every_lease_store!(a_release_is_tried_again, |store| {
    let proxy = &store.proxy();
    for ttl in ["1h", "none"] {
        let call = Lockrun::at(&proxy.url()).key("away").args(["--ttl", ttl]);
        end_while_away(waiting_for_its_end(&call), proxy).silent();
        assert!(is_free(store, "away"), "{ttl}");
        // A run that got the lock in turn, with a waiter behind it.
        let holder = Holder::new(store, "away");
        let second = call.clone().arg("--wait").sh("echo ready; read line || :").with_open_input();
        until_waiting(store, "away", 1);
        holder.end();
        let mut second = second;
        second.run.wait_for_line("ready");
        let third = Lockrun::new(store).key("away").arg("--wait").command(["echo", "next"]).spawn();
        until_waiting(store, "away", 1);
        end_while_away(second, proxy).silent();
        third.wait().exited(0).printed("next\n").silent();
    }
});

// "`--keep`: the lock stays, for `release` by its token": so it does if the server was away when COMMAND ended.
on_every_lease_store!(keeping_is_tried_again, |store| {
    let proxy = &store.proxy();
    for (ttl, ends) in [("1h", true), ("none", false)] {
        let call = Lockrun::at(&proxy.url()).key("kept").args(["--keep", "--ttl", ttl]);
        let output = end_while_away(waiting_for_its_end(&call), proxy).silent();
        assert_eq!(expires_in(store, "kept").is_some(), ends);
        assert_eq!(status(store, "kept")["last"]["status"], 0);
        release(store, "kept", output.stdout().lines().next().expect("a token")).exited(0).silent();
        assert!(is_free(store, "kept"));
    }
});

// "A value that was used never comes up again", also if the server was away when COMMAND ended.
on_every_lease_store!(using_a_value_is_tried_again, |store| {
    let proxy = &store.proxy();
    for (ttl, following) in [("1h", "2"), ("none", "4")] {
        let call = at(&proxy.url(), "1").args(["--ttl", ttl]);
        end_while_away(waiting_for_its_end(&call), proxy).silent();
        assert_eq!(next(&reserve(store, "1")), following);
    }
});

// "Every write checks the token", also if a request that is repeated had been carried out: the run is recorded once,
// and a lock that was kept and that someone else has then released or renewed is not touched.
on_every_lease_store!(what_is_tried_again_is_not_done_twice, |store| {
    let proxy = &store.proxy();
    for options in [&["--ttl", "1h"][..], &["--ttl", "1h", "--keep"]] {
        let run = waiting_for_its_end(&Lockrun::at(&proxy.url()).key("twice").args(options));
        let its = run.run.stdout().lines().next().expect("a token").to_owned();
        // The first answer is lost, and the second attempt delayed.
        let before = store.server().requests();
        proxy.set(Mode::SwallowAnswers);
        let run = run.close();
        eventually(LONG, "it is released once", || store.server().requests() > before);
        eventually(LONG, "it is noted", || status(store, "twice")["last"]["status"] == 0);
        let before = proxy.connections();
        proxy.set(Mode::HoldUpTo(u64::MAX));
        let last = if options.len() > 2 {
            renew(store, "twice", &its, &["--ttl", "2h"]).exited(0);
            status(store, "twice")["last"].clone()
        } else {
            Lockrun::new(store).key("twice").sh("exit 3").run().exited(3);
            let last = status(store, "twice")["last"].clone();
            token(store, "twice", &["--token", OURS, "--ttl", "2h"]);
            last
        };
        eventually(LONG, "it is tried again", || proxy.connections() > before);
        proxy.set(Mode::Pass);
        run.wait().exited(0).silent();
        assert_eq!(status(store, "twice")["last"], last, "{options:?}");
        assert!(expires_in(store, "twice").expect("it ends") > 3_600_000, "{options:?}");
        for token in [OURS, &its] {
            release(store, "twice", token);
        }
    }
});

// "release by token": a release whose answer was lost, and which is tried again, has not failed.
on_every_lease_store!(a_release_by_hand_is_tried_again, |store| {
    let proxy = &store.proxy();
    let its = token(store, "hand", &["--ttl", "none"]);
    proxy.set(Mode::LoseAnswer(proxy.next_number(), Duration::from_millis(10)));
    let call = Lockrun::bare().args(["release", "--store", &proxy.url(), "--token", &its]).key("hand");
    call.run().exited(0).silent();
    assert!(is_free(store, "hand"));
});

// "79 if the lock is not held under the token": also if the first attempt went unanswered, because the server never saw
// it.
on_every_lease_store!(a_release_by_hand_that_is_tried_again_reports_correctly, |store| {
    let proxy = &store.proxy();
    token(store, "hand", &["--ttl", "none"]);
    proxy.set(Mode::SwallowUpTo(proxy.next_number()));
    let call = Lockrun::bare().args(["release", "--store", &proxy.url(), "--store-timeout", "2s", "--token", OURS]);
    call.key("hand").run().exited(79).said("is held by");
    assert!(is_held(store, "hand"));
});

// "Nothing is left": if the guardian was killed before the lock was released, lockrun tries again, too, and keeps what
// is to be kept.
on_every_lease_store!(a_take_over_tries_again, |store| {
    let proxy = &store.proxy();
    // A new connection shows that it has tried; in a monitored store it may be another client's.
    if store.server().is_monitored() {
        return;
    }
    for keep in [false, true] {
        let call = Lockrun::at(&proxy.url()).key("over").args(["--ttl", "none"]);
        let run = waiting_for_its_end(&if keep { call.arg("--keep") } else { call });
        let guardian = processes::children(run.run.pid())[0];
        proxy.set(Mode::Reset);
        let before = proxy.connections();
        let run = run.close();
        eventually(LONG, "the guardian has tried", || proxy.connections() > before);
        processes::send(guardian, Signal::SIGKILL);
        eventually(LONG, "the guardian is dead", || processes::children(run.pid()).is_empty());
        let before = proxy.connections();
        eventually(LONG, "lockrun has tried", || proxy.connections() >= before + 2);
        proxy.set(Mode::Pass);
        let output = run.wait().exited(0).silent();
        assert_eq!(is_held(store, "over"), keep);
        if keep {
            release(store, "over", output.stdout().lines().next().expect("a token")).exited(0).silent();
        }
    }
});
