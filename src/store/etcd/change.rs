//! What an operation changes in etcd: one transaction, which fails if the lock was changed meanwhile.

use std::collections::BTreeMap;

use serde::Serialize;
use uuid::Uuid;

use super::api::{self, Compare, Operation, Transacted};
use super::facts::{EtcdFacts, is_near};
use super::found::{FIRST_WAITERS, Found, Life, LifeEnd, OwnRow, Row, RowValue, Scope, record_of, seconds_until};
use super::http::Request;
use super::waiting::{self, LOOKERS, ROWS_MAX, WAITER_TTL, WATCHERS, Wake};
use crate::lock::claim::Mode;
use crate::lock::state::{LockState, WaiterState};
use crate::lock::token::Token;
use crate::store::record_limit::{self, RecordTooLong};

/// How many operations etcd accepts in a transaction by default.
const OPERATIONS_MAX: usize = 128;

/// How many operations of a transaction may concern the lives of holders. Only `break --now` ends more: the other lives go
/// with their leases, which are revoked right after it.
const LIVES_MAX: usize = 10;

// A transaction has an operation for each of these lives, for each row that is changed, comes near or is to check, for the
// row of the asking client, and for the record.
const _: () = assert!(LIVES_MAX + ROWS_MAX + LOOKERS + WATCHERS + 2 <= OPERATIONS_MAX);

/// The leases that an operation has created, or is about to: one for each holder that needs one, and one for the waiter. A
/// repeated attempt uses them again.
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
    operations: Vec<Operation>,
    /// The leases to create before that, with their seconds.
    grants: Vec<(i64, u64)>,
    /// The leases that are unused after that.
    pub(super) unused_leases: Vec<i64>,
    /// The new row of the asking client, if it joins the queue, and the lease of the row.
    pub(super) own_row: Option<(String, i64)>,
    /// The rows whose waiters are granted the lock or called by this, see [`RowValue::challenge`].
    pub(super) challenges: Vec<(String, u64)>,
    /// Whether the transaction also reads the lock as the change leaves it: the asking client holds it then, and will know it
    /// for its next operation.
    pub(super) reads_back: bool,
    /// Why the change must not be made.
    pub(super) refused: Option<RecordTooLong>,
}

/// The states before and after a change.
pub(super) struct Draft<'a> {
    pub(super) scope: &'a Scope,
    pub(super) facts: &'a EtcdFacts<'a>,
    pub(super) before: &'a LockState,
    pub(super) after: &'a LockState,
    /// Whether the lease of the asking client is renewed, see
    /// [`Applied::begins_lease`](crate::lock::state::Applied::begins_lease).
    pub(super) begins_lease: bool,
    /// The token of the asking client if it gives up the lock: then its life goes even if it is missing from the record. Before,
    /// the life keeps the others from the lock, because the command still runs.
    pub(super) given_up: Option<&'a Token>,
    /// Whether the lock was not read for this, see [`RememberedLock`](super::operation::RememberedLock).
    pub(super) is_from_memory: bool,
    /// Whether to write the record even if it stays the same.
    pub(super) forces_write: bool,
}

impl Draft<'_> {
    fn found(&self) -> &Found {
        self.facts.found
    }

    /// Returns the change.
    pub(super) fn change(&self, leases: &mut NewLeases) -> Change {
        let mut change = Change {
            compare: vec![Compare::Unchanged(self.scope.names.state.clone(), self.found().record_revision)],
            operations: Vec::new(),
            grants: Vec::new(),
            unused_leases: Vec::new(),
            own_row: None,
            challenges: Vec::new(),
            reads_back: false,
            refused: None,
        };
        if self.found().record_revision == 0 {
            // The record may have come and gone since, and `prune` then leaves only its fence.
            let pruned = Compare::Unchanged(self.scope.names.pruned_fence.clone(), self.found().pruned.revision);
            change.compare.push(pruned);
        }
        if self.is_from_memory {
            let (names, found) = (&self.scope.names, self.found());
            // The row of a waiter that is granted the lock is compared, which also notices that it has left.
            change.compare.extend(found.rows.is_empty().then(|| Compare::NoneBegin(names.queue.clone())));
            let lives = found.lives.iter();
            change.compare.extend(lives.map(|life| Compare::Attached(names.life(&life.token), life.lease)));
        }
        let record = record_of(self.after, self.before, self.found(), self.facts.asking.filter(|_| self.begins_lease));
        self.change_lives(&mut change, leases);
        let changes_grants = self.change_rows(&mut change, &record);
        self.change_record(&mut change, &record, changes_grants);
        self.join(&mut change, leases);
        let holds = self.facts.is_held_by_asking(self.after);
        // Reading very many waiters would cost more than it saves.
        let reads_few = !self.scope.reads_all_rows() || self.found().rows.len() <= FIRST_WAITERS as usize;
        let has_room = change.operations.len() + self.scope.operations().len() <= OPERATIONS_MAX;
        change.reads_back = holds && reads_few && has_room;
        change
    }

    /// Gives new leases to holders, and takes them from those that no longer hold the lock.
    fn change_lives(&self, change: &mut Change, leases: &mut NewLeases) {
        let names = &self.scope.names;
        for holder in &self.after.holders {
            let Some(lease) = &holder.lease else { continue };
            let before = self.before.holders.iter().find(|it| it.token == holder.token);
            let is_own = self.facts.asking == Some(&holder.token);
            let old = self.found().lease_of(&holder.token);
            match lease.ends_ms {
                None => change.operations.extend(old.map(|_| Operation::Delete(names.life(&holder.token)))),
                Some(ends_ms)
                    if before.is_some_and(|it| it.lease == holder.lease) && !(is_own && self.begins_lease) =>
                {
                    let is_revoked_now = before.is_some_and(|it| it.revoked_by != holder.revoked_by);
                    if is_revoked_now && let Some(life) = self.found().life_of(&holder.token) {
                        self.end_life(change, life, ends_ms);
                    }
                    continue;
                }
                Some(ends_ms) => {
                    let seconds = seconds_until(ends_ms, self.facts.now_ms);
                    let lease = leases.of(&holder.token, seconds);
                    change.grants.push((lease, seconds));
                    let key = names.life(&holder.token);
                    let end = holder.revoked_by.as_ref().map(|_| self.end_at(ends_ms));
                    let value = end.map(|end| json(&end)).unwrap_or_default();
                    change.operations.push(Operation::Put { key, value, lease });
                }
            }
            change.unused_leases.extend(old);
        }
        for life in &self.found().lives {
            let was_there = self.before.holders.iter().any(|holder| holder.token == life.token);
            let is_there = self.after.holders.iter().any(|holder| holder.token == life.token);
            if !is_there && (was_there || self.given_up == Some(&life.token)) {
                if change.operations.len() < LIVES_MAX {
                    change.operations.push(Operation::Delete(names.life(&life.token)));
                }
                change.unused_leases.push(life.lease);
            }
        }
    }

    /// Notes in the life of a holder, which is revoked now, when it ends at the latest. How long the lease of a holder that is
    /// missing from the record lasts is not known.
    fn end_life(&self, change: &mut Change, life: &Life, ends_ms: u64) {
        if self.found().end_of(life).is_none() && !self.found().is_unrecorded(&life.token) {
            let key = self.scope.names.life(&life.token);
            change.compare.push(Compare::Attached(key.clone(), life.lease));
            change.operations.push(Operation::Change { key, value: json(&self.end_at(ends_ms)) });
        }
    }

    fn end_at(&self, ends_ms: u64) -> LifeEnd {
        LifeEnd::new(&self.found().member_and_term.0, ends_ms)
    }

    /// Writes the rows of the waiters that have changed, and of those that have to look: to show that they are alive, or
    /// because a slot may be theirs. `record` is the new record. Returns whether a grant is made or ended.
    fn change_rows(&self, change: &mut Change, record: &LockState) -> bool {
        let mut changes_grants = false;
        let passes_over = waiting::passes_over(self.before, self.after);
        let woken = waiting::to_wake(self.facts, self.before, self.after);
        for row in &self.found().rows {
            let token = &row.value.waiter.token;
            let Some(waiter) = self.after.waiters.iter().find(|waiter| waiter.token == *token) else {
                changes_grants |= row.value.waiter.grant.is_some();
                if self.is_from_memory {
                    // Revisions can recur when a cluster is restored from a backup; leases do not.
                    change.compare.extend([row.unchanged(), Compare::Attached(row.name.clone(), row.lease)]);
                }
                change.operations.push(Operation::Delete(row.name.clone()));
                change.unused_leases.push(row.lease);
                continue;
            };
            changes_grants |= waiter.grant.is_some() != row.value.waiter.grant.is_some();
            // If a waiter has not claimed the lock, the next one may be dead, too.
            let is_granted = waiter.grant.is_some() && row.value.waiter.grant.is_none();
            let wakes = woken.get(&row.name);
            let is_called = is_granted && passes_over || wakes == Some(&Wake::Call);
            let called = self.called(row).or(is_called.then_some(self.facts.now_ms));
            let value = self.row_value(row, waiter, called);
            if wakes == Some(&Wake::Check) || value != row.value {
                // An old copy of the record is not valid for the new revision of the row.
                let record = is_granted.then(|| to_claim_by(waiter, record)).flatten();
                change.change_row(row, &RowValue { record, ..value });
            }
        }
        changes_grants
    }

    fn row_value(&self, row: &Row, waiter: &WaiterState, called: Option<u64>) -> RowValue {
        let grant = waiter.grant.map(|grant| match row.value.waiter.grant {
            // The same grant keeps its times: they identify it, and nobody measures by them.
            Some(before) if before.slot == grant.slot => before,
            _ => grant,
        });
        // A waiter that is passed over shows that it is alive by asking again.
        let called = called.filter(|_| !waiter.is_unresponsive);
        let is_near = row.value.is_near || is_near(waiter, self.after);
        RowValue { waiter: WaiterState { grant, ..waiter.clone() }, called, is_near, record: row.value.record.clone() }
    }

    /// Returns since when the waiter in a row is called.
    fn called(&self, row: &Row) -> Option<u64> {
        row.value.called.filter(|_| self.facts.asking != Some(&row.value.waiter.token))
    }

    fn change_record(&self, change: &mut Change, record: &LockState, changes_grants: bool) {
        let changes_record = *record != self.found().stored;
        // A client that has seen the lock before this must not act on what has changed since.
        let is_needed = changes_record || changes_grants || !change.operations.is_empty() && self.changes_holders();
        // A forced write of nothing has left it. No late request fails because of it: such a write is never of nothing, see
        // `outlast_late_requests`.
        let is_leftover =
            self.facts.asking.is_none() && self.found().record_revision != 0 && *record == LockState::default();
        if !is_needed && !is_leftover && !self.forces_write {
            return;
        }
        let key = self.scope.names.state.clone();
        if *record != LockState::default() || self.forces_write {
            let (value, stored) = (json(record), &self.found().stored);
            change.refused = record_limit::check((stored, json(stored).len()), (record, value.len())).err();
            change.operations.push(Operation::Put { key, value, lease: 0 });
            return;
        }
        change.operations.push(Operation::Delete(key));
        let (fence, pruned) = (self.found().stored.fence, self.found().pruned);
        if self.scope.keeps_fence && fence > pruned.fence {
            let key = self.scope.names.pruned_fence.clone();
            // Of two at once, the greater one must stay.
            change.compare.push(Compare::Unchanged(key.clone(), pruned.revision));
            change.operations.push(Operation::Put { key, value: fence.to_string(), lease: 0 });
        }
    }

    fn changes_holders(&self) -> bool {
        let tokens = |state: &LockState| state.holders.iter().map(|holder| holder.token.clone()).collect::<Vec<_>>();
        tokens(self.before) != tokens(self.after)
    }

    /// Adds the row of the asking client, if it joins the queue.
    fn join(&self, change: &mut Change, leases: &mut NewLeases) {
        let Some(asking) = self.facts.asking.filter(|asking| self.found().row_of(asking).is_none()) else { return };
        let Some(waiter) = self.after.waiters.iter().find(|waiter| waiter.token == *asking) else { return };
        let (seconds, name) = (WAITER_TTL.as_secs(), self.scope.names.row(self.found().revision, asking));
        let lease = leases.of(asking, seconds);
        change.grants.push((lease, seconds));
        let is_near = is_near(waiter, self.after);
        let value = json(&RowValue { waiter: waiter.clone(), called: None, is_near, record: None });
        change.operations.push(Operation::Put { key: name.clone(), value, lease });
        change.own_row = Some((name, lease));
    }
}

impl Change {
    /// Returns whether there is nothing to change.
    pub(super) fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    fn change_row(&mut self, row: &Row, value: &RowValue) {
        self.compare.push(row.unchanged());
        self.operations.push(Operation::Change { key: row.name.clone(), value: json(value) });
        self.challenges.extend(value.challenge().map(|challenge| (row.name.clone(), challenge)));
    }

    /// Returns the leases that it uses.
    pub(super) fn leases(&self) -> Vec<i64> {
        self.grants.iter().map(|(lease, _)| *lease).collect()
    }

    /// Returns the leases to create that do not exist yet, with their seconds.
    pub(super) fn new_grants(&self, leases: &NewLeases) -> impl Iterator<Item = &(i64, u64)> {
        self.grants.iter().filter(|(lease, _)| !leases.created.contains(lease))
    }

    /// Returns whether it uses a lease that an earlier attempt has created.
    pub(super) fn uses_created(&self, leases: &NewLeases) -> bool {
        self.grants.iter().any(|(lease, _)| leases.created.contains(lease))
    }

    /// Returns the requests that make the change; the last is the transaction. It also reads the lock: as it was found if the
    /// change is not made, and as the change leaves it if it [`reads_back`](Change::reads_back).
    pub(super) fn requests(&self, scope: &Scope, leases: &NewLeases) -> Vec<Request> {
        let grants = self.new_grants(leases).map(|(lease, seconds)| api::grant(*lease, *seconds));
        let reads = scope.operations();
        let changes = self.operations.iter().chain(reads.iter().filter(|_| self.reads_back));
        let transaction = api::transaction(&self.compare, changes, &reads).for_all(scope.reads_all_rows());
        grants.chain([transaction]).collect()
    }

    /// Returns those of the transaction's responses that read the lock as the change leaves it.
    pub(super) fn read_back(&self, transacted: Transacted) -> Option<Transacted> {
        let responses = transacted.responses.into_iter().skip(self.operations.len()).collect();
        self.reads_back.then_some(Transacted { responses, ..transacted })
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

/// Returns the record for the row of a waiter that is granted the lock exclusively, while nobody holds it: the waiter claims
/// the lock by this copy. Where several can hold the lock, a claim must see the other holders.
fn to_claim_by(waiter: &WaiterState, record: &LockState) -> Option<Box<LockState>> {
    (waiter.mode == Mode::EXCLUSIVE && record.holders.is_empty()).then(|| Box::new(record.clone()))
}

/// Returns what is stored, as JSON, which cannot fail for these types.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
