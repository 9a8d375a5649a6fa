//! Locks in one Redis or Valkey, as leases.
//!
//! All keys of a lock lie under `PREFIX:{KEY}:` and so in one slot of a cluster; `prelude.lua` says what is in each. Every
//! change is one Lua script, atomic on the server, with the time taken from the server. All keys but the fence and the last
//! run expire with the last lease and the last waiter's sign of life, so that a crash leaves nothing behind.

mod connection;
mod dial;
mod reply;
mod resolve;
mod stream;
mod tls;
mod waiting;

use std::thread;
use std::time::Duration;

use redis::{Cmd, Value};
use serde_json::json;

use super::address::{Endpoint, Server};
use super::{Acquired, Claim, LastRun, Renewed, Store, StoreError, Wait};
use crate::clock::Moment;
use crate::key::Key;
use crate::outcome::Ending;
use connection::{Connection, Failure};
use reply::{Asked, Handed};
use tls::Tls;
use waiting::Seen;

/// The scripts. What they share stands in front of each.
macro_rules! script {
    ($name:literal) => {
        concat!(include_str!("redis/prelude.lua"), include_str!(concat!("redis/", $name, ".lua")))
    };
}

const ACQUIRE: &str = script!("acquire");
const RENEW: &str = script!("renew");
const RELEASE: &str = script!("release");
const SETTLE: &str = script!("settle");

/// The keys that every script is given, as the prelude names them.
const KEYS: [&str; 7] = ["holders", "info", "fence", "last", "queue", "alive", "box:"];

/// How long the one to whom we have handed the lock is left alone, to claim it and to start its command. Only after that is
/// it asked whether it listens.
const CLAIM_FIRST: Duration = Duration::from_millis(2);

/// Whether a request for the lock may still be on its way to the server when the claim is withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    None,
    Pending,
}

/// A store in one Redis or Valkey.
pub struct RedisStore {
    server: Server,
    tls: Option<Tls>,
    timeout: Duration,
    connection: Option<Connection>,
    /// Whom our release has handed the lock to, until it is settled.
    unsettled: Option<Handed>,
}

impl RedisStore {
    /// The store at `server`. `timeout` bounds every request, connecting included. On failure says what is wrong with
    /// the files that TLS needs.
    pub fn new(server: Server, timeout: Duration) -> Result<Self, String> {
        let tls = match &server.endpoint {
            Endpoint::Tcp { host, tls: Some(files), .. } => Some(Tls::new(host, files)?),
            _ => None,
        };
        Ok(RedisStore { server, tls, timeout, connection: None, unsettled: None })
    }

    /// Runs a script that is safe to run twice, and gives its reply. A connection that turns out to have been closed while
    /// it was idle is opened anew, once. On failure, also tells whether the server may have run it.
    fn run(&mut self, script: &Cmd, timeout: Duration) -> Result<Value, Failure> {
        self.run_while(script, timeout, &mut || ())
    }

    /// The same, while `meanwhile` is done: once, or twice if the script was sent twice.
    fn run_while(&mut self, script: &Cmd, timeout: Duration, meanwhile: &mut dyn FnMut()) -> Result<Value, Failure> {
        let deadline = Moment::now() + timeout;
        if let Some(connection) = &mut self.connection {
            match connection.request(script, deadline, meanwhile) {
                Err(Failure::Closed) => self.connection = None,
                Err(failure) => {
                    self.connection = None;
                    return Err(failure);
                }
                reply => return reply,
            }
        }
        let mut connection = Connection::open(&self.server, self.tls.as_ref(), deadline)?;
        let reply = connection.request(script, deadline, meanwhile)?;
        self.connection = Some(connection);
        Ok(reply)
    }

    /// Asks for the lock once. With `wait`, joins the queue or stays in it; without, leaves it. A waiter tells whom it has
    /// `seen` holding the lock. Does what is to be done `meanwhile` while the request is on its way.
    ///
    /// After a failure the claim may have been granted all the same: ask again under the same token, or withdraw it.
    fn ask(
        &mut self,
        claim: &Claim,
        wait: bool,
        seen: Option<&Seen>,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<Asked, Failure> {
        let mut script = self.script(ACQUIRE, claim);
        script.arg(ttl_ms(claim)).arg(json!(claim.holder).to_string());
        let (caution, unseen) = seen.map_or((0, 0), |seen| seen.caution(Moment::now()));
        let script = script.arg(u8::from(wait)).arg(millis(waiting::REFRESH)).arg(caution).arg(unseen).take();
        let sent_at = Moment::now();
        let reply = self.run_while(&script, self.timeout, meanwhile)?;
        Asked::read(&reply, sent_at).map_err(Failure::Strange)
    }

    /// Gives up on a claim after a failure, as an error.
    fn give_up(&mut self, claim: &Claim, failure: &Failure) -> StoreError {
        self.withdraw_after(claim, failure);
        failure.explain(&self.server)
    }

    /// Takes back a claim whose answer was not heard, or came from where we are not welcome.
    fn withdraw_after(&mut self, claim: &Claim, failure: &Failure) {
        match failure {
            Failure::Unreachable(_) => {}
            Failure::Refused { .. } | Failure::Strange(_) => self.withdraw(claim, Doubt::None),
            Failure::Closed | Failure::NoAnswer(_) => self.withdraw(claim, Doubt::Pending),
        }
    }

    /// Takes back a claim, and leaves the queue. As well as it can be done; if it cannot, the lease runs out. The token must
    /// not be used again.
    fn withdraw(&mut self, claim: &Claim, doubt: Doubt) {
        let script = self.script(RELEASE, claim).arg("").arg(u8::from(doubt == Doubt::Pending)).take();
        if let Ok(reply) = self.run(&script, self.timeout / 2) {
            self.make_sure(claim, Handed::read(&reply));
        }
    }

    /// Makes sure that somebody who listens was told of the lock that a script of ours has handed to a waiter. If that
    /// fails, the others find out by themselves, only later.
    fn make_sure(&mut self, claim: &Claim, handed: Option<Handed>) {
        let Some(Handed { granted, mut told }) = handed else { return };
        loop {
            let mut script = self.bare_script(SETTLE, claim);
            let script = script.arg(&granted).arg(&told).take();
            match self.run(&script, self.timeout).ok().and_then(|reply| reply::text(&reply)) {
                Some(next) if !next.is_empty() => told = next,
                _ => return,
            }
        }
    }

    /// An EVAL of `script` on the keys of the lock.
    fn bare_script(&self, script: &str, claim: &Claim) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(script).arg(KEYS.len());
        let base = key_base(&self.server.prefix, &claim.key);
        for key in KEYS {
            command.arg(format!("{base}{key}"));
        }
        command
    }

    /// The same with our token as its first argument.
    fn script(&self, script: &str, claim: &Claim) -> Cmd {
        self.bare_script(script, claim).arg(claim.token.to_string()).take()
    }
}

impl Store for RedisStore {
    fn acquire(&mut self, claim: &Claim, wait: Option<Wait<'_>>) -> Result<Acquired, StoreError> {
        let Some(wait) = wait else {
            return match self.ask(claim, false, None, &mut || ()) {
                Ok(Asked::Mine(grant)) => Ok(Acquired::Mine(grant)),
                Ok(Asked::NotMine { held, handed, .. }) => {
                    self.make_sure(claim, handed);
                    Ok(Acquired::Held(held))
                }
                Err(failure) => Err(self.give_up(claim, &failure)),
            };
        };
        self.wait_in_turn(claim, wait)
    }

    fn renew(&mut self, claim: &Claim) -> Result<Renewed, StoreError> {
        let script = self.script(RENEW, claim).arg(ttl_ms(claim)).take();
        let reply = self.run(&script, self.timeout).map_err(|failure| failure.explain(&self.server))?;
        reply::read_renewal(&reply).map_err(|strange| Failure::Strange(strange).explain(&self.server))
    }

    fn release(&mut self, claim: &Claim, last: LastRun) -> Result<(), StoreError> {
        let ending = match last.ending {
            None => json!({}),
            Some(Ending::Exited(status)) => json!({ "status": status }),
            Some(Ending::Signaled(signal)) => json!({ "signal": signal }),
        };
        let script = self.script(RELEASE, claim).arg(ending.to_string()).arg(0).take();
        // The connection may have been idle for long, and have been forgotten by something on the way without a word. To ask
        // twice does no harm, and a lock that never expires has no second chance.
        let was_idle = self.connection.is_some();
        let reply = match self.run(&script, self.timeout) {
            Err(Failure::NoAnswer(_)) if was_idle => self.run(&script, self.timeout),
            reply => reply,
        };
        let reply = reply.map_err(|failure| failure.explain(&self.server))?;
        self.unsettled = Handed::read(&reply);
        Ok(())
    }

    fn settle(&mut self, claim: &Claim) {
        let handed = self.unsettled.take();
        if handed.is_some() {
            thread::sleep(CLAIM_FIRST);
        }
        self.make_sure(claim, handed);
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
    claim.ttl.map_or(0, millis)
}

/// A span in whole milliseconds.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
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
}
