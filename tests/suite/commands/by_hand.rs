//! Locks whose life is longer than one process: `acquire`, `renew`, `release`.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::calm::in_time;
use crate::support::hand::{acquire, expires_in, is_held, release, renew, status, token, until_waiting};
use crate::support::holder::is_free;
use crate::support::namespace::{with_clock_ahead, with_mounts};
use crate::support::store::{on_every_lease_store, on_every_store};
use crate::support::{Holder, LONG, Lockrun, Store, eventually, lock_file};

const OTHER_TOKEN: &str = "00000000-0000-4000-8000-000000000000";

fn json(output: &crate::support::Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("an object in JSON")
}

// "A cancel never drops a holder that was one before this request": nor does an `acquire` that cannot print the token
// again.
on_every_store!(a_token_that_cannot_be_printed_again_stays_held, |store| {
    let its = token(store, "again", &["--token", "ours", "--ttl", "10m"]);
    let again = acquire(store, "again", &["--token", "ours"]).in_shell("exec \"$@\" >/dev/full");
    again.alone().exited(125).said("cannot print the token");
    assert!(is_held(store, "again"));
    renew(store, "again", &its, &[]).exited(0).silent();
});

// "`lockrun acquire [--key] KEY [OPTIONS]`": the duration of --wait may stand behind the key, too.
#[test]
fn the_options_of_an_acquisition_may_follow_the_key() {
    let store = Store::file();
    for wait in [&["--wait", "5m"][..], &["-w", "5m"], &["-vw5m"]] {
        let token = Lockrun::other("acquire", &store).arg("behind").args(wait).run().exited(0).stdout();
        release(&store, "behind", token.trim_end()).exited(0);
    }
}

// "The life of a lock by hand, from three shells"; "`acquire` prints the token alone on one line"; "a lease that is not
// ours (any more) ends with 79 and says so".
on_every_store!(the_life_of_a_lock_by_hand, |store| {
    let output = acquire(store, "deploy", &["--ttl", "5m"]).run().exited(0).silent();
    let token = output.stdout().strip_suffix('\n').expect("a whole line").to_owned();
    assert!(token.len() == 36 && !token.contains(char::is_whitespace), "{output}");
    assert!(is_held(store, "deploy"));
    acquire(store, "deploy", &[]).run().exited(75).printed("").said("lock \"deploy\" is held by ");
    let refused = Lockrun::new(store).key("deploy").command(["true"]).run().exited(75);
    refused.said(", acquired by hand: free in ").said(", or when it is released\n");
    acquire(store, "deploy", &["--skip"]).run().exited(0).printed("").silent();
    acquire(store, "deploy", &["--fail", "-E", "9"]).run().exited(9).printed("").said("is held by");
    acquire(store, "deploy", &["--wait", "100ms"]).run().exited(75).printed("").said("is held by");
    assert!(!is_free(store, "deploy"));
    renew(store, "deploy", &token, &[]).exited(0).printed("").silent();
    release(store, "deploy", &token).exited(0).printed("").silent();
    assert!(!is_held(store, "deploy"));
    assert!(is_free(store, "deploy"));
    release(store, "deploy", &token).exited(79).printed("").said("nobody holds it");
    renew(store, "deploy", &token, &[]).exited(79).printed("").said("nobody holds it");
    assert!(!is_held(store, "deploy"), "a renewal never creates a lock");
});

// A script that names its store only for `acquire` learns which store `release` has asked.
#[test]
fn the_store_of_a_release_is_named() {
    let (store, other) = (Store::file(), Store::file());
    let ours = token(&store, "deploy", &[]);
    let call = Lockrun::bare().arg("release").env("LOCKRUN_STORE", other.url());
    let call = call.env("LOCKRUN_KEY", "deploy").env("LOCKRUN_TOKEN", ours);
    call.run().exited(79).printed("").said(&format!("nobody holds it in the store \"{}\"", other.url()));
    assert!(is_held(&store, "deploy"));
}

// "A token that does not hold the lock changes nothing."
on_every_store!(another_token_changes_nothing, |store| {
    for word in ["renew", "release"] {
        let never = Lockrun::other(word, store).key("never").args(["--token", OTHER_TOKEN]);
        never.run().exited(79).printed("").said("nobody holds it");
    }
    let token = token(store, "ours", &["--ttl", "5m"]);
    let before = status(store, "ours");
    renew(store, "ours", OTHER_TOKEN, &["--ttl", "1h"]).exited(79).printed("").said("is held by");
    release(store, "ours", OTHER_TOKEN).exited(79).printed("").said("is held by");
    let after = status(store, "ours");
    assert_eq!(before["holders"][0]["fence"], after["holders"][0]["fence"]);
    assert!(expires_in(store, "ours").expect("it ends") <= 300_000, "{after}");
    release(store, "ours", &token).exited(0).silent();
});

// "`LOCKRUN_KEY` and `LOCKRUN_TOKEN` as their defaults."
on_every_store!(key_and_token_come_from_the_environment, |store| {
    let token = token(store, "surroundings", &[]);
    let with_env =
        |word: &str| Lockrun::other(word, store).env("LOCKRUN_KEY", "surroundings").env("LOCKRUN_TOKEN", &token);
    with_env("renew").arg("--ttl=1h").run().exited(0).silent();
    assert!(expires_in(store, "surroundings").expect("it ends") > 300_000);
    with_env("release").args(["--token", OTHER_TOKEN]).run().exited(79).said("is held by");
    with_env("release").run().exited(0).printed("").silent();
    assert!(is_free(store, "surroundings"));
});

// "JSON with key, token, fence, slot, expires_in_ms."
on_every_store!(the_answer_as_json, |store| {
    let output = acquire(store, "a \"b\" \u{202e}c", &["--json", "--ttl", "90s"]).run().exited(0).silent();
    assert!(!output.stdout().contains('\u{202e}'), "{output}");
    let answer = json(&output);
    let names: Vec<&String> = answer.as_object().expect("an object").keys().collect();
    assert_eq!(names, ["expires_in_ms", "fence", "key", "shared", "slot", "token"]);
    assert_eq!(answer["key"], "a \"b\" \u{202e}c");
    assert_eq!((&answer["expires_in_ms"], &answer["slot"]), (&Value::from(90_000), &Value::Null));
    let told = status(store, "a \"b\" \u{202e}c");
    assert_eq!(answer["fence"], told["holders"][0]["fence"]);
    release(store, "a \"b\" \u{202e}c", answer["token"].as_str().expect("a token")).exited(0).silent();
    let for_ever = json(&acquire(store, "ever", &["--json", "--ttl=none"]).run().exited(0));
    assert_eq!(for_ever["expires_in_ms"], Value::Null);
});

// "Shell assignments for eval": also of a key with characters that are special to a shell.
on_every_store!(the_answer_for_a_shell, |store| {
    let key = "it's $(echo no) `x` \"y\" \\";
    let script = "out=$(\"$@\") && eval \"$out\" && printf '%s\\n' \"$LOCKRUN_KEY\" && env | grep -c ^LOCKRUN_FENCE=";
    let call = acquire(store, key, &["--export", "--slots", "2"]);
    let script = format!(
        "{script}; echo \"slot $LOCKRUN_SLOT\"; {} release --store '{}'",
        crate::support::lockrun::PROGRAM,
        store.url()
    );
    call.in_shell(&script).alone().exited(0).printed(&format!("{key}\n1\nslot 0\n")).silent();
    assert!(!is_held(store, key));
    let output = acquire(store, key, &["--export"]).run().exited(0).silent();
    assert!(!output.stdout().contains("SLOT"), "{output}");
    acquire(store, key, &["--export", "--json"]).run().exited(64).said("exclude");
});

// "A run inside COMMAND that would wait for a lock around it is refused", also after a script in COMMAND has acquired
// another lock by hand. The slot of the run is not taken for that of the other lock.
on_every_store!(a_script_in_a_run_does_not_wait_for_that_run, |store| {
    let lockrun = crate::support::lockrun::PROGRAM;
    let script = format!(
        "assignments=$({lockrun} acquire --key inner --export) || exit
        eval \"$assignments\"
        echo \"$LOCKRUN_KEY ${{LOCKRUN_SLOT-none}}\"
        {lockrun} --key outer --wait -- echo both
        {lockrun} acquire --key outer --wait
        {lockrun} release"
    );
    let call = Lockrun::new(store).env("LOCKRUN_STORE", store.url()).key("outer").args(["--slots", "2"]);
    let output = call.command(["sh", "-c", &script]).run().exited(0).printed("inner none\n");
    assert_eq!(output.stderr().matches("refusing to wait").count(), 2, "{output}");
    assert!(!is_held(store, "inner"));
});

// "Locks by hand from shell scripts": the recipe in docs/recipes.md, however the script ends.
on_every_store!(a_script_that_locks_by_hand, |store| {
    let lockrun = crate::support::lockrun::PROGRAM;
    for (last, ends) in [(":", 0), ("exit 3", 3), ("kill -TERM $$", 143)] {
        let script = format!(
            "assignments=$({lockrun} acquire --key index --ttl 10m --wait 10m --export) || exit
            eval \"$assignments\"
            trap '{lockrun} release' EXIT
            trap 'exit 143' TERM
            {lockrun} renew || exit
            {lockrun} status --key index >/dev/null && exit 99
            {last}"
        );
        let call = Lockrun::bare().env("LOCKRUN_STORE", store.url()).command(["sh", "-c", &script]);
        call.alone().exited(ends).printed("").silent();
        assert!(!is_held(store, "index"), "{last}");
    }
});

// "Asked again under the same token": the same lock and fence, and no one else's.
on_every_store!(the_same_token_gives_the_same_lock, |store| {
    let ask = |options: &[&str]| acquire(store, "again", &["--json", "--token", "callback:42"]).args(options).run();
    let first = json(&ask(&[]).exited(0).silent());
    let second = json(&ask(&["--wait"]).exited(0).silent());
    assert_eq!((&first["fence"], &first["token"]), (&second["fence"], &Value::from("callback:42")));
    release(store, "again", "callback:42").exited(0).silent();
    let third = json(&ask(&[]).exited(0).silent());
    assert!(third["fence"].as_u64() > first["fence"].as_u64(), "{first} {third}");
});

// ... also while others wait for it.
on_every_store!(the_same_token_gives_the_same_lock_while_others_wait, |store| {
    let ask =
        |options: &[&str]| acquire(store, "again", &["--json", "--ttl=10m", "--token", "ours"]).args(options).run();
    let first = json(&ask(&[]).exited(0).silent());
    let waiter = Lockrun::new(store).key("again").arg("--wait").command(["echo", "next"]).spawn();
    until_waiting(store, "again", 1);
    for options in [&[][..], &["--wait", "10s"], &["--wait", "--max-waiting", "1"]] {
        let again = json(&ask(options).exited(0).silent());
        assert_eq!(first["fence"], again["fence"], "{options:?}");
    }
    release(store, "again", "ours").exited(0).silent();
    waiter.wait().exited(0).printed("next\n").silent();
});

// A second `acquire` starts the lease again with the length that it asks for; `renew` extends it by that length.
on_every_store!(the_length_that_was_asked_for_last_counts, |store| {
    let ask = |ttl: &str| acquire(store, "length", &["--token", "ours", "--ttl", ttl]).run().exited(0).silent();
    ask("5m");
    ask("1h");
    renew(store, "length", "ours", &[]).exited(0).silent();
    assert!(expires_in(store, "length").is_some_and(|left| left > 1_800_000), "{}", status(store, "length"));
});

// "If it cannot be printed the lock is released again, because nobody could release it."
on_every_store!(a_token_that_was_not_printed_holds_nothing, |store| {
    for (form, place) in ["", "--json", "--export"].into_iter().flat_map(|form| [(form, ">/dev/full"), (form, ">&-")]) {
        let options: Vec<&str> = ["--ttl=none", form].into_iter().filter(|word| !word.is_empty()).collect();
        let output = acquire(store, "unseen", &options).in_shell(&format!("exec \"$@\" {place}")).alone();
        output.exited(125).printed("").said("cannot print the token");
        assert!(!is_held(store, "unseen"), "{form} {place}");
    }
    // A pipe that nobody reads any more.
    let directory = tempfile::TempDir::new().expect("a temporary directory");
    let pipe = "mkfifo pipe; exec 3<>pipe 4>pipe 3<&-; exec \"$@\" >&4";
    let call = acquire(store, "unseen", &["--ttl=none"]).in_shell(pipe).directory(directory.path());
    call.alone().exited(125).said("cannot print the token");
    assert!(!is_held(store, "unseen"), "nobody reads");
});

// "A waiter wakes at once on release": all hand-offs together take less time than one waiter that only looked now and
// then.
on_every_store!(a_waiter_wakes_at_once, |store| {
    const HAND_OFFS: u32 = 10;
    let mut token = token(store, "turns", &["--ttl", "10m"]);
    let started = Instant::now();
    for _ in 0..HAND_OFFS {
        let waiter = acquire(store, "turns", &["--ttl", "10m", "--wait"]).spawn();
        until_waiting(store, "turns", 1);
        release(store, "turns", &token).exited(0).silent();
        waiter.wait().exited(0).silent().stdout().trim_end().clone_into(&mut token);
    }
    // An idle waiter looks every four to twelve seconds.
    assert!(started.elapsed() < Duration::from_secs(4) * HAND_OFFS, "{:?}", started.elapsed());
});

// The same where the lease is shortened while a run waits: by `renew`, and by `acquire` under the same token.
on_every_lease_store!(a_waiter_wakes_at_the_end_of_a_lease_that_was_shortened, |store| {
    for by_renewal in [true, false] {
        let ours = token(store, "shorter", &["--ttl", "1h"]);
        let waiter = acquire(store, "shorter", &["--ttl", "10m", "--wait"]).spawn();
        until_waiting(store, "shorter", 1);
        eventually(LONG, "it sleeps", || store.server().asleep() == 1);
        if by_renewal {
            renew(store, "shorter", &ours, &["--ttl", "1s"]).exited(0).silent();
        } else {
            acquire(store, "shorter", &["--token", &ours, "--ttl", "1s"]).run().exited(0).silent();
        }
        let shortened = Instant::now();
        let next = waiter.wait().exited(0).silent();
        // An idle waiter looks every four to twelve seconds.
        in_time(shortened.elapsed(), Duration::from_secs(3), "it wakes when the lease ends");
        release(store, "shorter", next.stdout().trim_end()).exited(0).silent();
    }
});

// "A waiter interrupted leaves nothing."
on_every_store!(an_interrupted_waiter_leaves_nothing, |store| {
    let token = token(store, "cut", &["--ttl", "10m"]);
    let left = || store.lease_server().map(|server| server.left("cut", true));
    let before = left();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let waiter = acquire(store, "cut", &["--wait"]).spawn();
        until_waiting(store, "cut", 1);
        waiter.signal(signal);
        waiter.wait().died_of(signal).printed("").silent();
        until_waiting(store, "cut", 0);
        assert_eq!(left(), before, "after {signal}");
    }
    release(store, "cut", &token).exited(0).silent();
    assert!(!is_held(store, "cut"));
});

// "A lease by hand ends by itself", not before its time, and the next waiter gets it.
on_every_store!(a_lease_by_hand_ends_by_itself, |store| {
    let started = Instant::now();
    let ours = token(store, "ends", &["--ttl", "2s"]);
    let waiter = Lockrun::new(store).key("ends").args(["--wait"]).command(["echo", "next"]).spawn();
    waiter.wait().exited(0).printed("next\n").silent();
    assert!(started.elapsed() >= Duration::from_secs(2), "{:?}", started.elapsed());
    renew(store, "ends", &ours, &[]).exited(79).said("nobody holds it");
    release(store, "ends", &ours).exited(79).said("nobody holds it");
    assert!(!is_held(store, "ends"), "a renewal never creates a lock");
});

// "`--ttl none` for locks that only a release or a break ends."
on_every_store!(a_lock_without_an_end, |store| {
    let ours = token(store, "endless", &["--ttl", "none"]);
    token(store, "endless-2", &["--ttl", "none"]);
    token(store, "short", &["--ttl", "1s"]);
    assert_eq!(expires_in(store, "endless"), None);
    eventually(LONG, "the other one has run out", || !is_held(store, "short"));
    assert!(!is_free(store, "endless"));
    renew(store, "endless", &ours, &[]).exited(0).silent();
    assert_eq!(expires_in(store, "endless"), None);
    release(store, "endless", &ours).exited(0).silent();
    assert!(is_free(store, "endless"));
    Lockrun::other("break", store).key("endless-2").run().exited(0).said("was taken from");
    assert!(is_free(store, "endless-2"));
});

// "Boot id and boot-clock time make a record from before a reboot void."
#[test]
fn a_reboot_voids_a_lease_in_files() {
    let store = Store::file();
    for ttl in ["none", "10m"] {
        let ours = token(&store, "boot", &["--ttl", ttl]);
        assert!(!is_free(&store, "boot"));
        lock_file::edit(&lock_file::path(&store, "boot"), |record| {
            record["epoch"] = "another".into();
        });
        assert!(!is_held(&store, "boot"), "{ttl}");
        renew(&store, "boot", &ours, &[]).exited(79).said("nobody holds it");
        assert!(is_free(&store, "boot"), "{ttl}");
    }
}

// "A renewal may change the ttl."
on_every_store!(a_renewal_may_change_the_ttl, |store| {
    let ours = token(store, "longer", &["--ttl", "5m"]);
    let left = |options: &[&str]| {
        renew(store, "longer", &ours, options).exited(0).printed("").silent();
        expires_in(store, "longer")
    };
    assert!(left(&["--ttl", "1h"]).expect("it ends") > 300_000);
    assert!(left(&[]).expect("it ends") > 300_000, "it lasts as long as the last time");
    assert_eq!(left(&["--ttl", "none"]), None);
    assert_eq!(left(&[]), None);
    assert!(left(&["--ttl", "2s"]).expect("it ends") <= 2_000);
    eventually(LONG, "the lease has run out", || !is_held(store, "longer"));
    renew(store, "longer", &ours, &["--ttl", "1h"]).exited(79).said("nobody holds it");
});

// "One under which a command of lockrun's still runs is released when that has ended."
on_every_store!(a_release_waits_for_the_command, |store| {
    let mut run = Lockrun::new(store).key("busy").sh("echo $LOCKRUN_TOKEN; echo ready; exec sleep 600").spawn();
    run.wait_for_line("ready");
    let ours = run.stdout().lines().next().expect("a token").to_owned();
    release(store, "busy", &ours)
        .exited(0)
        .printed("")
        .said("will be released when the command that runs under it has ended");
    assert!(!is_free(store, "busy"), "its command still runs");
    release(store, "busy", OTHER_TOKEN).exited(79).said("is held by");
    run.signal(Signal::SIGTERM);
    run.wait().died_of(Signal::SIGTERM);
    assert!(is_free(store, "busy"));
});

// "From COMMAND's first instruction until ...": a renewal by hand takes nothing from the lease of a command that runs.
on_every_lease_store!(a_running_commands_lease_gets_no_shorter, |store| {
    let script = "echo $LOCKRUN_TOKEN; echo ready; exec sleep 600";
    let mut run = Lockrun::new(store).key("promised").args(["--ttl", "10m"]).sh(script).spawn();
    run.wait_for_line("ready");
    let ours = run.stdout().lines().next().expect("a token").to_owned();
    renew(store, "promised", &ours, &["--ttl", "1s"]).exited(0).silent();
    assert!(expires_in(store, "promised").expect("it ends") > 60_000);
    renew(store, "promised", &ours, &["--ttl", "1h"]).exited(0).silent();
    assert!(expires_in(store, "promised").expect("it ends") > 600_000);
});

// "Tokens ... every write checks the token": an invalid token is refused before anything is touched.
on_every_store!(what_is_no_token_is_refused, |store| {
    let _holder = Holder::new(store, "odd");
    for bad in ["", "a b", "x\ny", "ж", &"x".repeat(129)] {
        for word in ["acquire", "renew", "release"] {
            let tied = format!("--token={bad}");
            Lockrun::other(word, store).key("odd").arg(&tied).run().exited(64).printed("").said("token");
        }
    }
    Lockrun::other("release", store).key("odd").run().exited(64).said("token");
});

// "With slots: at most N do", also by hand, each with a slot of its own.
on_every_store!(slots_by_hand, |store| {
    let take = || acquire(store, "slots", &["--slots", "2", "--json"]).run();
    let (first, second) = (json(&take().exited(0)), json(&take().exited(0)));
    assert_eq!((&first["slot"], &second["slot"]), (&Value::from(0), &Value::from(1)));
    take().exited(75).printed("").said("is held by");
    release(store, "slots", first["token"].as_str().expect("a token")).exited(0).silent();
    assert_eq!(json(&take().exited(0))["slot"], Value::from(0));
});

// "Held means: ... the record in the file holds an unexpired lease": also for a container with a boot id of its own
// (LXC, systemd-nspawn) that shares the directory, and the other way round.
#[test]
fn a_boot_id_of_another_container() {
    let store = Store::file();
    let id = store.locks().with_file_name("boot_id");
    fs::write(&id, "c0ffee00-0000-4000-8000-000000000000\n").expect("a file");
    let inside = with_mounts(&format!("mount --bind {} /proc/sys/kernel/random/boot_id", id.display()));
    let hold = |key: &str| acquire(&store, key, &["--ttl", "10m"]);
    let retain = |key: &str, option: &[&str]| Lockrun::new(&store).key(key).args(option).command(["true"]);
    hold("outside").run().exited(0).silent();
    retain("kept", &["--keep", "--ttl", "10m"]).run().exited(0).silent();
    retain("held", &["--min-hold", "10m"]).run().exited(0).silent();
    hold("inside").in_shell(&inside).alone().exited(0).silent();
    retain("kept inside", &["--keep", "--ttl", "10m"]).in_shell(&inside).alone().exited(0).silent();
    for key in ["outside", "kept", "held", "inside", "kept inside"] {
        for call in [hold(key), Lockrun::new(&store).key(key).command(["echo", "ran"])] {
            call.in_shell(&inside).alone().exited(75).printed("").said(": free in ");
            call.run().exited(75).printed("").said(": free in ");
        }
    }
    let ours = token(&store, "released", &["--ttl", "10m"]);
    let release = Lockrun::other("release", &store).key("released").args(["--token", &ours]);
    release.in_shell(&inside).alone().exited(0).silent();
    assert!(is_free(&store, "released"));
}

// "Boot-clock time": a lease is as long in a time namespace, whose clock starts at another moment, as outside.
#[test]
fn a_clock_of_another_namespace() {
    let store = Store::file();
    let inside = with_clock_ahead(1_000_000);
    let hold = |key: &str, ttl: &str| acquire(&store, key, &["--ttl", ttl]);
    hold("outside", "10m").run().exited(0).silent();
    hold("inside", "10m").in_shell(&inside).alone().exited(0).silent();
    for key in ["outside", "inside"] {
        hold(key, "10m").in_shell(&inside).alone().exited(75).said("is held by");
        hold(key, "10m").run().exited(75).said("is held by");
        let left = expires_in(&store, key).expect("it ends");
        assert!(left <= 600_000, "{key}: {left}");
        let status = Lockrun::other("status", &store).key(key).arg("--json").in_shell(&inside).alone().exited(75);
        let told = &json(&status)[0]["holders"][0];
        assert!(told["expires_in_ms"].as_u64().expect("it ends") <= 600_000, "{told}");
        assert!(told["held_ms"].as_u64().expect("a number") < 600_000, "{told}");
    }
    hold("short", "1s").in_shell(&inside).alone().exited(0).silent();
    eventually(LONG, "the lease has run out", || !is_held(&store, "short"));
}
