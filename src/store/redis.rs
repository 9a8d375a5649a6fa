//! Locks in one Redis or Valkey, as leases.
//!
//! All keys of a lock lie under `PREFIX:{KEY}:` and so in one slot of a cluster:
//!
//! | key | type | what |
//! |---|---|---|
//! | `holders` | sorted set | token → when its lease ends, in ms of the server's clock |
//! | `info` | hash | token → JSON: fence, since when, and who |
//! | `fence` | string | the fencing token given out last; never expires |
//! | `last` | string | JSON: the last run |
//!
//! Every change is one Lua script, atomic on the server, with the time taken from the server. The first two keys expire
//! with the last lease, so that a crash leaves nothing behind.

mod connection;
mod dial;
mod resolve;
mod stream;
mod tls;

use std::time::Duration;

use anyhow::{Context, anyhow};
use redis::{Cmd, Value};
use serde::Deserialize;
use serde_json::json;

use super::address::{Endpoint, Server};
use super::{Acquired, Claim, Custody, Grant, Held, LastRun, Renewed, Store, StoreError, Wait};
use crate::clock::Moment;
use crate::holder::Holder;
use crate::key::Key;
use crate::outcome::Ending;
use crate::supervise::interrupt;
use connection::{Connection, Failure};
use tls::Tls;

const ACQUIRE: &str = include_str!("redis/acquire.lua");
const RENEW: &str = include_str!("redis/renew.lua");
const RELEASE: &str = include_str!("redis/release.lua");

/// The bounds of the pause between two looks at a lock that is held: jittered, so that waiters spread.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_millis(150), Duration::from_millis(450));

/// For how long a waiter that had reached the server bears with its absence: a restart or a fail-over is over by then.
const OUTAGE_MAX: Duration = Duration::from_mins(1);

/// A store in one Redis or Valkey.
pub struct RedisStore {
    server: Server,
    tls: Option<Tls>,
    timeout: Duration,
    connection: Option<Connection>,
}

impl RedisStore {
    /// The store at `server`. `timeout` bounds every request, connecting included. On failure says what is wrong with
    /// the files that TLS needs.
    pub fn new(server: Server, timeout: Duration) -> Result<Self, String> {
        let tls = match &server.endpoint {
            Endpoint::Tcp { host, tls: Some(files), .. } => Some(Tls::new(host, files)?),
            _ => None,
        };
        Ok(RedisStore { server, tls, timeout, connection: None })
    }

    /// Runs a script that is safe to run twice, and gives its reply. A connection that turns out to have been closed while
    /// it was idle is opened anew, once. On failure, also tells whether the server may have run it.
    fn run(&mut self, script: &Cmd, timeout: Duration) -> Result<Value, Failure> {
        let deadline = Moment::now() + timeout;
        if let Some(connection) = &mut self.connection {
            match connection.request(script, deadline) {
                Err(Failure::Closed) => self.connection = None,
                Err(failure) => {
                    self.connection = None;
                    return Err(failure);
                }
                reply => return reply,
            }
        }
        let mut connection = Connection::open(&self.server, self.tls.as_ref(), deadline)?;
        let reply = connection.request(script, deadline)?;
        self.connection = Some(connection);
        Ok(reply)
    }

    /// Asks for the lock once.
    fn try_acquire(&mut self, claim: &Claim) -> Result<Acquired, StoreError> {
        let mut script = self.script(ACQUIRE, claim, &["holders", "info", "fence"]);
        let script = script.arg(ttl_ms(claim)).arg(json!(claim.holder).to_string()).take();
        let sent_at = Moment::now();
        match self.run(&script, self.timeout) {
            Ok(reply) => match read_reply(&reply).context("the acquire script's reply is not understood")? {
                Reply::Mine(fence) => Ok(Acquired::Mine(Grant { fence, custody: Custody::Lease(sent_at) })),
                Reply::NotMine(held) => Ok(Acquired::Held(held.unwrap_or_default())),
            },
            Err(failure) => {
                if failure.may_have_run() {
                    self.withdraw(claim);
                }
                Err(self.explain(&failure))
            }
        }
    }

    /// Takes back a claim whose answer was not heard: it may have been granted. As well as it can be done; if it cannot,
    /// the lease runs out.
    fn withdraw(&mut self, claim: &Claim) {
        let script = self.script(RELEASE, claim, &["holders", "info", "last"]).arg("").take();
        let _ = self.run(&script, self.timeout / 2);
    }

    /// An EVAL of `script` on the named keys of the lock, with the token as its first argument.
    fn script(&self, script: &str, claim: &Claim, keys: &[&str]) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(script).arg(keys.len());
        let base = key_base(&self.server.prefix, &claim.key);
        for key in keys {
            command.arg(format!("{base}{key}"));
        }
        command.arg(claim.token.to_string());
        command
    }

    fn explain(&self, failure: &Failure) -> StoreError {
        failure.explain(&self.server)
    }
}

impl Store for RedisStore {
    fn acquire(&mut self, claim: &Claim, wait: Option<Wait<'_>>) -> Result<Acquired, StoreError> {
        let mut answer = self.try_acquire(claim)?;
        let Some(Wait { until, signals, notice }) = wait else { return Ok(answer) };
        if let Acquired::Held(held) = &answer {
            notice(held);
        }
        let mut heard_at = Moment::now();
        loop {
            let Acquired::Held(held) = &answer else { return Ok(answer) };
            let now = Moment::now();
            if until.is_some_and(|until| now >= until) {
                return Ok(answer);
            }
            let pause = held.expires_in.map_or(jittered(), |expires_in| jittered().min(expires_in));
            let wake_at = until.map_or(now + pause, |until| until.min(now + pause));
            if let Some(signal) = interrupt::sleep(wake_at, signals).context("cannot wait")? {
                return Ok(Acquired::Interrupted(signal));
            }
            match self.try_acquire(claim) {
                Ok(next) => (answer, heard_at) = (next, Moment::now()),
                Err(error) if Moment::now().since(heard_at) > OUTAGE_MAX => return Err(error),
                Err(_) => {}
            }
        }
    }

    fn renew(&mut self, claim: &Claim) -> Result<Renewed, StoreError> {
        let script = self.script(RENEW, claim, &["holders", "info"]).arg(ttl_ms(claim)).take();
        let reply = self.run(&script, self.timeout).map_err(|failure| self.explain(&failure))?;
        match read_reply(&reply).context("the renew script's reply is not understood")? {
            Reply::Mine(_) => Ok(Renewed::Mine),
            Reply::NotMine(held) => Ok(Renewed::NotMine(held)),
        }
    }

    fn release(&mut self, claim: &Claim, last: LastRun) -> Result<(), StoreError> {
        let ending = match last.ending {
            None => json!({}),
            Some(Ending::Exited(status)) => json!({ "status": status }),
            Some(Ending::Signaled(signal)) => json!({ "signal": signal }),
        };
        let script = self.script(RELEASE, claim, &["holders", "info", "last"]).arg(ending.to_string()).take();
        self.run(&script, self.timeout).map_err(|failure| self.explain(&failure)).map(drop)
    }
}

/// What all keys of a lock begin with. Braces and percent signs in KEY are escaped, so that the hash tag is KEY whole and
/// no two locks share a key.
fn key_base(prefix: &str, key: &Key) -> String {
    let escaped = key.as_str().replace('%', "%25").replace('{', "%7B").replace('}', "%7D");
    format!("{prefix}:{{{escaped}}}:")
}

/// The lease's length as the scripts take it.
fn ttl_ms(claim: &Claim) -> u64 {
    claim.ttl.map_or(0, |ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))
}

/// What the acquire and renew scripts answer.
enum Reply {
    Mine(u64),
    NotMine(Option<Held>),
}

/// What the scripts keep about a holder.
#[derive(Deserialize)]
struct Info {
    who: Holder,
}

/// Reads `{1, fence}` or `{0, held for ms, expires in ms (-1: never), info}`; `{0}` if nobody has the lock.
fn read_reply(reply: &Value) -> Result<Reply, StoreError> {
    let unexpected = || anyhow!("an unexpected {reply:?}");
    let Value::Array(fields) = reply else { return Err(unexpected()) };
    match fields.as_slice() {
        [Value::Int(1), Value::Int(fence)] => Ok(Reply::Mine(u64::try_from(*fence)?)),
        [Value::Int(0)] => Ok(Reply::NotMine(None)),
        [Value::Int(0), Value::Int(since), Value::Int(expires_in), Value::BulkString(info)] => {
            let info = serde_json::from_slice::<Info>(info).ok();
            Ok(Reply::NotMine(Some(Held {
                holder: info.map(|info| info.who),
                since: u64::try_from(*since).ok().map(Duration::from_millis),
                expires_in: u64::try_from(*expires_in).ok().map(Duration::from_millis),
            })))
        }
        _ => Err(unexpected()),
    }
}

/// A random pause between two looks.
fn jittered() -> Duration {
    let (least, most) = LOOK_AGAIN;
    let random = u32::from_ne_bytes(uuid::Uuid::new_v4().as_bytes()[..4].try_into().unwrap_or_default());
    least + most.saturating_sub(least).mul_f64(f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_tag_is_the_whole_key() {
        let base = |key: &str| key_base("lockrun", &Key::new(key.as_ref()).expect("is a key"));
        assert_eq!(base("a"), "lockrun:{a}:");
        assert_eq!(base("a{b}c"), "lockrun:{a%7Bb%7Dc}:");
        assert_ne!(base("{"), base("%7B"));
    }

    #[test]
    fn replies_are_read() {
        let int = |n| Value::Int(n);
        assert!(matches!(read_reply(&Value::Array(vec![int(1), int(7)])), Ok(Reply::Mine(7))));
        assert!(matches!(read_reply(&Value::Array(vec![int(0)])), Ok(Reply::NotMine(None))));
        let info = Value::BulkString(br#"{"who":{"host":"web-1","pid":7,"more":1},"fence":3}"#.to_vec());
        let Ok(Reply::NotMine(Some(held))) = read_reply(&Value::Array(vec![int(0), int(5), int(-1), info])) else {
            panic!("is a held lock")
        };
        assert_eq!(held.holder.map(|who| (who.host, who.pid)), Some(("web-1".into(), 7)));
        assert_eq!((held.since, held.expires_in), (Some(Duration::from_millis(5)), None));
        assert!(read_reply(&Value::Okay).is_err());
    }
}
