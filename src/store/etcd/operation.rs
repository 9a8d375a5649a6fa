//! One operation on a lock: it reads the lock, applies the rules, and writes the result in one transaction. That fails if
//! another operation was quicker; then this one starts again with what the other has left.

use std::thread;
use std::time::Duration;

use super::api::{self, Header, Transacted};
use super::change::{Change, Draft, NewLeases};
use super::client::Effect;
use super::facts::EtcdFacts;
use super::failure::Failure;
use super::found::{Attached, FIRST_WAITERS, Found, MANY_WAITERS, OwnRow, Scope};
use super::http::Response;
use super::keys::Names;
use super::pauses::Pauses;
use super::{EtcdStore, on};
use crate::lock::key::Key;
use crate::lock::state::{Applied, FenceExhausted, LockState};
use crate::lock::token::Token;
use crate::sys::clock::Moment;

/// The subject of an operation.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    /// The lock.
    pub(super) key: &'a Key,
    /// The token that asks.
    pub(super) asking: Option<&'a Token>,
    /// Whether its row in the queue matters, if it has one.
    pub(super) row: RowUse,
    /// How long the place in the queue must last, if the operation may wait.
    pub(super) place: Option<Duration>,
    /// Whether no command runs under that token any more.
    pub(super) gives_up: bool,
    /// Whether all waiters matter, not only the first.
    pub(super) needs_all_waiters: bool,
}

/// Whether the row of the asking client matters to an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RowUse {
    /// No.
    Ignored,
    /// If we know of it.
    IfKnown,
    /// The token may be in the queue without our knowledge.
    Sought,
}

/// The result of an operation.
pub(super) struct Committed<T> {
    /// The answer.
    pub(super) answer: T,
    /// The cluster's revision as of the answer.
    pub(super) revision: i64,
    /// How many of those ahead of the asking client were not read, if it waits.
    pub(super) unread_ahead: u64,
    /// Whether the end of what keeps the asking client from the lock, if it waits, is not known: the first of those ahead of it cannot use
    /// what is free, or the lock was just handed to one of them, which may be as dead as the holder before it.
    pub(super) looks_again: bool,
    /// Whether more waiters can be taken from the queue.
    is_unfinished: bool,
}

/// What an operation has at hand to begin with.
struct Attempt<'a> {
    subject: Subject<'a>,
    scope: Scope,
    /// The lease of our row, if it was kept alive for as long as the place must last.
    kept: Option<i64>,
    leases: NewLeases,
    deadline: Moment,
    pauses: Pauses,
}

/// How an attempt ended.
enum Attempted<T> {
    Done(Committed<T>),
    /// The lock must be read again: more of it, or after a lease was lost.
    Again,
    /// Another operation was quicker. `found`: what it has left; `is_urgent`: whether others should give way to this one.
    Lost {
        found: Box<Found>,
        is_urgent: bool,
    },
}

impl EtcdStore {
    /// Applies `rules` to the state of a lock, and stores the result. The rules may be applied several times, each time to
    /// what is found then; only the last result is stored. If it leaves waiters to which the lock can be handed, goes on with them.
    pub(super) fn operate<T>(
        &mut self,
        subject: Subject<'_>,
        deadline: Moment,
        rules: impl FnMut(&mut LockState, &EtcdFacts<'_>) -> Result<Applied<T>, FenceExhausted>,
    ) -> Result<Committed<T>, Failure> {
        let committed = self.operate_once(subject, deadline, rules)?;
        let mut is_unfinished = committed.is_unfinished;
        while is_unfinished {
            let looked = self.operate_once(on(subject.key), deadline, |state, facts| Ok(state.look(facts)));
            // If this fails, the first of them look by themselves.
            is_unfinished = looked.is_ok_and(|looked| looked.is_unfinished);
        }
        Ok(committed)
    }

    /// Does the same without going on.
    fn operate_once<T>(
        &mut self,
        subject: Subject<'_>,
        deadline: Moment,
        mut rules: impl FnMut(&mut LockState, &EtcdFacts<'_>) -> Result<Applied<T>, FenceExhausted>,
    ) -> Result<Committed<T>, Failure> {
        let (scope, leases, pauses) = (self.scope(subject), NewLeases::default(), Pauses::default());
        let mut attempt = Attempt { subject, scope, kept: None, leases, deadline, pauses };
        let operated = self.attempt_until_done(&mut attempt, &mut rules);
        if let Err(failure) = &operated
            && !self.client.may_be_done
        {
            self.unused_leases.extend(attempt.leases.without(&[]));
            // After any other failure the next operation tidies up, or the caller does if it gives up.
            if !failure.is_transient() {
                self.revoke_unused_leases();
            }
        }
        operated
    }

    fn attempt_until_done<T>(
        &mut self,
        attempt: &mut Attempt<'_>,
        rules: &mut impl FnMut(&mut LockState, &EtcdFacts<'_>) -> Result<Applied<T>, FenceExhausted>,
    ) -> Result<Committed<T>, Failure> {
        self.client.begin();
        let mut found = match self.recall(attempt.subject.asking, &attempt.scope) {
            Some(found) => found,
            None => self.read_first(attempt)?,
        };
        loop {
            found = match self.attempt(attempt, &found, rules)? {
                Attempted::Done(committed) => return Ok(committed),
                Attempted::Again => self.read(&attempt.scope, attempt.deadline)?,
                Attempted::Lost { found, is_urgent } => self.give_way(attempt, *found, is_urgent)?,
            };
        }
    }

    /// Reads the lock for the first attempt. If the asking client waits, as far as it knows, also keeps the lease of its place alive.
    fn read_first(&mut self, attempt: &mut Attempt<'_>) -> Result<Found, Failure> {
        let (scope, deadline) = (&attempt.scope, attempt.deadline);
        let row = self.own_row.clone().filter(|row| row.lease != 0);
        let (OwnRow::Named(_), Some(place), Some(row)) = (&scope.own_row, attempt.subject.place, row) else {
            return self.read(scope, deadline);
        };
        let (found, lasts) = self.keep_alive(&row, scope, deadline)?;
        attempt.kept = (lasts >= place).then_some(row.lease);
        Ok(found)
    }

    /// Applies the rules once to what was `found`, and tries to store the result.
    fn attempt<T>(
        &mut self,
        attempt: &mut Attempt<'_>,
        found: &Found,
        rules: &mut impl FnMut(&mut LockState, &EtcdFacts<'_>) -> Result<Applied<T>, FenceExhausted>,
    ) -> Result<Attempted<T>, Failure> {
        let Attempt { subject, scope, .. } = attempt;
        if let (OwnRow::Unknown, Some(asking)) = (&scope.own_row, subject.asking) {
            let row = found.row_of(asking).map(|row| row.name.clone());
            *scope = scope.clone().with_row(row);
        }
        let (now_ms, may_be_done) = (self.client.now_ms()?, self.client.may_be_done);
        let facts = EtcdFacts { now_ms, found, may_be_done };
        let before = found.state(subject.asking, now_ms);
        let mut after = before.clone();
        let applied = rules(&mut after, &facts).map_err(|FenceExhausted { last }| Failure::FenceEnds(last))?;
        if may_be_done {
            // The earlier attempt fails when it arrives late, but only while there is a record.
            after.outlast_late_requests(&facts);
        }
        if scope.limit == FIRST_WAITERS && !found.has_enough_rows(&after, subject.asking) {
            scope.limit = MANY_WAITERS;
            return Ok(Attempted::Again);
        }
        let draft = Draft {
            scope,
            facts: &facts,
            asking: subject.asking,
            before: &before,
            after: &after,
            woken: &applied.woken,
            begins_lease: applied.begins_lease,
            may_wait: subject.place.is_some(),
            kept: attempt.kept,
            given_up: subject.asking.filter(|_| subject.gives_up),
            // Waiters that join at the same time must conflict, so that no more join than are allowed.
            forces_write: may_be_done || subject.needs_all_waiters && joins(&before, &after),
        };
        let mut change = draft.change(&mut attempt.leases);
        let changes_holders = draft.changes_holders();
        if let Some(refused) = change.refused {
            return Err(Failure::RecordTooLong(refused));
        }
        let (mut revision, mut answered_by) = (found.revision, found.member_and_term.clone());
        if !change.is_empty() {
            let uses_old = change.uses_created(&attempt.leases);
            let keeps = subject.asking.filter(|asking| !subject.gives_up && holds(asking, &after));
            // The next operation of a holder needs no other read.
            let read_after = keeps.map(|_| scope.of_holder());
            let transacted = match self.commit(&change, attempt, read_after.as_ref()) {
                Err(Failure::Refused(refusal)) if refusal.lease_is_missing() && uses_old => {
                    // A lease that an earlier attempt has created was not used in time.
                    attempt.leases = NewLeases::default();
                    return Ok(Attempted::Again);
                }
                committed => committed?,
            };
            if !transacted.succeeded {
                if self.client.may_be_done && change.own_row.is_some() {
                    // Our row may be anywhere among the waiters.
                    attempt.scope.own_row = OwnRow::Unknown;
                    return Ok(Attempted::Again);
                }
                let is_urgent = attempt.subject.asking.is_some_and(|asking| holds(asking, &before));
                return Ok(Attempted::Lost { found: Box::new(attempt.scope.read(transacted)?), is_urgent });
            }
            let Header { member_id, raft_term, .. } = transacted.header.clone();
            (revision, answered_by) = (transacted.header.revision, (member_id, raft_term));
            if let (Some(token), Some(scope)) = (keeps, read_after)
                && let Ok(found) = change.read_after(&scope, transacted)
            {
                self.remember(token, &scope, found);
            }
        }
        self.client.may_be_done = false;
        let waiting = attempt.subject.asking.and_then(|asking| after.waiters.iter().find(|it| it.token == *asking));
        let unread_ahead = waiting.map_or(0, |waiter| found.unread_ahead(&waiter.token));
        let looks_again = changes_holders || waiting.is_some_and(|waiter| after.has_room(waiter.mode));
        if attempt.subject.place.is_some() {
            let row = waiting.and_then(|waiter| found.row_of(&waiter.token));
            let row = change.own_row.take().or_else(|| row.map(|row| (row.name.clone(), row.lease)));
            self.own_row = row.map(|(name, lease)| Attached { name, lease, seen_by: answered_by });
        }
        self.note_leases(change, attempt, found);
        let Applied { answer, is_unfinished, .. } = applied;
        Ok(Attempted::Done(Committed { answer, revision, unread_ahead, looks_again, is_unfinished }))
    }

    /// After another operation was quicker, and left what was `found`: returns what to start from.
    fn give_way(&mut self, attempt: &mut Attempt<'_>, found: Found, is_urgent: bool) -> Result<Found, Failure> {
        // Without a pause, many that start again at once would conflict again.
        let left = attempt.deadline.since(Moment::now());
        let pause = attempt.pauses.next(is_urgent, self.client.round_trip, left).ok_or(Failure::Contended)?;
        if pause.is_zero() {
            return Ok(found);
        }
        thread::sleep(pause);
        self.read(&attempt.scope, attempt.deadline)
    }

    /// Notes which leases are unused after a change to what was `found`.
    ///
    /// An attempt whose answer was lost may have been carried out all the same. Then leases that it created may be in use
    /// already, and a lease that is replaced may be replaced by itself.
    fn note_leases(&mut self, change: Change, attempt: &mut Attempt<'_>, found: &Found) {
        let used = change.leases();
        let is_attached = |lease: &i64| found.leases().any(|attached| attached == *lease);
        let created = std::mem::take(&mut attempt.leases).without(&used);
        self.unused_leases.extend(created.into_iter().filter(|lease| !is_attached(lease)));
        self.unused_leases.extend(change.unused_leases.into_iter().filter(|lease| !used.contains(lease)));
    }

    /// Makes a change, and reads the lock `after` it. Returns the transaction's answer: if another operation was quicker, the lock as it is
    /// now.
    fn commit(
        &mut self,
        change: &Change,
        attempt: &mut Attempt<'_>,
        after: Option<&Scope>,
    ) -> Result<Transacted, Failure> {
        let new = change.new_grants(&attempt.leases);
        let mut requests: Vec<_> = new.iter().map(|(lease, seconds)| api::grant(*lease, *seconds)).collect();
        requests.push(change.transaction(&attempt.scope, after));
        let responses = self.client.exchange(&requests, Effect::Writes, attempt.deadline)?;
        let mut first_failure = None;
        for (grant, (lease, _)) in responses.iter().zip(&new) {
            match Failure::of_response(grant) {
                // An earlier attempt has created it.
                Some(Failure::Refused(refusal)) if refusal.lease_exists() => attempt.leases.note(*lease),
                Some(failure) => first_failure = first_failure.or(Some(failure)),
                None => attempt.leases.note(*lease),
            }
        }
        if let Some(failure) = first_failure {
            return Err(failure);
        }
        // If the answer cannot be read, the transaction may or may not have been carried out.
        transacted(responses.get(new.len()).ok_or(Failure::Closed)?)
            .inspect_err(|failure| self.client.may_be_done |= matches!(failure, Failure::NotEtcd(_)))
    }

    /// Reads the lock.
    pub(super) fn read(&mut self, scope: &Scope, deadline: Moment) -> Result<Found, Failure> {
        let responses = self.client.exchange(&[scope.request()], Effect::Reads, deadline)?;
        scope.read(transacted(responses.first().ok_or(Failure::Closed)?)?)
    }

    /// Returns what to read for an operation.
    pub(super) fn scope(&self, subject: Subject<'_>) -> Scope {
        let own_row = match &self.own_row {
            // If `may_be_done`, we may have joined again unnoticed, in another row.
            Some(row) if subject.row != RowUse::Ignored && !self.client.may_be_done => OwnRow::Named(row.name.clone()),
            _ if subject.row == RowUse::Sought => OwnRow::Unknown,
            _ => OwnRow::None,
        };
        let names = Names::new(&self.client.cluster.prefix, subject.key);
        let limit = if subject.needs_all_waiters { 0 } else { FIRST_WAITERS };
        Scope { names, own_row, limit, keeps_fence: !self.is_trial }
    }
}

/// Returns whether the lock is held under this token. An operation of a holder is urgent: it releases the lock, or renews its lease.
fn holds(token: &Token, state: &LockState) -> bool {
    state.holders.iter().any(|holder| holder.token == *token)
}

/// Returns whether a waiter has joined the queue.
fn joins(before: &LockState, after: &LockState) -> bool {
    after.waiters.iter().any(|waiter| before.waiters.iter().all(|it| it.token != waiter.token))
}

/// Reads the answer to a transaction.
pub(super) fn transacted(response: &Response) -> Result<Transacted, Failure> {
    match Failure::of_response(response) {
        Some(failure) => Err(failure),
        None => api::read(&response.body),
    }
}
