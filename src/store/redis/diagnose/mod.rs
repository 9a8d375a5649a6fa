//! What would make locks in this server unsafe or slow.

mod failover;
mod info;
mod server;

use std::slice;
use std::time::Duration;

use redis::{Cmd, Value};

use super::connection::Connection;
use super::failover::slot_of;
use super::failure::Failure;
use super::rights::Missing;
use super::{FAILOVER_KEY, FailoverScope, KEYS, RedisStore, keys, reply};
use crate::lock::key::Key;
use crate::net::endpoint::Endpoint;
use crate::store::diagnostic::{Diagnostic, encryption, latency, trial};
use crate::store::redis::url::Server;
use crate::sys::blocked_signals::with_signals_blocked;
use crate::sys::clock::Moment;
use info::Info;
use server::Hello;

/// A connection on which a rejection is an answer like any other.
struct Session {
    connection: Connection,
    timeout: Duration,
}

impl Session {
    /// Sends `command` and waits for its answer.
    fn ask(&mut self, command: &Cmd) -> Result<Value, Failure> {
        self.connection.request(command, Moment::now() + self.timeout)
    }

    /// Does the same where a rejection does not matter: `None`.
    fn try_ask(&mut self, command: &Cmd) -> Result<Option<Value>, Failure> {
        match self.ask(command) {
            Ok(reply) => Ok(Some(reply)),
            Err(Failure::Rejected(_)) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Returns what the server's clock shows, since 1970; `None` if the answer cannot be read.
    fn time(&mut self) -> Result<Option<Duration>, Failure> {
        self.ask(&redis::cmd("TIME")).map(|reply| read_time(&reply))
    }

    /// Returns one parameter of the server's configuration, if we may know it.
    fn parameter(&mut self, name: &str) -> Result<Option<String>, Failure> {
        let reply = self.try_ask(redis::cmd("CONFIG").arg("GET").arg(name))?;
        Ok(match reply {
            Some(Value::Array(pair)) => pair.get(1).and_then(reply::text),
            _ => None,
        })
    }
}

/// Reads the answer to TIME: seconds and microseconds.
fn read_time(reply: &Value) -> Option<Duration> {
    let Value::Array(parts) = reply else { return None };
    let number = |at: usize| reply::text(parts.get(at)?)?.parse::<u64>().ok();
    Some(Duration::from_secs(number(0)?) + Duration::from_micros(number(1)?))
}

/// Examines the server of `store`, and tries a lock there under a name that nobody else uses.
pub(super) fn diagnose(store: &mut RedisStore) -> Vec<Diagnostic> {
    let mut diagnostics = Vec::new();
    let key = trial::key();
    let looked = match ask_witnesses(store, &key, &mut diagnostics) {
        Ok(()) => look(store, &key, &mut diagnostics),
        failed => failed,
    };
    if let Err(failure) = looked {
        let failure = match failure {
            Failure::Closed if diagnostics.is_empty() => Failure::HungUp,
            failure => failure,
        };
        diagnostics.push(Diagnostic::unusable(failure.explain(&store.server).to_string(), ""));
    }
    diagnostics
}

/// Where another server can become the primary: adds what the servers that know it report, and turns to the primary of
/// the lock `key`.
fn ask_witnesses(store: &mut RedisStore, key: &Key, diagnostics: &mut Vec<Diagnostic>) -> Result<(), Failure> {
    let (slot, deadline) = (slot_of(&keys::base(&store.server.prefix, key)), Moment::now() + store.timeout);
    let Some(witnesses) = &mut store.witnesses else { return Ok(()) };
    let report = witnesses.report(deadline)?;
    diagnostics.extend(failover::judge(&report));
    let primary = witnesses.locate(slot, Moment::now() + store.timeout)?;
    store.switch_to(&primary.server);
    Ok(())
}

/// Adds what is found to `diagnostics`. Fails when the server no longer answers.
fn look(store: &mut RedisStore, key: &Key, diagnostics: &mut Vec<Diagnostic>) -> Result<(), Failure> {
    let server = store.server.clone();
    let deadline = Moment::now() + store.timeout;
    let connection = Connection::open(&server, store.tls.as_ref(), deadline)?;
    let mut session = Session { connection, timeout: store.timeout };

    let hello = match server::ask(&mut session) {
        Err(Failure::Rejected(refused)) if refused.command == "SELECT" && refused.error.starts_with("NOPERM") => {
            let mut missing = Missing::default();
            missing.note("select", &refused.error);
            diagnostics.extend(missing.diagnostics(&server));
            return Ok(());
        }
        hello => hello?,
    };
    let info = Info::ask(&mut session)?;
    let of_a_cluster = store.failover_scope == Some(FailoverScope::Lock);
    diagnostics.extend(server::judge(hello.as_ref(), info.as_ref(), &server, of_a_cluster));
    if hello.as_ref().is_some_and(Hello::is_sentinel) {
        return Ok(());
    }
    diagnostics.extend(encryption::diagnose_password(
        slice::from_ref(&server.endpoint),
        matches!(&server.endpoint, Endpoint::Tcp { tls: Some(_), .. }),
        server.password.is_some(),
        "rediss://",
        store.timeout,
    ));

    let base = keys::base(&server.prefix, key);
    let missing =
        with_signals_blocked(|| Missing::find(&format!("{base}scratch"), |command| session.ask(command).map(drop)))?;
    diagnostics.extend(missing.diagnostics(&server));
    if !missing.prevents_locks() {
        diagnostics.push(with_signals_blocked(|| {
            let tried = trial::diagnose(store, key);
            clean_up(&mut session, &base).map(|()| tried)
        })?);
        diagnostics.extend(latency::diagnose(store.timeout, || session.time())?);
    }

    let Some(mut info) = info else {
        diagnostics.push(not_allowed_to_look(&server));
        return Ok(());
    };
    info.ask_parameters(&mut session)?;
    diagnostics.extend(info.judge_memory());
    diagnostics.extend(info.judge_persistence(server.grace_ms));
    // Where failovers are followed, nothing is granted until what they could lose has run out.
    if store.failover_scope.is_none() {
        diagnostics.extend(info.judge_replicas());
    }
    Ok(())
}

/// Removes what the trial leaves: the fence and the last run, which stay for any other lock.
fn clean_up(session: &mut Session, base: &str) -> Result<(), Failure> {
    let mut command = redis::cmd("DEL");
    for key in KEYS.into_iter().chain([FAILOVER_KEY]) {
        command.arg(format!("{base}{key}"));
    }
    session.try_ask(&command).map(drop)
}

fn not_allowed_to_look(server: &Server) -> Diagnostic {
    let user = server.user.as_deref().unwrap_or("default");
    Diagnostic::note(
        format!("user \"{user}\" may not run INFO: memory, persistence and replication could not be looked at"),
        format!(
            "grant it with ACL SETUSER {user} +info +config|get, or see by hand that CONFIG GET maxmemory-policy is \
             noeviction, CONFIG GET appendonly is yes, and INFO replication names no replicas"
        ),
    )
}
