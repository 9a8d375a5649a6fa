//! `lockrun status`: who holds which lock, who waits, and who ran last.

use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::hand::{acquire, all, release, status, token, until_waiting};
use crate::support::lockrun::PROGRAM;
use crate::support::namespace::with_mounts;
use crate::support::proxy::Mode;
use crate::support::pty::Terminal;
use crate::support::records::{plant, set_last_run};
use crate::support::store::{on_every_lease_store, on_every_store};
use crate::support::{Holder, LONG, Lockrun, Output, Store, eventually};

/// Runs `lockrun status` for people: a table, or with a key all details.
fn read(store: &Store, options: &[&str]) -> Output {
    Lockrun::other("status", store).args(options).run().silent()
}

// "With `--key` it ends with 75 when held and 0 when free"; without, with 0.
on_every_store!(the_status_says_whether_it_is_held, |store| {
    read(store, &[]).exited(0);
    assert_eq!(all(store), [] as [Value; 0]);
    let name = store.name_of_url();
    let unused = format!("key       one\nstore     {name}\nstate     never used\nlast run  none is known\n");
    read(store, &["--key", "one"]).exited(0).printed(&unused);
    assert_eq!(status(store, "one")["store"], json!(name));
    let holder = Holder::new(store, "one");
    let page = read(store, &["--key", "one"]).exited(75).stdout();
    assert!(page.contains("state     held\n") && page.contains(&holder.command()), "{page}");
    let until = if store.has_leases() { "lease ends in " } else { "held until its processes have ended; fence " };
    assert!(page.contains(until), "{page}");
    read(store, &["--key", "one", "--json"]).exited(75);
    let table = read(store, &[]).exited(0).stdout();
    assert!(table.starts_with("KEY ") && table.contains(&holder.command()), "{table}");
    read(store, &["--json"]).exited(0);
    holder.end();
    assert!(read(store, &["--key", "one"]).exited(0).stdout().contains("state     free\n"));
});

// "Name the store in status (a first line on a terminal)", also where there are no locks.
on_every_store!(on_a_terminal_the_store_is_named, |store| {
    let shown = || {
        let mut command = Command::new(PROGRAM);
        command.args(["status", "--store", &store.url()]);
        let mut terminal = Terminal::start(command, &[("TERM", "dumb")]);
        assert!(terminal.wait().success());
        terminal.watch(LONG)
    };
    let line = format!("store {}", store.name_of_url());
    let is_named =
        |shown: &str| shown.lines().next().is_some_and(|first| line.starts_with(first.trim_end_matches('…')));
    let empty = shown();
    assert!(is_named(&empty) && empty.contains("KEY "), "{empty}");
    let holder = Holder::new(store, "one");
    let one = shown();
    assert!(is_named(&one) && one.contains(&format!(" pid {}", holder.pid())), "{one}");
});

// "Holders (host, pid, user, command, since, expires in, fence, slot)."
on_every_store!(holders_are_described, |store| {
    let holder = Holder::with(&Lockrun::new(store).key("who").args(["--slots", "2"]), &[]);
    let second = Holder::with(&Lockrun::new(store).key("who").args(["--slots", "2"]), &[]);
    let told = status(store, "who");
    let holders = told["holders"].as_array().expect("an array");
    let pids: Vec<i64> = holders.iter().filter_map(|one| one["pid"].as_i64()).collect();
    assert_eq!(pids, [i64::from(holder.pid()), i64::from(second.pid())], "{told}");
    let host = nix::unistd::gethostname().expect("a name");
    let user = Lockrun::bare().command(["id", "-un"]).alone().stdout();
    assert_eq!((holders[0]["host"].as_str(), holders[0]["user"].as_str()), (host.to_str(), Some(user.trim())));
    assert_eq!(holders[0]["command"], holder.command());
    assert_eq!((&holders[0]["slot"], &holders[1]["slot"]), (&json!(0), &json!(1)));
    assert_eq!(holders[1]["fence"], told["fence"]);
    assert_eq!(holders[0]["expires_in_ms"].is_u64(), store.has_leases());
    let since = holders[0]["since"].as_str().expect("a time");
    let date = Lockrun::bare().command(["date", "-ud", since, "+%Y"]).alone().exited(0).stdout();
    assert!(since.starts_with(date.trim()) && since.ends_with('Z'), "{since}");
    eventually(LONG, "the time goes on", || {
        status(store, "who")["holders"][0]["held_ms"].as_u64() > holders[0]["held_ms"].as_u64()
    });
});

// "`--label TEXT`: who or why, for people: shown wherever the holder is named (`held by`, `status`, events)."
on_every_store!(a_label_is_shown, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let events = directory.path().join("events");
    let (of_holder, of_waiter) = ("pipeline 4711 by ana", "pipeline 4712 by bo");
    let call = |label: &str| Lockrun::new(store).key("labelled").args(["--label", label]);
    let holder = Holder::with(&call(of_holder).arg("--events").arg(&events), &[]);
    let waiter = call(of_waiter).arg("--wait").command(["true"]).spawn();
    until_waiting(store, "labelled", 1);
    let held = format!(" pid {} ({of_holder}) for ", holder.pid());
    Lockrun::new(store).key("labelled").arg("--fail").command(["true"]).run().exited(75).said(&held);
    let told = status(store, "labelled");
    // In files a waiter leaves no record: it is known by its process alone.
    let of_waiter_told = if store.has_leases() { json!(of_waiter) } else { Value::Null };
    assert_eq!(
        (&told["holders"][0]["label"], &told["waiters"][0]["label"]),
        (&json!(of_holder), &of_waiter_told),
        "{told}"
    );
    let page = read(store, &["--key", "labelled"]).exited(75).stdout();
    assert!(page.contains(of_holder), "{page}");
    assert_eq!(page.contains(of_waiter), store.has_leases(), "{page}");
    assert!(read(store, &[]).exited(0).stdout().contains(of_holder));
    holder.end();
    waiter.wait().exited(0).silent();
    assert_eq!(status(store, "labelled")["last"]["label"], json!(of_waiter));
    let lines = std::fs::read_to_string(&events).expect("the events");
    assert!(lines.lines().all(|line| line.contains(&format!("\"label\":\"{of_holder}\""))), "{lines}");
    let token_of_it = token(store, "labelled", &["--ttl", "10m", "--label", "a deployment"]);
    assert_eq!(status(store, "labelled")["holders"][0]["label"], json!("a deployment"));
    release(store, "labelled", &token_of_it).exited(0);
});

// "The last run (host, user, started, ended, status or signal)."
on_every_store!(the_last_run_is_known, |store| {
    let last = |script: &str| {
        Lockrun::new(store).key("last").sh(script).run();
        status(store, "last")["last"].clone()
    };
    for (script, code, signal) in [
        (":", json!(0), Value::Null),
        ("exit 3", json!(3), Value::Null),
        ("kill -USR1 $$", Value::Null, json!(Signal::SIGUSR1 as i32)),
    ] {
        let last = last(script);
        assert_eq!((&last["status"], &last["signal"]), (&code, &signal), "{script}: {last}");
        assert!(last["command"].as_str().expect("a command").contains(script), "{last}");
        assert!(last["host"].is_string() && last["user"].is_string() && last["pid"].is_u64(), "{last}");
        assert!(last["started"].as_str() <= last["ended"].as_str(), "{last}");
    }
    let page = read(store, &["--key", "last"]).exited(0).stdout();
    assert!(page.contains("signal 10, "), "{page}");
    let ours = token(store, "last", &[]);
    release(store, "last", &ours).exited(0);
    let last = status(store, "last")["last"].clone();
    assert_eq!((&last["status"], &last["signal"]), (&Value::Null, &Value::Null), "there was no command: {last}");
});

// "The run's exit status": one that was stopped has failed, even if its command ended with 0.
on_every_store!(a_run_that_was_stopped_is_not_known_as_a_success, |store| {
    let call = Lockrun::new(store).key("stopped").args(["--max-runtime", "300ms"]);
    call.sh("trap 'exit 0' TERM; while :; do sleep 0.05; done").run().exited(124);
    let last = status(store, "stopped")["last"].clone();
    assert_eq!((&last["status"], &last["signal"]), (&json!(124), &Value::Null), "{last}");
    let metrics = Lockrun::other("status", store).args(["--metrics", "stopped"]).run().exited(0).stdout();
    assert!(metrics.contains("lockrun_last_status{key=\"stopped\"} 124\n"), "{metrics}");
});

// "lockrun's exit status": a run whose command could not be started has failed, which an alert must notice.
on_every_store!(a_run_that_could_not_start_is_known_as_a_failure, |store| {
    for (program, code) in [("/nonexistent/program", 127), ("/etc/passwd", 126)] {
        Lockrun::new(store).key("gone").command([program]).run().exited(code);
        let last = status(store, "gone")["last"].clone();
        assert_eq!((&last["status"], &last["signal"]), (&json!(code), &Value::Null), "{last}");
        let metrics = Lockrun::other("status", store).args(["--metrics", "gone"]).run().exited(0).stdout();
        assert!(metrics.contains(&format!("lockrun_last_status{{key=\"gone\"}} {code}\n")), "{metrics}");
    }
});

// The last run is the one that ended last, even if another one that held the lock beside it began after it.
on_every_store!(the_last_run_is_the_one_that_ended_last, |store| {
    let call = Lockrun::new(store).key("beside").arg("--wait");
    let first = Holder::new(store, "beside");
    let second = call.clone().sh("echo ready; exec sleep 600").spawn();
    until_waiting(store, "beside", 1);
    first.end();
    eventually(LONG, "the second one runs", || second.stdout() == "ready\n");
    call.clone().args(["--slots", "2"]).sh("exit 3").run().exited(3);
    let third = call.sh("echo ready; exec sleep 600").spawn();
    until_waiting(store, "beside", 1);
    second.signal(Signal::SIGTERM);
    second.wait().died_of(Signal::SIGTERM);
    eventually(LONG, "the third one runs", || third.stdout() == "ready\n");
    assert_eq!(status(store, "beside")["last"]["signal"], 15);
});

// Nor is it a run that released the lock, got no answer, and releases it again after the next run has ended.
on_every_lease_store!(the_last_run_is_not_one_that_releases_again, |store| {
    let proxy = store.proxy();
    let wait = |call: Lockrun, script: &str| {
        let waiter = call.key("again").arg("--wait").sh(script).spawn();
        until_waiting(store, "again", 1);
        waiter
    };
    let first = Holder::new(store, "again");
    // It releases as the third one does, so that a Redis server has the script.
    let second = wait(Lockrun::new(store), "echo ready; exec sleep 600");
    first.end();
    eventually(LONG, "the second one runs", || second.stdout() == "ready\n");
    let third = wait(Lockrun::at(&proxy.url()), "echo ready; exec sleep 600");
    second.signal(Signal::SIGTERM);
    second.wait().died_of(Signal::SIGTERM);
    eventually(LONG, "the third one runs", || third.stdout() == "ready\n");
    let fourth = wait(Lockrun::new(store), "exit 3");
    proxy.set(Mode::LoseAnswer(proxy.connections(), Duration::from_secs(2)));
    third.signal(Signal::SIGTERM);
    fourth.wait().exited(3);
    assert_eq!(status(store, "again")["last"]["status"], 3);
    third.wait().died_of(Signal::SIGTERM);
    assert_eq!(status(store, "again")["last"]["status"], 3);
});

// "... waiters", in their order.
on_every_store!(waiters_are_described, |store| {
    let _holder = Holder::new(store, "busy");
    let waiters: Vec<_> = (1..=3)
        .map(|count| {
            let waiter = Lockrun::new(store).key("busy").arg("--wait").command(["echo", "it is me"]).spawn();
            until_waiting(store, "busy", count);
            waiter
        })
        .collect();
    let told = status(store, "busy");
    let found: Vec<_> = told["waiters"].as_array().expect("an array").iter().collect();
    let pids: Vec<_> = waiters.iter().map(|waiter| i64::from(waiter.pid())).collect();
    // In files, the kernel knows no more than who is next.
    let known = if store.has_leases() { 3 } else { 1 };
    let told_pids: Vec<_> = found.iter().filter_map(|one| one["pid"].as_i64()).collect();
    assert_eq!(told_pids[..known], pids[..known], "{told}");
    assert!(pids.iter().all(|pid| told_pids.contains(pid)), "{told}");
    assert!(found.iter().all(|one| one["command"] == "echo 'it is me'"), "{told}");
    assert_eq!(found[0]["waited_ms"].is_u64(), store.has_leases());
    let page = read(store, &["--key", "busy"]).exited(75).stdout();
    assert_eq!(page.matches("echo 'it is me'").count(), 3, "{page}");
    let table = read(store, &[]).exited(0).stdout();
    let line = table.lines().find(|line| line.starts_with("busy ")).expect("a line");
    assert!(line.contains("  3  "), "{line}");
});

// "`status` with 200 keys in one screenful of JSON and a table."
on_every_store!(two_hundred_keys, |store| {
    const KEYS: usize = 200;
    let name = |number: usize| format!("key-{number:03}");
    for number in 0..KEYS {
        token(store, &name(number), &["--ttl", "1h"]);
    }
    let told = all(store);
    let names: Vec<_> = told.iter().map(|one| one["key"].as_str().expect("a key").to_owned()).collect();
    assert_eq!(names, (0..KEYS).map(name).collect::<Vec<_>>());
    assert!(told.iter().all(|one| one["held"] == true));
    let table = read(store, &[]).exited(0).stdout();
    assert_eq!(table.lines().count(), KEYS + 1);
});

/// Text that steers terminals, breaks lines and reverses the direction of writing.
const HOSTILE: &str = "\x1b[2J\x1b]0;title\x07 \u{9b}31m a\nb\r\tc \u{202e}drow\u{2066} \u{200f}\u{85}\u{7f} 漢字";

fn is_hostile(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200f}' | '\u{202e}' | '\u{2066}')
}

// "Hostile text (escape sequences, right-to-left marks, newlines in a command line) reaches neither the terminal nor
// the table's layout."
on_every_store!(hostile_text_is_escaped, |store| {
    let keys = ["planted", "tricky \u{202e}yek\u{2066}"];
    plant(store, keys[0], HOSTILE);
    token(store, keys[1], &[]);
    let table = read(store, &[]).exited(0).stdout();
    let page = read(store, &["--key", keys[0]]).exited(75).stdout();
    let other = read(store, &["--key", keys[1]]).exited(75).stdout();
    let json = read(store, &["--json"]).exited(0).stdout();
    let held = Lockrun::new(store).key(keys[0]).command(["true"]).run().exited(75).said("title").stderr();
    let broken =
        Lockrun::other("break", store).key(keys[0]).args(["--fence", "1"]).run().exited(75).said("title").stderr();
    for text in [&table, &page, &other, &json, &held, &broken] {
        assert!(!text.chars().any(|c| c != '\n' && is_hostile(c)), "{text:?}");
    }
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(table.lines().skip(1).all(|line| keys.iter().any(|key| line.starts_with(&key[..6]))), "{table}");
    assert_eq!(page.lines().count(), if store.has_leases() { 10 } else { 9 }, "{page}");
    assert_eq!((held.lines().count(), broken.lines().count()), (1, 1));
    let told: Vec<Value> = serde_json::from_str(&json).expect("is JSON");
    assert_eq!((&told[0]["holders"][0]["host"], &told[0]["last"]["user"]), (&json!(HOSTILE), &json!(HOSTILE)));
    assert_eq!(told[1]["key"], keys[1]);
});

// "A table that fits a terminal."
on_every_store!(the_table_fits_a_terminal, |store| {
    plant(store, "planted", HOSTILE);
    token(store, &"long-name-".repeat(20), &[]);
    for columns in [40, 80, 132] {
        let mut command = Command::new("sh");
        let script = format!("stty cols {columns} -opost; exec \"$@\"; echo failed");
        command.args(["-c", &script, "sh"]).args(Lockrun::other("status", store).words());
        let mut terminal = Terminal::start(command, &[("NO_COLOR", "1")]);
        assert!(terminal.wait().success());
        let seen = terminal.watch(LONG);
        assert_eq!(seen.lines().count(), 4, "{seen:?}");
        for line in seen.lines() {
            // These two are drawn in two columns each.
            let width = line.chars().count() + line.matches(['漢', '字']).count();
            assert!(width <= columns && !line.chars().any(is_hostile), "{width} of {columns}: {line:?}");
        }
    }
});

// "Never a token": in no output, of no command, of a run, a lock by hand, and those who wait; nor the password of a
// URL.
on_every_store!(no_token_is_ever_printed, |store| {
    const OURS: &str = "known-only-to-us";
    const PASSWORD: &str = "pass-of-a-url";
    let mut run = Lockrun::new(store).key("run").sh("echo $LOCKRUN_TOKEN; echo ready; exec sleep 600").spawn();
    run.wait_for_line("ready");
    let of_run = run.stdout().lines().next().expect("a token").to_owned();
    // Runs from a shell whose own command line has the secrets in it.
    let taken = format!(
        "STORE=redis://u:{PASSWORD}@127.0.0.1:1 {} acquire --store '{}' --key hand --token {OURS} >/dev/null; exit $?",
        crate::support::lockrun::PROGRAM,
        store.url()
    );
    Lockrun::bare().command(["sh", "-c", &taken]).alone().exited(0).silent();
    let waiters = [
        acquire(store, "hand", &["--wait", "--token", "known-only-to-us-2"]).spawn(),
        acquire(store, "hand", &["--wait", "--token=known-only-to-us-3"]).spawn(),
    ];
    until_waiting(store, "hand", waiters.len());
    let mut said = String::new();
    let mut listen = |output: Output| said += &(output.stdout() + &output.stderr());
    for options in [&[][..], &["--json"], &["--key", "hand"], &["--key", "run"], &["--key", "run", "--json"]] {
        listen(read(store, options));
    }
    for key in ["run", "hand"] {
        listen(Lockrun::new(store).key(key).args(["-v"]).command(["true"]).run().exited(75));
        listen(Lockrun::new(store).key(key).args(["-v", "--wait", "100ms"]).command(["true"]).run().exited(75));
        for word in ["renew", "release"] {
            listen(Lockrun::other(word, store).key(key).args(["--token", "strange"]).run().exited(79));
        }
        listen(Lockrun::other("break", store).key(key).args(["--fence", "1"]).run().exited(75));
    }
    listen(Lockrun::other("break", store).key("hand").run().exited(0));
    listen(read(store, &["--json"]));
    for secret in [of_run.as_str(), OURS, PASSWORD] {
        assert!(!said.contains(secret), "{secret} in {said}");
    }
    assert!(said.contains("acquire"), "what is no secret is told: {said}");
});

// "Every key that is held, waited for or has run": other files in the directory are not keys, and no reason to fail.
#[test]
fn other_files_are_no_locks() {
    let store = Store::file();
    token(&store, "ours", &[]);
    let locks = store.locks();
    std::fs::create_dir(locks.join("directory")).expect("a directory");
    std::os::unix::fs::symlink("/etc/passwd", locks.join("link")).expect("a link");
    std::os::unix::fs::symlink("nowhere", locks.join("dangling")).expect("a link");
    nix::unistd::mkfifo(&locks.join("fifo"), nix::sys::stat::Mode::S_IRWXU).expect("a fifo");
    let _socket = std::os::unix::net::UnixListener::bind(locks.join("socket")).expect("a socket");
    std::fs::write(locks.join("text"), "hello\n").expect("a file");
    std::fs::write(locks.join("empty"), "").expect("a file");
    std::fs::copy(locks.join("ours"), locks.join("ours.bak")).expect("a copy");
    let names: Vec<_> = all(&store).iter().map(|one| one["key"].as_str().expect("a key").to_owned()).collect();
    assert_eq!(names, ["ours"]);
    Lockrun::other("break", &store).key("ours").run().exited(0);
    let before = std::fs::read_dir(&locks).expect("ours").count();
    let pruned = Lockrun::other("prune", &store).args(["--older-than", "0"]).run();
    pruned.exited(0).printed("ours\n").silent();
    assert_eq!(std::fs::read_dir(&locks).expect("ours").count(), before - 1);
}

// "The last run (host, user, started, ended)": a time beyond the calendar does not keep the other locks from being
// shown.
on_every_store!(a_time_after_the_year_9999, |store| {
    for key in ["other", "far"] {
        Lockrun::new(store).key(key).command(["true"]).run().exited(0);
    }
    for at in [253_402_300_800_000_u64, 1 << 53] {
        set_last_run(store, "far", at);
        assert_eq!(status(store, "far")["last"]["ended"], "9999-12-31T23:59:59.999Z");
        let page = read(store, &["--key", "far"]).exited(0).stdout();
        assert!(page.contains("ok, 9999-12-31 23:59:59Z to 9999-12-31 23:59:59Z"), "{page}");
        assert_eq!(read(store, &[]).exited(0).stdout().lines().count(), 3);
        Lockrun::other("prune", store).args(["--older-than", "0", "--dry-run"]).run().exited(0).silent();
    }
});

// "Who waits": also on a file system on which the kernel's list of locks names another device than stat(2), as on
// overlayfs and btrfs.
#[test]
fn waiters_on_an_overlay_are_shown() {
    let directory = TempDir::new().expect("a temporary directory");
    let place = directory.path().to_str().expect("a plain path");
    let layers = "lowerdir=/usr,upperdir=upper,workdir=work,xino=off";
    let mounts = with_mounts(&format!(
        "mount -t tmpfs none {place} && cd {place} && mkdir upper work locks && mount -t overlay -o {layers} none locks"
    ));
    let script = format!(
        "{PROGRAM} acquire --key k >/dev/null || exit
        {PROGRAM} --key k --wait -- true &
        timeout 30 sh -c \"until {PROGRAM} status --key k --json | grep -q waited_ms.:; do sleep 0.05; done\" || {{
            {PROGRAM} status --key k --json
            exit 1
        }}
        kill $!"
    );
    let call = Lockrun::bare().env("LOCKRUN_STORE", format!("file:{place}/locks/own"));
    call.command(["sh", "-c", &mounts, "sh", "sh", "-c", &script]).alone().exited(0).silent();
}
