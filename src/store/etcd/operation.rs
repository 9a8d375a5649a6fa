//! One operation on a lock: it reads the lock, and writes what the rules make of it in one transaction. That fails if
//! another operation was quicker; then this one starts again with what the other has left.

use std::thread;

use super::EtcdStore;
use super::api::{self, Header, Transacted};
use super::change::{Change, ChangeDraft, NewLeases};
use super::client::Effect;
use super::failure::{Failure, ServerError};
use super::http::Response;
use super::keys::Names;
use super::pauses::Pauses;
use super::snapshot::{Attached, FIRST_WAITERS, LeaseEnds, MANY_WAITERS, OwnRow, Scope, Snapshot};
use crate::lock::state::{LockState, look_again};
use crate::lock::token::Token;
use crate::store::Claim;
use crate::store::engine::{Commit, Operation, Place, Transactions, Transition, View};
use crate::sys::clock::Moment;

/// An operation that is being carried out.
pub(in crate::store) struct Attempt<'a> {
    operation: Operation<'a>,
    /// What to read of the lock.
    scope: Scope,
    /// The lease of our row, if it was kept alive for as long as the place must last.
    kept: Option<i64>,
    leases: NewLeases,
    deadline: Moment,
    /// Until when to start again after others were quicker. A reservation leaves half of its time for the answer to its
    /// last try: without that answer its outcome is unknown, and it cannot be repeated.
    gives_way_until: Moment,
    pauses: Pauses,
    /// The time of the view that the rules had, in milliseconds of Unix time.
    now_ms: u64,
}

impl Transactions for EtcdStore {
    type Snapshot = Snapshot;
    type Attempt<'a> = Attempt<'a>;
    type Rejection = ServerError;

    fn begin<'a>(&mut self, operation: Operation<'a>, deadline: Moment) -> Attempt<'a> {
        self.client.begin();
        let half = Moment::now() + deadline.since(Moment::now()) / 2;
        Attempt {
            operation,
            scope: self.scope(operation),
            kept: None,
            leases: NewLeases::default(),
            deadline,
            gives_way_until: if matches!(operation, Operation::Reserve(_)) { half } else { deadline },
            pauses: Pauses::default(),
            now_ms: 0,
        }
    }

    /// Returns the lock as it is remembered, or reads it. If the asking client waits, as far as it knows, also keeps
    /// the lease of its place alive.
    fn read(&mut self, attempt: &mut Attempt<'_>) -> Result<Snapshot, Failure> {
        let (scope, deadline) = (&attempt.scope, attempt.deadline);
        if let Some(found) = self.recall(attempt.operation.asking(), scope) {
            return Ok(found);
        }
        let row = self.own_row.clone().filter(|row| row.lease != 0);
        let (OwnRow::Named(_), Some(place), Some(row)) = (&scope.own_row, attempt.operation.place(), row) else {
            return self.read_scope(scope, deadline);
        };
        let (found, lasts) = self.keep_alive(&row, scope, deadline)?;
        attempt.kept = (lasts >= place).then_some(row.lease);
        Ok(found)
    }

    fn view(&mut self, attempt: &mut Attempt<'_>, found: &Snapshot) -> Result<(LockState, View), Failure> {
        let asking = attempt.operation.asking();
        if let (OwnRow::Unknown, Some(asking)) = (&attempt.scope.own_row, asking) {
            let row = found.row_of(asking).map(|row| row.name.clone());
            attempt.scope = attempt.scope.clone().with_row(row);
        }
        attempt.now_ms = self.client.now_ms()?;
        let view = View { may_be_done: self.client.may_be_done, ..found.view(attempt.now_ms) };
        // Only an operation that nobody asks for under a token may revoke leases.
        let ends = if asking.is_none() { LeaseEnds::Latest } else { LeaseEnds::Expected };
        Ok((found.state(asking, attempt.now_ms, ends), view))
    }

    fn commit(
        &mut self,
        attempt: &mut Attempt<'_>,
        found: Snapshot,
        mut transition: Transition,
    ) -> Result<Commit<Snapshot>, Failure> {
        let (operation, asking) = (attempt.operation, attempt.operation.asking());
        let may_arrive = self.may_arrive(&found);
        let joins_next = may_arrive && joins(&transition.before, &transition.after);
        if joins_next {
            // The earlier attempt may still join the queue, in another row. So the record is changed first: when that is
            // answered, our earlier row is there, or never will be.
            let before = transition.before;
            transition = Transition { after: before.clone(), before, ..Transition::default() };
        }
        if may_arrive {
            // The earlier attempt fails when it arrives late, but only while there is a record.
            transition.after.outlast_late_requests(&found.view(attempt.now_ms));
        }
        // Known to be missing only if it would have been read.
        let is_read =
            |row: &String| attempt.scope.reads_all_rows() || attempt.scope.own_row == OwnRow::Named(row.clone());
        let unwritten = self
            .own_row
            .as_ref()
            .map(|row| row.name.clone())
            .filter(|row| may_arrive && is_read(row) && found.rows.iter().all(|it| it.name != *row));
        let Transition { before, after, .. } = &transition;
        if attempt.scope.limit == FIRST_WAITERS && !found.has_enough_rows(after, asking) {
            attempt.scope.limit = MANY_WAITERS;
            return self.read_scope(&attempt.scope, attempt.deadline).map(Commit::Again);
        }
        let draft = ChangeDraft {
            operation,
            scope: &attempt.scope,
            found: &found,
            now_ms: attempt.now_ms,
            transition: &transition,
            kept: attempt.kept,
            unwritten: unwritten.as_deref(),
            // Waiters that join at the same time must conflict, so that no more join than are allowed.
            forces_write: may_arrive || operation.counts_waiters() && joins(before, after),
        };
        let mut change = draft.change(&mut attempt.leases);
        let changes_holders = draft.changes_holders();
        if let Some(refused) = change.refused {
            return Err(Failure::RecordTooLong(refused));
        }
        let (mut revision, mut answered_by) = (found.revision, found.member_and_term.clone());
        if !change.is_empty() {
            let uses_old = change.uses_created(&attempt.leases);
            let keeps = asking.filter(|asking| !operation.gives_up() && holds(asking, after));
            // The next operation of a holder needs no other read.
            let read_after = keeps.map(|_| attempt.scope.of_holder());
            let earlier = std::mem::take(&mut self.client.may_be_done);
            let committed = self.commit_change(&change, attempt, read_after.as_ref());
            let is_unanswered = self.client.may_be_done;
            if is_unanswered {
                self.note_unanswered(&change, &found, earlier);
            }
            self.client.may_be_done |= earlier;
            let transacted = match committed {
                Err(Failure::Rejected(rejection)) if rejection.lease_is_missing() && uses_old => {
                    // A lease that an earlier attempt has created was not used in time.
                    attempt.leases = NewLeases::default();
                    return self.read_scope(&attempt.scope, attempt.deadline).map(Commit::Again);
                }
                committed => committed?,
            };
            if !transacted.succeeded {
                if is_unanswered && change.own_row.is_some() {
                    // It was sent twice, and may have lost against itself. The answer may lack our row.
                    attempt.scope = self.scope(operation);
                    return self.read_scope(&attempt.scope, attempt.deadline).map(Commit::Again);
                }
                let is_urgent = asking.is_some_and(|asking| holds(asking, before));
                let found = attempt.scope.read(transacted)?;
                return self.give_way(attempt, found, is_urgent).map(Commit::Again);
            }
            let Header { member_id, raft_term, .. } = transacted.header.clone();
            (revision, answered_by) = (transacted.header.revision, (member_id, raft_term));
            if let (Some(token), Some(scope)) = (keeps, read_after)
                && let Ok(found) = change.read_after(&scope, transacted)
            {
                self.remember(token, &scope, found);
            }
            if joins_next {
                return self.read_scope(&attempt.scope, attempt.deadline).map(Commit::Again);
            }
        }
        self.client.may_be_done = false;
        self.revoked_unrecorded.extend(found.unrecorded_revoked(after));
        let is_it = |claim: &Claim| after.waiters.iter().position(|waiter| waiter.token == claim.token);
        let at = operation.waiter().and_then(is_it);
        let place = at.map(|at| {
            let waiter = &after.waiters[at];
            let row = found.row_of(&waiter.token);
            let row = change.own_row.take().or_else(|| row.map(|row| (row.name.clone(), row.lease)));
            self.own_row = row.map(|(name, lease)| Attached { name, lease, seen_by: answered_by });
            self.seen_revision = revision;
            let ahead = at as u64 + found.unread_ahead(&waiter.token);
            // The end of what keeps it from the lock is not known: the first of those ahead of it cannot use what is
            // free, or the lock was just handed to one of them, which may be as dead as the holder before it.
            let looks_again = changes_holders || after.has_room(waiter.mode);
            Place { ahead, look_in: look_again(ahead).filter(|_| looks_again) }
        });
        self.note_leases(change, attempt, &found);
        Ok(Commit::Done(place))
    }

    fn abandon(&mut self, attempt: Attempt<'_>, failure: &Failure) {
        if !self.client.may_be_done {
            self.unused_leases.extend(attempt.leases.without(&[]));
            // After any other failure the next operation tidies up, or the caller does if it gives up.
            if !failure.is_transient() {
                self.revoke_unused_leases();
            }
        }
    }
}

impl EtcdStore {
    /// Returns whether a request without an answer may still be carried out on what was `found`. Each of them requires
    /// the record to be as it was, so none is once the record has changed, whatever has changed it. One that requires
    /// that there is no record also requires the pruned fence to be as it was, and pruning a record raises that.
    fn may_arrive(&self, found: &Snapshot) -> bool {
        self.client.may_be_done && found.record_revision <= self.unanswered_at
    }

    /// Notes that a change to what was `found` has no answer; `earlier`: nor has another one before it.
    fn note_unanswered(&mut self, change: &Change, found: &Snapshot, earlier: bool) {
        let before = if earlier { self.unanswered_at } else { 0 };
        self.unanswered_at = before.max(found.record_revision);
        if let Some((name, _)) = &change.own_row {
            self.own_row = Some(Attached::uncertain(name.clone()));
        }
    }

    /// After another operation was quicker, and left what was `found`: returns what to start from.
    fn give_way(&mut self, attempt: &mut Attempt<'_>, found: Snapshot, is_urgent: bool) -> Result<Snapshot, Failure> {
        // Without a pause, many that start again at once would conflict again.
        let left = attempt.gives_way_until.since(Moment::now());
        let pause = attempt.pauses.next(is_urgent, self.client.round_trip, left).ok_or(Failure::Contended)?;
        if pause.is_zero() {
            return Ok(found);
        }
        thread::sleep(pause);
        self.read_scope(&attempt.scope, attempt.deadline)
    }

    /// Notes which leases are unused after a change to what was `found`.
    ///
    /// An attempt whose answer was lost may have been carried out all the same. Then leases that it created may be in
    /// use already, and a lease that is replaced may be replaced by itself.
    fn note_leases(&mut self, change: Change, attempt: &mut Attempt<'_>, found: &Snapshot) {
        let used = change.leases();
        let is_attached = |lease: &i64| found.leases().any(|attached| attached == *lease);
        let created = std::mem::take(&mut attempt.leases).without(&used);
        self.unused_leases.extend(created.into_iter().filter(|lease| !is_attached(lease)));
        self.unused_leases.extend(change.unused_leases.into_iter().filter(|lease| !used.contains(lease)));
    }

    /// Makes a change, and reads the lock `after` it. Returns the transaction's answer: if another operation was
    /// quicker, the lock as it is now.
    fn commit_change(
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
                Some(Failure::Rejected(rejection)) if rejection.lease_exists() => attempt.leases.note(*lease),
                Some(failure) => first_failure = first_failure.or(Some(failure)),
                None => attempt.leases.note(*lease),
            }
        }
        if let Some(failure) = first_failure {
            return Err(failure);
        }
        // If the answer cannot be read, the transaction may or may not have been carried out.
        transacted(responses.get(new.len()).ok_or(Failure::Closed)?)
            .inspect_err(|failure| self.client.may_be_done |= matches!(failure, Failure::UnexpectedReply(_)))
    }

    /// Reads the lock.
    pub(super) fn read_scope(&mut self, scope: &Scope, deadline: Moment) -> Result<Snapshot, Failure> {
        let responses = self.client.exchange(&[scope.request()], Effect::Reads, deadline)?;
        scope.read(transacted(responses.first().ok_or(Failure::Closed)?)?)
    }

    /// Returns what to read for an operation.
    pub(super) fn scope(&self, operation: Operation<'_>) -> Scope {
        let (matters, is_sought, is_users) = match operation {
            // A token of the user's own may already be in the queue.
            Operation::Acquire { claim, .. } => (true, claim.request.is_some(), claim.request.is_some()),
            Operation::Reserve(_) => (true, false, false),
            Operation::Cancel(claim) => (true, true, claim.request.is_some()),
            Operation::Renew { .. } | Operation::Release { .. } | Operation::OnLock(_) => (false, false, false),
        };
        let own_row = match &self.own_row {
            // If a request had no answer, a token of the user's own may be there in a row of another process.
            Some(row) if matters && !(is_users && self.client.may_be_done) => OwnRow::Named(row.name.clone()),
            _ if is_sought => OwnRow::Unknown,
            _ => OwnRow::None,
        };
        let names = Names::new(&self.client.cluster.prefix, operation.key());
        let limit = if operation.counts_waiters() { 0 } else { FIRST_WAITERS };
        Scope { names, own_row, limit, keeps_fence: !self.is_trial }
    }
}

/// Returns whether the lock is held under this token. An operation of a holder is urgent: it releases the lock, or
/// renews its lease.
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
