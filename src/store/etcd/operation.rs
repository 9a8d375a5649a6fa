//! One operation on a lock: it reads the lock, applies the rules, and writes the result in one transaction. That fails if
//! another operation was quicker; then this one starts again with what the other has left.

use std::thread;

use super::EtcdStore;
use super::api::{self, Transacted};
use super::change::{Change, Draft, NewLeases};
use super::client::Effect;
use super::facts::EtcdFacts;
use super::failure::Failure;
use super::found::{FIRST_WAITERS, Found, GROWTH_FACTOR, OwnRow, Scope};
use super::http::Response;
use super::keys::Names;
use super::pauses::Pauses;
use super::waiting::{self, Look};
use crate::lock::claim::Claim;
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
    /// Whether that token may be in the queue without our knowledge.
    pub(super) may_wait: bool,
    /// Whether no command runs under that token any more.
    pub(super) gives_up: bool,
    /// Whether all waiters matter, not only the first.
    pub(super) needs_all_waiters: bool,
}

/// The result of an operation.
pub(super) struct Committed<T> {
    /// The answer.
    pub(super) answer: T,
    /// When it was carried out, in milliseconds of Unix time.
    pub(super) now_ms: u64,
    /// If the asking client waits now: when it looks again, and how many are ahead of it.
    pub(super) waits: Option<(Look, u64)>,
}

/// What is known of a lock before the next operation, which then need not read it: its transaction compares that nothing of
/// it has changed.
pub(super) struct RememberedLock {
    key: Key,
    /// The acquisition that knows it.
    token: Token,
    basis: Basis,
}

/// The lock from which an operation starts.
struct Basis {
    found: Found,
    source: Source,
}

/// How the lock is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// It was read for this operation.
    Read,
    /// The last operation has read it after changing it: we hold it alone.
    ReadBack,
    /// An event of the watch says that the lock is granted to us, to hold it alone. It does not say who else waits.
    Watch,
}

impl Source {
    fn is_remembered(self) -> bool {
        self != Self::Read
    }
}

impl EtcdStore {
    /// Applies `rules` to the state of a lock, and stores the result. The rules may be applied several times, each time to
    /// what is found then; only the last result is stored.
    pub(super) fn operate<T>(
        &mut self,
        subject: Subject<'_>,
        deadline: Moment,
        rules: impl FnMut(&mut LockState, &EtcdFacts<'_>) -> Result<Applied<T>, FenceExhausted>,
    ) -> Result<Committed<T>, Failure> {
        let mut leases = NewLeases::default();
        let operated = self.operate_with(&mut leases, subject, deadline, rules);
        if let Err(failure) = &operated
            && !self.client.may_be_done
        {
            self.unused_leases.extend(leases.without(&[]));
            // After any other failure the next operation tidies up, or the caller does if it gives up.
            if !failure.is_transient() {
                self.revoke_unused_leases();
            }
        }
        operated
    }

    /// Does the same with these new leases.
    fn operate_with<T>(
        &mut self,
        leases: &mut NewLeases,
        subject: Subject<'_>,
        deadline: Moment,
        mut rules: impl FnMut(&mut LockState, &EtcdFacts<'_>) -> Result<Applied<T>, FenceExhausted>,
    ) -> Result<Committed<T>, Failure> {
        self.client.begin();
        let mut scope = self.scope(subject);
        let mut pauses = Pauses::default();
        let mut basis = match self.recall(subject) {
            Some(basis) => basis,
            None => self.read_for(&scope, deadline)?,
        };
        loop {
            let Basis { found, source } = &basis;
            if let (OwnRow::Unknown, Some(asking)) = (&scope.own_row, subject.asking) {
                let row = found.row_of(asking).map(|row| row.name.clone());
                scope = scope.with_row(row);
            }
            // An event says nothing about the other waiters.
            if *source != Source::Watch {
                self.observed.note(found, self.client.round_trip, self.client.failed);
            }
            let now_ms = self.client.now_ms()?;
            let may_be_done = self.client.may_be_done;
            let facts = EtcdFacts { now_ms, found, observed: &self.observed, asking: subject.asking, may_be_done };
            let before = found.state(subject.asking, &self.observed, now_ms);
            let mut state = before.clone();
            let applied = rules(&mut state, &facts).map_err(|FenceExhausted { last }| Failure::FenceEnds(last))?;
            if may_be_done {
                // The earlier attempt fails when it arrives late, but only while there is a record.
                state.outlast_late_requests(&facts);
            }
            let has_called = found.rows.iter().any(|row| row.value.called.is_some());
            let calls_more = scope.limit == FIRST_WAITERS && (has_called || waiting::passes_over(&before, &state));
            let has_enough = match source {
                // A sole holder has nothing to hand off.
                Source::Watch => facts.is_held_by_asking(&state),
                Source::Read | Source::ReadBack => !calls_more && facts.has_enough(&state),
            };
            if !found.has_all_rows && !has_enough {
                if *source == Source::Read {
                    // Waiters that were read may be dead or unresponsive: one behind them may be next.
                    scope.limit *= GROWTH_FACTOR;
                }
                basis = self.read_for(&scope, deadline)?;
                continue;
            }
            let draft = Draft {
                scope: &scope,
                facts: &facts,
                before: &before,
                after: &state,
                begins_lease: applied.begins_lease,
                given_up: subject.asking.filter(|_| subject.gives_up),
                is_from_memory: source.is_remembered(),
                // Waiters that join at the same time must conflict, so that no more join than are allowed.
                forces_write: may_be_done || subject.needs_all_waiters && joins(&before, &state),
            };
            let change = draft.change(leases);
            if let Some(refused) = change.refused {
                return Err(Failure::RecordTooLong(refused));
            }
            let waits =
                subject.asking.and_then(|asking| Look::of(asking, &facts, &state, !change.challenges.is_empty()));
            if change.is_empty() {
                if source.is_remembered() {
                    // Nothing is written, so no transaction confirms what was remembered.
                    basis = self.read_for(&scope, deadline)?;
                    continue;
                }
            } else {
                let uses_old = change.uses_created(leases);
                let transacted = match self.commit(&change, &scope, leases, deadline) {
                    Err(Failure::Refused(refusal)) if refusal.lease_is_missing() && uses_old => {
                        // A lease that an earlier attempt has created was not used in time.
                        *leases = NewLeases::default();
                        basis = self.read_for(&scope, deadline)?;
                        continue;
                    }
                    committed => committed?,
                };
                if !transacted.succeeded {
                    let may_have_joined = self.client.may_be_done && change.own_row.is_some();
                    let fresh = if may_have_joined {
                        // Our row may be anywhere among the waiters.
                        scope.own_row = OwnRow::Unknown;
                        self.read_for(&scope, deadline)?
                    } else {
                        Basis { found: scope.read(transacted)?, source: Source::Read }
                    };
                    let outdated = std::mem::replace(&mut basis, fresh);
                    if outdated.source.is_remembered() {
                        // A holder whose life is gone or was replaced may have left its lease.
                        self.unused_leases.extend(outdated.found.leases_without(&basis.found));
                        continue;
                    }
                    // Without a pause, many that start again at once would conflict again.
                    let left = deadline.since(Moment::now());
                    let is_urgent = subject.asking.is_some_and(|asking| is_urgent(asking, &before));
                    let pause = pauses.next(is_urgent, self.client.round_trip, left).ok_or(Failure::Contended)?;
                    if !pause.is_zero() {
                        thread::sleep(pause);
                        basis = self.read_for(&scope, deadline)?;
                    }
                    continue;
                }
                change.challenges.iter().for_each(|challenge| self.observed.mark(challenge));
                self.remember(subject, &change, transacted, &scope);
            }
            self.client.may_be_done = false;
            self.note_leases(change, std::mem::take(leases), &basis.found);
            self.note_own_row(subject, waits.is_some(), &basis.found);
            return Ok(Committed { answer: applied.answer, now_ms, waits });
        }
    }

    /// Returns what is known of the lock, if that is enough for an operation, and forgets it: only one operation may use it.
    fn recall(&mut self, subject: Subject<'_>) -> Option<Basis> {
        let known = self.remembered.take()?;
        let is_same = known.key == *subject.key && subject.asking == Some(&known.token);
        (is_same && !subject.needs_all_waiters && !self.client.may_be_done).then_some(known.basis)
    }

    /// Reads the lock for an operation.
    fn read_for(&mut self, scope: &Scope, deadline: Moment) -> Result<Basis, Failure> {
        Ok(Basis { found: self.read(scope, deadline)?, source: Source::Read })
    }

    /// Keeps what the transaction has read after its change, for the next operation.
    fn remember(&mut self, subject: Subject<'_>, change: &Change, transacted: Transacted, scope: &Scope) {
        // If it cannot be read, the next operation reads it and fails.
        let found = change.read_back(transacted).and_then(|transacted| scope.read(transacted).ok());
        let alone = found.zip(subject.asking).filter(|(found, asking)| found.is_held_alone_by(asking));
        self.remembered = alone.map(|(found, asking)| RememberedLock {
            key: subject.key.clone(),
            token: asking.clone(),
            basis: Basis { found, source: Source::ReadBack },
        });
    }

    /// Notes which leases are unused after a change to what was `found`, and which row is ours.
    ///
    /// An attempt whose answer was lost may have been carried out all the same. Then leases that it created may be in use
    /// already, and a lease that is replaced may be replaced by itself.
    fn note_leases(&mut self, change: Change, leases: NewLeases, found: &Found) {
        let used = change.leases();
        let is_attached = |lease: &i64| found.leases().any(|attached| attached == *lease);
        self.unused_leases.extend(leases.without(&used).into_iter().filter(|lease| !is_attached(lease)));
        self.unused_leases.extend(change.unused_leases.into_iter().filter(|lease| !used.contains(lease)));
        if let Some(own) = change.own_row {
            // The earlier row, if any, is gone.
            self.unused_leases.extend(self.own_row.replace(own).map(|(_, lease)| lease));
        }
    }

    /// Notes the row of a token that waits and has a row already, through an attempt whose answer was lost, or through
    /// another process that waits under the same token.
    fn note_own_row(&mut self, subject: Subject<'_>, waits: bool, found: &Found) {
        let row = subject.asking.filter(|_| waits).and_then(|asking| found.row_of(asking));
        if let Some(row) = row {
            let before = self.own_row.replace((row.name.clone(), row.lease));
            self.unused_leases.extend(before.map(|(_, lease)| lease).filter(|lease| *lease != row.lease));
        }
    }

    /// Makes a change. Returns the transaction's responses: those to its operations or, if another operation was quicker, the
    /// lock as it is now.
    fn commit(
        &mut self,
        change: &Change,
        scope: &Scope,
        leases: &mut NewLeases,
        deadline: Moment,
    ) -> Result<Transacted, Failure> {
        let new: Vec<i64> = change.new_grants(leases).map(|(lease, _)| *lease).collect();
        let responses = self.client.exchange(&change.requests(scope, leases), Effect::Writes, deadline)?;
        let (last, grants) = responses.split_last().ok_or(Failure::Closed)?;
        let mut first_failure = None;
        for (grant, lease) in grants.iter().zip(new) {
            match Failure::of_response(grant) {
                // An earlier attempt has created it.
                Some(Failure::Refused(refusal)) if refusal.lease_exists() => leases.note(lease),
                Some(failure) => first_failure = first_failure.or(Some(failure)),
                None => leases.note(lease),
            }
        }
        if let Some(failure) = first_failure {
            return Err(failure);
        }
        // If the answer cannot be read, the transaction may or may not have been carried out.
        transacted(last).inspect_err(|failure| self.client.may_be_done |= matches!(failure, Failure::NotEtcd(_)))
    }

    /// Keeps what the event of a grant says for the next operation, if it is the grant of this claim.
    pub(super) fn note_grant(&mut self, claim: &Claim, granted: Found) {
        let is_ours = granted.rows.iter().all(|row| {
            let waiter = &row.value.waiter;
            let has_our_name = self.own_row.as_ref().is_some_and(|(name, _)| *name == row.name);
            has_our_name && (&waiter.token, waiter.mode) == (&claim.token, claim.mode)
        });
        let (key, token) = (claim.key.clone(), claim.token.clone());
        self.remembered =
            is_ours.then_some(RememberedLock { key, token, basis: Basis { found: granted, source: Source::Watch } });
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
            Some((name, _)) if subject.asking.is_some() && !self.client.may_be_done => OwnRow::Named(name.clone()),
            _ if subject.asking.is_some() && subject.may_wait => OwnRow::Unknown,
            _ => OwnRow::None,
        };
        let names = Names::new(&self.client.cluster.prefix, subject.key);
        let limit = if subject.needs_all_waiters { 0 } else { FIRST_WAITERS };
        Scope { names, own_row, limit, keeps_fence: !self.is_trial }
    }
}

/// Returns whether the operation is urgent, so that the others should wait: a holder wants to release the lock or renew its
/// lease, or a waiter that was granted the lock has only a little time to claim it.
fn is_urgent(asking: &Token, state: &LockState) -> bool {
    let holds = state.holders.iter().any(|holder| holder.token == *asking);
    holds || state.waiters.iter().any(|waiter| waiter.token == *asking && waiter.grant.is_some())
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
