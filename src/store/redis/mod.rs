//! Locks in one Redis or Valkey, as leases.
//!
//! All keys of a lock lie under `PREFIX:{KEY}:` and so in one slot of a cluster; `prelude.lua` lists them. Every change
//! is one Lua script, atomic on the server, and uses the server's time. All keys but the fence, the last run, the
//! sequence and the failover key expire after the last lease and the last place, so that a crash leaves nothing else
//! behind.

mod connection;
mod diagnose;
#[cfg(test)]
mod differential;
mod failover;
mod failure;
#[cfg(any(test, fuzzing))]
pub(in crate::store) mod fuzz;
mod holder_json;
mod keys;
#[cfg(test)]
mod late;
mod listing;
mod reply;
mod request;
mod resp;
mod rights;
mod script;
mod url;
mod waiting;

use std::slice;
use std::time::Duration;

use redis::{Cmd, Value};
use serde_json::json;

use super::{
    Acquired, Claim, Diagnose, IfHeld, KeyStatus, Listing, Release, Released, Renewed, RequestError, Reserved, Retain,
    Revoked, Sequences, Store, StoreError, Wakeup, Wanted, listing_limit,
};
use crate::lock::claim::Mode;
use crate::lock::ending::Ending;
use crate::lock::holder::Holder;
use crate::lock::key::Key;
use crate::lock::lease::Ttl;
use crate::lock::state::millis;
use crate::lock::token::Token;
use crate::net::tls::{Tls, Verification};
use crate::store::diagnostic::Diagnostic;
use crate::sys::clock::Moment;
use crate::sys::wait::{WaitObserver, Waiter};
use connection::Connection;
use failover::{Primary, PrimaryLocator};
use failure::Failure;
use script::{ACQUIRE, LIST, RELEASE, RENEW, RESERVE, REVOKE, Script};
use url::{Failover, Server, Site};

pub(super) use url::KIND;

/// The keys that every script is given, as the prelude names them.
const KEYS: [&str; 8] = ["holders", "info", "fence", "last", "queue", "places", "mailbox:", "sequence"];

/// The key that scripts get in addition where failovers can happen.
const FAILOVER_KEY: &str = "failover";

/// What one such key covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FailoverScope {
    /// All locks.
    Store,
    /// One lock: scripts may use only keys with the hash tag of their lock in a cluster.
    Lock,
}

/// A store in a Redis or Valkey.
pub struct RedisStore {
    /// The server; once the primary has been located, the primary.
    server: Server,
    /// What TLS needs to reach this server and those that can take its place, if it is used.
    tls: Option<Tls>,
    timeout: Duration,
    connection: Option<Connection>,
    /// What one failover key covers, where failovers can happen.
    failover_scope: Option<FailoverScope>,
    /// The servers that know the primary, where another server can become it.
    witnesses: Option<PrimaryLocator>,
    /// The primary that they named last, and for which hash slot.
    primary: Option<(u16, Primary)>,
    contact: ScriptCache,
    /// Whether a request for the lock went unanswered: it may still be on its way, whatever was answered since.
    in_flight: bool,
    /// Whether the last script was sent again, although its first copy may have been carried out.
    has_resent: bool,
    /// What a request for the lock does if the server is full.
    when_full: WhenFull,
    /// Whether the last request for the lock was answered that it is ours, or that we wait.
    is_in_store: bool,
    /// How many bytes the rest of a listing may take, while one is read.
    listing_left: Option<usize>,
}

/// What a request does if the server has no room for another client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WhenFull {
    /// It is repeated within its time.
    AskAgain,
    /// It fails: a waiter asks again by itself, and hears signals meanwhile.
    Fail,
}

/// What is known of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ScriptCache {
    /// It has not answered yet.
    NotYet,
    /// It has answered a request.
    Answered,
    /// It most likely has our scripts already.
    KnowsScripts,
}

impl RedisStore {
    /// Returns the store at `site`. `timeout` bounds every request, connecting included. Fails if TLS is impossible
    /// with these hosts or files, and says why.
    fn new(site: Site, timeout: Duration) -> Result<Self, String> {
        let Site { server, failover } = site;
        let failover_scope = failover.as_ref().map(|failover| match failover {
            Failover::Sentinel { .. } => FailoverScope::Store,
            Failover::Cluster(_) => FailoverScope::Lock,
        });
        let named = failover.as_ref().map_or(slice::from_ref(&server), Failover::servers);
        let named = named.iter().map(|server| &server.endpoint);
        let files = server.endpoint.tls_files();
        let tls = files.map(|files| Tls::for_servers(named, files, Verification::Full)).transpose()?;
        let witnesses = failover.map(|failover| PrimaryLocator::new(failover, &server, tls.clone()));
        Ok(RedisStore { failover_scope, witnesses, ..RedisStore::at(server, tls, timeout) })
    }

    /// Returns the store at this server alone, which is reached with `tls` if it is used.
    fn at(server: Server, tls: Option<Tls>, timeout: Duration) -> Self {
        RedisStore {
            server,
            tls,
            timeout,
            connection: None,
            failover_scope: None,
            witnesses: None,
            primary: None,
            contact: ScriptCache::NotYet,
            in_flight: false,
            has_resent: false,
            when_full: WhenFull::AskAgain,
            is_in_store: false,
            listing_left: None,
        }
    }

    /// Runs a script that may acquire something for a claim, and remembers whether a copy of it may still be on its
    /// way.
    fn request(&mut self, script: &Cmd) -> Result<Value, Failure> {
        self.has_resent = false;
        let reply = match self.when_full {
            WhenFull::AskAgain => self.run(script, self.timeout),
            WhenFull::Fail => self.run_unless_full(script, self.timeout),
        };
        self.in_flight |= self.has_resent || reply.as_ref().is_err_and(Failure::leaves_outcome_open);
        reply
    }

    /// Returns the failure of such a request.
    fn failed(&self, failure: &Failure) -> RequestError {
        RequestError {
            error: failure.explain(&self.server),
            retry_class: failure.retry_class(),
            never_sent: failure.cannot_have_run() && !self.in_flight,
        }
    }

    /// Asks for the lock once.
    fn ask(&mut self, claim: &Claim, if_held: IfHeld) -> Result<Acquired, Failure> {
        let mut script = self.script(&ACQUIRE, &claim.key, &claim.token);
        let script = script.arg(ttl_ms(claim.ttl)).arg(json!(claim.holder).to_string());
        let script = script.arg(u8::from(if_held != IfHeld::Leave)).arg(millis(claim.place()));
        let script = script.arg(u8::from(claim.by_hand)).arg(slots(claim.mode)).arg(request(claim));
        let script = script.arg(max_waiting(if_held)).arg(claim.once_per.map_or(0, millis)).take();
        let sent_at = Moment::now();
        let reply = self.request(&script)?;
        reply::read_acquisition(&reply, sent_at)
    }

    /// Makes sure that a request of a finished claim that is still on its way acquires nothing.
    fn forget(&mut self, claim: &Claim) {
        if self.in_flight {
            self.cancel(claim, false);
        }
    }

    /// Returns the command that runs `script` on the keys of the lock.
    fn bare_script(&self, script: &Script, key: &Key) -> Cmd {
        let mut command = script.command(self.contact == ScriptCache::KnowsScripts, self.failover_scope.is_some());
        let base = keys::base(&self.server.prefix, key);
        let failover = self.failover_scope.map(|scope| match scope {
            FailoverScope::Store => format!("{}:{FAILOVER_KEY}", self.server.prefix),
            FailoverScope::Lock => format!("{base}{FAILOVER_KEY}"),
        });
        command.arg(KEYS.len() + usize::from(failover.is_some()));
        for key in KEYS {
            command.arg(format!("{base}{key}"));
        }
        command.arg(failover).arg(self.server.database_and_grace()).take()
    }

    /// Returns the same with a token as the script's first argument.
    fn script(&self, script: &Script, key: &Key, token: &Token) -> Cmd {
        self.bare_script(script, key).arg(token.as_str()).take()
    }
}

impl Store for RedisStore {
    fn try_acquire(&mut self, claim: &Claim, if_held: IfHeld) -> Result<Acquired, RequestError> {
        if if_held != IfHeld::Leave {
            self.when_full = WhenFull::Fail;
        }
        let tried = self.ask(claim, if_held).map_err(|failure| self.failed(&failure))?;
        let waits = matches!(&tried, Acquired::Held(held) if held.place.is_some());
        self.is_in_store = waits || matches!(tried, Acquired::Mine(_));
        if !self.is_in_store {
            self.forget(claim);
        }
        Ok(match tried {
            Acquired::Held(held) if if_held != IfHeld::Leave && !waits => Acquired::NotQueued(held),
            tried => tried,
        })
    }

    fn await_turn(
        &mut self,
        claim: &Claim,
        until: Option<Moment>,
        waiter: &mut Waiter<'_>,
        observer: &mut dyn WaitObserver,
    ) -> Result<Wakeup, RequestError> {
        // The server has the scripts from us. Do what takes time before our turn comes.
        self.contact = ScriptCache::KnowsScripts;
        script::compute_hashes(self.failover_scope.is_some());
        self.sleep_at_mailbox(claim, until, waiter, observer).map_err(|failure| {
            // No request for the lock was sent.
            RequestError { never_sent: true, ..self.failed(&failure) }
        })
    }

    fn renew(&mut self, key: &Key, token: &Token, ttl: Option<Ttl>) -> Result<Renewed, StoreError> {
        let ttl = ttl.map_or(-1, |ttl| i64::try_from(ttl_ms(ttl)).unwrap_or(i64::MAX));
        self.send_renewal(key, token, ttl, false)
    }

    fn renew_run(&mut self, key: &Key, token: &Token, ttl: Ttl) -> Result<Renewed, StoreError> {
        self.send_renewal(key, token, i64::try_from(ttl_ms(ttl)).unwrap_or(i64::MAX), true)
    }

    fn release(&mut self, key: &Key, token: &Token, how: Release) -> Result<Released, StoreError> {
        let (ending, mode, span, succeeded) = release_args(how);
        let in_flight = u8::from(self.in_flight);
        // It lets a repeated release by hand recognize that it was done before.
        let request = if how == Release::ByHand { Token::random().as_str().to_owned() } else { String::new() };
        let mut script = self.script(&RELEASE, key, token);
        let script =
            script.arg(ending).arg(in_flight).arg(mode).arg(span).arg(u8::from(succeeded)).arg(&request).take();
        self.has_resent = false;
        // Nothing else would release a lock that never expires.
        let answered = self.run_until_answered(&script, self.timeout);
        let reply = answered.map_err(|failure| failure.explain(&self.server))?;
        let released = reply::read_release(&reply).map_err(|failure| failure.explain(&self.server))?;
        // An earlier copy of the request may have released it.
        let may_be_done = self.has_resent && how != Release::ByHand && !how.keeps();
        let is_done = may_be_done && matches!(released, Released::NotMine(_));
        Ok(if is_done { Released::Free } else { released })
    }

    /// If this fails, the lease expires. The token must not be used again, unless it is the user's own: a late request
    /// under that may acquire the lock, but so may the user's next one.
    fn cancel(&mut self, claim: &Claim, in_flight: bool) -> bool {
        // A request of this process has already used its own time, one of another process has not.
        let timeout = if in_flight { self.timeout } else { self.timeout / 2 };
        let in_flight = in_flight || self.in_flight;
        // Something of ours may be in the store.
        let matters = self.is_in_store || in_flight;
        let voids_late_requests = in_flight && claim.request.is_none();
        // Send the text: the request may be on its way for long, and nobody would be there to send the text if the
        // server did not know the hash.
        self.contact = self.contact.min(ScriptCache::Answered);
        let mut script = self.script(&RELEASE, &claim.key, &claim.token);
        let script = script.arg("").arg(u8::from(voids_late_requests)).arg("cancel").arg(0).arg(0);
        let script = script.arg(request(claim)).take();
        let reply =
            if matters { self.run_until_answered(&script, timeout) } else { self.run_unless_full(&script, timeout) };
        reply.is_ok()
    }

    fn expect_late_requests(&mut self) {
        self.in_flight = true;
    }

    fn list(&mut self, key: Option<&Key>) -> Result<Listing<KeyStatus>, StoreError> {
        self.while_listing(|store| match key {
            Some(key) => Ok(Listing { found: vec![store.status(key)?], unreadable: Vec::new() }),
            None => store.list_all(),
        })
    }

    /// Has the script name the holders first: a request that is carried out late, or twice, must not hit the next
    /// holder.
    fn revoke(&mut self, key: &Key, fence: Option<u64>, by: &Holder, now: bool) -> Result<Revoked, StoreError> {
        self.while_listing(|store| store.revoke_named(key, fence, by, now))
    }
}

impl RedisStore {
    fn revoke_named(&mut self, key: &Key, fence: Option<u64>, by: &Holder, now: bool) -> Result<Revoked, StoreError> {
        let only = fence.map(|fence| fence.to_string()).unwrap_or_default();
        let naming = self.bare_script(&REVOKE, key).arg("").arg("").arg(u8::from(now)).arg(only).take();
        let targets = reply::read_targets(&self.answer(&naming)?).map_err(|failure| failure.explain(&self.server))?;
        let mut script = self.bare_script(&REVOKE, key);
        let script = script.arg(&targets.names).arg(json!(by).to_string()).arg(u8::from(now)).arg("").take();
        self.has_resent = false;
        let reply = self.answer(&script)?;
        let revoked = reply::read_revocation(&reply).map_err(|failure| failure.explain(&self.server))?;
        Ok(if self.has_resent { targets.merged_with(revoked) } else { revoked })
    }
}

impl Sequences for RedisStore {
    fn reserve(&mut self, claim: &Claim, wanted: &Wanted) -> Result<Reserved, RequestError> {
        let mut script = self.script(&RESERVE, &claim.key, &claim.token);
        let script = script.arg(ttl_ms(claim.ttl)).arg(json!(claim.holder).to_string());
        let script = match wanted {
            Wanted::Next { from, step } => script.arg("step").arg(from).arg(step),
            Wanted::Value { value, after, steps } => {
                script.arg("value").arg(value).arg(after.as_deref().unwrap_or_default()).arg(steps)
            }
        };
        let script = script.take();
        let sent_at = Moment::now();
        let reply = self.request(&script).map_err(|failure| self.failed(&failure))?;
        Ok(reply::read_reservation(&reply, sent_at).map_err(|failure| failure.explain(&self.server))?)
    }
}

impl Diagnose for RedisStore {
    fn diagnose(&mut self) -> Vec<Diagnostic> {
        diagnose::diagnose(self)
    }
}

impl RedisStore {
    /// Runs an operation whose answers name any number of locks, holders or waiters.
    fn while_listing<T>(&mut self, operation: impl FnOnce(&mut Self) -> T) -> T {
        self.listing_left = Some(listing_limit::BYTES);
        let done = operation(self);
        self.listing_left = None;
        done
    }

    /// Returns the answer to a command that is safe to run twice.
    fn answer(&mut self, command: &Cmd) -> Result<Value, StoreError> {
        self.run(command, self.timeout).map_err(|failure| failure.explain(&self.server))
    }

    /// Returns what is known of a key.
    fn status(&mut self, key: &Key) -> Result<KeyStatus, StoreError> {
        let reply = self.answer(&self.bare_script(&LIST, key))?;
        reply::read_status(key.clone(), &reply).map_err(|failure| failure.explain(&self.server))
    }

    /// Renews by `ttl` ms, as the script takes it.
    fn send_renewal(&mut self, key: &Key, token: &Token, ttl: i64, of_run: bool) -> Result<Renewed, StoreError> {
        let script = self.script(&RENEW, key, token).arg(ttl).arg(u8::from(of_run)).take();
        let reply = self.answer(&script)?;
        reply::read_renewal(&reply).map_err(|failure| failure.explain(&self.server))
    }
}

/// Returns the arguments of the release script: `ending`, `how`, `span` and `succeeded`.
fn release_args(how: Release) -> (String, &'static str, u64, bool) {
    let Release::Run { ending, succeeded, retain } = how else { return ("{}".into(), "hand", 0, false) };
    let ending = match ending {
        Ending::Exited(status) => json!({ "status": status }),
        Ending::Signaled(signal) => json!({ "signal": signal }),
    };
    let (mode, span) = match retain {
        Retain::Not => ("", 0),
        Retain::AtLeast(span) => ("hold", millis(span)),
        Retain::Kept(ttl) => ("keep", ttl_ms(ttl)),
    };
    (ending.to_string(), mode, span, succeeded)
}

/// Returns a mode as the scripts take it: how many may hold the lock; 0: all that share it.
fn slots(mode: Mode) -> u32 {
    match mode {
        Mode::Slots(slots) => slots,
        Mode::Shared => 0,
    }
}

/// Returns the number of waiters at which the claim does not join the queue; empty: no limit.
fn max_waiting(if_held: IfHeld) -> String {
    match if_held {
        IfHeld::Queue { max_waiting: Some(max), .. } => max.to_string(),
        _ => String::new(),
    }
}

/// Returns the request of a claim, where there may be several under its token; otherwise an empty string.
fn request(claim: &Claim) -> &str {
    claim.request.as_ref().map_or("", Token::as_str)
}

/// Returns a ttl as the scripts take it: 0 is for ever.
fn ttl_ms(ttl: Ttl) -> u64 {
    ttl.length().map_or(0, millis)
}
