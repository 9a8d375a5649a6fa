//! Requests to a Redis that are not answered, or refused for a while: what is taken back, and what is tried again.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::hand::{acquire, expires_in, is_held, release, renew, status, token, until_waiting};
use crate::support::holder::is_free;
use crate::support::lockrun::Open;
use crate::support::proxy::{Mode, Proxy};
use crate::support::sequence::{at, next, reserve};
use crate::support::{Holder, LONG, Lockrun, Output, Redis, Store, eventually, processes};

const OURS: &str = "callback:42";

fn scene() -> (Store, Proxy) {
    let store = Store::Redis(Redis::durable());
    let proxy = Proxy::to(server(&store).port());
    (store, proxy)
}

fn server(store: &Store) -> &Redis {
    store.as_redis().expect("a server")
}

/// `lockrun acquire` under this token, through the proxy, which loses the answers of the first connection or its requests.
#[track_caller]
fn ask_in_vain(proxy: &Proxy, key: &str, token: &str, options: &[&str]) {
    let number = || proxy.connections() + 1;
    let ways: [&dyn Fn() -> Mode; 2] =
        [&|| Mode::SwallowUpTo(number()), &|| Mode::LoseAnswer(number(), "EVAL", Duration::from_millis(10))];
    for way in ways {
        let before = proxy.connections();
        proxy.set(way());
        let call = Lockrun::bare().args(["acquire", "--store", &proxy.url(), "--store-timeout", "1s"]).key(key);
        call.args(["--token", token]).args(options).run().exited(69).printed("");
        proxy.set(Mode::Pass);
        assert!(proxy.connections() >= before + 2, "it is taken back over a connection that works");
    }
}

// "Unknown (an error, possibly done: cancel by token)": what the token held before the request stays, and what the request alone
// has brought does not.
#[test]
fn asking_again_without_an_answer_takes_nothing_away() {
    let (store, proxy) = scene();
    for options in [&[][..], &["--wait"], &["--ttl", "none"]] {
        ask_in_vain(&proxy, "again", OURS, options);
        assert!(!is_held(&store, "again"), "nothing was held before: {options:?}");
        token(&store, "again", &["--token", OURS, "--ttl", "10m"]);
        let fence = status(&store, "again")["holders"][0]["fence"].clone();
        ask_in_vain(&proxy, "again", OURS, options);
        assert_eq!(status(&store, "again")["holders"][0]["fence"], fence, "{options:?}");
        acquire(&store, "again", &[]).run().exited(75);
        release(&store, "again", OURS).exited(0).silent();
    }
}

// The same where the first request was not answered either, but has brought the lock.
#[test]
fn what_was_given_twice_is_not_taken_back() {
    let (store, proxy) = scene();
    // No answer comes, and the cancel hangs on its way.
    proxy.set(Mode::LoseAnswer(proxy.connections() + 1, "EVAL", Duration::from_secs(5)));
    let call = Lockrun::bare().args(["acquire", "--store", &proxy.url(), "--store-timeout", "1s", "--token", OURS]);
    let first = call.key("twice").spawn();
    eventually(LONG, "the lock is taken", || server(&store).keys().contains(&"lockrun:{twice}:holders".into()));
    proxy.set(Mode::HoldUpTo(u64::MAX));
    first.wait().exited(69);
    token(&store, "twice", &["--token", OURS, "--ttl", "10m"]);
    let before = server(&store).scripts_run();
    proxy.set(Mode::Pass);
    eventually(LONG, "the late cancel arrives", || server(&store).scripts_run() > before);
    renew(&store, "twice", OURS, &[]).exited(0).silent();
}

// Under a run: the token of the run itself, as a script in it may bring.
#[test]
fn asking_under_the_token_of_a_run_takes_nothing_from_it() {
    let (store, proxy) = scene();
    let call = Lockrun::new(&store).key("run").args(["--ttl", "1h"]);
    let mut run = call.sh("echo $LOCKRUN_TOKEN; echo ready; read line || :").with_open_input();
    run.run.wait_for_line("ready");
    let its = run.run.stdout().lines().next().expect("a token").to_owned();
    for options in [&[][..], &["--wait"]] {
        ask_in_vain(&proxy, "run", &its, options);
        assert!(!is_free(&store, "run"), "free while the command runs");
    }
    run.finish().exited(0).silent();
    assert!(is_free(&store, "run"));
}

/// Ends the command of a run while the server is away, lets it come back when it was missed, and gives the end of the run.
#[track_caller]
fn end_while_away(run: Open, proxy: &Proxy) -> Output {
    proxy.set(Mode::Reset);
    let before = proxy.connections();
    let run = run.close();
    eventually(LONG, "it has tried again", || proxy.connections() >= before + 2);
    proxy.set(Mode::Pass);
    run.wait().exited(0)
}

#[track_caller]
fn waiting_for_its_end(call: &Lockrun) -> Open {
    let mut run = call.clone().sh("echo $LOCKRUN_TOKEN; echo ready; read line || :").with_open_input();
    run.run.wait_for_line("ready");
    run
}

// "A clean end frees the lock at once", also if the server is away just then: release is tried again within `--store-timeout`.
#[test]
fn a_release_is_tried_again() {
    let (store, proxy) = scene();
    for ttl in ["1h", "none"] {
        let call = Lockrun::at(&proxy.url()).key("away").args(["--ttl", ttl]);
        end_while_away(waiting_for_its_end(&call), &proxy).silent();
        assert!(is_free(&store, "away"), "{ttl}");
        // One that came in turn, and has somebody behind it.
        let holder = Holder::new(&store, "away");
        let second = call.clone().arg("--wait").sh("echo ready; read line || :").with_open_input();
        until_waiting(&store, "away", 1);
        holder.end();
        let mut second = second;
        second.run.wait_for_line("ready");
        let third = Lockrun::new(&store).key("away").arg("--wait").command(["echo", "next"]).spawn();
        until_waiting(&store, "away", 1);
        end_while_away(second, &proxy).silent();
        third.wait().exited(0).printed("next\n").silent();
    }
}

// "`--keep`: the lock stays, for `release` by its token": so it does if the server was away when COMMAND ended.
#[test]
fn keeping_is_tried_again() {
    let (store, proxy) = scene();
    for (ttl, ends) in [("1h", true), ("none", false)] {
        let call = Lockrun::at(&proxy.url()).key("kept").args(["--keep", "--ttl", ttl]);
        let output = end_while_away(waiting_for_its_end(&call), &proxy).silent();
        assert_eq!(expires_in(&store, "kept").is_some(), ends);
        assert_eq!(status(&store, "kept")["last"]["status"], 0);
        release(&store, "kept", output.stdout().lines().next().expect("a token")).exited(0).silent();
        assert!(is_free(&store, "kept"));
    }
}

// "A value that was used never comes up again", also if the server was away when COMMAND ended.
#[test]
fn using_a_value_is_tried_again() {
    let (store, proxy) = scene();
    for (ttl, following) in [("1h", "2"), ("none", "4")] {
        let call = at(&proxy.url(), "1").args(["--ttl", ttl]);
        end_while_away(waiting_for_its_end(&call), &proxy).silent();
        assert_eq!(next(&reserve(&store, "1")), following);
    }
}

// The same of a server that rejects everything for a while: it is demoted, and promoted again.
#[test]
fn a_release_that_is_rejected_is_tried_again() {
    let (store, proxy) = scene();
    let redis = server(&store);
    let run = waiting_for_its_end(&Lockrun::at(&proxy.url()).key("demoted").args(["--ttl", "none"]));
    redis.ask(&["REPLICAOF", "127.0.0.1", "1"]);
    let run = run.close();
    eventually(LONG, "it has tried", || rejected(redis) >= 2);
    redis.ask(&["REPLICAOF", "NO", "ONE"]);
    run.wait().exited(0).silent();
    assert!(is_free(&store, "demoted"));
}

/// How many writes the server has rejected because it was a replica.
fn rejected(redis: &Redis) -> u64 {
    let statistics = redis.ask(&["INFO", "errorstats"]);
    let count = statistics.text().lines().find_map(|line| line.strip_prefix("errorstat_READONLY:count="));
    count.map_or(0, |count| count.trim().parse().expect("a count"))
}

// "Every write checks the token", also if what was tried again had been done: the run is noted once, and a lock that was kept and
// then released, or renewed, by somebody else is not touched.
#[test]
fn what_is_tried_again_is_not_done_twice() {
    let (store, proxy) = scene();
    for options in [&["--ttl", "1h"][..], &["--ttl", "1h", "--keep"]] {
        let run = waiting_for_its_end(&Lockrun::at(&proxy.url()).key("twice").args(options));
        let its = run.run.stdout().lines().next().expect("a token").to_owned();
        // The first answer is lost, and the second attempt held back.
        let before = server(&store).scripts_run();
        proxy.set(Mode::SwallowReplies);
        let run = run.close();
        eventually(LONG, "it is released once", || server(&store).scripts_run() > before);
        eventually(LONG, "it is noted", || status(&store, "twice")["last"]["status"] == 0);
        proxy.set(Mode::HoldUpTo(u64::MAX));
        let last = if options.len() > 2 {
            renew(&store, "twice", &its, &["--ttl", "2h"]).exited(0);
            status(&store, "twice")["last"].clone()
        } else {
            Lockrun::new(&store).key("twice").sh("exit 3").run().exited(3);
            let last = status(&store, "twice")["last"].clone();
            token(&store, "twice", &["--token", OURS, "--ttl", "2h"]);
            last
        };
        let before = proxy.connections();
        eventually(LONG, "it is tried again", || proxy.connections() > before);
        proxy.set(Mode::Pass);
        run.wait().exited(0).silent();
        assert_eq!(status(&store, "twice")["last"], last, "{options:?}");
        assert!(expires_in(&store, "twice").expect("it ends") > 3_600_000, "{options:?}");
        for token in [OURS, &its] {
            release(&store, "twice", token);
        }
    }
}

// "release by token": one whose answer was lost, and which is tried again, has not failed.
#[test]
fn a_release_by_hand_is_tried_again() {
    let (store, proxy) = scene();
    let its = token(&store, "hand", &["--ttl", "none"]);
    proxy.set(Mode::LoseAnswer(1, "EVAL", Duration::from_millis(10)));
    let call = Lockrun::bare().args(["release", "--store", &proxy.url(), "--token", &its]).key("hand");
    call.run().exited(0).silent();
    assert!(is_free(&store, "hand"));
}

// "79 if the lock is not ours any more": also if the first attempt went unanswered, because the server never saw it.
#[test]
fn a_release_by_hand_that_is_tried_again_tells_the_truth() {
    let (store, proxy) = scene();
    token(&store, "hand", &["--ttl", "none"]);
    proxy.set(Mode::SwallowUpTo(proxy.connections() + 1));
    let call = Lockrun::bare().args(["release", "--store", &proxy.url(), "--store-timeout", "2s", "--token", OURS]);
    call.key("hand").run().exited(79).said("is held by");
    assert!(is_held(&store, "hand"));
}

// "Nothing is left": lockrun, which has lost its guardian before the lock was released, tries it again, too, and keeps what
// is to be kept.
#[test]
fn who_takes_over_tries_again() {
    let (store, proxy) = scene();
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
        assert_eq!(is_held(&store, "over"), keep);
        if keep {
            release(&store, "over", output.stdout().lines().next().expect("a token")).exited(0).silent();
        }
    }
}

// "A wait that is cut short leaves the queue": also if the server rejects that for a while.
#[test]
fn leaving_the_queue_is_tried_again() {
    let (store, proxy) = scene();
    let redis = server(&store);
    let _holder = Holder::with(&Lockrun::new(&store).key("left").args(["--ttl", "1h"]), &[]);
    let waiter = Lockrun::at(&proxy.url()).key("left").arg("--wait").command(["true"]).spawn();
    until_waiting(&store, "left", 1);
    redis.ask(&["REPLICAOF", "127.0.0.1", "1"]);
    let before = rejected(redis);
    waiter.signal(Signal::SIGTERM);
    eventually(LONG, "it has tried", || rejected(redis) >= before + 2);
    redis.ask(&["REPLICAOF", "NO", "ONE"]);
    waiter.wait().died_of(Signal::SIGTERM);
    assert_eq!(status(&store, "left")["waiters"], Value::from([] as [i32; 0]));
}
