//! `lockrun status --metrics`, `--held` and patterns of keys; colours.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::hand::token;
use crate::support::holder::write_script;
use crate::support::lock_file;
use crate::support::lockrun::PROGRAM;
use crate::support::processes::{PATH, find_program};
use crate::support::pty::Terminal;
use crate::support::store::on_every_store;
use crate::support::{Holder, LONG, Lockrun, Output, Store};

fn status(store: &Store, options: &[&str]) -> Output {
    Lockrun::other("status", store).args(options).run().silent()
}

/// Reads OpenMetrics text by the reference parser: `{family: {key: value}}`.
fn parse(text: &str) -> Value {
    const PARSER: &str = "import sys, json\n\
        from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse\n\
        print(json.dumps({f.name: {s.labels['key']: s.value for s in f.samples} for f in parse(sys.stdin.read())}))";
    let mut python = Command::new("/usr/bin/python3");
    let mut python = python.args(["-c", PARSER]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python");
    python.stdin.take().expect("piped").write_all(text.as_bytes()).expect("it reads");
    let output = python.wait_with_output().expect("it ends");
    assert!(output.status.success(), "cannot be parsed: {text}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

// "`status --metrics`: held, held seconds, waiters, last end, last status, last duration; escaped labels; ends with `#
// EOF`."
on_every_store!(metrics_can_be_parsed, |store| {
    const WEIRD: &str = r#"back\slash "quoted" {x} # ü"#;
    let none = status(store, &["--metrics"]).exited(0).stdout();
    assert!(none.ends_with("# EOF\n"), "{none}");
    parse(&none);
    Lockrun::new(store).key("failed").sh("exit 3").run().exited(3);
    Lockrun::new(store).key("killed").sh("kill -9 $$").run();
    let _holder = Holder::new(store, WEIRD);
    let text = status(store, &["--metrics"]).exited(0).stdout();
    let seen = parse(&text);
    assert_eq!((&seen["lockrun_held"][WEIRD], &seen["lockrun_held"]["failed"]), (&1.into(), &0.into()), "{text}");
    assert_eq!(seen["lockrun_waiters"][WEIRD], 0);
    assert!(seen["lockrun_held_seconds"][WEIRD].as_f64().is_some_and(|held| (0.0..600.0).contains(&held)), "{text}");
    assert_eq!(
        (&seen["lockrun_last_status"]["failed"], &seen["lockrun_last_status"]["killed"]),
        (&3.into(), &137.into())
    );
    assert!(seen["lockrun_last_status"][WEIRD].is_null(), "{text}");
    assert!(seen["lockrun_last_end_timestamp_seconds"]["failed"].as_f64() > Some(1.6e9), "{text}");
    assert!(seen["lockrun_last_duration_seconds"]["failed"].as_f64() >= Some(0.0), "{text}");
    status(store, &["--metrics", "failed"]).exited(0);
    Lockrun::other("status", store).args(["--metrics", "--json"]).run().exited(64).said("exclude each other");
});

// The collector for a node exporter: one broken record does not keep the other locks' metrics from being
// written. Where the store does not answer, the file stays as it is.
#[test]
fn the_collector_writes_what_the_store_answers() {
    let (store, directory) = (Store::file(), TempDir::new().expect("a temporary directory"));
    let programs = Path::new(PROGRAM).parent().expect("a directory").display();
    let collect = |store: &str| {
        let collector = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/textfile-collector");
        let call = Lockrun::bare().env("PATH", format!("{programs}:{PATH}")).env("LOCKRUN_STORE", store);
        call.command([Path::new(collector), directory.path()]).alone()
    };
    let written = || fs::read_to_string(directory.path().join("lockrun.prom")).unwrap_or_default();
    Lockrun::new(&store).key("good").command(["true"]).run().exited(0);
    Lockrun::new(&store).key("broken").command(["true"]).run().exited(0);
    fs::write(lock_file::path(&store, "broken"), "lockrun ").expect("a file");
    collect(&store.url()).exited(69).said("broken");
    assert!(written().contains("{key=\"good\"}") && written().ends_with("# EOF\n"), "{}", written());
    let before = written();
    collect("redis://127.0.0.1:1").exited(69);
    assert_eq!(written(), before);
    assert_eq!(fs::read_dir(directory.path()).expect("our own").count(), 1, "something was left");
    fs::remove_file(lock_file::path(&store, "broken")).expect("a file");
    collect(&store.url()).exited(0).silent();
}

// "`status --held`, patterns of keys (`status 'backup-*'`)."
on_every_store!(locks_can_be_chosen, |store| {
    for key in ["backup-a", "backup-b", "billing"] {
        Lockrun::new(store).key(key).command(["true"]).run().exited(0);
    }
    let _hand = token(store, "backup-c", &["--ttl", "10m"]);
    let names = |options: &[&str]| -> Vec<String> {
        let text = status(store, options).exited(0).stdout();
        text.lines().skip(1).map(|line| line.split_whitespace().next().expect("a key").to_owned()).collect()
    };
    assert_eq!(names(&["backup-*"]), ["backup-a", "backup-b", "backup-c"]);
    assert_eq!(names(&["b*g"]), ["billing"]);
    assert_eq!(names(&["backup-?", "--held"]), ["backup-c"]);
    assert_eq!(names(&["--held"]), ["backup-c"]);
    assert_eq!(names(&["nothing-*"]), [] as [&str; 0]);
    // With `--key` it is a name, not a pattern.
    status(store, &["--key", "backup-*"]).exited(0).printed(&format!(
        "key       backup-*\nstore     {}\nstate     never used\nlast run  none is known\n",
        store.name_of_url()
    ));
    Lockrun::other("status", store).args(["--held", "billing"]).run().exited(64).said("--held");
});

// "Kept, by-hand and min-hold locks look different from running ones; no `slot 0` without slots."
on_every_store!(the_state_says_how_a_lock_is_held, |store| {
    let _hand = token(store, "a-hand", &["--ttl", "10m"]);
    Lockrun::new(store).key("b-kept").args(["--keep", "--ttl", "10m"]).command(["true"]).run().exited(0);
    Lockrun::new(store).key("c-min").args(["--min-hold", "10m"]).command(["true"]).run().exited(0);
    let _run = Holder::new(store, "d-run");
    let _slot = Holder::with(&Lockrun::new(store).key("e-slot").args(["--slots", "2"]), &[]);
    let table = status(store, &[]).exited(0).stdout();
    let states: Vec<(&str, bool)> =
        table.lines().skip(1).map(|line| (line[8..].trim_start(), line.contains("slot 0: "))).collect();
    for ((state, has_slot), (wanted, wants_slot)) in
        states.iter().zip([("by hand ", false), ("kept ", false), ("kept ", false), ("held ", false), ("held ", true)])
    {
        assert!(state.starts_with(wanted) && *has_slot == wants_slot, "{table}");
    }
    for (key, wanted) in [("a-hand", "acquired by hand"), ("b-kept", "kept after its run"), ("e-slot", "slot 0")] {
        let page = status(store, &[key]).exited(75).stdout();
        assert!(page.contains(wanted), "{page}");
    }
    assert!(!status(store, &["d-run"]).exited(75).stdout().contains("slot"));
});

// "Colour on a terminal (NO_COLOR respected, never where stdout is no terminal)."
on_every_store!(colours_are_for_terminals, |store| {
    Lockrun::new(store).key("failed").sh("exit 3").run().exited(3);
    let see = |variable: (&str, &str)| {
        let words = Lockrun::other("status", store).words();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env_remove("NO_COLOR");
        let mut terminal = Terminal::start(command, &[("TERM", "xterm"), variable]);
        assert!(terminal.wait().success());
        terminal.watch(LONG)
    };
    assert!(see(("NO_COLOR", "")).contains("\x1b[31mstatus 3"));
    assert!(!see(("NO_COLOR", "1")).contains("\x1b["));
    assert!(!see(("TERM", "dumb")).contains("\x1b["));
    assert!(!status(store, &[]).exited(0).stdout().contains('\x1b'));
});

// "`prune KEY`": one lock, however young, unless it is in use.
on_every_store!(one_lock_can_be_pruned, |store| {
    let prune = |options: &[&str]| Lockrun::other("prune", store).args(options).run();
    for key in ["a", "b"] {
        Lockrun::new(store).key(key).command(["true"]).run().exited(0);
    }
    let holder = Holder::new(store, "held");
    prune(&["a", "--older-than", "1h"]).exited(0).printed("").silent();
    prune(&["a", "--dry-run"]).exited(0).printed("a\n").silent();
    prune(&["a"]).exited(0).printed("a\n").silent();
    prune(&["--key", "a"]).exited(0).printed("").silent();
    prune(&["held"]).exited(75).printed("").said("is left alone: it is held");
    let left = status(store, &[]).exited(0).stdout();
    assert!(!left.contains("\na ") && left.contains("\nb ") && left.contains("\nheld "), "{left}");
    holder.end();
});

// Run by root in a directory of another user, it leads to no file elsewhere, whatever that user plants there, and
// whenever: each program that it calls is followed here by one that puts links in place of its files.
#[test]
fn the_collector_follows_no_planted_link() {
    let (store, place) = (Store::file(), TempDir::new().expect("a temporary directory"));
    let path = |name: &str| place.path().join(name);
    let (directory, victim, elsewhere, programs) =
        (path("textfile"), path("victim"), path("elsewhere"), path("programs"));
    for made in [&directory, &elsewhere, &programs] {
        fs::create_dir(made).expect("a directory");
    }
    fs::write(&victim, "root's own\n").expect("a file");
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).expect("our own");
    for name in ["mktemp", "lockrun", "tail", "chmod", "cat", "date", "dd", "cp", "install", "mv", "rm"] {
        let real = if name == "lockrun" { PROGRAM.to_owned() } else { find_program(name).display().to_string() };
        let script = format!(
            "#!/bin/sh\n{real} \"$@\"; status=$?\ncd {} && for file in .[!.]*; do ln -sfn {} \"$file\"; done\nexit $status\n",
            directory.display(),
            victim.display()
        );
        write_script(&programs, name, &script);
    }
    let collector = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/textfile-collector");
    for planted in [&victim, &elsewhere] {
        let _ = fs::remove_file(directory.join("lockrun.prom"));
        std::os::unix::fs::symlink(planted, directory.join("lockrun.prom")).expect("a link");
        let call =
            Lockrun::bare().env("PATH", format!("{}:{PATH}", programs.display())).env("LOCKRUN_STORE", store.url());
        call.command([Path::new(collector), &directory]).alone();
        assert_eq!(fs::read_to_string(&victim).expect("it is there"), "root's own\n", "it was overwritten");
        assert_eq!(
            victim.metadata().expect("it is there").permissions().mode() & 0o7777,
            0o600,
            "its mode was changed"
        );
        assert_eq!(fs::read_dir(&elsewhere).expect("ours").count(), 0, "a file was moved there");
    }
    // Without an attacker, the planted link is replaced.
    std::os::unix::fs::symlink(&elsewhere, directory.join("new")).expect("a link");
    fs::rename(directory.join("new"), directory.join("lockrun.prom")).expect("ours");
    let link = programs.join("lockrun");
    fs::remove_dir_all(&programs).expect("ours");
    fs::create_dir(&programs).expect("a directory");
    std::os::unix::fs::symlink(PROGRAM, link).expect("a link");
    let call = Lockrun::bare().env("PATH", format!("{}:{PATH}", programs.display())).env("LOCKRUN_STORE", store.url());
    call.command([Path::new(collector), &directory]).alone().exited(0).silent();
    let written = directory.join("lockrun.prom");
    assert!(written.symlink_metadata().expect("it is there").is_file());
    assert_eq!(written.metadata().expect("it is there").permissions().mode() & 0o777, 0o644);
    let left: Vec<_> = fs::read_dir(&directory).expect("ours").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left.iter().filter(|name| *name == "lockrun.prom").count(), 1);
}
