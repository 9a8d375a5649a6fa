//! Locks in the tables of a MySQL or MariaDB database, as leases.
//!
//! The rules are in [`crate::lock::state`]; [`transaction`] applies them in one short transaction. [`waiting`] says how
//! a waiter learns that it is its turn, [`schema`] what the tables hold.
//!
//! Each operation may be repeated under the same token. If the connection is lost during one, its outcome is unknown;
//! but the next operation waits for the row that the lost one has locked, until the server has committed it or rolled
//! it back.

mod connection;
mod diagnose;
mod failure;
#[cfg(any(test, fuzzing))]
pub(in crate::store) mod fuzz;
mod listing;
mod login;
mod password;
mod schema;
mod transaction;
mod url;
mod waiting;

use std::thread;
use std::time::Duration;

use super::engine::{Page, Records, Stored, TablePages};
use super::{Claim, Diagnose, Held, KeyStatus, Wakeup};
use crate::lock::key::Key;
use crate::net::tls::Tls;
use crate::store::diagnostic::Diagnostic;
use crate::sys::backoff::Backoff;
use crate::sys::clock::Moment;
use crate::sys::wait::{WaitObserver, Waiter};
use connection::Connection;
use failure::Failure;
use schema::Tables;
use url::Server;
use waiting::Place;

pub(super) use url::KIND;

/// For how long at most a session that was given up between the two halves of a transaction keeps its rows: the shortest
/// `wait_timeout` that there is, and the time until the server notices that it is over.
const IDLE_MAX: Duration = Duration::from_millis(1500);

/// A store in a MySQL or MariaDB database.
pub struct MysqlStore {
    server: Server,
    /// What TLS needs to reach the hosts, if it is used.
    tls: Option<Tls>,
    tables: Tables,
    timeout: Duration,
    connection: Option<Connection>,
    /// Whether a failed attempt at the current operation, or at the last one if that failed, may have been committed.
    /// All attempts to acquire the lock for a claim are one operation.
    may_be_done: bool,
    /// Our place in the queue, if we have joined it.
    place: Option<Place>,
}

impl MysqlStore {
    /// Returns the store at `server`. `timeout` bounds every request, connecting included. Fails if TLS is impossible
    /// with these hosts or files, and says why.
    fn new(server: Server, timeout: Duration) -> Result<Self, String> {
        let tls = server.encryption.prepare(&server.hosts, &server.tls)?;
        let tables = Tables::named(&server.tables);
        Ok(MysqlStore { server, tls, tables, timeout, connection: None, may_be_done: false, place: None })
    }

    /// Returns whether there is a connection that is usable as far as is known.
    fn is_connected(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| !connection.is_broken)
    }

    /// Returns the connection. Opens one if there is none, or it is broken.
    fn connected(&mut self, deadline: Moment) -> Result<&mut Connection, Failure> {
        let open = match self.connection.take().filter(|connection| !connection.is_broken) {
            Some(connection) => connection,
            None => login::open(&self.server, self.tls.as_ref(), deadline)?,
        };
        Ok(self.connection.insert(open))
    }

    /// Returns the connection, as [`Self::connected`] does. If the server has none left at the moment, tries again
    /// until the `deadline`: one may become free. A waiter tries again by itself, and hears signals meanwhile.
    fn connected_in_time(&mut self, deadline: Moment) -> Result<&mut Connection, Failure> {
        let mut backoff = Backoff::new();
        while let Err(failure) = self.connected(deadline) {
            let pause = backoff.next();
            if !failure.is_of_used_up_connections() || Moment::now() + pause >= deadline {
                return Err(failure);
            }
            thread::sleep(pause);
        }
        self.connected(deadline)
    }

    /// Gives up a host that takes no writes: from now on it is tried last.
    fn leave_replica(&mut self) {
        if let Some(replica) = self.connection.take() {
            self.server.hosts[replica.host..].rotate_left(1);
        }
    }
}

impl Drop for MysqlStore {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.quit();
        }
    }
}

impl Records for MysqlStore {
    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn row_kept_for(&self) -> Duration {
        IDLE_MAX
    }

    fn may_be_done(&mut self) -> &mut bool {
        &mut self.may_be_done
    }

    fn is_waiting(&self) -> bool {
        self.place.is_some()
    }

    fn renew_place(&mut self, claim: &Claim, deadline: Moment) -> Result<Option<Held>, Failure> {
        self.renew_own_place(claim, deadline)
    }

    fn note_cancel(&mut self, _: &Claim, _: bool) {
        self.place = None;
    }

    fn sleep_in_queue(
        &mut self,
        claim: &Claim,
        until: Option<Moment>,
        waiter: &mut Waiter<'_>,
        observer: &mut dyn WaitObserver,
    ) -> Result<Wakeup, Failure> {
        self.look_again_and_again(claim, until, waiter, observer)
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

impl Diagnose for MysqlStore {
    fn diagnose(&mut self) -> Vec<Diagnostic> {
        diagnose::diagnose(self)
    }
}
