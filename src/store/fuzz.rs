//! Fuzzing of stores: their URLs, their records, and servers' replies.

use std::time::Duration;

use super::{Address, Backend, Claim, IfHeld, KeyStatus, Mode, Release, RequestError, Retain, StoreError, Wanted};
use crate::commands::status;
use crate::fuzz::{PASSWORD, check_secret};
use crate::lock::ending::Ending;
use crate::lock::holder::Holder;
use crate::lock::key::Key;
use crate::lock::lease::Ttl;
use crate::lock::token::Token;
use crate::net::scripted;

pub use super::file::fuzz::record;
pub use super::mysql::fuzz::mycnf;
pub use super::postgres::fuzz::pgpass;
pub use super::redis::fuzz::{failover, redis, resp};

/// Separates the replies on one connection from those on the next.
const NEXT_CONNECTION: &str = "\n====\n";

/// Fuzzes the URL of a store: no message about it reveals the password, even of a URL in the place of something else.
pub fn url(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    read_url(&text);
    let is_mark = |c: char| matches!(c, ':' | '/' | '?' | '&' | '=' | ',' | '@' | '{' | '.');
    for (at, mark) in text.match_indices(is_mark).take(16) {
        let (before, after) = text.split_at(at + mark.len());
        for planted in
            ["redis://u:{}@h", "redis://u:{}%40h", "u:{}@h", "postgres://u:{}@h/db", "mysql://u:{}@h/db", "password:{}"]
        {
            let planted = planted.replace("{}", PASSWORD);
            // Elsewhere it is not a password.
            let is_parameter = before.ends_with(['?', '&']) && before.matches('?').count() == 1;
            if planted.starts_with("password") && !is_parameter {
                continue;
            }
            read_url(&format!("{before}{planted}"));
            if after.is_empty() || !after.starts_with(|c: char| c.is_alphanumeric()) {
                read_url(&format!("{before}{planted}{after}"));
            }
        }
    }
}

fn read_url(text: &str) {
    match Address::parse(text) {
        Ok(address) => {
            match text.as_bytes().first() {
                Some(b'r') => super::redis::fuzz::url(text),
                Some(b'e') => super::etcd::fuzz::url(text),
                _ => {}
            }
            check_secret(&format!("{address:?}"));
            if let Some(schema) = address.schema().filter(|_| !text.contains("user=")) {
                assert!(schema.len() < 20_000 + 40 * text.len());
            }
        }
        Err(why) => {
            check_secret(&why);
            assert!(why.len() <= 2000 + 12 * text.len(), "a message of {} bytes", why.len());
        }
    }
}

/// The limit for one request: the replies are there at once, and no others will come.
const TIMEOUT: Duration = Duration::from_millis(2);

/// Fuzzes etcd's replies.
pub fn etcd(data: &[u8]) {
    let url = format!("etcd://u:{PASSWORD}@a,b");
    play(&url, data);
}

/// Fuzzes PostgreSQL's replies.
pub fn postgres(data: &[u8]) {
    let url = format!("postgres://u:{PASSWORD}@h/db?sslmode=disable");
    play(&url, data);
}

/// Fuzzes the replies of MySQL and MariaDB.
pub fn mysql(data: &[u8]) {
    let url = format!("mysql://u:{PASSWORD}@h/db?tls=disabled");
    play(&url, data);
}

/// Makes a store at `url` carry out the operations named in the first line of `data`, with a server that replies with
/// the rest.
pub(super) fn play(url: &str, data: &[u8]) {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (operation, rest) = data.split_at(end);
    let mut connections = Vec::new();
    let mut rest = rest.get(1..).unwrap_or_default();
    while let Some(at) = rest.windows(NEXT_CONNECTION.len()).position(|part| part == NEXT_CONNECTION.as_bytes()) {
        connections.push(rest[..at].to_vec());
        rest = &rest[at + NEXT_CONNECTION.len()..];
    }
    connections.push(rest.to_vec());
    let mut store = Address::parse(url).expect("is a URL").open(TIMEOUT).expect("is opened");
    scripted::with(connections, || carry_out(store.as_mut(), &String::from_utf8_lossy(operation)));
}

fn carry_out(store: &mut dyn Backend, operation: &str) {
    let (claim, by) = (claim(), Holder { host: "h".into(), ..Holder::default() });
    let (key, token) = (&claim.key, &claim.token);
    for operation in operation.split(' ') {
        let retain = Retain::AtLeast(Duration::from_secs(1));
        let run = Release::Run { ending: Ending::Exited(0), succeeded: true, retain };
        match operation {
            "acquire" => check_request(store.try_acquire(&claim, IfHeld::Leave)),
            "queue" => check_request(store.try_acquire(&claim, IfHeld::Queue { max_waiting: Some(3), until: None })),
            "share" => {
                let claim = Claim { mode: Mode::Shared, once_per: Some(Duration::from_mins(1)), ..claim.clone() };
                check_request(store.try_acquire(&claim, IfHeld::Queue { max_waiting: None, until: None }));
            }
            "renew" => check(store.renew(key, token, None)),
            "release" => check(store.release(key, token, run)),
            "free" => check(store.release(key, token, Release::ByHand)),
            "cancel" => drop(store.cancel(&claim, false)),
            "status" => show(store.list(Some(key))),
            "list" => show(store.list(None)),
            "revoke" => check(store.revoke(key, None, &by, true)),
            "reserve" => check_request(store.reserve(&claim, &Wanted::Next { from: 1, step: 1 })),
            "value" => {
                let wanted = Wanted::Value { value: "b".into(), after: Some("a".into()), steps: 1 };
                check_request(store.reserve(&claim, &wanted));
            }
            "prune" => check(store.prune(None, Duration::from_secs(1), true).map(|listing| listing.unreadable.len())),
            "doctor" => {
                let found = store.diagnose();
                assert!(!found.is_empty());
                check_secret(&format!("{found:?}"));
            }
            _ => {}
        }
    }
}

/// The claim of the operations.
pub(super) fn claim() -> Claim {
    Claim {
        key: Key::new("k".as_ref()).expect("is a key"),
        token: Token::parse("ours").expect("is a token"),
        ttl: Ttl::Lasts(Duration::from_secs(30)),
        holder: Holder { host: "us".into(), pid: 1, user: "u".into(), command: "c".into(), label: None },
        mode: Mode::EXCLUSIVE,
        once_per: None,
        by_hand: false,
        request: None,
    }
}

fn check_request<T: std::fmt::Debug>(answer: Result<T, RequestError>) {
    check(answer.map_err(|failed| failed.error));
}

fn check<T: std::fmt::Debug>(answer: Result<T, StoreError>) {
    match answer {
        Ok(answer) => check_secret(&format!("{answer:?}")),
        Err(error) => check_error(&error),
    }
}

fn check_error(error: &StoreError) {
    let why = format!("{error:#}");
    assert!(!why.trim().is_empty());
    check_secret(&why);
}

fn show(listed: Result<super::Listing<KeyStatus>, StoreError>) {
    match listed {
        Ok(listing) => {
            listing.unreadable.iter().for_each(check_error);
            status::fuzz::check(&listing.found);
        }
        Err(error) => check_error(&error),
    }
}
