//! A lock that another run holds, without waiting for it.

use crate::support::store::on_every_store;
use crate::support::{Holder, LONG, Lockrun, Output, Store, eventually};

/// Tries to acquire a lock with these options; the command would print `ran`.
fn attempt(store: &Store, key: &str, options: &[&str]) -> Output {
    Lockrun::new(store).key(key).args(options).command(["echo", "ran"]).run()
}

// "`--fail`, `-n`, `--nonblock`: when held: say who holds it, exit 75; this one is the default."
on_every_store!(fail_is_75_and_the_default, |store| {
    let _holder = Holder::new(store, "held");
    for options in [&[][..], &["--fail"], &["-n"], &["--nonblock"]] {
        attempt(store, "held", options).exited(75).printed("").said("lockrun: lock \"held\" is held by ");
    }
});

// "A held lock names its holder: `lockrun: lock "nightly-report" is held by web-1 pid 4242 (deploy: ./report.sh)
// for 3m 12s`."
on_every_store!(the_message_names_the_holder, |store| {
    let holder = Holder::new(store, "nightly-report");
    let output = attempt(store, "nightly-report", &[]).exited(75);
    let message = output.stderr();
    let host = nix::unistd::gethostname().expect("a name");
    let user = Lockrun::bare().command(["id", "-un"]).alone().stdout();
    let wanted = format!(
        "lockrun: lock \"nightly-report\" is held by {} pid {} ({}: {}) for ",
        host.to_str().expect("a plain name"),
        holder.pid(),
        user.trim(),
        holder.command()
    );
    let Some(since) = message.strip_prefix(&wanted) else {
        panic!("not {wanted:?} but {message:?}");
    };
    assert_eq!(message.lines().count(), 1);
    let is_span = |word: &str| {
        let unit = word.trim_start_matches(|c: char| c.is_ascii_digit());
        unit != word && ["ms", "s", "m", "h"].contains(&unit)
    };
    assert!(since.split_whitespace().all(is_span), "{since:?}");
});

// "... for 3m 12s": the time grows while the lock is held.
on_every_store!(the_message_says_for_how_long, |store| {
    let _holder = Holder::new(store, "long");
    eventually(LONG, "two seconds later the message says so", || {
        let message = attempt(store, "long", &[]).exited(75).stderr();
        let since = message.rsplit_once(" for ").expect("a time").1;
        since.trim().trim_end_matches('s').parse::<u32>().expect("seconds") >= 2
    });
});

// "`-E, --conflict-exit-code N`: 0 to 255, in place of 75."
on_every_store!(conflict_exit_code, |store| {
    let _holder = Holder::new(store, "conflict");
    for status in [0, 1, 75, 255] {
        let number = status.to_string();
        let tied = format!("-E{number}");
        for options in [&["-E", &number][..], &["--conflict-exit-code", &number], &["-n", &tied]] {
            let output = attempt(store, "conflict", options).exited(status);
            output.printed("").said("is held by");
        }
    }
    let waited = attempt(store, "conflict", &["-E", "9", "--wait", "0.1"]);
    waited.exited(9).printed("").said("is held by");
});

// "`--skip`: when held: exit 0, silently." "Nothing on a skip, so that cron sends no mail."
on_every_store!(skip_is_silent, |store| {
    let holder = Holder::new(store, "skipped");
    attempt(store, "skipped", &["--skip"]).exited(0).printed("").silent();
    attempt(store, "skipped", &["--skip", "-E", "9"]).exited(0).printed("").silent();
    holder.end();
    attempt(store, "skipped", &["--skip"]).exited(0).printed("ran\n").silent();
});

// "`-q, --quiet`: not even the held message."
on_every_store!(quiet_says_nothing, |store| {
    let _holder = Holder::new(store, "quiet");
    for option in ["-q", "--quiet"] {
        attempt(store, "quiet", &[option]).exited(75).printed("").silent();
    }
    attempt(store, "quiet", &["-q", "-w", "0.1"]).exited(75).printed("").silent();
});

// "`-v, --verbose`: the same events in words on stderr"; "every line begins with `lockrun: `".
on_every_store!(verbose_tells_the_story, |store| {
    let output = attempt(store, "story", &["-v"]).exited(0).printed("ran\n").said("acquired");
    output.said("finished").said("released");
    let _holder = Holder::new(store, "story");
    attempt(store, "story", &["--verbose", "--skip"]).exited(0).printed("").said("skipped");
    attempt(store, "story", &["-v", "--wait", "0.1"]).exited(75).printed("").said("waiting");
});

// "What comes out of a store was written by another machine: control characters are escaped before a terminal sees
// them."
on_every_store!(hostile_command_text_is_escaped, |store| {
    let hostile = [
        "\x1b[31mred\x1b]0;title\x07",
        "two\nlines\r\nlockrun: all is well",
        "\u{9b}31m c1 \u{85} \u{7f} \t tab \x08\x08 back",
    ];
    let call = Lockrun::new(store).key("hostile");
    let _holder = Holder::with(&call, &hostile);
    let output = attempt(store, "hostile", &[]).exited(75).said("is held by");
    let message = output.stderr();
    let line = message.strip_suffix('\n').expect("a whole line");
    assert!(!line.chars().any(char::is_control), "{line:?}");
    assert!(line.contains("title"), "what is harmless is said: {line:?}");
});

// "A held lock names its holder": a command that is long or not UTF-8 is no obstacle.
on_every_store!(any_command_can_be_named, |store| {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let long = "x".repeat(100_000);
    let words = [
        OsStr::new("sh"),
        OsStr::new("-c"),
        OsStr::new("echo ready; exec sleep 600"),
        OsStr::from_bytes(b"\xff\xfe"),
        OsStr::new(&long),
    ];
    let mut run = Lockrun::new(store).key("any").command(words).spawn();
    run.wait_for_line("ready");
    let message = attempt(store, "any", &[]).exited(75).said("is held by").stderr();
    assert!(message.contains("echo ready"), "{:?}", &message[..200]);
    assert!(message.len() < 10_000, "a message is no dump: {} bytes", message.len());
});

// "It takes the lock KEY": another key is another lock.
on_every_store!(another_key_is_free, |store| {
    let _holder = Holder::new(store, "one");
    attempt(store, "other", &[]).exited(0).printed("ran\n").silent();
});

// "`--skip=DURATION`: silent only while the holder has had the lock for less than that; then as `--fail`."
on_every_store!(a_holder_that_hangs_is_not_skipped_for_ever, |store| {
    let holder = Holder::new(store, "hangs");
    attempt(store, "hangs", &["--skip=10m"]).exited(0).printed("").silent();
    eventually(LONG, "it has held the lock for too long", || {
        let output = attempt(store, "hangs", &["--skip=1s"]).printed("");
        let is_late = output.status == Some(75);
        if is_late {
            output.said("is held by").said("; that is longer than --skip=1s allows");
        } else {
            output.exited(0).silent();
        }
        is_late
    });
    attempt(store, "hangs", &["--skip=1s", "-E", "9", "-q"]).exited(9).silent();
    for (setting, status) in [("1", 0), ("true", 0), ("10m", 0), ("1s", 75), ("no", 75)] {
        let call = Lockrun::new(store).key("hangs").env("LOCKRUN_SKIP", setting);
        call.command(["echo", "ran"]).run().exited(status).printed("");
    }
    holder.end();
});

// The same if several hold it: the one that has held it longest may hang.
on_every_store!(one_of_several_that_hangs_is_not_skipped_for_ever, |store| {
    let call = Lockrun::new(store).key("several").arg("--shared");
    let hangs = Holder::with(&call.clone().args(["--ttl", "10m"]), &[]);
    let late = |store: &Store| attempt(store, "several", &["--skip=1s"]).status == Some(75);
    eventually(LONG, "it has held the lock for too long", || late(store));
    let fresh = Holder::with(&call.args(["--ttl", "5s"]), &[]);
    let output = attempt(store, "several", &["--skip=1s"]).exited(75);
    output.said(&format!(" pid {} ", hangs.pid()));
    fresh.end();
    hangs.end();
});
