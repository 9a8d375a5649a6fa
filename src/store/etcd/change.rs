//! What an operation changes in etcd: one transaction, which fails if another one has changed the lock meanwhile.

use std::collections::BTreeMap;

use serde::Serialize;
use uuid::Uuid;

use super::api::{self, Compare, Operation};
use super::facts::{EtcdFacts, is_near};
use super::found::{Found, OwnRow, Row, RowValue, Scope, record_of, seconds_until};
use super::http::Request;
use super::waiting::{self, WAITER_TTL, Wake};
use crate::lock::state::{LockState, WaiterState};
use crate::lock::token::Token;

/// The leases that an operation has created, or is about to: one for each holder that needs one, and for the waiter. An attempt that is
/// repeated uses them again.
#[derive(Debug, Default)]
pub(super) struct NewLeases {
    leases: BTreeMap<(String, u64), i64>,
    /// Those that were created already.
    created: Vec<i64>,
}

impl NewLeases {
    /// Returns the lease of this holder, or waiter, that lasts so long.
    fn of(&mut self, token: &Token, seconds: u64) -> i64 {
        *self.leases.entry((token.as_str().to_owned(), seconds)).or_insert_with(number)
    }

    /// Notes that the leases of a change were created.
    pub(super) fn note(&mut self, change: &Change) {
        self.created.extend(change.leases());
    }

    /// Returns those that an operation does not use after all.
    pub(super) fn without(self, used: &[i64]) -> Vec<i64> {
        self.created.into_iter().filter(|lease| !used.contains(lease)).collect()
    }
}

/// Returns the number of a new lease. The same twice is as good as impossible, and would be refused.
pub(super) fn number() -> i64 {
    i64::from_ne_bytes((Uuid::new_v4().as_u64_pair().1).to_ne_bytes()) & i64::MAX
}

/// What an operation changes.
pub(super) struct Change {
    compare: Vec<Compare>,
    operations: Vec<Operation>,
    /// The leases that are created before that, with their seconds.
    grants: Vec<(i64, u64)>,
    /// The leases that are of no use after that.
    pub(super) ended: Vec<i64>,
    /// The lease of the one that asks, if it holds the lock under a new one.
    pub(super) own_lease: Option<i64>,
    /// The row of the one that asks, if it joins the queue, and the lease of that.
    pub(super) own_row: Option<(String, i64)>,
    /// The rows in which somebody is granted the lock or called then, see [`RowValue::challenge`].
    pub(super) challenges: Vec<(String, u64)>,
    /// The record that it writes, if it does.
    pub(super) record: Option<LockState>,
}

/// What is changed, from what to what.
pub(super) struct Draft<'a> {
    pub(super) scope: &'a Scope,
    pub(super) facts: &'a EtcdFacts<'a>,
    pub(super) before: &'a LockState,
    pub(super) after: &'a LockState,
    /// Whether the lease of the one that asks begins anew, see [`Applied::begins_lease`](crate::lock::state::Applied::begins_lease).
    pub(super) begins_lease: bool,
    /// Whether the lock was not read, but is as we left it, see [`Found::left_by`].
    pub(super) is_from_memory: bool,
    /// Whether the record is written even if it stays as it is.
    pub(super) forces: bool,
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
            ended: Vec::new(),
            own_lease: None,
            own_row: None,
            challenges: Vec::new(),
            record: None,
        };
        if self.is_from_memory {
            let names = &self.scope.names;
            change.compare.push(Compare::NoneBegin(names.queue.clone()));
            let lives = self.found().lives.iter();
            change.compare.extend(lives.map(|life| Compare::Attached(names.life(&life.token), life.lease)));
        }
        self.change_lives(&mut change, leases);
        let changes_grants = self.change_rows(&mut change);
        self.change_record(&mut change, changes_grants);
        self.join(&mut change, leases);
        change
    }

    /// Gives the holders their leases, and takes them from those that hold the lock no longer.
    fn change_lives(&self, change: &mut Change, leases: &mut NewLeases) {
        let names = &self.scope.names;
        for holder in &self.after.holders {
            let Some(lease) = &holder.lease else { continue };
            let before = self.before.holders.iter().find(|it| it.token == holder.token);
            let is_own = self.facts.asking == Some(&holder.token);
            let old = self.found().lease_of(&holder.token);
            match lease.ends_ms {
                None => change.operations.extend(old.map(|_| Operation::Delete(names.life(&holder.token)))),
                Some(_) if before.is_some_and(|it| it.lease == holder.lease) && !(is_own && self.begins_lease) => {
                    continue;
                }
                Some(ends_ms) => {
                    let seconds = seconds_until(ends_ms, self.facts.now_ms);
                    let lease = leases.of(&holder.token, seconds);
                    change.grants.push((lease, seconds));
                    let key = names.life(&holder.token);
                    change.operations.push(Operation::Put { key, value: String::new(), lease });
                    if is_own {
                        change.own_lease = Some(lease);
                    }
                }
            }
            change.ended.extend(old);
        }
        for life in &self.found().lives {
            let was_there = self.before.holders.iter().any(|holder| holder.token == life.token);
            let is_there = self.after.holders.iter().any(|holder| holder.token == life.token);
            // Our own is of no use if it is not in the record.
            if !is_there && (was_there || self.facts.asking == Some(&life.token)) {
                change.operations.push(Operation::Delete(names.life(&life.token)));
                change.ended.push(life.lease);
            }
        }
    }

    /// Writes the rows of the waiters that have changed, and of those that have to look: to show that they are alive, or because a slot may
    /// be theirs. Returns whether it changes what is granted to whom.
    fn change_rows(&self, change: &mut Change) -> bool {
        let mut changes_grants = false;
        let passes_over = waiting::passes_over(self.before, self.after);
        let woken = waiting::to_wake(self.facts, self.before, self.after);
        for row in &self.found().rows {
            let token = &row.value.waiter.token;
            let Some(waiter) = self.after.waiters.iter().find(|waiter| waiter.token == *token) else {
                changes_grants |= row.value.waiter.grant.is_some();
                change.operations.push(Operation::Delete(row.name.clone()));
                change.ended.push(row.lease);
                continue;
            };
            changes_grants |= waiter.grant.is_some() != row.value.waiter.grant.is_some();
            // Where one has not claimed the lock, the next one may be dead, too.
            let is_granted = waiter.grant.is_some() && row.value.waiter.grant.is_none();
            let wakes = woken.get(&row.name);
            let is_called = is_granted && passes_over || wakes == Some(&Wake::Call);
            let called = self.called(row).or(is_called.then_some(self.facts.now_ms));
            let value = self.row_value(row, waiter, called);
            if wakes == Some(&Wake::Check) || value != row.value {
                change.change_row(row, &value);
            }
        }
        changes_grants
    }

    fn row_value(&self, row: &Row, waiter: &WaiterState, called: Option<u64>) -> RowValue {
        let grant = waiter.grant.map(|grant| match row.value.waiter.grant {
            // It is the same one: its times are nobody's measure.
            Some(before) if before.slot == grant.slot => before,
            _ => grant,
        });
        // One that is passed over shows that it is alive by asking again.
        let called = called.filter(|_| !waiter.is_unresponsive);
        let is_near = row.value.is_near || is_near(waiter, self.after);
        RowValue { waiter: WaiterState { grant, ..waiter.clone() }, called, is_near }
    }

    /// Returns since when the waiter in a row has to show that it is alive.
    fn called(&self, row: &Row) -> Option<u64> {
        row.value.called.filter(|_| self.facts.asking != Some(&row.value.waiter.token))
    }

    fn change_record(&self, change: &mut Change, changes_grants: bool) {
        let found = self.found();
        let record = record_of(self.after, self.before, found, self.facts.asking.filter(|_| self.begins_lease));
        let text = json(&record);
        let changes_record = record != found.stored;
        // Whoever has seen the lock before this must not act on what has changed since.
        let is_needed = changes_record || changes_grants || !change.operations.is_empty() && self.changes_holders();
        if !is_needed && !self.forces {
            return;
        }
        let key = self.scope.names.state.clone();
        change.operations.push(if record == LockState::default() && !self.forces {
            Operation::Delete(key)
        } else {
            Operation::Put { key, value: text, lease: 0 }
        });
        change.record = Some(record);
    }

    fn changes_holders(&self) -> bool {
        let tokens = |state: &LockState| state.holders.iter().map(|holder| holder.token.clone()).collect::<Vec<_>>();
        tokens(self.before) != tokens(self.after)
    }

    /// Adds the row of the one that asks, if it joins the queue.
    fn join(&self, change: &mut Change, leases: &mut NewLeases) {
        let Some(asking) = self.facts.asking.filter(|asking| self.found().row_of(asking).is_none()) else { return };
        let Some(waiter) = self.after.waiters.iter().find(|waiter| waiter.token == *asking) else { return };
        let (seconds, name) = (WAITER_TTL.as_secs(), self.scope.names.row(self.found().revision, asking));
        let lease = leases.of(asking, seconds);
        change.grants.push((lease, seconds));
        let is_near = is_near(waiter, self.after);
        let value = json(&RowValue { waiter: waiter.clone(), called: None, is_near });
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

    /// Returns the requests that make the change, the transaction last. If that fails, it reads the lock anew.
    pub(super) fn requests(&self, scope: &Scope, leases: &NewLeases) -> Vec<Request> {
        let new = self.grants.iter().filter(|(lease, _)| !leases.created.contains(lease));
        let grants = new.map(|(lease, seconds)| api::grant(*lease, *seconds));
        grants.chain([api::transaction(&self.compare, &self.operations, &scope.operations())]).collect()
    }
}

impl Scope {
    /// Returns the request that reads the lock.
    pub(super) fn request(&self) -> Request {
        api::transaction(&[], &self.operations(), &[])
    }

    /// Returns this with the row of the one that asks, once that is known.
    pub(super) fn with_row(self, row: Option<String>) -> Self {
        Scope { own_row: row.map_or(self.own_row, OwnRow::Named), ..self }
    }
}

/// Returns what is stored. All that is in it can be written as JSON.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
