//! Locks in the tables of a PostgreSQL database, as leases.
//!
//! The rules are in [`crate::lock::state`]; [`operation`] applies them in one short transaction. [`waiting`] explains how a waiter learns
//! that it is its turn, [`schema`] what the tables hold.
//!
//! Each operation may be repeated under the same token. If the connection is lost during one, its outcome is unknown; but the next
//! operation waits for the row that the lost one has locked, until the server has committed it or rolled it back.

mod batch;
mod connection;
mod diagnose;
mod encoding;
mod facts;
mod failure;
#[cfg(any(test, fuzzing))]
pub(in crate::store) mod fuzz;
mod listing;
mod login;
mod mismatch;
mod operation;
mod password;
mod reading;
mod schema;
mod server_error;
mod url;
mod waiting;
mod writing;

use std::thread;
use std::time::Duration;

use super::{
    Acquired, Claim, Diagnose, Grant, Held, IfHeld, KeyStatus, Listing, Release, Released, Renewed, RequestError,
    Reserved, RetryClass, Revoked, Sequences, Store, StoreError, Wakeup, Wanted,
};
use crate::lock::holder::Holder;
use crate::lock::key::Key;
use crate::lock::lease::Ttl;
use crate::lock::state::{ASKS_PER_PLACE, Applied, Ask, FenceExhausted, LockState};
use crate::lock::token::Token;
use crate::net::tls::Tls;
use crate::store::diagnostic::Diagnostic;
use crate::sys::backoff::Backoff;
use crate::sys::clock::Moment;
use crate::sys::wait::{WaitObserver, Waiter};
use connection::Connection;
use facts::{HAND_OFFS_MAX, TableFacts};
use failure::Failure;
use operation::{Committed, LOGIN_PATIENCE, Notices, Repetition, Subject};
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
    /// Whether a failed attempt at the current operation, or at the last one if that failed, may have been committed. All attempts to
    /// acquire the lock for a claim are one operation.
    may_be_done: bool,
    /// The state of our wait in the queue, if we have joined it.
    wait: Option<WaitState>,
}

impl PostgresStore {
    /// Returns the store at `server`. `timeout` bounds every request, connecting included. Fails if TLS is impossible with these hosts or files,
    /// and says why.
    fn new(server: Server, timeout: Duration) -> Result<Self, String> {
        let (tls, tables) = (login::prepare_tls(&server)?, Tables::in_schema(&server.schema));
        Ok(PostgresStore { server, tls, tables, timeout, connection: None, may_be_done: false, wait: None })
    }

    /// Carries out an operation once.
    fn once<T>(
        &mut self,
        subject: Subject<'_>,
        rules: impl FnMut(&mut LockState, &TableFacts) -> Result<Applied<T>, FenceExhausted>,
    ) -> Result<Committed<T>, Failure> {
        self.once_within(self.timeout, subject, rules)
    }

    fn once_within<T>(
        &mut self,
        timeout: Duration,
        subject: Subject<'_>,
        rules: impl FnMut(&mut LockState, &TableFacts) -> Result<Applied<T>, FenceExhausted>,
    ) -> Result<Committed<T>, Failure> {
        self.may_be_done = false;
        self.operate(subject, Moment::now() + timeout, rules)
    }

    /// Carries out an operation whose rules cannot fail. Repeats it until its outcome is known, it is rejected for good, or `timeout` is
    /// over. One attempt takes at most half of that: a device on the way may have forgotten its connection.
    fn until_answered<T>(
        &mut self,
        subject: Subject<'_>,
        timeout: Duration,
        mut rules: impl FnMut(&mut LockState, &TableFacts) -> Applied<T>,
    ) -> Result<Committed<T>, Failure> {
        self.may_be_done = false;
        let until = Moment::now() + timeout;
        let mut backoff = Backoff::new();
        loop {
            let left = until.since(Moment::now());
            let deadline = Moment::now() + left.min(timeout / 2);
            let failure = match self.operate(subject, deadline, |state, facts| Ok(rules(state, facts))) {
                Ok(committed) => return Ok(committed),
                Err(failure) => failure,
            };
            let pause = backoff.next();
            if !failure.is_transient() || Moment::now() + pause >= until {
                return Err(failure);
            }
            thread::sleep(pause);
        }
    }

    /// Renews the lock of this `grant`, which answers a request sent at `sent_at`, if the answer came late: the lock may have been lost
    /// meanwhile.
    fn confirm_if_late(&mut self, claim: &Claim, grant: Grant, sent_at: Moment) -> Result<Acquired, RequestError> {
        let now = Moment::now();
        if now.since(sent_at) <= self.timeout {
            return Ok(Acquired::Mine(grant));
        }
        let is_over = || claim.ttl.length().is_some_and(|ttl| Moment::now().since(sent_at) >= ttl);
        let renewed = self.once(on(&claim.key), |state, facts| Ok(state.renew(&claim.token, Some(claim.ttl), facts)));
        match renewed.map(|committed| committed.answer) {
            Ok(Renewed::Mine) => Ok(Acquired::Mine(Grant { lease_from: Some(now), ..grant })),
            Ok(Renewed::NotMine(_)) if is_over() => Err(self.failed(&Failure::TooLate)),
            Ok(Renewed::NotMine(by)) => Ok(Acquired::Held(by.unwrap_or_default())),
            // Another request would get the same lock, which was revoked.
            Ok(Renewed::Revoked(_)) => {
                self.may_be_done = true;
                Err(self.failed(&Failure::Revoked))
            }
            Err(failure) => {
                self.may_be_done = true;
                let failed = self.failed(&failure);
                // The store has answered once, so a waiter tries again.
                let trouble = if failed.trouble == RetryClass::Unavailable { RetryClass::Slow } else { failed.trouble };
                Err(RequestError { trouble, ..failed })
            }
        }
    }

    fn renew_by(
        &mut self,
        key: &Key,
        mut rules: impl FnMut(&mut LockState, &TableFacts) -> Applied<Renewed>,
    ) -> Result<Renewed, StoreError> {
        let subject = Subject { repetition: Repetition::Harmless, ..on(key) };
        let renewed = self.once(subject, |state, facts| Ok(rules(state, facts)));
        renewed.map(|committed| committed.answer).map_err(|failure| self.explain(&failure))
    }

    fn explain(&self, failure: &Failure) -> StoreError {
        failure.explain(&self.server)
    }

    /// Returns the error of a failed request that may have obtained something for a claim.
    fn failed(&self, failure: &Failure) -> RequestError {
        RequestError {
            error: self.explain(failure),
            trouble: failure.trouble(),
            never_sent: !self.may_be_done && self.wait.is_none(),
        }
    }
}

/// Returns the subject of an operation by the claim.
fn by(claim: &Claim) -> Subject<'_> {
    Subject { asking: Some(&claim.token), repetition: Repetition::Harmless, may_be_new: true, ..on(&claim.key) }
}

/// Returns the subject of an operation on a lock.
fn on(key: &Key) -> Subject<'_> {
    Subject {
        key,
        asking: None,
        repetition: Repetition::Harmful,
        counts_waiting: false,
        answer_by: None,
        row_wait: Duration::MAX,
        may_be_new: false,
        may_be_done: false,
        may_count_connections: true,
        notices: Notices::Sent,
        hand_offs_max: HAND_OFFS_MAX,
    }
}

impl Store for PostgresStore {
    fn try_acquire(&mut self, claim: &Claim, if_held: IfHeld) -> Result<Acquired, RequestError> {
        let counts_waiting = matches!(if_held, IfHeld::Queue { max_waiting: Some(_), .. });
        let sent_at = Moment::now();
        if if_held != IfHeld::Leave
            && let Some(held) = self.prolong(claim, sent_at + self.timeout).map_err(|failure| self.failed(&failure))?
        {
            return Ok(Acquired::Held(held));
        }
        let answer_by = match if_held {
            IfHeld::Queue { until, .. } => {
                let (least, most) = (sent_at + self.timeout, sent_at + self.timeout * LOGIN_PATIENCE);
                Some(until.map_or(most, |until| until.clamp(least, most)))
            }
            IfHeld::Leave => None,
        };
        let may_be_new = self.wait.is_none();
        // One that waits prolongs its place before the next attempt.
        let row_wait = self.wait.as_ref().map_or(Duration::MAX, |_| claim.place() / ASKS_PER_PLACE);
        let subject = Subject { counts_waiting, answer_by, may_be_new, row_wait, ..by(claim) };
        // Not `once`: until this attempt is answered, an earlier one of this claim may have been committed.
        let committed = self.operate(subject, sent_at + self.timeout, |state, facts| {
            // The rules know nothing of the waiters that were not read.
            let unread = u32::try_from(facts.waiting_unread).unwrap_or(u32::MAX);
            let if_held = match if_held {
                IfHeld::Queue { max_waiting, until } => {
                    IfHeld::Queue { max_waiting: max_waiting.map(|max| max.saturating_sub(unread)), until }
                }
                IfHeld::Leave => IfHeld::Leave,
            };
            state.acquire(&Ask { claim, leased: true, sent_at, if_held }, facts)
        });
        let Committed { answer, waits, state, .. } = committed.map_err(|failure| self.failed(&failure))?;
        self.wait = waits.map(|(by, place)| WaitState::new(by, place, &state));
        match answer {
            Acquired::Mine(grant) => self.confirm_if_late(claim, grant, sent_at),
            Acquired::Held(held) => Ok(Acquired::Held(Held { place: waits.map(|(_, place)| place), ..held })),
            answer => Ok(answer),
        }
    }

    fn await_turn(
        &mut self,
        claim: &Claim,
        until: Option<Moment>,
        waiter: &mut Waiter<'_>,
        observer: &mut dyn WaitObserver,
    ) -> Result<Wakeup, RequestError> {
        // This request does not ask for the lock.
        let failed = |store: &Self, failure| RequestError { never_sent: true, ..store.failed(&failure) };
        self.sleep_in_queue(claim, until, waiter, observer).map_err(|failure| failed(self, failure))
    }

    fn renew(&mut self, key: &Key, token: &Token, ttl: Option<Ttl>) -> Result<Renewed, StoreError> {
        self.renew_by(key, |state, facts| state.renew(token, ttl, facts))
    }

    fn renew_run(&mut self, key: &Key, token: &Token, ttl: Ttl) -> Result<Renewed, StoreError> {
        self.renew_by(key, |state, facts| state.renew_run(token, ttl, facts))
    }

    fn release(&mut self, key: &Key, token: &Token, how: Release) -> Result<Released, StoreError> {
        let subject = Subject { asking: Some(token), repetition: Repetition::Harmless, ..on(key) };
        // What the last attempt answered. If its outcome is unknown, and the lock was ours then but is no longer, that attempt has released
        // it.
        let mut before = None;
        let released = self.until_answered(subject, self.timeout, |state, facts| {
            let applied = state.release(token, how, false, facts);
            let is_done = facts.may_be_done && matches!(applied.answer, Released::NotMine(_));
            let answer = before.take().filter(|_| is_done).unwrap_or(applied.answer);
            before = Some(answer.clone());
            Applied { answer, ..applied }
        });
        released.map(|committed| committed.answer).map_err(|failure| self.explain(&failure))
    }

    /// If this fails, the lease expires, if the claim got one.
    fn cancel(&mut self, claim: &Claim, in_flight: bool) -> bool {
        let voids_late_requests = in_flight && claim.request.is_none();
        let matters = self.wait.is_some() || self.may_be_done || in_flight;
        // The request that is cancelled has already used its own time-out.
        let timeout = self.timeout / 2;
        let cancel = |state: &mut LockState, facts: &TableFacts| {
            state.cancel(&claim.token, claim.request.as_ref(), voids_late_requests, facts)
        };
        self.wait = None;
        let cancelled = if matters {
            self.until_answered(by(claim), timeout, cancel)
        } else {
            self.once_within(timeout, by(claim), |state, facts| Ok(cancel(state, facts)))
        };
        cancelled.is_ok()
    }

    fn list(&mut self, key: Option<&Key>) -> Result<Listing<KeyStatus>, StoreError> {
        self.list_keys(key)
    }

    fn revoke(&mut self, key: &Key, fence: Option<u64>, by: &Holder, now: bool) -> Result<Revoked, StoreError> {
        // The fences that the first attempt finds.
        let mut meant = None;
        let revoked = self.once(on(key), |state, facts| {
            let fences = meant.get_or_insert_with(|| state.fences(fence));
            Ok(state.revoke(Some(fences), by, now, facts))
        });
        revoked.map(|committed| committed.answer).map_err(|failure| self.explain(&failure))
    }
}

impl Sequences for PostgresStore {
    fn reserve(&mut self, claim: &Claim, wanted: &Wanted) -> Result<Reserved, RequestError> {
        let ask = Ask { claim, leased: true, sent_at: Moment::now(), if_held: IfHeld::Leave };
        let reserved = self.once(by(claim), |state, facts| state.reserve(&ask, wanted, facts));
        reserved.map(|committed| committed.answer).map_err(|failure| self.failed(&failure))
    }
}

impl Diagnose for PostgresStore {
    fn diagnose(&mut self) -> Vec<Diagnostic> {
        diagnose::diagnose(self)
    }
}
