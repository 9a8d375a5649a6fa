//! Everything that can be typed wrongly ends with 64, says what is wrong, and touches nothing.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;

use serde_json::json;
use tempfile::TempDir;

use crate::support::fake::{Fake, Manner};
use crate::support::{Lockrun, Output};

/// Words that are wrong, and what the message must name.
type Case<'a> = (&'a [&'a str], &'a str);

/// Options that are wrong before a key, a store and a command that are all right.
const BAD_OPTIONS: &[Case<'static>] = &[
    (&["--frobnicate"], "--frobnicate"),
    (&["-Z"], "-Z"),
    (&["--ttl", "soon"], "soon"),
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
    // ... and what clocks and killing need, on top of it.
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

/// A token as good as any.
const TOKEN: &str = "00000000-0000-4000-8000-000000000000";

/// Words after the name of one of lockrun's other commands.
const BAD_SUBCOMMANDS: &[Case<'static>] = &[
    (&["acquire"], "--key"),
    (&["acquire", "--key", ""], "key"),
    (&["acquire", "--key", "k", "extra"], "extra"),
    (&["acquire", "--key", "k", "--", "true"], "true"),
    (&["acquire", "--key", "k", "--frobnicate"], "--frobnicate"),
    (&["acquire", "--key", "k", "--ttl", "soon"], "soon"),
    (&["acquire", "--key", "k", "--ttl", "0.5"], "ttl"),
    (&["acquire", "--key", "k", "--ttl", "2", "--store-timeout", "2"], "--store-timeout"),
    (&["acquire", "--key", "k", "--slots", "0"], "--slots"),
    (&["acquire", "--key", "k", "--token", "x y"], "--token"),
    (&["acquire", "--key", "k", "--token", ""], "--token"),
    (&["acquire", "--key", "k", "--json", "--export"], "--export"),
    (&["acquire", "--key", "k", "--skip", "-w", "5"], "--skip"),
    (&["acquire", "--key", "k", "-w", "5", "5"], "5"),
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
    (&["status", "k"], "k"),
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

/// URLs that are no store's.
const BAD_URLS: &[Case<'static>] = &[
    (&[""], "store"),
    (&["locks"], "locks"),
    (&["/var/lock"], "/var/lock"),
    (&["ftp://127.0.0.1/"], "ftp"),
    (&["http://127.0.0.1/"], "http"),
    (&["memcached://127.0.0.1"], "memcached"),
    (&["redis:"], "redis:"),
    (&["redis://"], "host"),
    (&["redis:///0"], "host"),
    (&["redis://:6379"], "redis://"),
    (&["redis://127.0.0.1:0"], "port"),
    (&["redis://127.0.0.1:65536"], "port"),
    (&["redis://127.0.0.1:port"], "port"),
    (&["redis://127.0.0.1/x"], "x"),
    (&["redis://127.0.0.1/-1"], "-1"),
    (&["redis://127.0.0.1/0/1"], "0/1"),
    (&["redis://127.0.0.1/99999999999999999999"], "99999999999999999999"),
    (&["redis://127.0.0.1/?frobnicate=1"], "frobnicate"),
    (&["redis://127.0.0.1/?prefix="], "prefix"),
    (&["redis+unix://"], "redis+unix"),
    (&["redis+unix:relative.sock"], "redis+unix"),
    (&["rediss://127.0.0.1/?ca=/no/such/ca.pem"], "/no/such/ca.pem"),
    (&["rediss://127.0.0.1/?cert=/no/such/cert.pem&key=/no/such/key.pem"], "/no/such/"),
    (&["rediss://127.0.0.1/?cert=/etc/hostname"], "key"),
    (&["file:relative/path"], "relative/path"),
    (&["file://host/path"], "host"),
    (&["file:/tmp/?frobnicate=1"], "frobnicate"),
];

/// It was refused, by its own words, and named what is wrong.
#[track_caller]
fn is_refused(output: Output, wanted: &str) {
    let output = output.exited(64).printed("").said(wanted);
    assert!(output.stderr().starts_with("lockrun: "), "{output}");
}

/// Runs the case on a directory that does not exist and on a server that counts its guests.
#[track_caller]
fn touches_nothing(case: impl Fn(Lockrun) -> Output, wanted: &str) {
    let directory = TempDir::new().expect("a temporary directory");
    let url = format!("file:{}/locks", directory.path().display());
    is_refused(case(Lockrun::at(&url).directory(directory.path())), wanted);
    let left = fs::read_dir(directory.path()).expect("our own directory").count();
    assert_eq!(left, 0, "something was created");
    let server = Fake::start(Manner::Silent);
    is_refused(case(Lockrun::at(&server.url())), wanted);
    assert_eq!(server.connections(), 0, "the store was asked");
}

/// A command whose run would be seen.
fn marked(call: Lockrun) -> Output {
    call.command(["echo", "ran"]).run()
}

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

// A run tells its command LOCKRUN_KEY and LOCKRUN_TOKEN. They say what to renew and release, and nothing else.
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

// "`--store URL`": one of the forms of the table, or refused.
#[test]
fn store_urls() {
    let directory = TempDir::new().expect("a temporary directory");
    for (words, wanted) in BAD_URLS {
        let url = words[0];
        let call = Lockrun::bare().directory(directory.path()).key("k");
        is_refused(marked(call.clone().args(["--store", url])), wanted);
        if !url.is_empty() {
            is_refused(marked(call.env("LOCKRUN_STORE", url)), wanted);
        }
    }
    let left = fs::read_dir(directory.path()).expect("our own directory").count();
    assert_eq!(left, 0, "something was created");
    let not_text = OsStr::from_bytes(b"file:/tmp/\xff");
    let output = marked(Lockrun::bare().key("k").arg("--store").arg(not_text));
    // A directory's name need not be text: either it is taken, or refused with a reason.
    assert!(matches!(output.status, Some(0 | 64 | 69)), "{output}");
}

// "`--store-file PATH`: read the store's URL from a file": one that is there and holds one URL.
#[test]
fn store_files() {
    let directory = TempDir::new().expect("a temporary directory");
    let file = |name: &str, text: &[u8]| -> OsString {
        let path = directory.path().join(name);
        fs::write(&path, text).expect("a file");
        path.into_os_string()
    };
    let call = |path: &OsStr| marked(Lockrun::bare().key("k").arg("--store-file").arg(path));
    is_refused(call(OsStr::new("/no/such/file")), "/no/such/file");
    is_refused(call(directory.path().as_os_str()), "store-file");
    is_refused(call(&file("empty", b"")), "store-file");
    is_refused(call(&file("blank", b"\n \n")), "store-file");
    is_refused(call(&file("not-text", b"\xff\xfe\n")), "store-file");
    is_refused(call(&file("scheme", b"ftp://127.0.0.1\n")), "ftp");
    let good = file("good", b"file:\n");
    touches_nothing(|call| marked(call.key("k").arg("--store-file").arg(&good)), "--store");
    let bad = file("secret", b"redis://:hushhush@127.0.0.1:port\n");
    let output = call(&bad).exited(64).said("port");
    assert!(!output.stderr().contains("hushhush"), "{output}");
}

// "Every option but `--key` also has a `LOCKRUN_…` variable": a bad value in one is as bad, and named.
#[test]
fn variables() {
    let bad = [("LOCKRUN_TTL", "soon"), ("LOCKRUN_TTL", "0.5"), ("LOCKRUN_STORE", "ftp://x/")];
    // One that is empty, as a script's unset variable leaves it, is a mistake, and no wish for another store.
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

// "What comes out is escaped before a terminal sees it": what was typed comes out as harmless as what was stored.
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
        ["--skip=redis://u:secret@h", "--"],
        ["--stoer=redis://u:secret@h", "--"],
    ] {
        let output = marked(Lockrun::bare().key("k").args(words)).exited(64).printed("").said("lockrun: ");
        assert!(!output.stderr().contains("secret"), "{output}");
    }
    let output = marked(Lockrun::bare().key("k").env("LOCKRUN_STORE", "u:secret@h:6379")).exited(64);
    assert!(!output.stderr().contains("secret"), "{output}");
}

/// Text that would steer a terminal, turn the direction of writing, and begin a line of its own.
const HOSTILE: &str = "\x1b[31m\u{202e}\u{9b}x\rlockrun: y\nlockrun: z";

/// Nothing of [`HOSTILE`] is said as it stands, and all is said in so many lines.
#[track_caller]
fn is_harmless(output: &Output, lines: usize) {
    let said = output.stderr();
    let is_bad = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
    assert!(!said.contains(is_bad) && said.lines().count() == lines, "{output}");
    assert!(said.lines().all(|line| line.starts_with("lockrun: ")), "{output}");
}

// "Control characters are escaped before a terminal sees them", wherever they come from: a variable, a configuration file or an
// argument, and what is said of it takes one line.
#[test]
fn no_value_steers_a_terminal() {
    let directory = TempDir::new().expect("a temporary directory");
    let here = || Lockrun::bare().key("k").directory(directory.path());
    let path = format!("/nonexistent/{HOSTILE}");
    let url = format!("file:{path}");
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
