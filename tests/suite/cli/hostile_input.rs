//! Input that would steer a terminal or give away a password, and the messages about it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use serde_json::json;
use tempfile::TempDir;

use crate::support::refusal::marked;
use crate::support::{Lockrun, Output};

// "What comes out is escaped before a terminal sees it": what was typed is escaped like what was stored.
#[test]
fn a_bad_word_is_no_danger_to_a_terminal() {
    for words in [["--ttl", "\x1b[31m"], ["--key", "\x1b]0;x\x07"], ["--store", "x\x1b[2J:"], ["--\x1b[2J", "x"]] {
        let output = marked(Lockrun::bare().args(words).args(["--key", "k"])).exited(64);
        assert!(!output.stderr().contains(['\x1b', '\x07']), "{output}");
    }
}

// "A URL's password never appears in a message": also when the URL is mistyped, or typed in the wrong place.
#[test]
fn no_password_in_a_refusal() {
    for words in [
        ["--store", "redis:u:secret@h"],
        ["--store", "redis:/u:secret@h"],
        ["--store", "redis:///u:secret@h"],
        ["--store", "u:secret@h:6379"],
        ["--store", ":secret@h:6379"],
        ["--store", "redis://h?password=secret"],
        ["--store", "redis://u:secret@h:port"],
        ["--store-file", "redis://u:secret@h"],
        ["--ttl", "redis://u:secret@h"],
        ["--max-waiting", "redis://u:secret@h"],
        ["--slots", "u:secret@h:6379"],
        ["-E", "redis:u:secret@h"],
        ["--on-lost", "redis://u:secret@h"],
        ["--wait=5", "--wait=redis://u:secret@h"],
        ["--skip=redis://u:secret@h", "--"],
        ["--stoer=redis://u:secret@h", "--"],
    ] {
        let output = marked(Lockrun::bare().key("k").args(words)).exited(64).printed("").said("lockrun: ");
        assert!(!output.stderr().contains("secret"), "{output}");
    }
    for name in
        ["LOCKRUN_STORE", "LOCKRUN_SHARED", "LOCKRUN_SLOTS", "LOCKRUN_SKIP", "LOCKRUN_WAIT", "LOCKRUN_DESCENDANTS"]
    {
        let output = marked(Lockrun::bare().key("k").env(name, "u:secret@h:6379")).exited(64).said(name);
        assert!(!output.stderr().contains("secret"), "{output}");
    }
    let output =
        marked(Lockrun::bare().key("k").env("LOCKRUN_SHARED", "secret")).exited(64).said("is neither true nor false");
    assert!(!output.stderr().contains("secret"), "{output}");
    // A token that begins with `-`.
    let output =
        Lockrun::bare().args(["release", "--key", "k", "--token", "-secret"]).run().exited(64).said("begins with -");
    assert!(!output.stderr().contains("secret"), "{output}");
}

/// Text that would steer a terminal, reverse the direction of writing, and begin a line of its own.
const HOSTILE: &str = "\x1b[31m\u{202e}\u{9b}x\rlockrun: y\nlockrun: z";

/// Asserts that [`HOSTILE`] is printed nowhere unescaped, and that the message has this many lines.
#[track_caller]
fn is_harmless(output: &Output, lines: usize) {
    let said = output.stderr();
    let is_bad = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
    assert!(!said.contains(is_bad) && said.lines().count() == lines, "{output}");
    assert!(said.lines().all(|line| line.starts_with("lockrun: ")), "{output}");
}

// "Control characters are escaped before a terminal sees them", wherever they come from: a variable, a configuration
// file or an argument, and the message takes one line.
#[test]
fn no_value_steers_a_terminal() {
    let directory = TempDir::new().expect("a temporary directory");
    let here = || Lockrun::bare().key("k").directory(directory.path());
    let path = format!("/nonexistent/{HOSTILE}");
    let url = "file:/nonexistent/%1b[31m%e2%80%ae%0dlockrun:%20y%0alockrun:%20z".to_owned();
    let values = [
        ("store", HOSTILE, 64),
        ("store", &url, 69),
        ("store-file", &path, 64),
        ("slots", HOSTILE, 64),
        ("fail", HOSTILE, 64),
        ("skip", HOSTILE, 64),
        ("wait", HOSTILE, 64),
        ("conflict-exit-code", HOSTILE, 64),
        ("ttl", HOSTILE, 64),
        ("renew-every", HOSTILE, 64),
        ("store-timeout", HOSTILE, 64),
        ("on-lost", HOSTILE, 64),
        ("min-hold", HOSTILE, 64),
        ("keep", HOSTILE, 64),
        ("max-runtime", HOSTILE, 64),
        ("kill-after", HOSTILE, 64),
        ("descendants", HOSTILE, 64),
        ("events", &path, 0),
        ("verbose", HOSTILE, 64),
        ("quiet", HOSTILE, 64),
    ];
    let ours = format!("file:{}", directory.path().join("locks").display());
    for (name, value, status) in values {
        let stored = |call: Lockrun| if name.starts_with("store") { call } else { call.args(["--store", &ours]) };
        let variable = format!("LOCKRUN_{}", name.to_ascii_uppercase().replace('-', "_"));
        is_harmless(&stored(here().env(&variable, value)).command(["true"]).run().exited(status), 1);
        let home = TempDir::new().expect("a temporary directory");
        fs::create_dir(home.path().join("lockrun")).expect("a directory");
        fs::write(home.path().join("lockrun/config.toml"), format!("{name} = {}", json!(value))).expect("a file");
        let configured = stored(here().env("XDG_CONFIG_HOME", home.path())).command(["true"]).run().exited(status);
        is_harmless(&configured, 1);
        let typed = stored(here().arg(format!("--{name}={value}"))).command(["true"]).run().exited(status);
        assert!(typed.stderr().lines().all(|line| line.starts_with("lockrun: ")), "{typed}");
        let lines = typed.stderr().lines().count();
        is_harmless(&typed, lines);
    }
    for path in ["/nonexistent/lockrun-x\u{1b}[31m", HOSTILE] {
        is_harmless(&here().args(["--store", &ours]).command([path]).run().exited(127), 1);
        is_harmless(&Lockrun::bare().arg(path).run().exited(64), 1);
    }
    let renew = Lockrun::bare().arg("renew").env("LOCKRUN_KEY", HOSTILE).env("LOCKRUN_TOKEN", HOSTILE).run();
    is_harmless(&renew.exited(64), 1);
    let key = OsStr::from_bytes(b"\x1b[31m\xff");
    is_harmless(&Lockrun::bare().key(key).command(["true"]).run().exited(64), 1);
}
