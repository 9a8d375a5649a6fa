//! Habits from other programs (flock(1), consul lock, etcdctl, timeout(1)) and from the shell: each refusal names what
//! lockrun has instead.

use std::fs;

use tempfile::TempDir;

use crate::support::processes::PATH;
use crate::support::refusal::{is_refused, marked, touches_no_store, touches_nothing};
use crate::support::{Lockrun, Store};

// flock(1) names the lock by its first word, consul lock too.
#[test]
fn a_lock_as_the_first_word() {
    for (words, wanted) in [
        (&["/tmp/x.lock", "echo", "ran"][..], "; a lock is named with an option: lockrun --key KEY -- COMMAND"),
        (&["backup", "--", "echo", "ran"], "; a lock is named with an option: lockrun --key KEY -- COMMAND"),
        (&["9"], "; lockrun locks no file descriptor: write lockrun --key KEY -- COMMAND, or use lockrun acquire"),
        (&["backup.sh"], "; to run it under a lock, write --key KEY before it"),
    ] {
        is_refused(Lockrun::bare().args(words).run(), wanted);
    }
    let no_key =
        |first: &str| format!("no key: name the lock with --key KEY, before the command, which begins with {first}\n");
    for (words, first) in [
        (&["-n", "/tmp/x.lock", "echo", "ran"][..], "\"/tmp/x.lock\""),
        (&["-w", "5", "/tmp/x.lock", "echo", "ran"], "\"/tmp/x.lock\""),
        (&["-x", "/tmp/x.lock", "-c", "echo ran"], "\"/tmp/x.lock\""),
        (&["-n", "9"], "\"9\""),
        (&["--ttl", "30", "s", "--key", "k", "echo", "ran"], "\"s\""),
        (&["--wait", "forever", "--key", "k", "echo", "ran"], "\"forever\""),
        (&["-E", "--key", "k", "echo", "ran"], "\"k\""),
        (&["--skip", "https://u:secret@h/x"], "***"),
    ] {
        touches_nothing(|call| call.args(words).run(), &no_key(first));
    }
}

// Options that others have.
#[test]
fn an_option_of_another_program() {
    for (words, wanted) in [
        (
            &["--timeout", "5"][..],
            "unknown option --timeout; the longest wait for the lock is --wait DURATION, the longest run ",
        ),
        (&["-u"], "unknown option -u; a lock is released when its command ends"),
        (&["-o"], "unknown option -o; lockrun needs no such option: leave it out"),
        (&["--name=x"], "unknown option --name; the lock is named with --key KEY"),
        (&["-name", "x"], "unknown option -name; the lock is named with --key KEY"),
        (&["-try=5s"], "unknown option -try; to wait for the lock, write --wait or --wait DURATION"),
        (&["--endpoints=u:secret@h"], "unknown option --endpoints; the servers are named with --store URL"),
        (&["-n5"], "unknown option -5; a number follows its option: to wait for five seconds, write -w 5"),
    ] {
        let case = |call: Lockrun| {
            let output = marked(call.key("k").args(words));
            assert!(!output.stderr().contains("secret"), "{output}");
            output
        };
        touches_nothing(case, wanted);
    }
}

// A long option with one dash would mean other options and another key: `-skip` a shared lock "ip".
#[test]
fn a_long_option_with_one_dash() {
    for (word, wanted) in [
        ("-key=k", "unknown option -key; did you mean --key?"),
        ("-key", "unknown option -key; did you mean --key?"),
        ("-skip", "unknown option -skip; did you mean --skip?"),
        ("-ttl=5s", "unknown option -ttl; did you mean --ttl?"),
    ] {
        touches_nothing(|call| marked(call.arg(word)), wanted);
    }
    touches_no_store(|url| Lockrun::bare().args(["status", "--store", url, "-json"]).run(), "did you mean --json?");
    let output = Lockrun::new(&Store::file()).arg("-kkey").sh("printf %s \"$LOCKRUN_KEY\"").run();
    output.exited(0).printed("key");
}

// Messages of the parser itself.
#[test]
fn an_option_too_often_or_with_too_much() {
    touches_nothing(|call| marked(call.args(["--key", "k", "--key", "l"])), "--key is given more than once\n");
    touches_nothing(|call| marked(call.key("k").arg("--verbose=2")), "--verbose takes no value: \"2\"\n");
    touches_nothing(|call| call.key("k").arg("--command").run(), "--command needs a value: --command STRING\n");
    touches_no_store(
        |url| Lockrun::bare().args(["acquire", "--store", url, "backup", "./run.sh"]).run(),
        "unexpected argument \"./run.sh\"; to run a command under a lock, leave acquire out: lockrun --key KEY -- COMMAND",
    );
    is_refused(Lockrun::bare().args(["help", "statu"]).run(), "; did you mean status?\n");
}

// "A job that hangs is reported instead of being skipped for ever": also if the duration is an unset variable.
#[test]
fn an_empty_skip_is_none() {
    touches_nothing(|call| marked(call.key("k").arg("--skip=")), "--skip: \"\" is not a duration");
    marked(Lockrun::new(&Store::file()).key("k").env("LOCKRUN_SKIP", "")).exited(0).printed("ran\n");
}

// Words that a shell understands, but that are no programs.
#[test]
fn a_command_that_only_a_shell_knows() {
    let (store, directory) = (Store::file(), TempDir::new().expect("a temporary directory"));
    let run = |words: &[&str]| Lockrun::new(&store).key("k").directory(directory.path()).command(words).run();
    for (words, wanted) in [
        (&["cd", "/"][..], "cannot run cd: not found; it is a shell builtin: pass the command line to a shell with -c"),
        (&["TZ=UTC", "date"], "; to set a variable, write env before it, or pass a command line for a shell with -c"),
        (&["--wait", "true"], "; lockrun's own options are written before --"),
        (&["day", "true"], "; a duration is one word, such as 30s or '2h 30m'"),
        // As in cron's mail: cron's PATH is short.
        (&["no-such-report.sh"], &format!("not found; PATH is {PATH}\n")),
        (&["./no-such-report.sh"], "not found\n"),
    ] {
        run(words).exited(127).printed("").said(wanted);
    }
    fs::write(directory.path().join("script"), "echo ran\n").expect("a file");
    fs::create_dir(directory.path().join("directory")).expect("a directory");
    run(&["./script"]).exited(126).printed("").said("cannot run ./script: it is not executable: chmod +x\n");
    run(&["./directory"]).exited(126).printed("").said("cannot run ./directory: it is a directory\n");
}

// Each store's URL as others write it.
#[test]
fn a_store_as_others_name_it() {
    for (url, wanted) in [
        ("", "the store is empty (an unset variable?); write file: "),
        (
            "localhost",
            "; a server is written redis://HOST, postgres://HOST/DATABASE, mysql://HOST/DATABASE or etcd://HOST,HOST,HOST\n",
        ),
        ("localhost:6379", "; a Redis is written redis://HOST or redis://HOST:PORT\n"),
        ("db.example.com:5432", "; a PostgreSQL is written postgres://HOST/DATABASE\n"),
        ("db.example.com:3306", "; a MySQL or MariaDB is written mysql://HOST/DATABASE\n"),
        ("mysql -h db.example.com", "; write mysql://USER:PASSWORD@HOST/DATABASE\n"),
        ("mysql2://u@h/db", "mysql2: is not a scheme of lockrun's; write mysql://HOST/DATABASE\n"),
        ("http://localhost:2379", "; write etcd://HOST for an etcd\n"),
        ("valkey://localhost", "; write redis://HOST for a Redis or Valkey\n"),
        ("REDIS://localhost", "; it is written in small letters: redis://\n"),
        ("/run/redis.sock", "; a Redis's socket is written redis+unix:///PATH\n"),
        ("\"redis://localhost\"", "; the quotation marks are part of it; leave them out\n"),
        ("$REDIS_URL", "; a variable is expanded by a shell alone, not by cron or systemd; write the URL itself\n"),
        ("file:~/locks", "begins with ~, which only a shell expands"),
        ("redis://::1:6379", "has an IPv6 address without brackets; write [ADDRESS] or [ADDRESS]:PORT"),
    ] {
        is_refused(marked(Lockrun::at(url).key("k")), wanted);
    }
}

// A directory for everyone is no lock directory, and its mode is right as it is.
#[test]
fn a_directory_for_all_keeps_its_mode() {
    let output = marked(Lockrun::at("file:/tmp").key("k")).exited(69).printed("");
    let output = output.said("; name one below it that is yours alone, such as file:/tmp/locks\n");
    assert!(!output.stderr().contains("chmod") && !output.stderr().contains("removed"), "{output}");
}
