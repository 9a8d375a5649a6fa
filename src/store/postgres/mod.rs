//! Locks in the tables of a PostgreSQL database, as leases.
//!
//! The rules are in [`crate::lock::state`]; [`operation`] applies them in one short transaction. [`waiting`] explains
//! how a waiter learns that it is its turn, [`schema`] what the tables hold.
//!
//! Each operation may be repeated under the same token. If the connection is lost during one, its outcome is unknown;
//! but the next operation waits for the row that the lost one has locked, until the server has committed it or rolled
//! it back. [`operation`] decides what to do after each failure.

mod batch;
mod connection;
mod diagnose;
mod failure;
#[cfg(any(test, fuzzing))]
pub(in crate::store) mod fuzz;
mod listing;
mod login;
mod mismatch;
mod password;
mod reading;
mod schema;
mod server_error;
mod transaction;
mod url;
mod waiting;
mod writing;

use std::time::Duration;

use super::engine::{Operation, Page, Records, Stored, TablePages};
use super::{Acquired, Claim, Diagnose, Grant, Held, KeyStatus, Renewed, RequestError, RetryClass, Wakeup};
use crate::lock::key::Key;
use crate::net::tls::Tls;
use crate::store::diagnostic::Diagnostic;
use crate::sys::clock::Moment;
use crate::sys::wait::{WaitObserver, Waiter};
use connection::Connection;
use failure::Failure;
use schema::Tables;
use url::Server;
use waiting::WaitState;

pub(super) use url::KIND;

/// A store in a PostgreSQL database.
pub struct PostgresStore {
    server: Server,
    /// What TLS needs to reach the hosts, if it is used.
    tls: Option<Tls>,
    tables: Tables,
    timeout: Duration,
    connection: Option<Connection>,
    /// Whether a failed attempt at the current operation, or at the last one if that failed, may have been committed.
    /// All attempts to acquire the lock for a claim are one operation.
    may_be_done: bool,
    /// The state of our wait in the queue, if we have joined it.
    wait: Option<WaitState>,
}

impl PostgresStore {
    /// Returns the store at `server`. `timeout` bounds every request, connecting included. Fails if TLS is impossible
    /// with these hosts or files, and says why.
    fn new(server: Server, timeout: Duration) -> Result<Self, String> {
        let tls = server.encryption.prepare(&server.hosts, &server.tls)?;
        let tables = Tables::in_schema(&server.schema);
        Ok(PostgresStore { server, tls, tables, timeout, connection: None, may_be_done: false, wait: None })
    }
}

impl Records for PostgresStore {
    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn may_be_done(&mut self) -> &mut bool {
        &mut self.may_be_done
    }

    fn is_waiting(&self) -> bool {
        self.wait.is_some()
    }

    fn renew_place(&mut self, claim: &Claim, deadline: Moment) -> Result<Option<Held>, Failure> {
        self.renew_own_place(claim, deadline)
    }

    /// Renews the lock of this `grant`, which answers a request sent at `sent_at`, if the answer came late: the lock
    /// may have been lost meanwhile.
    fn confirm_if_late(&mut self, claim: &Claim, grant: Grant, sent_at: Moment) -> Result<Acquired, RequestError> {
        let now = Moment::now();
        if now.since(sent_at) <= self.timeout {
            return Ok(Acquired::Mine(grant));
        }
        let is_over = || claim.ttl.length().is_some_and(|ttl| Moment::now().since(sent_at) >= ttl);
        let operation = Operation::Renew { key: &claim.key, token: &claim.token };
        match self.once(operation, |state, view| Ok(state.renew(&claim.token, Some(claim.ttl), view))) {
            Ok(Renewed::Mine) => Ok(Acquired::Mine(Grant { lease_from: Some(now), ..grant })),
            Ok(Renewed::NotMine(_)) if is_over() => Err(self.failed(&too_late())),
            Ok(Renewed::NotMine(by)) => Ok(Acquired::Held(by.unwrap_or_default())),
            // Another request would get the same lock, which was revoked.
            Ok(Renewed::Revoked(_)) => {
                self.may_be_done = true;
                let what = "answered so late that the lock was revoked before the command could start";
                Err(self.failed(&Failure::lasting(what)))
            }
            Err(failure) => {
                self.may_be_done = true;
                let failed = self.failed(&failure);
                // The store has answered once, so a waiter tries again.
                let retry_class =
                    if failed.retry_class == RetryClass::Unavailable { RetryClass::Slow } else { failed.retry_class };
                Err(RequestError { retry_class, ..failed })
            }
        }
    }

    fn note_cancel(&mut self, _: &Claim, _: bool) {
        self.wait = None;
    }

    fn sleep_in_queue(
        &mut self,
        claim: &Claim,
        until: Option<Moment>,
        waiter: &mut Waiter<'_>,
        observer: &mut dyn WaitObserver,
    ) -> Result<Wakeup, Failure> {
        self.await_notification(claim, until, waiter, observer)
    }

    type Pages = TablePages;
    type Entry = Stored;

    fn pages(&mut self, key: Option<&Key>) -> TablePages {
        TablePages::of(key)
    }

    fn next_page(&mut self, pages: &mut TablePages) -> Result<Option<Page<Stored>>, Failure> {
        pages.next(|keys, left| self.page(keys, left))
    }

    fn status(&mut self, _: &mut TablePages, key: &Key, entry: &Stored) -> Result<Option<KeyStatus>, Failure> {
        entry.status(key).map(Some)
    }

    fn looks_prunable(&mut self, _: &Key, entry: &Stored, unused_for: Duration, _: bool) -> Result<bool, Failure> {
        entry.is_prunable(unused_for)
    }

    fn server(&self) -> &Server {
        &self.server
    }
}

/// Returns the failure of a lease that expired before we knew that the lock was ours.
fn too_late() -> Failure {
    let what = "answered so late that too little of its lease was left to start the command";
    Failure::Other(RetryClass::Slow, what.to_owned())
}

impl Diagnose for PostgresStore {
    fn diagnose(&mut self) -> Vec<Diagnostic> {
        diagnose::diagnose(self)
    }
}
