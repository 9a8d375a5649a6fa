//! Locks in the keys of an etcd cluster, as leases.
//!
//! The rules are those of [`crate::lock::state`]; [`operation`] applies them by compare-and-swap. [`keys`] says what is
//! stored, [`waiting`] how waiters learn that it is their turn.
//!
//! A holder holds the lock for as long as its key exists, which is attached to an etcd lease: no clocks are compared.
//! The times in etcd's answers serve fences, people, and a holder whose lease was revoked early (see
//! [`snapshot::Snapshot::state`]).

mod api;
mod change;
mod client;
mod diagnose;
mod failure;
#[cfg(any(test, fuzzing))]
pub(in crate::store) mod fuzz;
mod http;
mod keys;
mod listing;
mod operation;
mod pauses;
mod remembered;
mod renewal;
mod snapshot;
mod url;
mod waiting;

use std::time::Duration;

use super::engine::{Page, Records, View};
use super::{Acquired, Claim, Diagnose, Held, KeyStatus, Revoked, Wakeup};
use crate::lock::key::Key;
use crate::lock::lease::Ttl;
use crate::lock::state::LockState;
use crate::lock::token::Token;
use crate::store::diagnostic::Diagnostic;
use crate::sys::clock::Moment;
use crate::sys::wait::{WaitObserver, Waiter};
use client::{Client, Effect};
use failure::Failure;
use listing::Pages;
use remembered::Remembered;
use snapshot::Attached;
use url::Cluster;
use waiting::Watch;

pub(super) use url::KIND;

/// A store in an etcd cluster.
pub struct EtcdStore {
    client: Client,
    timeout: Duration,
    /// Our row in the queue, as of the last answer, or the one that a request without an answer may have written.
    own_row: Option<Attached>,
    /// If there are requests without an answer: the latest revision at which one of them requires the record to be; 0:
    /// they require that there is none.
    unanswered_at: i64,
    /// The cluster's revision as of that answer: what came later is to be heard.
    seen_revision: i64,
    /// The watch through which we hear of our turn.
    watch: Option<Watch>,
    /// The lock that we hold, as it was a while ago.
    remembered: Option<Remembered>,
    /// Leases to which nothing is attached any more.
    unused_leases: Vec<i64>,
    /// The leases, of unknown length, of the holders missing from the record from which the last operation has revoked
    /// the lock.
    revoked_unrecorded: Vec<i64>,
    /// Whether nobody will use the lock again after this, so that its fence need not be kept.
    is_trial: bool,
}

impl EtcdStore {
    /// Returns the store at `cluster`. `timeout` bounds every request, connecting included. Fails if the files that TLS
    /// needs are unusable, and says why.
    fn new(cluster: Cluster, timeout: Duration) -> Result<Self, String> {
        Ok(EtcdStore {
            client: Client::new(cluster)?,
            timeout,
            own_row: None,
            unanswered_at: 0,
            seen_revision: 0,
            watch: None,
            remembered: None,
            unused_leases: Vec::new(),
            revoked_unrecorded: Vec::new(),
            is_trial: false,
        })
    }

    /// Revokes the leases to which nothing is attached any more. If that fails, they expire.
    fn revoke_unused_leases(&mut self) {
        let mut leases = std::mem::take(&mut self.unused_leases);
        leases.sort_unstable();
        leases.dedup();
        let requests: Vec<_> = leases.into_iter().filter(|lease| *lease != 0).map(api::revoke).collect();
        if !requests.is_empty() {
            let deadline = Moment::now() + self.timeout / 2;
            let may_be_done = self.client.may_be_done;
            let _ = self.client.exchange(&requests, Effect::Reads, deadline);
            self.client.may_be_done = may_be_done;
        }
    }

    /// Forgets our place in the queue.
    fn leave(&mut self) {
        self.watch = None;
        self.own_row = None;
    }
}

impl Records for EtcdStore {
    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn may_be_done(&mut self) -> &mut bool {
        &mut self.client.may_be_done
    }

    fn is_waiting(&self) -> bool {
        self.own_row.is_some()
    }

    fn note_answer(&mut self, answer: &Acquired) {
        match answer {
            Acquired::Held(Held { place: Some(_), .. }) => {}
            Acquired::Mine(_) => self.leave(),
            answer => {
                if matches!(answer, Acquired::NotNeeded(_)) {
                    // Our row may be gone, and the key that has woken us be left on its lease.
                    self.unused_leases.extend(self.own_row.as_ref().map(|row| row.lease));
                }
                self.leave();
                self.revoke_unused_leases();
            }
        }
    }

    fn note_failure(&mut self, failure: &Failure) {
        match &mut self.own_row {
            // The lock may have been handed to us since, and its lease is not kept alive before we know.
            Some(row) => row.lease = 0,
            // If the claim is given up now, no cancellation tidies up, as it would otherwise.
            None if matches!(failure, Failure::Contended) && !self.client.may_be_done => self.revoke_unused_leases(),
            None => {}
        }
    }

    fn sleep_in_queue(
        &mut self,
        claim: &Claim,
        until: Option<Moment>,
        waiter: &mut Waiter<'_>,
        observer: &mut dyn WaitObserver,
    ) -> Result<Wakeup, Failure> {
        self.await_hand_off(claim, until, waiter, observer)
    }

    /// If the database is full, nothing new can be written, but a lease can be kept alive.
    fn renew_otherwise(
        &mut self,
        key: &Key,
        token: &Token,
        ttl: Option<Ttl>,
        failure: &Failure,
    ) -> Result<bool, Failure> {
        Ok(failure.is_no_space() && self.keep_alive_holder(key, token, ttl)?)
    }

    fn prepare_release(&mut self, key: &Key, token: &Token, until: Moment) {
        self.read_ahead(key, token, until);
    }

    /// If that is not confirmed, the leases expire, if there are any.
    fn note_cancel(&mut self, claim: &Claim, confirmed: bool) {
        if !confirmed && claim.request.is_none() {
            // Only this claim can have anything on that lease.
            self.unused_leases.extend(self.own_row.take().map(|row| row.lease));
        }
        self.leave();
    }

    fn complete_revocation(&mut self, revoked: &mut Revoked) {
        let leases = std::mem::take(&mut self.revoked_unrecorded);
        if let Revoked::From { free_in, .. } = revoked
            && !free_in.is_zero()
        {
            let left = self.time_left(&leases).unwrap_or_default();
            *free_in = left.into_iter().flatten().fold(*free_in, Duration::max);
        }
    }

    fn tidy_up(&mut self) {
        self.revoke_unused_leases();
    }

    type Pages = Pages;
    type Entry = ();

    fn pages(&mut self, key: Option<&Key>) -> Pages {
        self.begin_listing(key)
    }

    fn next_page(&mut self, pages: &mut Pages) -> Result<Option<Page<()>>, Failure> {
        Ok(self.next_names(pages)?.map(|keys| keys.into_iter().map(|key| (key, ())).collect()))
    }

    fn status(&mut self, pages: &mut Pages, key: &Key, (): &()) -> Result<Option<KeyStatus>, Failure> {
        self.status_in(pages, key)
    }

    fn looks_prunable(&mut self, key: &Key, (): &(), unused_for: Duration, really: bool) -> Result<bool, Failure> {
        // The transaction reads the lock, too.
        Ok(really || self.looks_prunable_now(key, unused_for)?)
    }

    fn is_prunable(state: &LockState, unused_for: Duration, view: &View) -> bool {
        listing::is_prunable(state, unused_for, view)
    }

    fn server(&self) -> &Cluster {
        &self.client.cluster
    }
}

impl Diagnose for EtcdStore {
    fn diagnose(&mut self) -> Vec<Diagnostic> {
        diagnose::diagnose(self)
    }
}
