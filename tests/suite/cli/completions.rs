//! The completions, driven in real shells at a terminal.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::support::holder::write_script;
use crate::support::lockrun::PROGRAM;
use crate::support::processes::{PATH, find_program};
use crate::support::pty::Terminal;
use crate::support::shell::{PROMPT, enter};
use crate::support::{Lockrun, Store};

/// What is typed before a tab, and what appears then. The first program and the file are those of [`at_work`].
const CASES: [(&str, &str); 24] = [
    ("lockrun --on-lost ki", "ll"),
    ("lockrun --on-lost=ki", "ll"),
    ("lockrun --descendants lea", "ve"),
    ("lockrun --max-wai", "ting"),
    ("lockrun stat", "us"),
    ("lockrun help reser", "ve"),
    ("lockrun reserve --on-fail", "ure"),
    ("lockrun -k x -- frobni", "cate-it"),
    ("lockrun -k x frobni", "cate-it"),
    ("lockrun reserve -k x --from 1 -- frobni", "cate-it"),
    // A subcommand is not allowed there: it would be another candidate.
    ("lockrun -k x acqui", "sition"),
    ("lockrun -k x -- frobnicate-it ./only-", "one"),
    ("lockrun --events ./only-", "one"),
    ("lockrun --store-file=./only-", "one"),
    ("lockrun --key nigh", "tly-report"),
    // The shell must not take what follows it for another command.
    ("lockrun --key odd", "\\;key"),
    ("lockrun --key mon", "th\\ end\\ close"),
    ("lockrun --key month\\ e", "nd\\ close"),
    ("lockrun --key 'month e", "nd close"),
    ("lockrun --key \"month e", "nd close"),
    ("lockrun status nigh", "tly-report"),
    ("lockrun acquire nightly-report --tok", "en"),
    ("lockrun --store postgresq", "l://"),
    ("lockrun -k x --store=postgresq", "l://"),
];

/// A directory to work in, with programs, a file, and the locks that were used.
fn at_work() -> (TempDir, Store) {
    let directory = TempDir::new().expect("a temporary directory");
    let bin = directory.path().join("bin");
    fs::create_dir(&bin).expect("a directory");
    std::os::unix::fs::symlink(PROGRAM, bin.join("lockrun")).expect("a link");
    for name in ["frobnicate-it", "acquisition"] {
        write_script(&bin, name, "#!/bin/sh\n");
    }
    File::create(directory.path().join("only-one")).expect("a file");
    let store = Store::file();
    for key in ["nightly-report", "odd;key", "month end close"] {
        Lockrun::new(&store).key(key).command(["true"]).run().exited(0);
    }
    (directory, store)
}

/// The directory of the scripts.
fn scripts() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("completions").display().to_string()
}

/// Types each line and a tab in this shell, after `setup`, and sees what appears.
#[track_caller]
fn complete(shell: &str, options: &[&str], setup: &str) {
    let (directory, store) = at_work();
    let mut terminal = start(shell, options, setup, &directory, &store);
    for (typed, appears) in CASES {
        terminal.type_keys(typed);
        terminal.type_keys("\t");
        terminal.wait_for(appears);
        // Deletes the line, and starts a new one.
        terminal.type_keys("\x15\r");
        terminal.wait_for(PROMPT);
    }
}

/// Starts this shell there, with `setup`.
fn start(shell: &str, options: &[&str], setup: &str, directory: &TempDir, store: &Store) -> Terminal {
    let mut command = Command::new(find_program(shell));
    command.args(options).current_dir(directory.path());
    let (url, path) = (store.url(), format!("{}/bin:{PATH}", directory.path().display()));
    let home = directory.path().display().to_string();
    let env = [("PS1", PROMPT), ("LOCKRUN_STORE", &url), ("HISTFILE", "/dev/null"), ("PATH", &path), ("HOME", &home)];
    let mut terminal = Terminal::start(command, &env);
    enter(&mut terminal, &format!("{setup}; printf 'it is %s' ready"));
    terminal.wait_for("it is ready");
    terminal.wait_for(PROMPT);
    terminal
}

#[test]
fn in_bash() {
    let setup = format!("source {}/lockrun.bash", scripts());
    complete("bash", &["--norc", "--noprofile", "-i"], &setup);
}

// A key comes from any machine that shares the store. Behind an open quote bash would carry out what is in it.
#[test]
fn a_key_is_not_executed() {
    let (directory, store) = at_work();
    for key in ["one$(touch made)", "two`touch made`", "three'$(touch made)'"] {
        Lockrun::new(&store).key(key).command(["true"]).run().exited(0);
    }
    let setup = format!("source {}/lockrun.bash", scripts());
    let mut terminal = start("bash", &["--norc", "--noprofile", "-i"], &setup, &directory, &store);
    for (typed, end) in [("\"on", "\""), ("\"tw", "\""), ("'thr", "'"), ("thr", ""), ("on", "")] {
        terminal.type_keys(&format!("lockrun status {typed}\t{end}\r"));
        terminal.wait_for(PROMPT);
    }
    enter(&mut terminal, "printf 'it is %s' over");
    terminal.wait_for("it is over");
    assert!(!directory.path().join("made").exists());
}

#[test]
fn in_zsh() {
    let setup = format!("fpath=({} $fpath); autoload -Uz compinit; compinit -D -u", scripts());
    complete("zsh", &["-f", "-i"], &setup);
}

#[test]
fn in_fish() {
    let setup = format!("function fish_prompt; echo -n '{PROMPT}'; end; source {}/lockrun.fish", scripts());
    complete("fish", &["--no-config", "-i"], &setup);
}
