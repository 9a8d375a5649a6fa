//! Servers that pose as a PostgreSQL and mean harm: they get no password, and neither time nor memory without bound.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::resource::Resource;

use crate::support::birth::Birth;
use crate::support::calm::{in_time, judge};
use crate::support::postgres::impostor::{Impostor, answer, message, row, welcome};
use crate::support::{Lockrun, Output};

/// A process that needs more memory than this has read too much.
const MEMORY: u64 = 700 << 20;

/// Runs lockrun with a time-out of a second for each request.
fn run(url: &str, words: &[&str]) -> Output {
    run_within("1s", url, words)
}

fn run_within(time_out: &str, url: &str, words: &[&str]) -> Output {
    let limits = vec![(Resource::RLIMIT_AS, MEMORY, MEMORY)];
    let call = Lockrun::bare().env("LOCKRUN_STORE", url).env("LOCKRUN_STORE_TIMEOUT", time_out);
    call.birth(Birth { limits, ..Birth::default() }).args(words).run()
}

const RUN: &[&str] = &["--key", "k", "--ttl", "10m", "--", "true"];

// A password is not sent in clear to a server that only says what it is.
#[test]
fn a_server_that_asks_for_the_password() {
    let wants = message(b'R', &3_u32.to_be_bytes());
    let impostor = Impostor::start(move |number, stream| match number {
        // A request for TLS, or the startup message.
        0 => stream.write_all(b"N").and_then(|()| stream.write_all(&wants)),
        _ => stream.write_all(&wants),
    });
    for parameters in ["", "?sslmode=prefer", "?sslmode=allow", "?sslmode=disable", "?sslmode=require"] {
        run(&impostor.url("app:s3cr3t", parameters), RUN).exited(69);
    }
    assert!(!impostor.has_received(b"s3cr3t"), "it got the password");
}

/// Sends this without end.
fn flood(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    loop {
        stream.write_all(bytes)?;
    }
}

// "No request takes longer than the time-out", whatever the server sends, and none takes memory without bound.
#[test]
fn answers_without_end() {
    judge(sends_without_end);
}

fn sends_without_end() {
    let notice = message(b'N', b"SNOTICE\0C00000\0Mno\0\0");
    let parameter = message(b'S', b"a\0b\0");
    let notification = message(b'A', b"\0\0\0\0c\0x\0");
    let rows = row(&["x"]).repeat(1000);
    for bytes in [notice, parameter, notification, rows, message(b'1', b""), row(&[""; 1000])] {
        for from in [0, 1] {
            let bytes = bytes.clone();
            let impostor = Impostor::start(move |number, stream| match number {
                number if number == from => flood(stream, &bytes),
                0 => stream.write_all(&welcome()),
                _ => Ok(()),
            });
            for words in [RUN, &["status"], &["renew", "--key", "k", "--token", "t"]] {
                let output = run(&impostor.url("app", "?sslmode=disable"), words).exited(69);
                in_time(output.took, Duration::from_secs(4), "it gave up");
            }
        }
    }
}

// The same if the answer comes one byte at a time.
#[test]
fn an_answer_that_trickles() {
    judge(trickles);
}

fn trickles() {
    let impostor = Impostor::start(|number, stream| {
        if number == 0 {
            return stream.write_all(&welcome());
        }
        for byte in row(&["x"; 30]).repeat(1000) {
            stream.write_all(&[byte])?;
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    });
    for words in [RUN, &["status"], &["renew", "--key", "k", "--token", "t"]] {
        let output = run(&impostor.url("app", "?sslmode=disable"), words).exited(69);
        in_time(output.took, Duration::from_secs(4), "it gave up");
    }
}

/// Returns a server that always has another page of keys: the keys of the page of this number are what `keys` returns.
fn endless(keys: impl Fn(usize) -> Vec<String> + Send + Sync + 'static) -> Impostor {
    let pages = AtomicUsize::new(0);
    Impostor::start(move |number, stream| {
        if number == 0 {
            return stream.write_all(&welcome());
        }
        let keys = keys(pages.fetch_add(1, Ordering::Relaxed));
        let rows = keys.iter().map(|key| row(&[key, "{}"])).collect::<Vec<_>>().concat();
        let answers = [
            answer(&row(&[""]), "SELECT 1", true),
            answer(&rows, "SELECT 500", true),
            answer(b"", "SELECT 0", true),
            answer(&row(&["1795803073717", "1"]), "SELECT 1", true),
            answer(b"", "COMMIT", false),
        ];
        stream.write_all(&answers.concat())
    })
}

// "A listing has a limit, which is named when it is reached", and its keys ascend: a server that always has another
// page ends nothing.
#[test]
fn pages_without_end() {
    let page = |number: usize, length: usize| -> Vec<String> {
        let end = "x".repeat(length);
        (0..500).map(|at| format!("{number:08}-{at:03}{end}")).collect()
    };
    let limit = "128 MiB";
    let cases: [(Impostor, &str); 5] = [
        (endless(move |number| page(number, 400)), limit),
        (endless(move |number| page(number, 0)), limit),
        (endless(move |_| page(7, 400)), "order"),
        (endless(move |number| page(1_000_000 - number, 400)), "order"),
        (endless(move |_| vec!["same".to_owned(); 500]), "order"),
    ];
    for (impostor, words) in &cases {
        for call in [&["status"][..], &["status", "--json"], &["prune", "--older-than", "0", "--dry-run"]] {
            let output = run_within("30s", &impostor.url("app", "?sslmode=disable"), call).said(words);
            assert!(matches!(output.status, Some(69)), "{output}");
        }
    }
}
