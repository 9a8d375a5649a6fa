//! Which place counts if a setting is made in several.

use std::fs;

use tempfile::TempDir;

use crate::support::config::{System, UserConfig};
use crate::support::{Holder, Lockrun, Store};

// "The command line wins over the environment, it over the user's file, it over the system's."
#[test]
fn the_strongest_place_wins() {
    let store = Store::file();
    let user = UserConfig::with("command = 'echo user'");
    let url = store.url();
    let words = ["--key", "k", "--store", &url];
    let call = user.of(Lockrun::bare());
    call.clone().args(words).run().exited(0).printed("user\n").silent();
    let call = call.env("LOCKRUN_COMMAND", "echo environment");
    call.clone().args(words).run().exited(0).printed("environment\n").silent();
    call.args(words).args(["-c", "echo typed"]).run().exited(0).printed("typed\n").silent();

    let system = System::with("command = 'echo system'\nttl = '77s'");
    let nobody = Lockrun::bare();
    system.run(&nobody, &words).exited(0).printed("system\n").silent();
    system.run(&user.bare(), &words).exited(0).printed("user\n").silent();
    let environment = user.bare().env("LOCKRUN_COMMAND", "echo environment");
    system.run(&environment, &words).exited(0).printed("environment\n").silent();
    // The weaker place counts for what the stronger ones do not set.
    let bad = ["--key", "k", "--store", &url, "--renew-every", "80s"];
    system.run(&user.bare(), &bad).exited(64).said("1m 17s");
}

// The same of options that exclude each other: the strongest place that sets one decides, and can undo weaker ones.
#[test]
fn what_excludes_each_other_is_decided_by_the_strongest_place() {
    let store = Store::file();
    let _holder = Holder::new(&store, "held");
    let user = UserConfig::with("skip = true");
    let attempt = |call: Lockrun| call.args(["--store", &store.url()]).key("held").command(["echo", "ran"]).run();
    attempt(user.bare()).exited(0).silent();
    attempt(user.bare().arg("--fail")).exited(75);
    attempt(user.bare().env("LOCKRUN_WAIT", "0.1")).exited(75);
    attempt(user.bare().env("LOCKRUN_SKIP", "false")).exited(75);
    attempt(user.bare().env("LOCKRUN_FAIL", "true")).exited(75);
    user.write("wait = 0.1\nconflict-exit-code = 9", 0o600);
    attempt(user.bare()).exited(9);
    attempt(user.bare().arg("-E8")).exited(8);
    attempt(user.bare().arg("--skip")).exited(0).silent();
    user.write("skip = true\n\nwait = true", 0o600);
    let output = attempt(user.bare()).exited(64);
    output.said(&format!("{}skip", user.line(1))).said(&format!("{}wait", user.line(3)));

    let system = System::with("wait = true\nquiet = true");
    let url = store.url();
    let words = ["--key", "held", "--store", &url, "--", "echo", "ran"];
    user.write("wait = false", 0o600);
    system.run(&user.bare(), &words).exited(75).silent();
    user.write("verbose = true\nwait = '50ms'", 0o600);
    system.run(&user.bare(), &words).exited(75).said("is held by");
}

// A script that acquires a lock by hand must not go on without it because of a setting that it does not know of.
#[test]
fn acquire_is_not_told_elsewhere_to_go_on_without_the_lock() {
    let store = Store::file();
    let _holder = Holder::new(&store, "held");
    let user = UserConfig::new();
    let attempt = |call: Lockrun| user.of(call).args(["acquire", "--key", "held", "--store", &store.url()]);
    for text in ["skip = true", "conflict-exit-code = 0"] {
        user.write(text, 0o600);
        attempt(Lockrun::bare()).run().exited(75).printed("");
    }
    let told = || Lockrun::bare().env("LOCKRUN_SKIP", "true").env("LOCKRUN_CONFLICT_EXIT_CODE", "0");
    attempt(told()).run().exited(75).printed("");
    attempt(told()).arg("--skip").run().exited(0).printed("");
    attempt(told()).arg("-E0").run().exited(0).printed("");
    // Harmless options may be set anywhere.
    user.write("wait = '0.1'\nquiet = true", 0o600);
    attempt(told()).run().exited(75).printed("").silent();
}

/// Options that apply only to locks, with an invalid value.
const OF_LOCKS: [(&str, &str); 6] = [
    ("slots", "0"),
    ("wait", "later"),
    ("skip", "maybe"),
    ("conflict-exit-code", "256"),
    ("min-hold", "later"),
    ("keep", "maybe"),
];

/// The same for options that apply to the command.
const OF_COMMANDS: [(&str, &str); 6] = [
    ("renew-every", "0"),
    ("on-lost", "explode"),
    ("max-runtime", "0"),
    ("kill-after", "later"),
    ("descendants", "adopt"),
    ("events", ""),
];

// A command ignores options that it does not have, both in a variable and in a file that other commands read, too.
#[test]
fn what_a_command_does_not_have_does_not_end_it() {
    let store = Store::file();
    let words = |words: &[&'static str]| [words, &["--store"]].concat();
    let variable = |name: &str| format!("LOCKRUN_{}", name.to_ascii_uppercase().replace('-', "_"));
    let reserve = words(&["reserve", "--key", "seq", "--from", "1"]);
    for (name, value) in OF_LOCKS {
        let told = || Lockrun::bare().env(&variable(name), value);
        told().key("k").command(["true"]).run().exited(64).said(&variable(name));
        told().args(&reserve).arg(store.url()).command(["true"]).run().exited(0).silent();
    }
    let others: [&[&'static str]; 4] =
        [&["status"], &["break", "--key", "k"], &["prune", "--older-than", "1h"], &["doctor"]];
    for (name, value) in OF_LOCKS.into_iter().chain(OF_COMMANDS).chain([("ttl", "soon"), ("verbose", "maybe")]) {
        for command in others {
            let output = Lockrun::bare().env(&variable(name), value).args(words(command)).arg(store.url()).run();
            assert!(output.status != Some(64) && !output.stderr().contains(name), "{name}: {output}");
        }
    }
    for (name, value) in OF_COMMANDS.into_iter().chain([("min-hold", "later"), ("keep", "maybe")]) {
        let call = Lockrun::bare().env(&variable(name), value).args(words(&["acquire", "--key", "k"])).arg(store.url());
        let output = call.run().exited(0).silent();
        let token = output.stdout();
        let call = Lockrun::bare().env(&variable(name), value).args(words(&["release", "--key", "k"])).arg(store.url());
        call.args(["--token", token.trim()]).run().exited(0).silent();
    }
    // Two that exclude each other in one place are refused only by commands that have them.
    let both = || Lockrun::bare().env("LOCKRUN_SKIP", "true").env("LOCKRUN_WAIT", "5");
    both().key("k").command(["true"]).run().exited(64).said("exclude each other");
    both().args(&reserve).arg(store.url()).command(["true"]).run().exited(0).silent();
    for text in
        ["skip = true\nwait = true", "slots = 0", "wait = 'later'", "conflict-exit-code = 256", "min-hold = 'x'"]
    {
        let user = UserConfig::with(text);
        user.bare().key("k").command(["true"]).run().exited(64);
        user.bare().args(&reserve).arg(store.url()).command(["true"]).run().exited(0).silent();
    }
}

/// One of two options that exclude each other: its name and value, and with it alone, the status and whether there is a
/// message.
type Way<'a> = (&'a str, &'a str, (i32, bool));

// "The command line wins over the environment, it over the user's file": of all that exclude each other, in each pair
// of places.
#[test]
fn a_stronger_place_replaces_what_excludes_it_below() {
    let store = Store::file();
    let _holder = Holder::new(&store, "held");
    let (other, file) = (Store::file(), TempDir::new().expect("a temporary directory"));
    let named = file.path().join("url");
    fs::write(&named, other.url()).expect("a file");
    let (url, named) = (store.url(), named.to_str().expect("a plain path").to_owned());
    let pairs: [[Way<'_>; 2]; 5] = [
        [("fail", "", (75, true)), ("skip", "", (0, false))],
        [("fail", "", (75, true)), ("wait", "0.05", (75, true))],
        [("skip", "", (0, false)), ("wait", "0.05", (75, true))],
        [("verbose", "", (75, true)), ("quiet", "", (75, false))],
        [("store", &url, (75, true)), ("store-file", &named, (0, false))],
    ];
    for [one, two] in pairs {
        for (strong, weak) in [(one, two), (two, one)] {
            let value = |way: Way<'_>| if way.1.is_empty() { "true".to_owned() } else { way.1.to_owned() };
            let typed = |call: Lockrun, way: Way<'_>| {
                call.arg(if way.1.is_empty() { format!("--{}", way.0) } else { format!("--{}={}", way.0, way.1) })
            };
            let variable = |way: Way<'_>| format!("LOCKRUN_{}", way.0.to_ascii_uppercase().replace('-', "_"));
            let line = |way: Way<'_>| {
                if way.1.is_empty() { format!("{} = true", way.0) } else { format!("{} = '{}'", way.0, way.1) }
            };
            let user = UserConfig::with(&line(weak));
            let calls = [
                typed(Lockrun::bare().env(&variable(weak), value(weak)), strong),
                typed(user.bare(), strong),
                user.bare().env(&variable(strong), value(strong)),
            ];
            for call in calls {
                let call = if strong.0.starts_with("store") { call } else { call.arg("--store").arg(&url) };
                let output = call.key("held").command(["true"]).run();
                let seen = (output.status.unwrap_or(-1), !output.stderr().is_empty());
                assert_eq!(seen, strong.2, "{} over {}: {output}", strong.0, weak.0);
            }
        }
        // Both in one place are refused.
        let (one, two) = (one.0, two.0);
        let set = |name: &str| format!("LOCKRUN_{}", name.to_ascii_uppercase().replace('-', "_"));
        let call = Lockrun::bare().env(&set(one), "true").env(&set(two), "true").key("held").command(["true"]);
        call.run().exited(64).said("exclude each other");
    }
}

// "`store = "redis://..."`, `store-file = "..."`": a store in a stronger place wins over either in a weaker one.
#[test]
fn the_store_is_one_setting_however_it_is_named() {
    let (one, other) = (Store::file(), Store::file());
    let user = UserConfig::with(&format!("store = {:?}", one.url()));
    user.bare().key("k").command(["true"]).run().exited(0).silent();
    assert!(one.locks().exists());
    let named = user.0.path().join("store");
    fs::write(&named, other.url()).expect("a file");
    let call = user.bare().key("k").env("LOCKRUN_STORE_FILE", &named);
    call.clone().command(["true"]).run().exited(0).silent();
    assert!(other.locks().exists());
    user.write(&format!("store-file = {:?}", named.display().to_string()), 0o644);
    user.bare().key("k").command(["true"]).run().exited(0).silent();
}
