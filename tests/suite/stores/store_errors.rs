//! Stores that cannot be used: no command without its lock.

use std::time::Duration;

use tempfile::TempDir;

use crate::support::calm::{in_time, judge};
use crate::support::fake::{Fake, Manner};
use crate::support::ports::free_port;
use crate::support::{LeaseServer, Lockrun, Redis, redis_keys};

const TIMEOUT: Duration = Duration::from_secs(2);

/// The extra time that a busy machine may need to start and run a program.
const ALLOWANCE: Duration = Duration::from_millis(1500);

/// A password that needs escaping; every spelling of it is a secret.
pub(super) const PASSWORD: &str = "hush%2Fhush%40pw";
pub(super) const SECRETS: [&str; 3] = ["hush/hush@pw", PASSWORD, "hush"];

/// Asserts that the store at this URL is an error: 69 within twice the time-out, and no command.
#[track_caller]
pub(super) fn is_unusable(url: &str, options: &[&str]) -> String {
    let directory = TempDir::new().expect("a temporary directory");
    let trace = directory.path().join("trace");
    let output = Lockrun::at(url)
        .key("unusable")
        .args(["--store-timeout", "2s"])
        .args(options)
        .command(["touch", trace.to_str().expect("a plain path")])
        .run()
        .exited(69)
        .printed("")
        .said("lockrun: ");
    assert!(!trace.exists(), "the command was started: {output}");
    in_time(output.took, TIMEOUT * 2 + ALLOWANCE, "an error in time");
    for secret in SECRETS {
        assert!(!output.stderr().contains(secret), "{secret} in {output}");
    }
    output.stderr()
}

/// Asserts that no lock is held on this server. A fence that was drawn for a request that was sent before the refusal
/// came is no lock.
#[track_caller]
fn holds_nothing(redis: &Redis) {
    let keys = redis.keys();
    assert!(keys.iter().all(|key| redis_keys::is_lasting(key)), "{keys:?}");
}

fn with_password(url: &str) -> String {
    url.replacen("://", &format!("://somebody:{PASSWORD}@"), 1)
}

// "69: the store cannot be reached." "An unreachable store is an error, never another store."
#[test]
fn no_server_listens() {
    let port = free_port();
    let url = format!("redis://127.0.0.1:{port}");
    let message = is_unusable(&url, &[]);
    assert!(message.contains(&format!("127.0.0.1:{port}")), "which one: {message:?}");
    for options in [&["--skip"][..], &["--wait", "--store-retry", "0"], &["--wait", "1"], &["-E", "0"], &["-q"]] {
        is_unusable(&with_password(&url), options);
    }
    is_unusable("redis+unix:///no/such/directory/redis.sock", &[]);
}

// "69: the store refuses us": a password that is wrong, missing, or not expected.
#[test]
fn wrong_password() {
    let redis = Redis::with_password("right");
    is_unusable(&redis.url(), &[]);
    is_unusable(&with_password(&redis.url()), &[]);
    is_unusable(&redis.url().replacen("://", &format!("://:{PASSWORD}@"), 1), &[]);
    assert_eq!(redis.keys(), Vec::<String>::new());
    let open = Redis::start();
    is_unusable(&with_password(&open.url()), &[]);
    holds_nothing(&open);
}

// "69: the store refuses us": a user who may not do what a lock needs.
#[test]
fn no_permission() {
    let redis = Redis::start();
    redis.ask(&["ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@read", "+@connection"]);
    redis.ask(&["ACL", "SETUSER", "elsewhere", "on", ">pw", "~other:*", "+@all"]);
    for user in ["reader", "elsewhere"] {
        is_unusable(&redis.url().replacen("://", &format!("://{user}:pw@"), 1), &[]);
    }
    assert_eq!(redis.keys(), Vec::<String>::new());
}

// "69: the store does not answer in time", wherever it falls silent.
#[test]
fn a_listener_that_never_answers() {
    judge(|| {
        let fake = Fake::start(Manner::Silent);
        is_unusable(&fake.url(), &[]);
        is_unusable(&with_password(&fake.url()), &["--wait", "--store-retry", "1ms"]);
        is_unusable(&format!("rediss://127.0.0.1:{}", fake.port()), &[]);
        assert!(fake.connections() >= 3);
    });
}

// "`--store-timeout`: the longest that one request to the store may take": not per byte.
#[test]
fn a_server_that_trickles() {
    judge(|| {
        let fake = Fake::start(Manner::Trickle);
        is_unusable(&fake.url(), &[]);
        is_unusable(&with_password(&fake.url()), &["--skip"]);
    });
}

// "69: the store does not answer in time": a Redis whose process is stopped.
#[test]
fn a_server_that_is_stopped() {
    judge(|| {
        let redis = Redis::start();
        redis.pause();
        is_unusable(&redis.url(), &[]);
        is_unusable(&format!("redis+unix://{}", redis.socket().display()), &[]);
        redis.resume();
        // The requests are read after all: none may hold the lock for longer than its lease.
        redis.ask(&["PING"]);
        for key in redis.keys() {
            let left = redis.ask(&["PTTL", &key]).number();
            // A note that the claim was cancelled, in case its request is still on its way, holds nothing.
            let lasting = redis_keys::is_lasting(&key) || redis_keys::is_mailbox(&key);
            assert!(lasting || (0..=30_000).contains(&left), "{key}: {left}");
        }
    });
}

// "69": something else answers at that address.
#[test]
fn no_redis_at_all() {
    for manner in [
        Manner::HangUp,
        Manner::Answer(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        Manner::Answer(b"\x15\x03\x01\x00\x02\x02\x46"),
        Manner::Answer(b"-ERR \x1b[31mred\x1b[0m\r\n"),
        Manner::Answer(b"*100000000\r\n"),
    ] {
        let fake = Fake::start(manner);
        let message = is_unusable(&fake.url(), &[]);
        assert!(!message.contains('\x1b'), "{manner:?}: {message:?}");
        is_unusable(&format!("rediss://127.0.0.1:{}", fake.port()), &[]);
    }
}

// "Every answer is read with bounded depth and size": an endlessly nested answer, or one announced as larger than any
// memory, is an error like any other, and takes little memory.
#[test]
fn answers_beyond_all_bounds() {
    let leak = |text: String| -> &'static [u8] { text.leak().as_bytes() };
    for manner in [
        Manner::Answer(leak("*1\r\n".repeat(80) + ":1\r\n")),
        Manner::Answer(leak("*1\r\n".repeat(100_000))),
        Manner::Answer(b"$2147483647\r\n"),
        Manner::Answer(b"$9223372036854775807\r\n"),
        Manner::Flood(b"*1000000000\r\n"),
        Manner::Flood(b"$2147483647\r\n"),
    ] {
        let fake = Fake::start(manner);
        let call = Lockrun::at(&fake.url()).key("bounds").args(["--store-timeout", "2s"]).command(["echo", "ran"]);
        // In KiB: the answer may take 1 MiB, and everything else little.
        let output = call.in_shell("ulimit -v 200000; exec \"$@\"").alone().exited(69).printed("");
        let said = output.stderr();
        assert!(said.contains("sent an answer ") || said.contains("with more than 1 MiB"), "{output}");
    }
}

// "69: the store refuses us": a server that takes no writes, has no memory left, or no such database.
#[test]
fn a_redis_that_refuses() {
    let upstream = free_port().to_string();
    let replica = Redis::with_options(&["--replicaof", "127.0.0.1", &upstream]);
    is_unusable(&replica.url(), &[]);
    let full = Redis::with_options(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]);
    is_unusable(&full.url(), &[]);
    let small = Redis::start();
    is_unusable(&format!("{}/99", small.url()), &[]);
    holds_nothing(&small);
}

// "A URL's password never appears in a message": not even with `--verbose` when all goes well.
#[test]
fn no_password_in_verbose_output() {
    let redis = Redis::with_password("hush/hush@pw");
    let url = redis.url().replacen("://", &format!("://:{PASSWORD}@"), 1);
    let output = Lockrun::at(&url).key("quiet").arg("-v").sh("env").run().exited(0);
    assert!(output.stdout().contains("LOCKRUN_KEY=quiet"), "{output}");
    for secret in SECRETS {
        assert!(!output.stderr().contains(secret), "{output}");
    }
}

// "... or the process list of a child": the command line of a process that lockrun starts has no password in it.
#[test]
fn no_password_in_a_childs_process_list() {
    let redis = Redis::with_password("hush/hush@pw");
    let url = redis.url().replacen("://", &format!("://:{PASSWORD}@"), 1);
    let mut run = Lockrun::bare().env("LOCKRUN_STORE", &url).key("listed").sh("echo ready; exec sleep 600").spawn();
    run.wait_for_line("ready");
    let processes = run.processes();
    assert!(processes.len() >= 2, "lockrun and its command");
    for pid in processes {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).into_owned();
        assert!(!words.contains("hush"), "{words:?}");
    }
}
