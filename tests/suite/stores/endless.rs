//! Answers that never end, however they are framed: a request ends in time, and in little memory.

use crate::support::Lockrun;
use crate::support::fake::{Fake, Manner};

/// The head of a chunked answer of etcd.
const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

/// The head of an answer of etcd that is announced as short.
const SHORT: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";

/// Returns the beginnings of such answers, and what is sent again and again after that, by the URLs of the stores.
fn answers() -> Vec<(&'static str, String, String)> {
    let etcd = |head: &str, part: &str| ("etcd://", head.to_owned(), part.to_owned());
    let redis = |head: &str, part: &str| ("redis://", head.to_owned(), part.to_owned());
    let postgres = |head: &str, part: &str| ("postgres://u:p@", head.to_owned(), part.to_owned());
    vec![
        etcd(CHUNKED, &format!("1;{}\r\ny\r\n", "x".repeat(30_000))),
        etcd(CHUNKED, "1\r\ny\r\n"),
        etcd(CHUNKED, "000000000000001\r\n \r\n"),
        etcd(CHUNKED, &format!("4000\r\n{}\r\n", " ".repeat(0x4000))),
        etcd(&format!("{CHUNKED}1;"), "x"),
        etcd(&format!("{CHUNKED}2\r\n{{}}\r\n0\r\n"), "X: y\r\n"),
        etcd("HTTP/1.1 200 OK\r\n", "X: y\r\n"),
        etcd("HTTP/1.1 200 OK\r\nX: ", "x"),
        etcd("", "HTTP/1.1 100 Continue\r\n\r\n"),
        etcd("", "\r\n"),
        etcd("HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n", " "),
        etcd("HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n", " "),
        etcd("HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n{\"responses\":[{\"response_range\":{\"kvs\":[", "{},"),
        etcd("", SHORT),
        redis("*1000000000\r\n", "*0\r\n"),
        redis("", "*1\r\n"),
        redis("", "+OK\r\n"),
        redis("-", "x"),
        postgres("", "N\x00\x00\x00\x0cSNOTICE\0\0"),
        postgres("", "S\x00\x00\x00\x08a\0b\0"),
        postgres("", "R\x00\x00\x00\x08\0\0\0\0"),
    ]
}

// "Every request has a deadline", connecting included, and an answer has a greatest length: an answer that never ends
// is an error, also if the server never stops sending, so that no read has to wait. COMMAND is not started.
#[test]
fn an_answer_never_ends() {
    for (scheme, head, part) in answers() {
        let what = format!("{scheme} {:?} {:?}", &head[..head.len().min(60)], &part[..part.len().min(20)]);
        let fake = Fake::start(Manner::Endless(head.leak().as_bytes(), part.leak().as_bytes()));
        let parameters = if scheme.starts_with("postgres") { "/db?sslmode=disable" } else { "" };
        let url = format!("{scheme}127.0.0.1:{}{parameters}", fake.port());
        println!("{what}");
        let call = Lockrun::at(&url).key("endless").args(["--store-timeout", "1s"]).command(["echo", "ran"]);
        // In KiB.
        call.in_shell("ulimit -v 200000; exec \"$@\"").alone().exited(69).printed("").said("lockrun: ");
    }
}
