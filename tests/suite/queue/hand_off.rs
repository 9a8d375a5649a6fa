//! A lock that is handed off from one waiter to the next: what both do at the same time, and what must not be lost.

use std::time::Duration;

use serde_json::json;

use crate::support::lockrun::Open;
use crate::support::proxy::Mode;
use crate::support::store::on_every_lease_store;
use crate::support::{Holder, Lockrun, Store, hand};

const KEY: &str = "handed-on";

fn waiter(url: &str) -> Lockrun {
    Lockrun::at(url).key(KEY).arg("--wait")
}

/// Starts a waiter; returns when it is in the queue.
#[track_caller]
fn join(store: &Store, waiter: &Lockrun) -> Open {
    let before = hand::waiters(store, KEY).len();
    let run = waiter.with_open_input();
    hand::until_waiting(store, KEY, before + 1);
    run
}

// "How the last run ended": also of a waiter whose lock was handed off to the next one. And "of a lock nothing is left"
// but its fence and its last run.
on_every_lease_store!(a_run_is_recorded_while_the_next_one_runs, |store| {
    let holder = Holder::new(store, KEY);
    let waiters: Vec<Open> = (0..4)
        .map(|number| join(store, &waiter(&store.url()).sh(&format!("echo begun; cat; exit {number}"))))
        .collect();
    holder.end();
    for (number, mut waiter) in waiters.into_iter().enumerate() {
        waiter.run.wait_for_line("begun");
        let status = hand::status(store, KEY);
        let (last, begun) = (&status["last"], &status["holders"][0]);
        // First the holder's, which a signal ended, then the waiters'.
        assert_eq!(last["status"], number.checked_sub(1).map_or(json!(null), |before| json!(before)), "{status}");
        assert!(last["ended"].as_str() <= begun["since"].as_str(), "{status}");
        let status = i32::try_from(number).expect("a small number");
        waiter.finish().exited(status).printed("begun\n").silent();
    }
    assert_eq!(hand::status(store, KEY)["last"]["status"], json!(3));
    assert_eq!(store.server().left(KEY, true), Vec::<String>::new());
});

// "126, 127: COMMAND cannot be executed, is not found; the lock is released": also where that is found only when the
// lock is acquired.
on_every_lease_store!(a_missing_command_hands_the_lock_off, |store| {
    let holder = Holder::new(store, KEY);
    let missing = join(store, &waiter(&store.url()).command(["no-such-command"]));
    let broken = join(store, &waiter(&store.url()).command(["/etc"]));
    let next = join(store, &waiter(&store.url()).sh("echo ran"));
    holder.end();
    missing.run.wait().exited(127).said("no-such-command: not found");
    broken.run.wait().exited(126).said("cannot run /etc: ");
    next.run.wait().exited(0).printed("ran\n");
});

// However late the server's answer comes, COMMAND starts once, each variable is in its environment once, and its fence
// is that of its own grant.
on_every_lease_store!(a_late_answer_starts_the_command_once, |store| {
    let proxy = store.proxy();
    let mut fence = 0;
    for late in [0, 30, 45, 50, 55, 70, 150] {
        let holder = Holder::new(store, KEY);
        let script = "env | grep -c ^LOCKRUN_FENCE=; env | grep -c ^LOCKRUN_TOKEN=; echo $LOCKRUN_FENCE";
        let waiter = join(store, &waiter(&proxy.url()).sh(script));
        proxy.set(Mode::Delay(Duration::from_millis(late)));
        holder.end();
        let output = waiter.run.wait().exited(0);
        proxy.set(Mode::Pass);
        let lines: Vec<u64> = output.stdout().lines().map(|line| line.parse().expect("a number")).collect();
        let [1, 1, own] = lines[..] else { panic!("{late} ms: {output}") };
        assert_eq!(Some(own), hand::status(store, KEY)["fence"].as_u64(), "{late} ms: {output}");
        assert!(own > fence, "{late} ms: {output}");
        fence = own;
    }
});

// COMMAND's status is passed on also under an emulator that copies lockrun's memory for COMMAND's process instead of
// sharing it.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_command_runs_where_memory_is_copied() {
    let store = Store::file();
    let holder = Holder::new(&store, KEY);
    let waiter = join(&store, &waiter(&store.url()).sh("echo ran; exit 3"));
    crate::support::steps::give_it_a_copy(&waiter.run, || drop(holder.end()));
    waiter.run.wait().exited(3).printed("ran\n").silent();
}
