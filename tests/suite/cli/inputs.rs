//! Setting files that are no regular files: endless, silent, or far too long.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::sys::resource::Resource;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::TempDir;

use crate::support::birth::Birth;
use crate::support::lockrun::PROGRAM;
use crate::support::{Lockrun, Output, Store};

/// Returns the same call with a memory limit, in case it goes wrong.
fn thrifty(call: Lockrun) -> Lockrun {
    let limits = vec![(Resource::RLIMIT_AS, 1 << 29, 1 << 29)];
    call.birth(Birth { limits, ..Birth::default() })
}

/// Creates one of each in the directory: what it is, and where.
fn no_files(directory: &Path) -> [(&'static str, PathBuf); 4] {
    let at = |name: &str| directory.join(name);
    symlink("/dev/zero", at("device")).expect("a link");
    symlink("/dev/ptmx", at("terminal")).expect("a link");
    File::create(at("huge")).expect("a file").set_len(1 << 33).expect("it grows");
    fs::create_dir(at("directory")).expect("a directory");
    [
        ("a device", at("device")),
        ("a device", at("terminal")),
        ("longer than 1 MiB", at("huge")),
        ("a directory", at("directory")),
    ]
}

#[track_caller]
fn is_refused(output: Output, path: &Path, what: &str) {
    let output = output.exited(64).printed("").said(&path.display().to_string()).said(what);
    assert_eq!(output.stderr().lines().count(), 1, "{output}");
}

// "A configuration file is a regular file": anything else is refused by name, and nothing hangs.
#[test]
fn a_configuration_that_is_no_file_is_refused() {
    let directory = TempDir::new().expect("a temporary directory");
    let fifo = directory.path().join("fifo");
    mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).expect("a FIFO");
    for (what, there) in no_files(directory.path()).into_iter().chain([("a FIFO", fifo)]) {
        let home = TempDir::new().expect("a temporary directory");
        let config = home.path().join("lockrun/config.toml");
        fs::create_dir(home.path().join("lockrun")).expect("a directory");
        symlink(there, &config).expect("a link");
        let call = thrifty(Lockrun::bare()).env("XDG_CONFIG_HOME", home.path());
        is_refused(call.clone().key("k").command(["echo", "ran"]).run(), &config, what);
        is_refused(call.arg("status").run(), &config, what);
    }
}

// "`--store-file PATH`: a regular file or a pipe": the same.
#[test]
fn a_store_file_that_is_no_file_is_refused() {
    let directory = TempDir::new().expect("a temporary directory");
    for (what, there) in no_files(directory.path()) {
        let call = thrifty(Lockrun::bare()).key("k").command(["echo", "ran"]);
        is_refused(call.clone().arg("--store-file").arg(&there).run(), &there, what);
        is_refused(call.clone().env("LOCKRUN_STORE_FILE", &there).run(), &there, what);
        // Nor may certificates be in such a file.
        is_refused(call.arg(format!("--store=rediss://127.0.0.1/?ca={}", there.display())).run(), &there, what);
    }
}

/// A script of a shell's with the words of the program as `"$@"`, and the store's URL in `$URL`.
fn script(store: &Store, shell: &str, script: &str, words: &[&str]) -> Output {
    let words = [&[shell, "-c", script, "sh", PROGRAM], words].concat();
    thrifty(Lockrun::bare()).env("URL", store.url()).command(words).alone()
}

const RUN: [&str; 4] = ["--key", "k", "-c", "echo ran"];

// "A pipe is read to its end": what a secrets manager prints need never be in a file.
#[test]
fn a_store_file_may_be_a_pipe() {
    let store = Store::file();
    let directory = TempDir::new().expect("a temporary directory");
    for ways in [
        "\"$@\" --store-file <(echo \"$URL\")",
        "\"$@\" --store-file <(sleep 0.3; printf %s \"${URL%%ocks}\"; sleep 0.3; echo ocks)",
        "echo \"$URL\" | \"$@\" --store-file /dev/stdin",
        "LOCKRUN_STORE_FILE=/dev/fd/7 \"$@\" 7< <(echo \"$URL\")",
        "\"$@\" --store-file /dev/stdin <<<\"$URL\"",
        // The writer of a FIFO may come later, or be waiting already.
        "mkfifo late; { sleep 0.3; echo \"$URL\" >late; } & \"$@\" --store-file late",
        "mkfifo early; { echo \"$URL\" >early; } & sleep 0.3; \"$@\" --store-file early",
    ] {
        let in_directory = format!("cd '{}'; {ways}", directory.path().display());
        script(&store, "bash", &in_directory, &RUN).exited(0).printed("ran\n").silent();
        assert!(store.locks().exists(), "{ways}");
        fs::remove_dir_all(store.locks()).expect("nobody uses it");
    }
}

// ... "within ten seconds, and a mebibyte": lockrun waits no longer for a pipe that no one writes to, or that has no
// end.
#[test]
fn a_pipe_without_an_end_is_given_up() {
    let directory = TempDir::new().expect("a temporary directory");
    let fifo = directory.path().join("fifo");
    mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).expect("a FIFO");
    let silent = thrifty(Lockrun::bare()).args(RUN).arg("--store-file").arg(&fifo).spawn();
    let open = "\"$@\" --store-file /dev/stdin < <(echo file:; exec sleep 600)";
    let words = [&["bash", "-c", open, "sh", PROGRAM], &RUN[..]].concat();
    let open = thrifty(Lockrun::bare()).command(words).spawn_alone();
    let store = Store::file();
    script(&store, "bash", "\"$@\" --store-file <(yes)", &RUN).exited(64).printed("").said("longer than 1 MiB");
    script(&store, "bash", "\"$@\" --store-file <(true)", &RUN).exited(64).printed("").said("/dev/fd/");
    is_refused(silent.wait(), &fifo, "no process has written");
    is_refused(open.wait(), Path::new("/dev/stdin"), "still open");
    assert!(!store.locks().exists());
}
