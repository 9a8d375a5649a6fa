//! Fuzzing of the answers of Redis, Sentinels and cluster nodes.

use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt as _;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode, utf8_percent_encode};
use redis::Value;

use super::resp::{Answer, Answers, ORDINARY};
use super::url::{Failover, Server, parse};
use crate::fuzz::PASSWORD;
use crate::net::endpoint::Endpoint;
use crate::store::fuzz::play;
use crate::store::url::spelled_tls;

/// The characters that are encoded in a path.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/');

/// A stream that returns a few bytes at a time.
struct Trickle<'a>(&'a [u8]);

impl Read for Trickle<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = buffer.len().min(61);
        self.0.read(&mut buffer[..count])
    }
}

/// Redis's protocol: the result does not depend on how the bytes arrive, and takes memory in proportion to them.
pub fn resp(data: &[u8]) {
    let (mut at_once, mut slowly) = (Answers::default(), Answers::default());
    let (mut whole, mut trickle) = (data, Trickle(data));
    loop {
        let one = at_once.next(&mut whole, ORDINARY);
        let other = slowly.next(&mut trickle, ORDINARY);
        assert_eq!(format!("{one:?}"), format!("{other:?}"));
        match one {
            Ok(Answer::Value(value)) => assert!(size(&value, 1) <= 40 * data.len() + 64, "{value:?}"),
            // A byte that is not UTF-8 becomes a character of three bytes.
            Ok(Answer::Error(error)) => assert!(error.len() <= 3 * data.len()),
            Err(_) => break,
        }
    }
}

/// Returns how much memory a value takes that is this deep.
fn size(value: &Value, depth: usize) -> usize {
    assert!(depth <= 8);
    let own = size_of::<Value>();
    match value {
        Value::Array(values) => own + values.iter().map(|value| size(value, depth + 1)).sum::<usize>(),
        Value::BulkString(bytes) => own + bytes.len(),
        Value::SimpleString(text) => own + text.len(),
        _ => own,
    }
}

/// A URL of Redis, Sentinels or a cluster: written again, it reads the same.
pub fn url(text: &str) {
    let Ok(site) = parse(text) else { return };
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let server = &site.server;
    let user = server.user.as_deref().map(encoded).unwrap_or_default();
    let login = server.password.as_deref().map_or(user.clone(), |password| format!("{user}:{}@", encoded(password)));
    let prefix = encoded(&server.prefix);
    let (kind, members, place) = match &site.failover {
        None => ("", vec![server], format!("/{}", server.database)),
        Some(Failover::Cluster(nodes)) => ("+cluster", nodes.iter().collect(), String::new()),
        Some(Failover::Sentinel { service, sentinels }) => {
            ("+sentinel", sentinels.iter().collect(), format!("/{}/{}", encoded(service), server.database))
        }
    };
    let mut files = None;
    let host = |member: &&Server| match &member.endpoint {
        Endpoint::Tcp { host, port, tls } => {
            files.clone_from(tls);
            format!("[{}]:{port}", encoded(host))
        }
        Endpoint::Unix(_) => String::new(),
    };
    let hosts = members.iter().map(host).collect::<Vec<_>>().join(",");
    let mut again = match &server.endpoint {
        Endpoint::Unix(path) => {
            let path = percent_encode(path.as_os_str().as_bytes(), PATH);
            format!("redis+unix://{login}{path}?prefix={prefix}&db={}", server.database)
        }
        Endpoint::Tcp { .. } => {
            let scheme = if files.is_some() { "rediss" } else { "redis" };
            let files = files.as_ref().map(spelled_tls).unwrap_or_default();
            format!("{scheme}{kind}://{login}{hosts}{place}?prefix={prefix}{files}")
        }
    };
    if server.grace_ms > 0 {
        again = format!("{again}&grace={}ms", server.grace_ms);
    }
    if let Some(Failover::Sentinel { sentinels, .. }) = &site.failover {
        let named = [("sentinel_user", &sentinels[0].user), ("sentinel_password", &sentinels[0].password)];
        for (name, value) in named {
            again += &value.as_deref().map_or_else(String::new, |value| format!("&{name}={}", encoded(value)));
        }
    }
    assert!(parse(&again).is_ok_and(|read| read == site), "{again}");
}

/// The answers of one Redis.
pub fn redis(data: &[u8]) {
    play(&format!("redis://u:{PASSWORD}@h/3"), data);
}

/// The answers of Sentinels, or of cluster nodes, and of the primary that they name.
pub fn failover(data: &[u8]) {
    let (kind, rest) = data.split_first().unwrap_or((&b's', data));
    let url = match kind {
        b'c' => format!("redis+cluster://u:{PASSWORD}@a,b"),
        _ => format!("redis+sentinel://u:{PASSWORD}@a,b,c/service?sentinel_password={PASSWORD}"),
    };
    play(&url, rest);
}
