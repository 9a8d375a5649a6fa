//! Everything that can be typed wrongly ends with 64, says what is wrong, and touches nothing.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use tempfile::TempDir;

use crate::support::Lockrun;
use crate::support::fake::{Fake, Manner};
use crate::support::refusal::{is_refused, marked, touches_nothing};

/// Words that are wrong, and what the message must name.
type Case<'a> = (&'a [&'a str], &'a str);

/// Options that are wrong before a key, a store and a command that are all right.
const BAD_OPTIONS: &[Case<'static>] = &[
    (&["--frobnicate"], "--frobnicate"),
    (&["-Z"], "-Z"),
    (&["--ttl", "soon"], "soon"),
    (&["--label", "two\nlines"], "--label: has a control character in it"),
    (&["--ttl", ""], "ttl"),
    (&["--ttl", "-1"], "-1"),
    (&["--ttl=-1s"], "-1s"),
    (&["--ttl", "0"], "ttl"),
    (&["--ttl", "999ms"], "ttl"),
    (&["--ttl", "5 parsecs"], "5 parsecs"),
    (&["--ttl", "nan"], "nan"),
    (&["--ttl", "inf"], "inf"),
    (&["--ttl", "1e400"], "1e400"),
    (&["--ttl", "99999999999999999999"], "99999999999999999999"),
    (&["--ttl", "0.5s 18446744073709551615.5s"], "longer than ten years"),
    (&["--renew-every", "often"], "often"),
    (&["--renew-every", "0"], "renew-every"),
    (&["--kill-after", "later"], "later"),
    (&["--kill-after=-1"], "-1"),
    (&["--store-timeout", "x"], "store-timeout"),
    (&["--store-timeout", "0"], "store-timeout"),
    (&["--wait=later"], "later"),
    (&["--wait=-1"], "-1"),
    (&["-wlater"], "later"),
    (&["-w", "5x"], "5x"),
    // Values that cannot work together: renew-every + kill-after + store-timeout not below ttl.
    (&["--ttl", "10s", "--renew-every", "10s"], "renew-every"),
    (&["--ttl", "10s", "--kill-after", "10s"], "kill-after"),
    (&["--ttl", "10s", "--store-timeout", "10s"], "store-timeout"),
    (&["--ttl", "10s", "--renew-every", "4s", "--kill-after", "4s", "--store-timeout", "2s"], "ttl"),
    // ... with the time that clocks and killing need.
    (
        &["--ttl", "10s", "--kill-after", "9.6s", "--renew-every", "0.1s", "--store-timeout", "0.1s"],
        "--kill-after 9s 600ms",
    ),
    (&["--slots", "0"], "--slots"),
    (&["--slots", "1001"], "1001"),
    (&["--slots", "-1"], "-1"),
    (&["--slots", "many"], "many"),
    (&["--slots", ""], "--slots"),
    (&["--min-hold", "long"], "long"),
    (&["--min-hold=-1"], "-1"),
    (&["--keep=yes"], "yes"),
    (&["--events", ""], "--events"),
    (&["--token", "x"], "--token"),
    (&["--json"], "--json"),
    (&["--skip", "--wait"], "--skip"),
    (&["--skip", "-w", "5"], "--skip"),
    (&["--fail", "--skip"], "--skip"),
    (&["-n", "--skip"], "--skip"),
    (&["-n", "--wait"], "--wait"),
    (&["-E", "256"], "256"),
    (&["-E", "-1"], "-1"),
    (&["-E", "x"], "x"),
    (&["-E", ""], "conflict-exit-code"),
    (&["-E", "1.5"], "1.5"),
    (&["--conflict-exit-code=0x10"], "0x10"),
    (&["-v", "-q"], "quiet"),
    (&["--key", "again"], "--key"),
    (&["-c", "true"], "--command"),
    (&["--skip=yes"], "yes"),
];

/// A valid token.
const TOKEN: &str = "00000000-0000-4000-8000-000000000000";

/// Words after the name of one of lockrun's other commands.
const BAD_SUBCOMMANDS: &[Case<'static>] = &[
    (&["acquire"], "--key"),
    (&["acquire", "--key", ""], "key"),
    (&["acquire", "--key", "k", "extra"], "acquire runs no command"),
    (&["acquire", "--key", "k", "--", "true"], "leave acquire out"),
    (&["acquire", "k", "--", "true"], "leave acquire out"),
    (&["acquire", "--key", "k", "--frobnicate"], "--frobnicate"),
    (&["acquire", "--key", "k", "--ttl", "soon"], "soon"),
    (&["acquire", "--key", "k", "--ttl", "0.5"], "ttl"),
    (&["acquire", "--key", "k", "--ttl", "2", "--store-timeout", "2"], "--store-timeout"),
    (&["acquire", "--key", "k", "--slots", "0"], "--slots"),
    (&["acquire", "--key", "k", "--token", "x y"], "--token"),
    (&["acquire", "--key", "k", "--token", ""], "--token"),
    (&["acquire", "--key", "k", "--json", "--export"], "--export"),
    (&["acquire", "--key", "k", "--skip", "-w", "5"], "--skip"),
    (&["acquire", "--key", "k", "-w", "5", "5"], "acquire runs no command"),
    (&["acquire", "--key", "k", "-E", "256"], "256"),
    (&["acquire", "--key", "k", "-v", "-q"], "quiet"),
    (&["acquire", "--key", "k", "--kill-after", "5"], "--kill-after"),
    (&["acquire", "--key", "k", "--events", "x"], "--events"),
    (&["renew"], "LOCKRUN_KEY"),
    (&["renew", "--key", "k"], "LOCKRUN_TOKEN"),
    (&["renew", "--key", "k", "--token", "x y"], "--token"),
    (&["renew", "--key", "k", "--token", TOKEN, "--ttl", "soon"], "soon"),
    (&["renew", "--token", TOKEN], "key"),
    (&["release"], "LOCKRUN_KEY"),
    (&["release", "--key", "a\nb", "--token", TOKEN], "control"),
    (&["release", "--key", "k"], "LOCKRUN_TOKEN"),
    (&["release", "--key", "k", "--token", TOKEN, "--ttl", "5"], "--ttl"),
    (&["reserve"], "--key"),
    (&["reserve", "--", "true"], "--key"),
    (&["reserve", "--key", "k", "--from", "1"], "COMMAND"),
    (&["reserve", "--key", "k", "--", "true"], "--from"),
    (&["reserve", "--key", "k", "--from", "", "--", "true"], "--from"),
    (&["reserve", "--key", "k", "--from", "x", "--", "true"], "--next"),
    (&["reserve", "--key", "k", "--from", "1.5", "--", "true"], "1.5"),
    (&["reserve", "--key", "k", "--from", "9223372036854775808", "--", "true"], "9223372036854775808"),
    (&["reserve", "--key", "k", "--from", "a\nb", "--next", "x", "--", "true"], "control"),
    (&["reserve", "--key", "k", "--from", "a\u{1b}[31m", "--next", "x", "--", "true"], "control"),
    (&["reserve", "--key", "k", "--from", "1", "--from", "2", "--", "true"], "--from"),
    (&["reserve", "--key", "k", "--from", "1", "--step", "0", "--", "true"], "--step"),
    (&["reserve", "--key", "k", "--from", "1", "--step", "x", "--", "true"], "--step"),
    (&["reserve", "--key", "k", "--from", "1", "--step", "", "--", "true"], "--step"),
    (&["reserve", "--key", "k", "--from", "1", "--step", "1.5", "--", "true"], "1.5"),
    (&["reserve", "--key", "k", "--from", "1", "--step", "9223372036854775808", "--", "true"], "--step"),
    (&["reserve", "--key", "k", "--from", "1", "--step", "1", "--next", "x", "--", "true"], "--next"),
    (&["reserve", "--key", "k", "--from", "1", "--next", "", "--", "true"], "--next"),
    (&["reserve", "--key", "k", "--from", "1", "--on-failure", "stay", "--", "true"], "--on-failure"),
    (&["reserve", "--key", "k", "--from", "1", "--on-failure", "", "--", "true"], "--on-failure"),
    (&["reserve", "--key", "k", "--from", "1", "--on-lost", "wait", "--", "true"], "--on-lost"),
    (&["reserve", "--key", "k", "--from", "1", "--ttl", "0.5", "--", "true"], "--ttl"),
    (&["reserve", "--key", "k", "--from", "1", "--ttl", "10", "--renew-every", "10", "--", "true"], "--renew-every"),
    (&["reserve", "--key", "k", "--from", "1", "--max-runtime", "0", "--", "true"], "--max-runtime"),
    (&["reserve", "--key", "k", "--from", "1", "--slots", "2", "--", "true"], "--slots"),
    (&["reserve", "--key", "k", "--from", "1", "--wait", "--", "true"], "--wait"),
    (&["reserve", "--key", "k", "--from", "1", "--skip", "--", "true"], "--skip"),
    (&["reserve", "--key", "k", "--from", "1", "-E", "9", "--", "true"], "-E"),
    (&["reserve", "--key", "k", "--from", "1", "--min-hold", "5", "--", "true"], "--min-hold"),
    (&["reserve", "--key", "k", "--from", "1", "--keep", "--", "true"], "--keep"),
    (&["reserve", "--key", "k", "--from", "1", "--token", TOKEN, "--", "true"], "--token"),
    (&["reserve", "--key", "k", "--from", "1", "-v", "-q", "--", "true"], "quiet"),
    (&["reserve", "--key", "k", "--from", "1", "-c", "true", "--", "true"], "--command"),
    (&["status", "--key", ""], "key"),
    (&["status", "k", "l"], "l"),
    (&["break"], "--key"),
    (&["break", "--key", "k", "--fence", "x"], "--fence"),
    (&["break", "--key", "k", "--fence", "-1"], "--fence"),
    (&["break", "--key", "k", "--now=yes"], "yes"),
    (&["doctor", "--store-timeout", "0"], "--store-timeout"),
    (&["doctor", "--key", "k"], "--key"),
    (&["prune"], "--older-than"),
    (&["prune", "--older-than", "old"], "old"),
    (&["aquire", "--key", "k"], "aquire"),
    (&["true"], "--key"),
    (&[""], "--key"),
    (&["help", "aquire"], "aquire"),
];

// "64: the command line is wrong." "Values that cannot work together are refused before anything is touched."
#[test]
fn options() {
    for (words, wanted) in BAD_OPTIONS {
        touches_nothing(|call| marked(call.key("k").args(*words)), wanted);
    }
}

// "`-k, --key KEY`: 1 to 512 bytes of UTF-8, no control characters."
#[test]
fn keys() {
    let too_long = "x".repeat(513);
    let too_many_bytes = "é".repeat(257);
    let bad: &[(&[u8], &str)] = &[
        (b"", "key"),
        (too_long.as_bytes(), "512"),
        (too_many_bytes.as_bytes(), "512"),
        (b"a\nb", "control"),
        (b"a\tb", "control"),
        (b"\x1b[31m", "control"),
        (b"a\x7f", "control"),
        ("a\u{85}".as_bytes(), "control"),
        (b"a\xff", "UTF-8"),
        (b"\xc0\x80", "UTF-8"),
    ];
    for (key, wanted) in bad {
        let key = OsStr::from_bytes(key);
        touches_nothing(|call| marked(call.key(key)), wanted);
    }
}

// "`-k, --key KEY`: required"; a COMMAND too, and not two of them.
#[test]
fn missing_words() {
    touches_nothing(marked, "--key");
    touches_nothing(|call| call.key("k").run(), "COMMAND");
    touches_nothing(|call| call.key("k").arg("--").run(), "COMMAND");
    touches_nothing(|call| call.key("k").command([""]).run(), "empty");
    touches_nothing(|call| call.arg("--key").run(), "--key");
    touches_nothing(|call| call.key("k").arg("--ttl").run(), "--ttl");
    touches_nothing(|call| call.key("k").arg("-c").run(), "--command");
    touches_nothing(|call| marked(call.key("k").args(["--command", "true"])), "--command");
    is_refused(Lockrun::bare().run(), "--key");
}

// The same of lockrun's other commands, and of a first word that names none.
#[test]
fn subcommands() {
    for (words, wanted) in BAD_SUBCOMMANDS {
        is_refused(Lockrun::bare().args(*words).run(), wanted);
        let (name, rest) = (words[0], &words[1..]);
        if name != "help" && Lockrun::bare().args(["help", name]).run().status == Some(0) {
            // What is wrong is found before the store is asked.
            let server = Fake::start(Manner::Silent);
            is_refused(Lockrun::bare().args([name, "--store", &server.url()]).args(rest).run(), wanted);
            assert_eq!(server.connections(), 0, "the store was asked");
        }
    }
}

// A run gives its command LOCKRUN_KEY and LOCKRUN_TOKEN. Only `renew` and `release` read them.
#[test]
fn the_variables_of_a_run() {
    let inside = Lockrun::bare().env("LOCKRUN_KEY", "outer").env("LOCKRUN_TOKEN", "no token");
    is_refused(inside.clone().arg("acquire").run(), "--key");
    is_refused(inside.clone().arg("break").run(), "--key");
    is_refused(inside.clone().arg("renew").run(), "LOCKRUN_TOKEN");
    is_refused(inside.arg("release").run(), "LOCKRUN_TOKEN");
    // A token is as good as a password.
    for words in
        [["renew", "--key", "k", "--token", "redis://u:secret@h"], ["acquire", "--key", "k", "--token", "secret word"]]
    {
        let output = Lockrun::bare().args(words).run().exited(64);
        assert!(!output.stderr().contains("secret"), "{output}");
    }
}

// "Every option but `--key` also has a `LOCKRUN_…` variable": a bad value in one is an error that names the variable.
#[test]
fn variables() {
    let bad = [("LOCKRUN_TTL", "soon"), ("LOCKRUN_TTL", "0.5"), ("LOCKRUN_STORE", "ftp://x/")];
    // An empty one, as a script's unset variable leaves it, is a mistake, and does not mean another store.
    let empty = ["LOCKRUN_TTL", "LOCKRUN_STORE", "LOCKRUN_STORE_FILE"].map(|name| (name, ""));
    for (name, value) in bad.into_iter().chain(empty) {
        let directory = TempDir::new().expect("a temporary directory");
        let mut call = Lockrun::bare().key("k").env(name, value);
        if name == "LOCKRUN_TTL" {
            call = call.arg("--store").arg(format!("file:{}/locks", directory.path().display()));
        }
        is_refused(marked(call), name);
        assert_eq!(fs::read_dir(directory.path()).expect("our own").count(), 0);
    }
    let missing = Lockrun::bare().key("k").env("LOCKRUN_STORE_FILE", "/no/such/file");
    is_refused(marked(missing), "/no/such/file");
}
