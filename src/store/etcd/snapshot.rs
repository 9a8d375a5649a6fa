//! What is stored of one lock, at one moment.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::api::{Compare, KeyValue, Range, RequestOp, Transacted};
use super::change::HAND_OFFS_MAX;
use super::client::DATE_DOUBT_MS;
use super::failure::Failure;
use super::keys::Names;
use crate::lock::state::{HolderState, LOOKERS, LeaseRecord, LockState, Purpose, WaiterState};
use crate::lock::token::Token;
use crate::store::engine::{View, read_record};

/// How many waiters are read at first, besides the asking client; and how many if too few of those are left after the
/// operation. One that deals with as many as it may leaves enough of these.
pub(super) const FIRST_WAITERS: u32 = 16;
pub(super) const MANY_WAITERS: u32 = 64;

/// How many operations of a transaction read a lock at most.
pub(super) const READS_MAX: usize = 6;

/// In how long to look again for a holder's lease key that still exists although its end should have come: etcd looks
/// for expired leases twice a second.
const LOOK_AGAIN_MS: u64 = 300;

/// Where the row of the asking client is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OwnRow {
    /// It has none: its token is new.
    None,
    /// It has this name.
    Named(String),
    /// It may have one, to be found among all rows.
    Unknown,
}

/// Which part of a lock is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scope {
    pub(super) names: Names,
    pub(super) own_row: OwnRow,
    /// How many waiters to read; 0: all.
    pub(super) limit: u32,
    /// Whether the fence outlives the record.
    pub(super) keeps_fence: bool,
}

/// A row of the queue.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) name: String,
    /// The revision of its last change.
    pub(super) revision: i64,
    pub(super) waiter: WaiterState,
    pub(super) lease: i64,
}

/// A holder's lease key, which exists.
#[derive(Clone, Debug)]
pub(super) struct LeaseKey {
    pub(super) token: Token,
    pub(super) lease: i64,
    /// When it ends at the latest, once the holder's lease is revoked.
    pub(super) end: Option<RevokedEnd>,
}

/// A lease key or a row that is attached to a lease.
#[derive(Clone, Debug)]
pub(super) struct Attached {
    pub(super) name: String,
    /// 0: it is uncertain, because of a request without an answer.
    pub(super) lease: i64,
    /// The member that said so, and its term; empty if none has.
    pub(super) seen_by: (String, String),
}

impl Attached {
    /// Returns what a request without an answer may have written under this name.
    pub(super) fn uncertain(name: String) -> Self {
        Attached { name, lease: 0, seen_by: Default::default() }
    }
}

/// When the lease key of a holder whose lease `break` has revoked ends. Every user of the cluster, even one without any
/// right, can keep a lease of etcd alive, and so the lease key of a dead holder. Only the member that was asked then
/// judges this end: no two clocks are compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RevokedEnd {
    member: String,
    ends_ms: u64,
}

impl RevokedEnd {
    /// Returns an end no sooner than `ends_ms`, as the clock of this member was taken to show.
    pub(super) fn new(member: &str, ends_ms: u64) -> Self {
        RevokedEnd { member: member.to_owned(), ends_ms: ends_ms.saturating_add(2 * DATE_DOUBT_MS) }
    }
}

/// Which end a lease has in a state whose lease key exists and is not revoked. When it really ends only etcd knows: a
/// keep-alive renews it without a change of the record, which another member's clock has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseEnds {
    /// The one in the record: when to look whether it has ended.
    Expected,
    /// The latest that is possible, one length from now: a revocation must not end a lease before its holder does.
    Latest,
}

/// What the lease key of a holder says to which the lock was handed in the queue: all that it must know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HandedOver {
    pub(super) fence: u64,
    pub(super) slot: u32,
}

/// The greatest fence of the locks whose record was pruned: the fence of a lock must not go back, whichever member's
/// clock was asked for the earlier ones.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PrunedFence {
    pub(super) fence: u64,
    /// The revision of its last change; 0: there is none.
    pub(super) revision: i64,
}

impl PrunedFence {
    fn read(range: &Range) -> Result<Self, Failure> {
        let Some(kv) = range.kvs.first() else { return Ok(PrunedFence::default()) };
        let broken = |_| Failure::of_broken(&kv.key, "it is no number");
        Ok(PrunedFence { fence: kv.value.parse().map_err(broken)?, revision: kv.mod_revision })
    }
}

/// What was found.
#[derive(Clone, Debug)]
pub(in crate::store) struct Snapshot {
    /// The member that was asked, and its term.
    pub(super) member_and_term: (String, String),
    /// The cluster's revision.
    pub(super) revision: i64,
    /// The revision of the record's last change; 0: there is none.
    pub(super) record_revision: i64,
    /// The state in the record, without waiters.
    pub(super) stored: LockState,
    /// The greatest fence of the locks whose record was pruned.
    pub(super) pruned: PrunedFence,
    pub(super) lease_keys: Vec<LeaseKey>,
    /// The waiters that were read, in order.
    pub(super) rows: Vec<Row>,
    /// Whether these are all waiters.
    pub(super) has_all_rows: bool,
    /// How many waiters there are, and how many are ahead of the asking client.
    pub(super) waiting: u64,
    pub(super) ahead: u64,
}

impl Scope {
    /// Returns whether all waiters are read.
    pub(super) fn reads_all_rows(&self) -> bool {
        self.limit == 0 || self.own_row == OwnRow::Unknown
    }

    /// Returns the same for the next operation of a holder: it has no row, and few waiters matter to it.
    pub(super) fn of_holder(&self) -> Self {
        Scope { own_row: OwnRow::None, limit: FIRST_WAITERS, ..self.clone() }
    }

    /// Returns the operations that read it, at most [`READS_MAX`].
    pub(super) fn operations(&self) -> Vec<RequestOp> {
        let Names { state, lease_keys, queue, pruned_fence } = &self.names;
        let limit = if self.reads_all_rows() { 0 } else { self.limit };
        let mut operations = vec![
            RequestOp::Get(state.clone()),
            RequestOp::GetAll { prefix: lease_keys.clone(), limit: 0 },
            RequestOp::GetAll { prefix: queue.clone(), limit },
            RequestOp::Get(pruned_fence.clone()),
        ];
        if let OwnRow::Named(name) = &self.own_row {
            operations.push(RequestOp::Get(name.clone()));
            operations.push(RequestOp::Count { from: queue.clone(), to: name.clone() });
        }
        operations
    }

    /// Reads the responses to these operations.
    pub(super) fn read(&self, transacted: Transacted) -> Result<Snapshot, Failure> {
        const INCOMPLETE: Failure = Failure::UnexpectedReply("an answer that lacks parts");
        let mut ranges = transacted.responses.into_iter().map(|step| step.response_range);
        let mut next = || ranges.next().ok_or(INCOMPLETE);
        let (record, lease_keys, queue, pruned) = (next()?, next()?, next()?, next()?);
        let (own, ahead) = match &self.own_row {
            OwnRow::Named(_) => (next()?, count(&next()?)),
            _ => (Range::default(), 0),
        };
        let is_row = |kv: &&KeyValue| self.names.is_row(&kv.key);
        let mut rows: Vec<Row> = queue.kvs.iter().filter(is_row).map(Row::read).collect::<Result<_, _>>()?;
        for own in &own.kvs {
            if rows.iter().all(|row| row.name != own.key) {
                rows.push(Row::read(own)?);
            }
        }
        let record = record.kvs.into_iter().next().unwrap_or_default();
        Ok(Snapshot {
            member_and_term: (transacted.header.member_id, transacted.header.raft_term),
            revision: transacted.header.revision,
            record_revision: record.mod_revision,
            stored: if record.mod_revision == 0 {
                LockState::default()
            } else {
                read_record(&record.value).map_err(|why| Failure::of_broken(&record.key, &why))?
            },
            pruned: PrunedFence::read(&pruned)?,
            lease_keys: lease_keys.kvs.iter().filter_map(|kv| LeaseKey::read(kv, &self.names.lease_keys)).collect(),
            has_all_rows: !queue.more,
            waiting: if queue.more { count(&queue) } else { rows.len() as u64 },
            rows,
            ahead,
        })
    }
}

fn count(range: &Range) -> u64 {
    u64::try_from(range.count).unwrap_or(0)
}

impl LeaseKey {
    /// Reads a holder's key, whose name begins with `prefix`. `None`: it is not lockrun's. A lease key has a lease:
    /// nothing would ever end one without.
    pub(super) fn read(kv: &KeyValue, prefix: &str) -> Option<Self> {
        let token = Token::parse(kv.key.strip_prefix(prefix)?).ok().filter(|_| kv.lease != 0)?;
        Some(LeaseKey { token, lease: kv.lease, end: serde_json::from_str(&kv.value).ok() })
    }
}

impl Row {
    /// Reads a row.
    pub(super) fn read(kv: &KeyValue) -> Result<Self, Failure> {
        let broken = |error: serde_json::Error| Failure::of_broken(&kv.key, &error.to_string());
        Ok(Row {
            name: kv.key.clone(),
            revision: kv.mod_revision,
            waiter: serde_json::from_str(&kv.value).map_err(broken)?,
            lease: kv.lease,
        })
    }

    /// Returns the comparison for a transaction that changes the row.
    pub(super) fn unchanged(&self) -> Compare {
        Compare::Unchanged(self.name.clone(), self.revision)
    }
}

impl Snapshot {
    /// Returns the state with its waiters, at `now_ms`. A holder whose lease ends holds the lock while its lease key
    /// exists, whatever a clock shows, unless `break` has ended it (see [`RevokedEnd`]). If its lease key is gone, it
    /// still holds the lock until the end in the record: then its lease did not expire, but was revoked in etcd, and
    /// its command still runs. Another member may have written that end, whose clock is ahead; but an end further away
    /// than two lengths is a clock's mistake.
    ///
    /// A waiter has its place while its row exists. When that ends is not known: each keep-alive renews it.
    pub(super) fn state(&self, asking: Option<&Token>, now_ms: u64, ends: LeaseEnds) -> LockState {
        let mut state = self.stored.clone();
        let soon = now_ms.saturating_add(LOOK_AGAIN_MS);
        for holder in &mut state.holders {
            let lease_key = self.lease_key_of(&holder.token);
            if let Some(LeaseRecord { ends_ms: Some(ends_ms), ttl_ms: Some(ttl_ms) }) = &mut holder.lease {
                let longest = now_ms.saturating_add(*ttl_ms);
                if let Some(lease_key) = lease_key {
                    let ended = self.end_of(lease_key).map(|end_ms| end_ms.min(longest));
                    let end = match ends {
                        LeaseEnds::Latest => longest,
                        // A lease that was handed over has no end in the record.
                        LeaseEnds::Expected => {
                            (*ends_ms).max(holder.since_ms.saturating_add(*ttl_ms)).min(longest).max(soon)
                        }
                    };
                    *ends_ms = ended.unwrap_or(end);
                } else if *ends_ms > longest.saturating_add(*ttl_ms) {
                    *ends_ms = 0;
                }
            }
        }
        // The record was deleted, and its holder may still run.
        let unrecorded = self
            .lease_keys
            .iter()
            .filter(|lease_key| Some(&lease_key.token) != asking && self.is_unrecorded(&lease_key.token));
        state.holders.extend(unrecorded.map(|lease_key| unrecorded_holder(&lease_key.token, now_ms)));
        let in_force = |row: &Row| {
            let waiter = row.waiter.clone();
            WaiterState { ends_ms: now_ms.saturating_add(waiter.place_ms), ..waiter }
        };
        state.waiters = self.rows.iter().map(in_force).collect();
        state
    }

    /// Returns whether the waiters that were read are enough for an operation that leaves this state: it need not know
    /// those behind them.
    pub(super) fn has_enough_rows(&self, after: &LockState, asking: Option<&Token>) -> bool {
        let others = after.waiters.iter().filter(|waiter| asking != Some(&waiter.token)).count();
        self.has_all_rows || others > LOOKERS
    }

    /// Returns how many waiters ahead of the asking client were not read.
    pub(super) fn unread_ahead(&self, asking: &Token) -> u64 {
        let read = self.rows.len() as u64;
        match self.row_of(asking) {
            _ if self.has_all_rows => 0,
            None => self.waiting.saturating_sub(read),
            Some(_) => (self.ahead + 1).saturating_sub(read),
        }
    }

    /// Returns whether this holder is missing from the record.
    pub(super) fn is_unrecorded(&self, token: &Token) -> bool {
        self.stored.holders.iter().all(|holder| holder.token != *token)
    }

    /// Returns the lease key of a holder, if it exists.
    pub(super) fn lease_key_of(&self, token: &Token) -> Option<&LeaseKey> {
        self.lease_keys.iter().find(|lease_key| lease_key.token == *token)
    }

    /// Returns the lease of a holder, if its lease key exists.
    pub(super) fn lease_of(&self, token: &Token) -> Option<i64> {
        self.lease_key_of(token).map(|lease_key| lease_key.lease)
    }

    /// Returns when a lease key ends at the latest, by the clock of the member that was asked now, if that is known.
    pub(super) fn end_of(&self, lease_key: &LeaseKey) -> Option<u64> {
        let end = lease_key.end.as_ref().filter(|end| end.member == self.member_and_term.0 && !end.member.is_empty());
        end.map(|end| end.ends_ms)
    }

    /// Returns the leases of the holders that are missing from the record, and whose lock is revoked in this state.
    pub(super) fn unrecorded_revoked(&self, after: &LockState) -> impl Iterator<Item = i64> {
        let is_revoked = |lease_key: &&LeaseKey| {
            let mut holders = after.holders.iter().filter(|holder| holder.revoked_by.is_some());
            self.is_unrecorded(&lease_key.token) && holders.any(|holder| holder.token == lease_key.token)
        };
        self.lease_keys.iter().filter(is_revoked).map(|lease_key| lease_key.lease)
    }

    /// Returns what the rules need to know besides the state, at `now_ms`.
    pub(super) fn view(&self, now_ms: u64) -> View {
        View {
            has_record: self.record_revision != 0,
            pruned_fence: self.pruned.fence,
            hand_offs_max: HAND_OFFS_MAX,
            ..View::at(now_ms)
        }
    }

    /// Returns the leases of the holders, and of the waiters that were read.
    pub(super) fn leases(&self) -> impl Iterator<Item = i64> {
        self.lease_keys.iter().map(|lease_key| lease_key.lease).chain(self.rows.iter().map(|row| row.lease))
    }

    /// Returns the row of a waiter.
    pub(super) fn row_of(&self, token: &Token) -> Option<&Row> {
        self.rows.iter().find(|row| row.waiter.token == *token)
    }
}

/// Returns a holder of which only the lease key is known, neither for how long it lasts nor what it is for: a command
/// may run under the lock.
fn unrecorded_holder(token: &Token, now_ms: u64) -> HolderState {
    let lease = LeaseRecord { ends_ms: Some(now_ms.saturating_add(LOOK_AGAIN_MS)), ttl_ms: None };
    HolderState {
        token: token.clone(),
        since_ms: now_ms,
        lease: Some(lease),
        purpose: Purpose::Unrecorded,
        ..HolderState::default()
    }
}

/// Returns a state as it is stored: without waiters, and without holders of which only the lease key was found
/// `before`. The leases of the `renewed` holder and of changed ones end as the state says; the others as stored.
pub(super) fn record_of(state: &LockState, before: &LockState, found: &Snapshot, renewed: Option<&Token>) -> LockState {
    let mut record = LockState { waiters: Vec::new(), ..state.clone() };
    let was_there = |token: &Token| before.holders.iter().any(|holder| holder.token == *token);
    record.holders.retain(|holder| !found.is_unrecorded(&holder.token) || !was_there(&holder.token));
    for holder in &mut record.holders {
        let old = |state: &LockState| state.holders.iter().find(|it| it.token == holder.token).map(|it| it.lease);
        if renewed != Some(&holder.token)
            && old(before).is_some_and(|lease| lease == holder.lease)
            && let Some(stored) = old(&found.stored)
        {
            holder.lease = stored;
        }
    }
    record
}

/// Returns how many whole seconds to give a lease that must last for this long.
pub(super) fn whole_seconds(span: Duration) -> u64 {
    span.as_millis().div_ceil(1000).max(1).try_into().unwrap_or(u64::MAX)
}
