//! Locks in the keys of an etcd cluster, as leases.
//!
//! The rules are those of [`crate::lock::state`]; [`operation`] applies them by compare-and-swap. [`keys`] says what is
//! stored, [`waiting`] how waiters learn that it is their turn.
//!
//! A holder holds the lock for as long as its key exists, which is attached to an etcd lease: no clocks are compared. The
//! times in etcd's answers serve fences, people, and a holder whose lease was revoked early (see [`found::Found::state`]).

mod api;
mod change;
mod client;
mod diagnose;
mod facts;
mod failure;
mod found;
#[cfg(any(test, fuzzing))]
pub(in crate::store) mod fuzz;
mod http;
mod keys;
mod listing;
mod operation;
mod pauses;
mod remembered;
mod renewal;
mod url;
mod waiting;

use std::thread;
use std::time::Duration;

use super::{
    Acquired, Claim, Diagnose, Held, IfHeld, KeyStatus, Listing, Release, Released, Renewed, RequestError, Reserved,
    Revoked, Sequences, Store, StoreError, Wakeup, Wanted,
};
use crate::lock::holder::Holder;
use crate::lock::key::Key;
use crate::lock::lease::Ttl;
use crate::lock::state::{Applied, Ask, FenceExhausted, LockState};
use crate::lock::token::Token;
use crate::store::diagnostic::Diagnostic;
use crate::sys::backoff::Backoff;
use crate::sys::clock::Moment;
use crate::sys::wait::{WaitObserver, Waiter};
use client::{Client, Effect};
use facts::EtcdFacts;
use failure::Failure;
use found::Attached;
use operation::{Committed, RowUse, Subject};
use remembered::Remembered;
use url::Cluster;
use waiting::Watch;

pub(super) use url::KIND;

/// For how many timeouts a release, or a cancel, goes on while others keep changing the lock.
const CONTENDED: u32 = 6;

/// A store in an etcd cluster.
pub struct EtcdStore {
    client: Client,
    timeout: Duration,
    /// Our row in the queue, as of the last answer.
    own_row: Option<Attached>,
    /// The cluster's revision as of that answer: what came later is to be heard.
    seen_revision: i64,
    /// The watch through which we hear of our turn.
    watch: Option<Watch>,
    /// The lock that we hold, as it was a while ago.
    remembered: Option<Remembered>,
    /// Leases to which nothing is attached any more.
    unused_leases: Vec<i64>,
    /// Whether nobody will use the lock again after this, so that its fence need not be kept.
    is_trial: bool,
}

impl EtcdStore {
    /// Returns the store at `cluster`. `timeout` bounds every request, connecting included. Fails if the files that TLS needs
    /// are unusable, and says why.
    fn new(cluster: Cluster, timeout: Duration) -> Result<Self, String> {
        Ok(EtcdStore {
            client: Client::new(cluster)?,
            timeout,
            own_row: None,
            seen_revision: 0,
            watch: None,
            remembered: None,
            unused_leases: Vec::new(),
            is_trial: false,
        })
    }

    /// Carries out an operation once.
    fn once<T>(
        &mut self,
        subject: Subject<'_>,
        rules: impl FnMut(&mut LockState, &EtcdFacts<'_>) -> Result<Applied<T>, FenceExhausted>,
    ) -> Result<Committed<T>, Failure> {
        self.client.may_be_done = false;
        self.operate(subject, Moment::now() + self.timeout, rules)
    }

    /// Carries out an operation whose rules cannot fail, again and again until its outcome is known, it is rejected for good,
    /// or `timeout` is over; for longer if etcd answers, but others keep changing the lock.
    fn until_answered<T>(
        &mut self,
        subject: Subject<'_>,
        timeout: Duration,
        mut rules: impl FnMut(&mut LockState, &EtcdFacts<'_>) -> Applied<T>,
    ) -> Result<Committed<T>, Failure> {
        let began = Moment::now();
        let mut until = began + timeout;
        let mut backoff = Backoff::new();
        loop {
            let left = until.since(Moment::now());
            let deadline = Moment::now() + left.min(timeout / 2);
            let failure = match self.operate(subject, deadline, |state, facts| Ok(rules(state, facts))) {
                Ok(committed) => return Ok(committed),
                Err(failure) => failure,
            };
            if matches!(failure, Failure::Contended) {
                until = (Moment::now() + timeout).min(began + timeout * CONTENDED);
            }
            let pause = backoff.next();
            if !failure.is_transient() || Moment::now() + pause >= until {
                return Err(failure);
            }
            thread::sleep(pause);
        }
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

    fn explain(&self, failure: &Failure) -> StoreError {
        failure.explain(&self.client.cluster)
    }

    /// Returns the failure of a request that may acquire something for a claim.
    fn failed(&mut self, failure: &Failure) -> RequestError {
        let never_sent = !self.client.may_be_done && self.own_row.is_none();
        // If the claim is given up now, no cancellation tidies up, as it would otherwise.
        if never_sent && matches!(failure, Failure::Contended) {
            self.revoke_unused_leases();
        }
        RequestError { error: self.explain(failure), trouble: failure.trouble(), never_sent }
    }

    /// Forgets our place in the queue.
    fn leave(&mut self) {
        self.watch = None;
        self.own_row = None;
    }
}

/// Returns the subject of an operation by the claim.
fn by(claim: &Claim) -> Subject<'_> {
    Subject { asking: Some(&claim.token), row: RowUse::IfKnown, ..on(&claim.key) }
}

/// Returns the subject of an operation on a lock.
fn on(key: &Key) -> Subject<'_> {
    Subject { key, asking: None, row: RowUse::Ignored, place: None, gives_up: false, needs_all_waiters: false }
}

impl Store for EtcdStore {
    fn try_acquire(&mut self, claim: &Claim, if_held: IfHeld) -> Result<Acquired, RequestError> {
        let sent_at = Moment::now();
        let ask = Ask { claim, leased: true, sent_at, if_held };
        let needs_all_waiters = matches!(if_held, IfHeld::Queue { max_waiting: Some(_), .. });
        // A token of the user's own may already be in the queue; so may ours, if a request was not answered.
        let may_wait = claim.request.is_some() || self.client.may_be_done;
        let row = if may_wait { RowUse::Sought } else { RowUse::IfKnown };
        let place = (if_held != IfHeld::Leave).then(|| claim.place());
        let subject = Subject { row, place, needs_all_waiters, ..by(claim) };
        let lease_before = self.own_row.as_ref().map(|row| row.lease);
        // `may_be_done` stays set: an earlier attempt of this claim may be carried out until this one is answered.
        let committed = self.operate(subject, sent_at + self.timeout, |state, facts| state.acquire(&ask, facts));
        let committed = committed.map_err(|failure| {
            // The lock may have been handed to us since, and its lease is not prolonged before we know.
            if let Some(row) = &mut self.own_row {
                row.lease = 0;
            }
            self.failed(&failure)
        })?;
        let mut answer = committed.answer;
        match &mut answer {
            Acquired::Held(held @ Held { place: Some(_), .. }) => {
                self.seen_revision = committed.revision;
                let place = held.place.unwrap_or_default() + committed.unread_ahead;
                let again = waiting::look_again(place).filter(|_| committed.looks_again);
                held.place = Some(place);
                held.look_in = held.look_in.into_iter().chain(again).min();
            }
            Acquired::Mine(_) => self.leave(),
            Acquired::NotNeeded(_) => {
                // The row may be gone, and the key that has woken us be left on its lease.
                self.unused_leases.extend(lease_before);
                self.leave();
                self.revoke_unused_leases();
            }
            Acquired::Held(_) | Acquired::NotQueued(_) | Acquired::Interrupted(_) => {
                self.leave();
                self.revoke_unused_leases();
            }
        }
        Ok(answer)
    }

    fn await_turn(
        &mut self,
        claim: &Claim,
        until: Option<Moment>,
        waiter: &mut Waiter<'_>,
        observer: &mut dyn WaitObserver,
    ) -> Result<Wakeup, RequestError> {
        // No request for the lock was sent.
        let failed = |store: &mut Self, failure| RequestError { never_sent: true, ..store.failed(&failure) };
        self.await_in_queue(claim, until, waiter, observer).map_err(|failure| failed(self, failure))
    }

    fn renew(&mut self, key: &Key, token: &Token, ttl: Option<Ttl>) -> Result<Renewed, StoreError> {
        self.renew_lease(key, token, ttl).map_err(|failure| self.explain(&failure))
    }

    fn release(&mut self, key: &Key, token: &Token, how: Release) -> Result<Released, StoreError> {
        let subject = Subject { asking: Some(token), gives_up: !matches!(how, Release::ByHand), ..on(key) };
        // The answer by what the last attempt went by. If its outcome is unknown, and the lock was ours by that and no longer is, that
        // attempt has released it, unless somebody has broken the lock since it was read.
        let mut before = None;
        self.client.may_be_done = false;
        let released = self.until_answered(subject, self.timeout, |state, facts| {
            let applied = state.release(token, how, false, facts);
            let is_done = facts.may_be_done && matches!(applied.answer, Released::NotMine(_));
            let answer = before.take().filter(|_| is_done).unwrap_or(applied.answer);
            before = Some(answer.clone());
            Applied { answer, ..applied }
        });
        let Committed { answer, .. } = released.map_err(|failure| self.explain(&failure))?;
        self.revoke_unused_leases();
        Ok(answer)
    }

    fn prepare_release(&mut self, key: &Key, token: &Token, until: Moment) {
        self.read_ahead(key, token, until);
    }

    /// If this fails, the leases expire, if there are any.
    fn cancel(&mut self, claim: &Claim, in_flight: bool) -> bool {
        let voids_late_requests = in_flight && claim.request.is_none();
        // The request itself has taken its time already.
        let timeout = self.timeout / 2;
        // Under a token of the user's own, a command may run.
        let subject = Subject { row: RowUse::Sought, gives_up: claim.request.is_none(), ..by(claim) };
        let cancelled = self.until_answered(subject, timeout, |state, facts| {
            state.cancel(&claim.token, claim.request.as_ref(), voids_late_requests, facts)
        });
        if cancelled.is_err() && claim.request.is_none() {
            // Only this claim can have anything on that lease.
            self.unused_leases.extend(self.own_row.take().map(|row| row.lease));
        }
        self.leave();
        self.revoke_unused_leases();
        cancelled.is_ok()
    }

    fn list(&mut self, key: Option<&Key>) -> Result<Listing<KeyStatus>, StoreError> {
        self.list_keys(key)
    }

    fn revoke(&mut self, key: &Key, fence: Option<u64>, by: &Holder, now: bool) -> Result<Revoked, StoreError> {
        // The fences that the first attempt finds. And the last answer: if its outcome is unknown, it may have been carried out.
        let (mut meant, mut answered): (Option<Vec<u64>>, Option<Revoked>) = (None, None);
        let mut unrecorded = Vec::new();
        let revoked = self.once(on(key), |state, facts| {
            let fences = meant.get_or_insert_with(|| state.fences(fence));
            // Their fence is unknown.
            unrecorded = facts.found.unrecorded_leases().filter(|_| fences.contains(&0)).collect();
            let applied = state.revoke(Some(fences), by, now, facts);
            let answer = match answered.take().filter(|_| facts.may_be_done) {
                Some(first) => first.made_again(&applied.answer),
                None => applied.answer,
            };
            answered = Some(answer.clone());
            Ok(Applied { answer, ..applied })
        });
        let Committed { mut answer, .. } = revoked.map_err(|failure| self.explain(&failure))?;
        self.revoke_unused_leases();
        if let Revoked::From { free_in, .. } = &mut answer
            && !free_in.is_zero()
        {
            let left = self.time_left(&unrecorded).unwrap_or_default();
            *free_in = left.into_iter().flatten().fold(*free_in, Duration::max);
        }
        Ok(answer)
    }
}

impl Sequences for EtcdStore {
    fn reserve(&mut self, claim: &Claim, wanted: &Wanted) -> Result<Reserved, RequestError> {
        let ask = Ask { claim, leased: true, sent_at: Moment::now(), if_held: IfHeld::Leave };
        let reserved = self.once(by(claim), |state, facts| state.reserve(&ask, wanted, facts));
        let Committed { answer, .. } = reserved.map_err(|failure| self.failed(&failure))?;
        Ok(answer)
    }
}

impl Diagnose for EtcdStore {
    fn diagnose(&mut self) -> Vec<Diagnostic> {
        diagnose::diagnose(self)
    }
}
