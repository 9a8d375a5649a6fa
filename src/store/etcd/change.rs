//! What an operation changes in etcd: one transaction, which fails if the lock was changed meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use uuid::Uuid;

use super::api::{self, Compare, RequestOp, Transacted};
use super::failure::Failure;
use super::http::Request;
use super::keys::range_end;
use super::snapshot::{
    HandedOver, LeaseKey, OwnRow, READS_MAX, RevokedEnd, Row, Scope, Snapshot, record_of, whole_seconds,
};
use crate::lock::state::{HolderState, LOOKERS, LockState, WaiterState};
use crate::lock::token::Token;
use crate::store::engine::{Operation, Transition};
use crate::store::record_limit::{self, RecordTooLong};

/// How many operations etcd accepts in a transaction by default.
const OPERATIONS_MAX: usize = 128;

/// How many operations of a transaction may concern the lease keys of holders. Only `break --now` ends more: the other
/// lease keys go with their leases, which are revoked right after it.
const LEASE_KEYS_MAX: usize = 10;

// A transaction has two operations for each of these lease keys; two for each waiter that is taken from the queue; one
// for each waiter that must look; those for the row of the asking client, the record and its fence; and those that read
// what is left.
const _: () = assert!(2 * LEASE_KEYS_MAX + 2 * HAND_OFFS_MAX + LOOKERS + 3 + READS_MAX <= OPERATIONS_MAX);

/// How long a lease lasts at most that is left to expire when its holder has released the lock. That saves the release
/// a round trip and a request. It does not make a hand-off quicker.
const LEFT_MAX_MS: u64 = 60_000;

/// How many waiters an operation may take from the queue: its transaction has two operations for each of them.
pub(super) const HAND_OFFS_MAX: usize = 24;

/// The leases that an operation has created, or is about to: one for each holder that needs one, and one for the
/// waiter. A repeated attempt uses them again.
#[derive(Debug, Default)]
pub(super) struct NewLeases {
    leases: BTreeMap<(String, u64), i64>,
    /// Those that exist already.
    created: Vec<i64>,
}

impl NewLeases {
    /// Returns the lease of `seconds` for this holder or waiter.
    fn of(&mut self, token: &Token, seconds: u64) -> i64 {
        *self.leases.entry((token.as_str().to_owned(), seconds)).or_insert_with(number)
    }

    /// Notes that a lease was created.
    pub(super) fn note(&mut self, lease: i64) {
        self.created.push(lease);
    }

    /// Returns the created leases that an operation does not use after all.
    pub(super) fn without(self, used: &[i64]) -> Vec<i64> {
        self.created.into_iter().filter(|lease| !used.contains(lease)).collect()
    }
}

/// Returns the number of a new lease: 63 random bits, which practically never collide.
pub(super) fn number() -> i64 {
    i64::from_ne_bytes((Uuid::new_v4().as_u64_pair().1).to_ne_bytes()) & i64::MAX
}

/// What an operation changes.
pub(super) struct Change {
    compare: Vec<Compare>,
    operations: Vec<RequestOp>,
    /// The leases to create before that, with their seconds.
    grants: Vec<(i64, u64)>,
    /// The leases that are unused after that.
    pub(super) unused_leases: Vec<i64>,
    /// The row of the asking client, and its lease, if it joins the queue or its place is put on a new lease.
    pub(super) own_row: Option<(String, i64)>,
    /// Why the change must not be made.
    pub(super) refused: Option<RecordTooLong>,
}

/// What the rules have made of a lock that was found, before it is written.
pub(super) struct ChangeDraft<'a> {
    pub(super) operation: Operation<'a>,
    pub(super) scope: &'a Scope,
    pub(super) found: &'a Snapshot,
    /// The time of the view that the rules had, in milliseconds of Unix time.
    pub(super) now_ms: u64,
    pub(super) transition: &'a Transition,
    /// The lease that was kept alive for the place of the asking client.
    pub(super) kept: Option<i64>,
    /// The row that an earlier request, without an answer, may still write.
    pub(super) unwritten: Option<&'a str>,
    /// Whether to write the record even if it stays the same.
    pub(super) forces_write: bool,
}

impl<'a> ChangeDraft<'a> {
    /// Returns the token of the asking client if it gives up the lock: then its lease key goes even if it is missing
    /// from the record. Before, the lease key keeps the others from the lock, because the command still runs.
    fn given_up(&self) -> Option<&'a Token> {
        self.operation.asking().filter(|_| self.operation.gives_up())
    }

    /// Returns the change.
    pub(super) fn change(&self, leases: &mut NewLeases) -> Change {
        let mut change = Change {
            compare: vec![Compare::Unchanged(self.scope.names.state.clone(), self.found.record_revision)],
            operations: Vec::new(),
            grants: Vec::new(),
            unused_leases: Vec::new(),
            own_row: None,
            refused: None,
        };
        if self.found.record_revision == 0 {
            // The record may have come and gone since, and `prune` then leaves only its fence.
            let pruned = Compare::Unchanged(self.scope.names.pruned_fence.clone(), self.found.pruned.revision);
            change.compare.push(pruned);
        }
        if let Some(lease_key) = self.operation.asking().and_then(|asking| self.found.lease_key_of(asking)) {
            // The answer depends on it: that the lease is renewed, or that the lock was held until now.
            change.compare.push(Compare::Attached(self.scope.names.lease_key(&lease_key.token), lease_key.lease));
        }
        // An earlier request that joins the queue just before this does not change the record.
        change.compare.extend(self.unwritten.map(|row| Compare::Unchanged(row.to_owned(), 0)));
        self.change_lives(&mut change, leases);
        self.take_from_queue(&mut change);
        self.keep_place(&mut change, leases);
        self.change_record(&mut change);
        change
    }

    /// Gives new leases to holders, except those to which the lock is handed, and takes them from those that no longer
    /// hold the lock.
    fn change_lives(&self, change: &mut Change, leases: &mut NewLeases) {
        for holder in self.transition.after.holders.iter().filter(|holder| !self.is_handed_over(holder)) {
            self.change_lease_key(change, holder, leases);
        }
        for lease_key in &self.found.lease_keys {
            let holder = self.transition.before.holders.iter().find(|holder| holder.token == lease_key.token);
            let was_there = holder.is_some();
            let is_there = self.transition.after.holders.iter().any(|holder| holder.token == lease_key.token);
            if !is_there && (was_there || self.given_up() == Some(&lease_key.token)) {
                let is_deleted = change.operations.len() < LEASE_KEYS_MAX;
                if is_deleted {
                    change.operations.push(RequestOp::Delete(self.scope.names.lease_key(&lease_key.token)));
                }
                let lasts_ms = holder.and_then(|holder| holder.lease.as_ref()?.ttl_ms);
                if is_deleted && lasts_ms.is_some_and(|ms| ms <= LEFT_MAX_MS) {
                    // It may be there since it waited.
                    change.operations.push(RequestOp::Delete(self.scope.names.look(&lease_key.token)));
                } else {
                    change.unused_leases.push(lease_key.lease);
                }
            }
        }
    }

    /// Returns whether the lock is handed to this holder in the queue: it keeps the lease of its place.
    fn is_handed_over(&self, holder: &HolderState) -> bool {
        let held_before = self.transition.before.holders.iter().any(|it| it.token == holder.token);
        !held_before && self.operation.asking() != Some(&holder.token) && self.found.row_of(&holder.token).is_some()
    }

    /// Gives a holder a new lease if it begins one now.
    fn change_lease_key(&self, change: &mut Change, holder: &HolderState, leases: &mut NewLeases) {
        let Some(lease) = &holder.lease else { return };
        let key = self.scope.names.lease_key(&holder.token);
        let before = self.transition.before.holders.iter().find(|it| it.token == holder.token);
        let begins_lease = self.transition.begins_lease && self.operation.asking() == Some(&holder.token);
        if lease.ends_ms.is_some() && !begins_lease && before.is_some_and(|it| it.lease == holder.lease) {
            let is_revoked_now = before.is_some_and(|it| it.revoked_by != holder.revoked_by);
            if let (true, Some(lease_key), Some(ends_ms)) =
                (is_revoked_now, self.found.lease_key_of(&holder.token), lease.ends_ms)
            {
                self.end_lease_key(change, lease_key, ends_ms);
            }
            return;
        }
        let old = self.found.lease_of(&holder.token);
        if let Some(ends_ms) = lease.ends_ms {
            let left = Duration::from_millis(ends_ms.saturating_sub(self.now_ms));
            let lease = change.new_lease(&holder.token, left, leases);
            let value = holder.revoked_by.as_ref().map(|_| json(&self.end_at(ends_ms))).unwrap_or_default();
            change.operations.push(RequestOp::Put { key, value, lease });
        } else if old.is_some() {
            change.operations.push(RequestOp::Delete(key));
        }
        change.unused_leases.extend(old);
    }

    /// Notes in the lease key of a holder, which is revoked now, when it ends at the latest. How long the lease of a
    /// holder that is missing from the record lasts is not known.
    fn end_lease_key(&self, change: &mut Change, lease_key: &LeaseKey, ends_ms: u64) {
        if self.found.end_of(lease_key).is_none() && !self.found.is_unrecorded(&lease_key.token) {
            let key = self.scope.names.lease_key(&lease_key.token);
            change.compare.push(Compare::Attached(key.clone(), lease_key.lease));
            change.operations.push(RequestOp::Change { key, value: json(&self.end_at(ends_ms)) });
        }
    }

    fn end_at(&self, ends_ms: u64) -> RevokedEnd {
        RevokedEnd::new(&self.found.member_and_term.0, ends_ms)
    }

    /// Deletes the rows of the waiters that have left the queue, and wakes those that must be woken. A waiter to which
    /// the lock was handed gets its lease key, which says so, on the lease of its place.
    fn take_from_queue(&self, change: &mut Change) {
        let names = &self.scope.names;
        for row in &self.found.rows {
            let token = &row.waiter.token;
            let is_own = self.operation.asking() == Some(token);
            let waits = self.waiter(token).is_some_and(|waiter| waiter.mode == row.waiter.mode);
            if !waits {
                change.operations.push(RequestOp::Delete(row.name.clone()));
                change.unused_leases.extend(is_own.then_some(row.lease));
            }
            if is_own || waits && !self.transition.woken.contains(token) {
                continue;
            }
            let handed_over =
                self.transition.after.holders.iter().find(|it| it.token == *token && self.is_handed_over(it));
            let (key, value) = match handed_over {
                Some(HolderState { fence, slot, .. }) => {
                    (names.lease_key(token), json(&HandedOver { fence: *fence, slot: *slot }))
                }
                None => (names.look(token), String::new()),
            };
            change.compare.push(row.unchanged());
            change.operations.push(RequestOp::Put { key, value, lease: row.lease });
        }
        if self.changes_holders() || self.given_up().is_some() {
            // One that has joined meanwhile, ahead of those that still wait, could be the next. If the first that still
            // waits has left, the one behind it may be the next: so it must be unchanged.
            let still_waits = |row: &&Row| self.waiter(&row.waiter.token).is_some();
            let next = self.found.rows.iter().find(still_waits);
            change.compare.extend(next.map(Row::unchanged));
            let (from, revision) = (names.queue.clone(), self.found.revision);
            // A lock that is retained may end sooner than the first waiters know: all of them must be woken.
            let wakes_the_first = !self.changes_holders() && self.found.rows.len() < LOOKERS;
            let next = next.filter(|_| !wakes_the_first);
            let to = next.map_or_else(|| range_end(&from), |row| row.name.clone());
            change.compare.push(Compare::NoneSince { from, to, revision });
        }
    }

    /// Returns the waiter with this token after the change.
    fn waiter(&self, token: &Token) -> Option<&WaiterState> {
        self.transition.after.waiters.iter().find(|waiter| waiter.token == *token)
    }

    /// If the asking client waits, makes sure that its place lasts long enough: joins the queue, or puts its row on a
    /// new lease, unless that of the row was kept alive.
    fn keep_place(&self, change: &mut Change, leases: &mut NewLeases) {
        let Some(asking) = self.operation.asking().filter(|_| self.operation.waiter().is_some()) else { return };
        let Some(waiter) = self.waiter(asking) else { return };
        let row = self.found.row_of(asking).filter(|row| row.waiter.mode == waiter.mode);
        let is_same = |row: &Row| WaiterState { ends_ms: row.waiter.ends_ms, ..waiter.clone() } == row.waiter;
        if row.is_some_and(|row| self.kept == Some(row.lease) && is_same(row)) {
            return;
        }
        let lease = change.new_lease(asking, Duration::from_millis(waiter.place_ms), leases);
        let name = row.map_or_else(|| self.scope.names.row(self.found.revision, asking), |row| row.name.clone());
        change.compare.extend(row.map(Row::unchanged));
        change.unused_leases.extend(row.map(|row| row.lease));
        change.operations.push(RequestOp::Put { key: name.clone(), value: json(waiter), lease });
        change.own_row = Some((name, lease));
    }

    fn change_record(&self, change: &mut Change) {
        let found = self.found;
        let renewed = self.operation.asking().filter(|_| self.transition.begins_lease);
        let mut record = record_of(&self.transition.after, &self.transition.before, found, renewed);
        for holder in record.holders.iter_mut().filter(|holder| self.is_handed_over(holder)) {
            // When the lease of its place ends is not known: its lease key alone says so, until it is renewed.
            let since_ms = holder.since_ms;
            holder.lease.iter_mut().for_each(|lease| lease.ends_ms = Some(since_ms));
        }
        // A client that has seen the lock before this must not act on what has changed since.
        let is_needed = record != found.stored || self.changes_holders();
        // A forced write of nothing has left it. No late request fails because of it: such a write is never of nothing,
        // see `outlast_late_requests`.
        let is_leftover =
            self.operation.asking().is_none() && found.record_revision != 0 && record == LockState::default();
        if !is_needed && !is_leftover && !self.forces_write {
            return;
        }
        let key = self.scope.names.state.clone();
        if record != LockState::default() || self.forces_write {
            let value = json(&record);
            change.refused =
                record_limit::check((&found.stored, json(&found.stored).len()), (&record, value.len())).err();
            change.operations.push(RequestOp::Put { key, value, lease: 0 });
            return;
        }
        change.operations.push(RequestOp::Delete(key));
        if self.scope.keeps_fence && found.stored.fence > found.pruned.fence {
            let key = self.scope.names.pruned_fence.clone();
            // Of two at once, the greater one must stay.
            change.compare.push(Compare::Unchanged(key.clone(), found.pruned.revision));
            change.operations.push(RequestOp::Put { key, value: found.stored.fence.to_string(), lease: 0 });
        }
    }

    /// Returns whether others hold the lock after the change than before.
    pub(super) fn changes_holders(&self) -> bool {
        let tokens = |state: &LockState| state.holders.iter().map(|holder| holder.token.clone()).collect::<Vec<_>>();
        tokens(&self.transition.before) != tokens(&self.transition.after)
    }
}

impl Change {
    /// Returns whether there is nothing to change.
    pub(super) fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Returns a lease to create for this holder or waiter that lasts for this long.
    fn new_lease(&mut self, token: &Token, span: Duration, leases: &mut NewLeases) -> i64 {
        let seconds = whole_seconds(span);
        let lease = leases.of(token, seconds);
        self.grants.push((lease, seconds));
        lease
    }

    /// Returns the leases that it uses.
    pub(super) fn leases(&self) -> Vec<i64> {
        self.grants.iter().map(|(lease, _)| *lease).collect()
    }

    /// Returns the leases to create that do not exist yet, with their seconds.
    pub(super) fn new_grants(&self, leases: &NewLeases) -> Vec<(i64, u64)> {
        self.grants.iter().filter(|(lease, _)| !leases.created.contains(lease)).copied().collect()
    }

    /// Returns whether it uses a lease that an earlier attempt has created.
    pub(super) fn uses_created(&self, leases: &NewLeases) -> bool {
        self.grants.iter().any(|(lease, _)| leases.created.contains(lease))
    }

    /// Returns the transaction that makes the change, and then reads the lock `after` it; if the lock was changed
    /// meanwhile, it reads it as `scope` says instead.
    pub(super) fn transaction(&self, scope: &Scope, after: Option<&Scope>) -> Request {
        let reads = after.map(Scope::operations).unwrap_or_default();
        let then = self.operations.iter().chain(&reads);
        api::transaction(&self.compare, then, &scope.operations()).for_all(scope.reads_all_rows())
    }

    /// Returns what such a transaction has read after the change.
    pub(super) fn read_after(&self, scope: &Scope, mut transacted: Transacted) -> Result<Snapshot, Failure> {
        transacted.responses = transacted.responses.into_iter().skip(self.operations.len()).collect();
        scope.read(transacted)
    }
}

impl Scope {
    /// Returns the request that reads the lock.
    pub(super) fn request(&self) -> Request {
        api::transaction(&[], &self.operations(), &[]).for_all(self.reads_all_rows())
    }

    /// Returns the same with the row of the asking client, if that is known.
    pub(super) fn with_row(self, row: Option<String>) -> Self {
        Scope { own_row: row.map_or(self.own_row, OwnRow::Named), ..self }
    }
}

/// Returns what is stored, as JSON, which cannot fail for these types.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
