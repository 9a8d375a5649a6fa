//! Slips in a store's address: the message says what is wrong and what to do; nothing runs, and nothing is created.

use std::fs;
use std::time::{Duration, Instant};

use crate::support::calm::{in_time, judge};
use crate::support::fake::{Fake, Manner};
use crate::support::{LeaseServer, Lockrun, Output, Redis, Store, memory};

/// A valid token.
const TOKEN: &str = "00000000-0000-4000-8000-000000000000";

/// All requests to a store, as words after the options that name it. The test would see a command run.
const REQUESTS: [&[&str]; 11] = [
    &["--key", "k", "--", "echo", "ran"],
    &["--key", "k", "--wait", "--store-retry", "0", "--", "echo", "ran"],
    &["acquire", "--key", "k"],
    &["renew", "--key", "k", "--token", TOKEN],
    &["release", "--key", "k", "--token", TOKEN],
    &["reserve", "--key", "k", "--from", "1", "--", "echo", "ran"],
    &["status"],
    &["status", "--key", "k"],
    &["break", "--key", "k"],
    &["prune", "--older-than", "1d"],
    &["doctor"],
];

fn ask(url: &str, request: &[&str]) -> Output {
    Lockrun::bare().env("LOCKRUN_STORE", url).env("LOCKRUN_STORE_TIMEOUT", "1s").args(request).run()
}

/// Asserts that each request fails in these words, and in none of the server's or a library's.
#[track_caller]
fn all_fail(url: &str, words: &[&str], but_none_of: &[&str]) {
    for request in REQUESTS {
        let output = ask(url, request).exited(69);
        let said = format!("{}{}", output.stdout(), output.stderr());
        assert!(words.iter().all(|word| said.contains(word)), "no {words:?} in: {output}");
        assert!(!but_none_of.iter().any(|word| said.contains(word)), "{but_none_of:?} in: {output}");
        assert!(!said.contains("ran"), "{output}");
    }
}

// "69: the store rejects the request": a server that requires a password and got none says so, whatever was asked. It
// rejects a long request before AUTH in other words.
#[test]
fn no_password() {
    let redis = Redis::with_password("right");
    let words = ["requires a password", "give a password in the store's URL"];
    all_fail(&redis.url(), &words, &["multibulk"]);
    all_fail(&format!("{}/3", redis.url()), &words, &["multibulk"]);
    all_fail(&format!("redis+unix://{}", redis.socket().display()), &words, &["multibulk"]);
    assert_eq!(redis.keys(), Vec::<String>::new());
}

// "64: the URL is wrong": a certificate cannot be for such a host, so nothing is looked up or connected to.
#[test]
fn a_host_that_no_certificate_can_be_for() {
    for (url, host) in [
        ("rediss://bücher.example", "bücher.example"),
        ("rediss+sentinel://127.0.0.1,a..b/service", "a..b"),
        ("rediss+cluster://127.0.0.1,a..b", "a..b"),
        ("etcds://127.0.0.1,[fe80::1%25lo]:1", "fe80::1%lo"),
        ("postgres://127.0.0.1,a..b/db?sslmode=require", "a..b"),
    ] {
        for request in REQUESTS {
            let output = ask(url, request).exited(64).printed("");
            output.said(&format!("the store's host \"{host}\" cannot be in a certificate"));
        }
    }
}

// `rediss://` and a port without TLS: Redis waits for more, other servers answer or hang up.
#[test]
fn tls_to_a_plain_port() {
    let redis = Redis::start();
    let answering = Fake::start(Manner::Answer(b"-ERR unknown command\r\n"));
    let closing = Fake::start(Manner::HangUp);
    for (port, what) in [
        (redis.port(), "it did not answer the TLS handshake in time; if that is not a TLS port"),
        (answering.port(), "what it answers is not TLS"),
        (closing.port(), "it closed the connection during the TLS handshake; if that is not a TLS port"),
    ] {
        let words = [what, "name the TLS port in the store's URL, or write redis:// if it has none"];
        let url = format!("rediss://127.0.0.1:{port}");
        all_fail(&url, &words, &["InvalidContentType", "UnknownIssuer"]);
    }
    assert_eq!(redis.keys(), Vec::<String>::new());
}

// `redis://` and a port with TLS.
#[test]
fn plain_to_a_tls_port() {
    let redis = Redis::with_tls();
    let url = format!("redis://127.0.0.1:{}", redis.port());
    all_fail(&url, &["if that is a TLS port, write rediss:// in the store's URL"], &[]);
    all_fail(&url.replacen("://", "://:pw@", 1), &["if that is a TLS port, write rediss:// in the store's URL"], &[]);
    assert_eq!(redis.keys(), Vec::<String>::new());
}

// An authority that is not known to this machine is named with `?ca=FILE`.
#[test]
fn an_unknown_authority() {
    let redis = Redis::with_tls();
    let files = redis.certificates();
    let url = format!("rediss://127.0.0.1:{}", redis.port());
    let what = "its certificate was issued by an unknown authority";
    all_fail(&url, &[what, "name the authority's certificate with ?ca=FILE in the store's URL"], &["UnknownIssuer"]);
    let untrusted = format!("{url}?ca={}", files.path("untrusted.crt"));
    all_fail(&untrusted, &[what, "check that ca=FILE in the store's URL names the authority"], &["UnknownIssuer"]);
    // The authority is known, but the server requires a client's certificate.
    let nobody = format!("{url}?ca={}", files.path("ca.crt"));
    all_fail(&nobody, &["give one with cert=FILE and key=FILE in the store's URL"], &[]);
    assert_eq!(redis.keys(), Vec::<String>::new());
}

// "Status 69 after twice `--store-timeout` at the latest": the request, and its cancellation. What a busy machine adds
// is the same for a short time-out and a long one.
#[test]
fn a_stopped_server_costs_twice_the_time_out() {
    let help = Lockrun::bare().arg("--help").run().exited(0).stdout();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        help.contains("lockrun ends with status 69, unless it tries again: after twice this time at the latest"),
        "{help}"
    );
    judge(|| {
        let redis = Redis::start();
        redis.pause();
        let took = |timeout: &str| {
            let started = Instant::now();
            let call = Lockrun::at(&redis.url()).key("k").args(["--store-timeout", timeout]).command(["echo", "ran"]);
            call.run().exited(69).printed("").said("did not answer in time");
            started.elapsed()
        };
        let (short, long) = (took("1s"), took("3s"));
        in_time(long.saturating_sub(short), 2 * Duration::from_secs(3 - 1), "two seconds more of patience");
    });
}

// The same if the cancellation is answered, and hands the lock off to waiters that never read their mail: finding that
// out is not worth more time.
#[test]
fn a_cancellation_that_hands_off_has_no_time_of_its_own() {
    let (released, next) = (b"*4\r\n:1\r\n$1\r\na\r\n$1\r\nb\r\n:0\r\n", b"*2\r\n$1\r\na\r\n$1\r\nb\r\n");
    judge(|| {
        let fake = Fake::start(Manner::SilentThen(released, next));
        let call = Lockrun::at(&fake.url()).key("k").args(["--store-timeout", "2s"]).command(["echo", "ran"]);
        let output = call.run().exited(69).printed("").said("did not answer in time");
        assert!(fake.connections() >= 2, "the request is cancelled: {output}");
        in_time(output.took, 2 * Duration::from_secs(2), "a request and its cancellation");
    });
}

// "Only who takes a lock creates the directory": a misspelt one is not there afterwards.
#[test]
fn a_misspelt_directory() {
    let parent = memory::directory();
    let typo = format!("file:{}/typo", parent.path().display());
    let deep = format!("file:{}/no/such/typo", parent.path().display());
    for (request, status, words) in [
        (&["status"][..], 0, ""),
        (&["status", "--json"], 0, "[]"),
        (&["status", "--key", "k"], 0, "never used"),
        (&["break", "--key", "k"], 0, "is free; there is nothing to break"),
        (&["break", "--key", "k", "--now"], 0, "is free; there is nothing to break"),
        (&["renew", "--key", "k", "--token", TOKEN], 79, "nobody holds it"),
        (&["release", "--key", "k", "--token", TOKEN], 79, "nobody holds it"),
        (&["prune", "--older-than", "0"], 0, ""),
        (&["prune", "--older-than", "0", "--dry-run"], 0, ""),
        (&["doctor"], 0, "does not exist"),
    ] {
        for url in [&typo, &deep] {
            // No run could create it there.
            let status = if request == ["doctor"] && *url == deep { 69 } else { status };
            let words = if status == 69 { "cannot create the lock directory" } else { words };
            let output = ask(url, request).exited(status);
            let said = format!("{}{}", output.stdout(), output.stderr());
            assert!(said.contains(words), "{words:?}: {output}");
            assert_eq!(fs::read_dir(parent.path()).expect("ours").count(), 0, "something was created: {output}");
        }
    }
    // A file that others could have planted is refused all the same.
    let file = parent.path().join("typo");
    fs::write(&file, "here").expect("a file");
    ask(&typo, &["status"]).exited(69).said("not a directory");
    fs::remove_file(file).expect("ours");
    // A run that acquires a lock creates it.
    let store = Store::file();
    Lockrun::new(&store).key("k").command(["true"]).run().exited(0).silent();
    assert!(store.locks().is_dir());
}
