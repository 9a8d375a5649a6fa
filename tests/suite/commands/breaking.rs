//! `lockrun break`: takes a lock from its holder.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::calm::held_in_time;
use crate::support::hand::{break_lock, is_held, release, renew, status, token, until_waiting};
use crate::support::processes::{is_alive, send};
use crate::support::proxy::Mode;
use crate::support::store::{on_every_lease_store, on_every_store, on_redis};
use crate::support::{Holder, LONG, LeaseServer, Lockrun, Store, eventually, lock_file, witness};

fn fence(store: &Store, key: &str) -> u64 {
    status(store, key)["fence"].as_u64().expect("a number")
}

// "`break` takes the lock from its holder. Says whose it was": a lock that was acquired by hand is free at once, and
// goes to the next waiter.
on_every_store!(a_lock_by_hand_is_free_at_once, |store| {
    break_lock(store, "hand", &[]).exited(0).printed("").said("there is nothing to break");
    let ours = token(store, "hand", &["--ttl", "10m"]);
    let waiter = Lockrun::new(store).key("hand").arg("--wait").command(["echo", "next"]).spawn();
    until_waiting(store, "hand", 1);
    let host = nix::unistd::gethostname().expect("a name");
    let whose = format!("was taken from {} pid {} (", host.to_str().expect("a plain name"), std::process::id());
    let output = break_lock(store, "hand", &[]).exited(0).printed("").said(&whose);
    assert!(!output.stderr().contains("may still be running"), "nothing runs under it: {output}");
    waiter.wait().exited(0).printed("next\n").silent();
    renew(store, "hand", &ours, &[]).exited(79).said("not held under this token");
    release(store, "hand", &ours).exited(79).said("not held under this token");
    break_lock(store, "hand", &[]).exited(0).said("there is nothing to break");
});

// ... and the next waiter is woken at once.
on_every_store!(the_next_waiter_is_woken_at_once, |store| {
    const ROUNDS: u32 = 5;
    let started = Instant::now();
    for _ in 0..ROUNDS {
        token(store, "woken", &["--ttl", "10m"]);
        let waiter = Lockrun::new(store).key("woken").arg("--wait").command(["echo", "next"]).spawn();
        until_waiting(store, "woken", 1);
        break_lock(store, "woken", &[]).exited(0);
        waiter.wait().exited(0).printed("next\n").silent();
    }
    // A waiter that was not woken would look after four to twelve seconds.
    assert!(started.elapsed() < Duration::from_secs(4) * ROUNDS, "{:?}", started.elapsed());
});

// "With `--fence` only if it is still that holder."
on_every_store!(another_holders_fence_changes_nothing, |store| {
    let first = token(store, "fence", &["--ttl", "10m"]);
    let old = fence(store, "fence");
    release(store, "fence", &first).exited(0);
    let second = token(store, "fence", &["--ttl", "10m"]);
    for other in [old, fence(store, "fence") + 1, 0] {
        let output = break_lock(store, "fence", &["--fence", &other.to_string()]).exited(75);
        output.printed("").said("is not held under that fence: it stays with ");
    }
    renew(store, "fence", &second, &[]).exited(0).silent();
    break_lock(store, "fence", &["--fence", "one"]).exited(64).said("not a fencing token");
    break_lock(store, "fence", &["--fence", &fence(store, "fence").to_string()]).exited(0).said("was taken from");
    assert!(!is_held(store, "fence"));
});

// "At most N": `break` of one holder leaves the others their slots.
on_every_store!(of_several_holders_one_is_meant, |store| {
    let tokens = [(); 3].map(|()| token(store, "slots", &["--slots", "3", "--ttl", "10m"]));
    let second = status(store, "slots")["holders"][1]["fence"].to_string();
    break_lock(store, "slots", &["--fence", &second]).exited(0).said("was taken from");
    for (ours, ends) in tokens.iter().zip([0, 79, 0]) {
        renew(store, "slots", ours, &[]).exited(ends);
    }
    break_lock(store, "slots", &[]).exited(0);
    assert!(!is_held(store, "slots"));
});

// "`break` while a run holds the lock: the run ends with 79 within a renewal period, the next one starts only after its
// last stamp."
on_every_lease_store!(a_run_is_stopped_before_the_next_begins, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let stamps = directory.path().join("stamps");
    // The lease is so long that only the break can end the run while the test waits.
    let terms = ["--ttl", "10m", "--renew-every", "1s", "--kill-after", "1s", "--store-timeout", "1s"];
    let call = Lockrun::new(store).key("broken").args(terms);
    let mut run = call.clone().command(witness::command(&stamps, "first", &["fork", "setsid"])).spawn();
    run.wait_for_line("ready");
    let next = call.arg("--wait").command(witness::command(&stamps, "next", &[]));
    let mut next = next.spawn();
    until_waiting(store, "broken", 1);
    let output = break_lock(store, "broken", &[]).exited(0).printed("").said("was taken from");
    output.said("it will be free when its command has been stopped, within ");
    let told = status(store, "broken");
    assert_eq!((&told["held"], &told["holders"][0]["revoked"]), (&Value::from(true), &Value::from(true)));
    Lockrun::new(store)
        .key("broken")
        .command(["true"])
        .run()
        .exited(75)
        .said(", but revoked: free when its command has ended");
    // Again: nothing changes, and the holder is still known.
    break_lock(store, "broken", &[]).exited(0).said("was taken from");
    let output = run.wait().exited(79).said("it was revoked by ");
    assert!(output.took < Duration::from_mins(5), "{output}");
    next.wait_for_line("ready");
    drop(next);
    let lives = witness::lives(&stamps);
    assert_eq!((lives.len(), lives[0].tag.as_str(), lives[0].processes), (2, "first", 3));
    let margin = witness::smallest_margin(&lives).expect("there are two");
    assert!(margin > 0, "the next began {margin} ns after the last stamp of the first");
    let last = status(store, "broken")["last"].clone();
    assert_eq!((&last["status"], &last["signal"]), (&Value::from(79), &Value::Null), "{last}");
});

// "Its renewals then answer \"not yours\"": those of a run whose lock is freed at once, and which learns of it later.
on_every_lease_store!(now_is_at_once, |store| {
    let call = Lockrun::new(store).key("now").args(["--ttl", "10m", "--renew-every", "1s"]);
    let run = Holder::with(&call, &["the first"]);
    let output = break_lock(store, "now", &["--now"]).exited(0).said("was taken from");
    output.said("its command may still be running");
    assert!(!is_held(store, "now"));
    let ours = token(store, "now", &["--ttl", "10m"]);
    let output = run.wait().exited(79).said("this run no longer holds it: ");
    // Or it has learnt of the break before the lock was acquired again.
    held_in_time(output.stderr().contains("it is held by "), "it learns who holds the lock now");
    renew(store, "now", &ours, &[]).exited(0).silent();
    // The holder was recorded as the last run, and the end of its command does not change that.
    let last = status(store, "now")["last"].clone();
    assert!(last["command"].as_str().expect("a command").contains("the first"), "{last}");
});

// "`--ttl none`: for locks that only a release or a break ends": a run under such a lock does not learn of the break,
// and a message says so.
on_every_lease_store!(a_run_without_a_lease_does_not_learn_of_a_break, |store| {
    let holder = Holder::with(&Lockrun::new(store).key("ever").args(["--ttl", "none"]), &[]);
    break_lock(store, "ever", &[]).exited(0).said("may still be running; make sure that it has ended");
    assert!(!is_held(store, "ever"));
    holder.end();
});

// "Takes the lock from its holders": a break that is carried out late, when its holder has gone, takes nothing from the
// next holder, not even if that has the same token.
on_redis!(a_late_break_revokes_nothing_from_the_next_holder, |store, redis| {
    const OURS: &str = "00000000-0000-4000-8000-000000000001";
    let proxy = store.proxy();
    for options in [&[][..], &["--now"]] {
        token(store, "late", &["--token", OURS, "--ttl", "10m"]);
        // The request that only looks at the lock does not contain who breaks it.
        proxy.set(Mode::HoldAt("\"pid\":"));
        let held = proxy.held();
        let call = Lockrun::bare().args(["break", "--store", &proxy.url(), "--store-timeout", "1s"]);
        let late = call.key("late").args(options).spawn();
        eventually(LONG, "the break is on its way", || proxy.held() > held);
        release(store, "late", OURS).exited(0).silent();
        token(store, "late", &["--token", OURS, "--ttl", "10m"]);
        late.wait().exited(69);
        let before = redis.requests();
        proxy.set(Mode::Pass);
        eventually(LONG, "the break arrives", || redis.requests() > before);
        renew(store, "late", OURS, &[]).exited(0).silent();
        release(store, "late", OURS).exited(0).silent();
    }
});

// "Takes the lock from its holders. Says whose it was": also if the answer to that is lost, and the request is sent
// again, when the lock is free or has been passed on.
on_redis!(a_break_whose_answer_is_lost_is_reported, |store, redis| {
    const CLOSED_AFTER: Duration = Duration::from_millis(300);
    let proxy = store.proxy();
    let broken = |options: &[&str]| {
        let before = proxy.connections();
        proxy.set(Mode::LoseAnswerTo("\"pid\":", before + 1, CLOSED_AFTER));
        let call = Lockrun::bare().args(["break", "--store", &proxy.url()]).key("lost").args(options);
        let output = call.run().exited(0).said("was taken from");
        assert_eq!(proxy.connections(), before + 2, "its answer was not lost");
        output
    };
    token(store, "lost", &["--ttl", "none"]);
    broken(&[]);
    let run = Holder::with(&Lockrun::new(store).key("lost").args(["--ttl", "none"]), &[]);
    broken(&["--now"]).said("its command may still be running");
    run.end();
    token(store, "lost", &["--ttl", "none"]);
    let call = Lockrun::new(store).key("lost").args(["--wait", "--ttl", "10m"]);
    let mut next = call.sh("echo ready; exec sleep 600").spawn();
    until_waiting(store, "lost", 1);
    broken(&[]);
    next.wait_for_line("ready");
});

// "Where a live process of this machine holds a file lock it refuses and names the pid."
#[test]
fn a_living_holder_of_a_file_is_refused() {
    let store = Store::file();
    let mut holder = Holder::new(&store, "living");
    let waiter = Lockrun::new(&store).key("living").arg("--wait").command(["echo", "next"]).spawn();
    until_waiting(&store, "living", 1);
    let refused = |options: &[&str], pid: i32| {
        let output = break_lock(&store, "living", options).exited(75).printed("").said("stays with ");
        assert!(output.stderr().ends_with(&format!("stop it with kill {pid}\n")), "{output}");
        assert!(is_held(&store, "living"));
    };
    let right = fence(&store, "living").to_string();
    for options in [&[][..], &["--now"], &["--fence", &right]] {
        refused(options, holder.pid());
    }
    // lockrun is killed, and only its command lives on, which now holds the lock.
    let run = holder.run();
    let command = run.command();
    run.signal(Signal::SIGKILL);
    eventually(LONG, "lockrun is dead", || !is_alive(run.pid()));
    refused(&[], command);
    // Another process may have that pid by now, and must not be killed.
    lock_file::edit(&lock_file::path(&store, "living"), |record| {
        record["holders"][0]["who"]["pid"] = std::process::id().into();
    });
    refused(&[], command);
    assert!(is_held(&store, "living"));
    send(command, Signal::SIGTERM);
    waiter.wait().exited(0).printed("next\n");
}

// "Where a live process of this machine holds a file lock it refuses and names the pid": only that slot. The others are
// freed.
#[test]
fn of_several_slots_of_a_file_only_the_living_stay() {
    let store = Store::file();
    let shared = Lockrun::new(&store).key("several").args(["--slots", "4"]);
    let by_hand = || token(&store, "several", &["--slots", "4", "--ttl", "10m"]);
    let first = by_hand();
    let living = Holder::with(&shared, &[]);
    let second = by_hand();
    let waiter = Lockrun::new(&store).key("several").args(["--slots", "2", "--wait"]).command(["echo", "next"]).spawn();
    until_waiting(&store, "several", 1);
    let output = break_lock(&store, "several", &[]).exited(75).printed("").said("belongs to a living process");
    let said = |output: &crate::support::Output, words: &str| output.stderr().matches(words).count();
    assert_eq!((said(&output, "was taken from "), said(&output, "stays with ")), (2, 1), "{output}");
    assert!(output.stderr().ends_with(&format!("stop it with kill {}\n", living.pid())), "{output}");
    waiter.wait().exited(0).printed("next\n").silent();
    for taken in [first, second] {
        renew(&store, "several", &taken, &[]).exited(79).said("not held under this token");
    }
    let told = status(&store, "several");
    assert_eq!(told["holders"].as_array().map(Vec::len), Some(1), "{told}");
    assert_eq!(told["holders"][0]["pid"], living.pid(), "{told}");
    // If several live, each is named.
    let other = Holder::with(&shared, &[]);
    let output = break_lock(&store, "several", &["--now"]).exited(75).said("stays with ");
    assert_eq!((said(&output, "was taken from "), said(&output, "stays with ")), (0, 2), "{output}");
    for pid in [living.pid(), other.pid()] {
        output.stderr().lines().find(|line| line.ends_with(&format!("kill {pid}"))).expect("it is named");
    }
    // With a fence, only the holder with that fence is mentioned.
    let its = status(&store, "several")["holders"][1]["fence"].to_string();
    let output = break_lock(&store, "several", &["--fence", &its]).exited(75).said("stays with ");
    assert_eq!(said(&output, "stays with "), 1, "{output}");
    living.end();
    other.end();
}
