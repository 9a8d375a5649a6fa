//! Slips that would acquire another lock than was meant, or run another command: each ends with 64, names what
//! happened, runs nothing and touches nothing.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::TempDir;

use crate::support::config::UserConfig;
use crate::support::holder::write_script;
use crate::support::processes::PATH;
use crate::support::refusal::{is_refused, marked, touches_no_store, touches_nothing};
use crate::support::store::on_every_store;
use crate::support::{Holder, Lockrun, Output, Store};

/// A valid token.
const TOKEN: &str = "00000000-0000-4000-8000-000000000000";

/// Each of lockrun's other commands with what it requires.
const OTHERS: [&[&str]; 8] = [
    &["acquire", "--key", "k"],
    &["renew", "--key", "k", "--token", TOKEN],
    &["release", "--key", "k", "--token", TOKEN],
    &["reserve", "--key", "k", "--from", "1", "-c", "echo ran"],
    &["status"],
    &["break", "--key", "k"],
    &["doctor"],
    &["prune", "--older-than", "1d"],
];

/// One of lockrun's other commands with the store at this URL, and what it requires.
fn other(url: &str, words: &[&str]) -> Lockrun {
    Lockrun::bare().args([words[0], "--store", url]).args(&words[1..])
}

// "One that begins with `-` only as `--key=-x`, so that an unset variable does not make the next option the key."
#[test]
fn an_option_is_no_key() {
    for (words, wanted) in [
        (&["--key", "--skip"][..], "--key was given no value: the next word is the option --skip "),
        (&["-k", "--skip"], "-k was given no value: the next word is the option --skip "),
        (&["-vk", "-w"], "-k was given no value: the next word is the option -w "),
        (&["--key"], "--key was given no value: the next word is -- "),
        (&["--key", "-"], "--key was given no value: the next word is - "),
        (&["--key", "--store=redis://u:secret@h"], "the next word is the option --store (an unset variable?)"),
    ] {
        touches_nothing(|call| marked(call.args(words)), wanted);
        touches_nothing(|call| marked(call.args(words)), "write --key=-x for a key that begins with -");
    }
    for words in OTHERS.iter().filter(|words| words.contains(&"--key")) {
        let rest = &words[3..];
        let command = words[0];
        let case = |url: &str| Lockrun::bare().args([command, "--store", url, "--key", "-v"]).args(rest).run();
        touches_no_store(case, "--key was given no value: the next word is the option -v ");
    }
    touches_no_store(|url| other(url, &["status", "--key", "--json"]).run(), "the next word is the option --json ");
}

// The same for a chosen token: all users who make the same slip would hold the lock under one token.
#[test]
fn an_option_is_no_token() {
    let case = |url: &str| other(url, &["acquire", "--key", "k", "--token", "--json"]).run();
    touches_no_store(
        case,
        "--token was given no value: the next word is the option --json (an unset variable?); write --token=-x",
    );
}

// A key or a token that is joined to its option may begin with `-`, even after the short option.
#[test]
fn a_key_that_begins_with_a_dash_is_tied_to_its_option() {
    let store = Store::file();
    for tied in ["--key=-x", "-k=-x", "-k-x", "-vk=-x"] {
        let output = Lockrun::new(&store).arg(tied).sh("printf %s \"$LOCKRUN_KEY\"").run();
        output.exited(0).printed("-x");
    }
    let acquired = Lockrun::other("acquire", &store).args(["--key=--key", "--token=-t"]).run();
    acquired.exited(0).printed("-t\n").silent();
    Lockrun::other("release", &store).args(["--key=--key", "--token=-t"]).run().exited(0).silent();
}

// "So is a `LOCKRUN_…` variable that is none of ours: a misspelt store must not become another store."
#[test]
fn a_misspelt_variable() {
    let stoer = |call: Lockrun| call.env("LOCKRUN_STOER", "redis://u:secret@127.0.0.1:1");
    let wanted = "LOCKRUN_STOER is not a variable of lockrun; the nearest is LOCKRUN_STORE: ";
    let without_secret = |output: Output| {
        assert!(!output.stderr().contains("secret"), "{output}");
        output
    };
    touches_nothing(|call| without_secret(marked(stoer(call.key("k")))), wanted);
    for words in OTHERS {
        touches_no_store(|url| without_secret(stoer(other(url, words)).run()), wanted);
    }
    for (name, nearest) in [
        ("SKPI", "SKIP"),
        ("store", "STORE"),
        ("STOREFILE", "STORE_FILE"),
        ("WAITS", "WAIT"),
        ("TIMEOUT", "STORE_TIMEOUT"),
    ] {
        let call = |call: Lockrun| marked(call.key("k").env(&format!("LOCKRUN_{name}"), "true"));
        touches_nothing(
            call,
            &format!("LOCKRUN_{name} is not a variable of lockrun; the nearest is LOCKRUN_{nearest}"),
        );
    }
    // A variable's name can be anything: if it has no form of a name, it is not repeated.
    let hidden = "a variable that begins with LOCKRUN_ (not shown, as it may contain a password) is not a variable";
    touches_nothing(|call| marked(call.key("k").env("LOCKRUN_\x1b[31m\n", "")), hidden);
    let not_text = "exec env \"$(printf 'LOCKRUN_\\377')=1\" \"$@\"";
    touches_nothing(|call| call.key("k").command(["echo", "ran"]).in_shell(not_text).alone(), hidden);
}

// ... but not one that Kubernetes sets in every container of a namespace in which a service is called `lockrun-redis`.
#[test]
fn a_variable_of_a_service() {
    let service = [
        ("SERVICE_HOST", "10.0.0.1"),
        ("SERVICE_PORT", "6379"),
        ("SERVICE_PORT_REDIS", "6379"),
        ("PORT", "tcp://10.0.0.1:6379"),
        ("PORT_6379_TCP", "tcp://10.0.0.1:6379"),
        ("PORT_6379_TCP_PROTO", "tcp"),
        ("PORT_6379_TCP_PORT", "6379"),
        ("PORT_6379_TCP_ADDR", "10.0.0.1"),
    ];
    let store = Store::file();
    let call = Lockrun::new(&store).key("k").command(["echo", "ran"]);
    let call = service.iter().fold(call, |call, (name, value)| call.env(&format!("LOCKRUN_REDIS_{name}"), value));
    call.run().exited(0).printed("ran\n").silent();
}

// ... and every variable of ours is accepted: those of all options that the help lists, and those that lockrun gives
// its command.
#[test]
fn a_variable_of_ours() {
    let store = Store::file();
    let help = Lockrun::bare().arg("--help").run().exited(0).stdout();
    let options = help.lines().filter_map(|line| line.trim_start().split_once("--")).filter(|(before, _)| {
        before.is_empty() || before.len() == 4 && before.starts_with('-') && before.ends_with(", ")
    });
    let names: Vec<&str> = options.filter_map(|(_, after)| after.split([' ', '[', '=', ',']).next()).collect();
    assert!(names.len() >= 20 && names.contains(&"store-file") && names.contains(&"quiet"), "{names:?}");
    for name in names.into_iter().filter(|name| !["help", "version"].contains(name)) {
        let variable = format!("LOCKRUN_{}", name.to_ascii_uppercase().replace('-', "_"));
        let output = Lockrun::bare()
            .args(["prune", "--older-than", "1d"])
            .args(["--store", &store.url()])
            .env(&variable, "1")
            .run();
        output.exited(0);
    }
    // Names that only look like ours are accepted, too.
    let call = Lockrun::bare().env("LOCKRUNNER", "1").env("lockrun_x", "1").env("A_LOCKRUN_X", "1");
    call.args(["--store", &store.url(), "--key", "k", "true"]).run().exited(0).silent();
    // A run within a run with slots, within one with a value.
    let lockrun = crate::support::lockrun::PROGRAM;
    let inner = format!("{lockrun} --key inner -- {lockrun} status --key inner");
    let outer = format!("{lockrun} --key outer --slots 2 -- {inner}");
    let call = Lockrun::bare().env("LOCKRUN_STORE", store.url()).args(["reserve", "--key", "seq", "--from", "1"]);
    call.sh(&outer).run().exited(75).silent();
    let export = Lockrun::bare()
        .env("LOCKRUN_STORE", store.url())
        .args(["acquire", "--key", "hand", "--slots", "2", "--export"]);
    let script = format!("eval \"$(\"$@\")\" && {lockrun} release");
    export.in_shell(&script).alone().exited(0).silent();
}

/// Durations with an unknown unit, and that unit.
const NO_UNITS: [(&str, &str); 11] = [
    ("1M", "M"),
    ("1month", "month"),
    ("2 months", "months"),
    ("1y", "y"),
    ("1year", "year"),
    ("2years", "years"),
    ("1h 5M", "M"),
    ("5min", "min"),
    ("10us", "us"),
    ("10ns", "ns"),
    ("5S", "S"),
];

// "A duration's unit is one of ms, s, m, h, d, w; months and years are refused", everywhere.
#[test]
fn a_month_is_no_duration() {
    let wanted = |unit: &str| format!("there is no unit \"{unit}\"; the units are ms, s, m (minutes), h, d and w");
    let options = ["ttl", "wait", "renew-every", "store-timeout", "min-hold", "kill-after", "max-runtime"];
    for option in options {
        let (text, unit) = NO_UNITS[0];
        let output = |call: Lockrun| marked(call.key("k").arg(format!("--{option}={text}")));
        touches_nothing(output, &format!("--{option}: \"1M\" is not a duration: {}", wanted(unit)));
        let variable = format!("LOCKRUN_{}", option.to_ascii_uppercase().replace('-', "_"));
        touches_nothing(|call| marked(call.key("k").env(&variable, text)), &format!("{variable}: \"1M\" is not"));
        let user = UserConfig::with(&format!("{option} = \"{text}\""));
        touches_nothing(|call| marked(user.of(call).key("k")), &format!("{}{option}: \"1M\" is not", user.line(1)));
    }
    for (text, unit) in NO_UNITS {
        touches_nothing(|call| marked(call.key("k").args(["--ttl", text])), &wanted(unit));
    }
    for words in [
        &["acquire", "--key", "k", "--ttl", "1M"][..],
        &["acquire", "--key", "k", "-w1M"],
        &["renew", "--key", "k", "--token", TOKEN, "--ttl", "1M"],
        &["prune", "--older-than", "1M"],
        &["status", "--store-timeout", "1M"],
    ] {
        touches_no_store(|url| other(url, words).run(), &wanted("M"));
    }
    // The others are ways to write the same time.
    let store = Store::file();
    for text in ["60", "60s", "60000ms", "1m", "0.5m 30s"] {
        Lockrun::new(&store).key("k").args(["--ttl", text]).command(["true"]).run().exited(0).silent();
    }
    for text in ["1h", "1d", "1w"] {
        Lockrun::new(&store).key("k").args(["--ttl", text]).command(["true"]).run().exited(0).silent();
    }
}

/// Returns a call that finds a program called `5x` in the directory; the test would see it run.
fn with_program(call: Lockrun, directory: &Path) -> Lockrun {
    write_script(directory, "5x", "#!/bin/sh\necho \"ran $*\"\n");
    call.env("PATH", format!("{}:{PATH}", directory.display()))
}

// A word after `-w` that begins with a digit and is no duration is neither the time to wait nor the command.
#[test]
fn a_mistyped_duration_is_no_command() {
    let programs = TempDir::new().expect("a temporary directory");
    for (words, wanted) in [
        (&["-w", "5x", "echo"][..], "-w: \"5x\" is not a duration: there is no unit \"x\"; the units are "),
        (&["--wait", "5x"], "--wait: \"5x\" is not a duration"),
        (&["-vw", "5x", "-v"], "; a command of this name is written -w -- 5x"),
        (&["-w", "1M", "5x"], "-w: \"1M\" is not a duration"),
        (&["-w", "5:30", "5x"], "-w: \"5:30\" is not a duration"),
    ] {
        touches_nothing(|call| with_program(call, programs.path()).key("k").args(words).run(), wanted);
    }
    touches_no_store(|url| other(url, &["acquire", "--key", "k", "-w", "5x"]).run(), "-w: \"5x\" is not a duration");
    // As the message says.
    let store = Store::file();
    let call = || with_program(Lockrun::new(&store), programs.path()).key("k");
    call().args(["-w", "--", "5x", "y"]).run().exited(0).printed("ran y\n").silent();
    call().args(["-w", "5", "5x", "y"]).run().exited(0).printed("ran y\n").silent();
    assert_eq!(fs::read_dir(programs.path()).expect("ours").count(), 1);
}

// An empty value is an unset variable, and does not mean to wait for ever.
#[test]
fn an_empty_wait_is_none() {
    for word in ["-w=", "--wait=", "-vw="] {
        touches_nothing(|call| marked(call.key("k").arg(word)), "--wait: \"\" is not a duration");
    }
}

// "LOCKRUN_SKIP and LOCKRUN_WAIT to true, false or a duration."
#[test]
fn skip_as_a_variable() {
    let store = Store::file();
    other(&store.url(), &["acquire", "--key", "k", "--ttl", "none"]).run().exited(0);
    for (value, status) in [("1", 0), ("true", 0), ("1h", 0), ("false", 75), ("0", 75)] {
        marked(Lockrun::new(&store).key("k").env("LOCKRUN_SKIP", value)).exited(status).printed("");
    }
}

// A misspelt option: the message names the nearest one, and does not advise passing it to COMMAND.
#[test]
fn a_misspelt_option() {
    for (typed, wanted) in [
        ("--skipp", "unknown option --skipp; did you mean --skip?"),
        ("--stoer=redis://u:secret@h", "unknown option --stoer; did you mean --store?"),
        ("--colour", "unknown option --colour\n"),
        ("-z", "unknown option -z\n"),
    ] {
        let case = |call: Lockrun| {
            let output = marked(call.key("k").arg(typed));
            assert!(!output.stderr().contains("as a value") && !output.stderr().contains("secret"), "{output}");
            output
        };
        touches_nothing(case, wanted);
    }
    touches_no_store(|url| other(url, &["status", "--jsn"]).run(), "unknown option --jsn; did you mean --json?");
}

// A first word that is none of lockrun's commands.
#[test]
fn a_word_from_elsewhere() {
    for (word, wanted) in [
        ("stat", "; did you mean status?"),
        ("list", "; did you mean status?"),
        ("unlock", "; did you mean release?"),
        ("run", "; a command needs no such word before it: lockrun --key KEY -- COMMAND"),
        ("./release.sh", "; to run it under a lock, write --key KEY before it"),
    ] {
        is_refused(Lockrun::bare().args([word, "--key", "k", "--", "echo", "ran"]).run(), wanted);
    }
    is_refused(Lockrun::bare().run(), "Usage: lockrun --key KEY ");
}

// After an option, the name of one of lockrun's own commands is a program to run.
#[test]
fn a_command_of_lockruns_own_behind_an_option() {
    let store = Store::file();
    let output = Lockrun::new(&store).key("backup").command(["status"]).run().exited(127).printed("");
    output.said("not found; lockrun's own status is written first: lockrun status --key backup");
    touches_nothing(
        |call| call.command(["status"]).run(),
        "; if lockrun's own status is meant, write it first: lockrun status",
    );
}

// "`status`, `break`, `renew` and `release` also take the key as their one argument."
#[test]
fn a_key_without_its_option() {
    let store = Store::file();
    let url = store.url();
    let token = other(&url, &["acquire", "--key", "k", "--ttl", "10m"]).run().exited(0).stdout();
    let token = token.trim();
    other(&url, &["status", "k"]).run().exited(75).silent();
    other(&url, &["renew", "k", "--token", token]).run().exited(0).silent();
    other(&url, &["release", "--token", token, "k"]).run().exited(0).silent();
    other(&url, &["break", "k"]).run().exited(0);
    other(&url, &["status", "k", "--json"]).run().exited(0).silent();
    other(&url, &["acquire", "k", "--ttl", "10m"]).run().exited(0).silent();
    Lockrun::bare().args(["--store", &url, "status", "k"]).run().exited(75).silent();
    Lockrun::bare().args(["--store", &url, "-v", "acquire", "k"]).run().exited(75);
    for words in [&["status", "k", "--key", "k"][..], &["break", "k", "--key", "other"]] {
        touches_no_store(|url| other(url, words).run(), "the key is given twice, with --key and without");
    }
    touches_no_store(|url| other(url, &["status", "k", "l"]).run(), "unexpected argument 'l'");
}

// A word in the place of the key that is something else: with a lock of that name, which is free, it would succeed at nothing.
#[test]
fn what_is_no_key() {
    for command in ["status", "break", "prune", "acquire"] {
        for word in ["redis://u:s3cret@h/0", "file:/run/locks"] {
            let wanted = "the key is the URL of a store: name the store with --store";
            touches_no_store(|url| other(url, &[command, word]).run(), wanted);
        }
    }
    for command in ["break", "prune", "acquire"] {
        touches_no_store(
            |url| other(url, &[command, "z*"]).run(),
            "the key is a pattern, which lockrun status alone takes",
        );
    }
    let store = Store::file();
    other(&store.url(), &["break", "--key=z*"]).run().exited(0);
    for words in [&["--events", "--"][..], &["-c", "--"]] {
        touches_nothing(
            |call| call.key("k").args(words).args(["echo", "ran"]).run(),
            "was given no value: the next word is --",
        );
    }
}

// A command that cannot be executed: the message says which file is missing, and what was most likely meant.
#[test]
fn a_command_that_cannot_be_executed() {
    let (store, directory) = (Store::file(), TempDir::new().expect("a temporary directory"));
    let script = |name: &str, text: &str| write_script(directory.path(), name, text);
    let run = |program: &str| Lockrun::new(&store).key("k").command([program]).run();
    run("echo ran")
        .exited(127)
        .printed("")
        .said("; write the command's words apart, or pass a command line for a shell with -c");
    let windows = script("windows", "#!/bin/sh\r\necho ran\r\n");
    run(&windows)
        .exited(126)
        .printed("")
        .said("its interpreter \"/bin/sh\\r\" is missing; its lines end as on Windows (CR LF)");
    let missing = script("missing", "#! /no/such/interpreter -x\necho ran\n");
    run(&missing).exited(126).printed("").said("its interpreter \"/no/such/interpreter\" is missing");
    let found = Lockrun::new(&store).key("k").env("PATH", format!("{}:{PATH}", directory.path().display()));
    found.command(["missing"]).run().exited(126).said("its interpreter \"/no/such/interpreter\" is missing");
    // An interpreter that is there, but cannot be executed itself.
    let nested = script("nested", &format!("#!{missing}\n"));
    run(&nested).exited(126).printed("").said(&format!(
        "its interpreter {missing:?} cannot be executed: its interpreter \"/no/such/interpreter\" is missing"
    ));
    run("/no/such/program").exited(127).said("not found\n");
}

// A store that is a path, or whose password ends its URL's authority.
#[test]
fn a_store_that_is_no_url() {
    let run = |url: &str| marked(Lockrun::at(url).key("k"));
    is_refused(
        run("/tmp/locks"),
        "is not a store's URL, and is not shown, because it may contain a password; a directory is written file:/DIR\n",
    );
    for scheme in ["redis", "postgres"] {
        let output = run(&format!("{scheme}://u:sec/ret@127.0.0.1:1/0"));
        assert!(!output.stderr().contains("sec/") && !output.stderr().contains("ret@"), "{output}");
        is_refused(output, "in a user or a password, / is written %2F");
    }
}

// "Standard output belongs to COMMAND."
#[test]
fn events_on_standard_output() {
    touches_nothing(
        |call| marked(call.key("k").args(["--events", "-"])),
        "--events: must name a file: standard output belongs to COMMAND",
    );
}

// A wait that ran out says so.
on_every_store!(a_wait_that_ran_out, |store| {
    let holder = Holder::new(store, "k");
    let call = Lockrun::new(store).key("k").args(["--wait", "500ms"]);
    let output = call.command(["echo", "ran"]).run().exited(75).printed("");
    assert!(output.stderr().ends_with("; gave up after 500ms\n"), "{output}");
    holder.end();
});

// "Parsing of options stops at `--` and at the first word that is not an option": a path that is not UTF-8 may be in an
// option.
#[test]
fn a_word_that_is_not_utf_8() {
    let (store, directory) = (Store::file(), TempDir::new().expect("a temporary directory"));
    let path = directory.path().join(OsStr::from_bytes(b"caf\xe9"));
    fs::write(&path, store.url()).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("our own");
    let mut option = OsString::from("--store-file=");
    option.push(&path);
    let call = Lockrun::bare().key("k").arg(option).args(["--wait", "5"]).command(["echo", "ran"]);
    call.run().exited(0).printed("ran\n").silent();
}
