//! Listings of an etcd that always has another page of locks.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::support::Lockrun;
use crate::support::fake::{Fake, Manner};

/// How many keys a page has.
const PAGE: u64 = 500;

/// Returns a page with these keys, after which there are more. It is put together as text: hundreds of them are needed.
fn page(keys: impl Iterator<Item = u64>) -> Vec<u8> {
    // What all keys end with. Their beginning has a multiple of three bytes, so both can be encoded on their own.
    let end = STANDARD.encode(format!("-{}", "x".repeat(400)));
    let kv = |number: u64| {
        let beginning = STANDARD.encode(format!("lockrun/state/{number:016}"));
        format!(r#"{{"key":"{beginning}{end}","mod_revision":"3"}}"#)
    };
    let kvs = keys.map(kv).collect::<Vec<_>>().join(",");
    let header = r#"{"cluster_id":"1","member_id":"1","revision":"5","raft_term":"2"}"#;
    let responses = format!(r#"[{{"response_range":{{"kvs":[{kvs}],"more":true}}}}]"#);
    let body = format!(r#"{{"header":{header},"succeeded":true,"responses":{responses}}}"#);
    let date = "Date: Fri, 27 Nov 2026 20:00:00 GMT";
    format!("HTTP/1.1 200 OK\r\n{date}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

// "A listing has a limit in bytes", which the message names; and keys come in their order: a server that always has
// another page ends with 69, in little memory.
#[test]
fn there_is_always_another_page() {
    type Answer = fn(u64) -> Vec<u8>;
    let endless: [(Answer, &str); 4] = [
        (|number| page(number * PAGE..(number + 1) * PAGE), "more than 128 MiB"),
        (|_| page(0..PAGE), "keys that are not in order"),
        (|number| page((number * PAGE..(number + 1) * PAGE).rev()), "keys that are not in order"),
        (|_| page([7, 7].into_iter()), "keys that are not in order"),
    ];
    for (answer, said) in endless {
        // What `prune` has read it prunes: the locks are read one by one.
        let of_prune = if said.starts_with("more") { "an answer that lacks parts" } else { said };
        for (command, said) in [(&["status"][..], said), (&["prune", "--older-than", "1d"], of_prune)] {
            let fake = Fake::start(Manner::Each(answer));
            let url = format!("etcd://127.0.0.1:{}", fake.port());
            let call = Lockrun::bare().args(command).args(["--store", &url]);
            // In KiB.
            call.in_shell("ulimit -v 400000; exec \"$@\"").alone().exited(69).printed("").said(said);
        }
    }
}
