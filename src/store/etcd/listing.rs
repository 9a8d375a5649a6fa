//! Lists and prunes all locks, some at a time. One that cannot be read does not hide the others.

use std::time::Duration;

use super::EtcdStore;
use super::api::{self, KeyValue, RequestOp};
use super::client::{DATE_DOUBT_MS, Effect};
use super::failure::Failure;
use super::http::Response;
use super::keys::{Names, all_states, decoded, range_end};
use super::operation::transacted;
use super::snapshot::{LeaseEnds, OwnRow, Scope, Snapshot};
use crate::lock::key::Key;
use crate::lock::state::LockState;
use crate::store::engine::View;
use crate::store::{KeyStatus, listing_limit};
use crate::sys::clock::Moment;

/// How many names of locks are read at once.
const PAGE: u32 = 500;

/// By how much the fence of a lock that is pruned may be ahead of the clock, in ms: a day. Every lock that is acquired
/// for the first time gets a greater one, so a fence that is further ahead stays with its own lock.
const LEAD_MAX_MS: u64 = 24 * 60 * 60 * 1000;

/// How far a listing has come.
pub(in crate::store) struct Pages {
    /// The only lock to be listed, if there is one.
    only: Option<Key>,
    /// The name from which all names of locks are read, if they have not been yet.
    from: Option<String>,
    /// How many bytes were read.
    received: usize,
}

impl EtcdStore {
    /// Begins to list all locks, or this one.
    pub(super) fn begin_listing(&self, key: Option<&Key>) -> Pages {
        let from = key.is_none().then(|| all_states(&self.client.cluster.prefix));
        Pages { only: key.cloned(), from, received: 0 }
    }

    /// Reads the names of all locks, or if they reach the limit, of so many that the next call fails.
    pub(super) fn next_names(&mut self, pages: &mut Pages) -> Result<Option<Vec<Key>>, Failure> {
        if let Some(key) = pages.only.take() {
            return Ok(Some(vec![key]));
        }
        if pages.received > listing_limit::BYTES {
            return Err(Failure::ListingTooLong);
        }
        let Some(mut from) = pages.from.take() else { return Ok(None) };
        let prefix = all_states(&self.client.cluster.prefix);
        let (to, received) = (range_end(&prefix), self.client.received);
        let mut keys = Vec::new();
        loop {
            let read = [RequestOp::Names { from: from.clone(), to: to.clone(), limit: PAGE }];
            let request = api::transaction(&[], &read, &[]);
            let responses = self.client.exchange(&[request], Effect::Reads, Moment::now() + self.timeout)?;
            pages.received = self.client.received - received;
            let answer = transacted(responses.first().ok_or(Failure::Closed)?)?;
            let page = answer.responses.into_iter().next().unwrap_or_default().response_range;
            // Otherwise the same keys could come again and again.
            let names = || page.kvs.iter().map(|kv| kv.key.as_str());
            if page.kvs.len() > PAGE as usize
                || !names().is_sorted_by(|a, b| a < b)
                || names().any(|name| name < from.as_str())
            {
                return Err(Failure::UnexpectedReply("keys that are not in order"));
            }
            let name = |kv: &KeyValue| kv.key.strip_prefix(&prefix).and_then(decoded);
            keys.extend(page.kvs.iter().filter_map(name));
            match page.kvs.last() {
                Some(last) if page.more && pages.received <= listing_limit::BYTES => from = format!("{}\0", last.key),
                _ => return Ok(Some(keys)),
            }
        }
    }

    /// Returns what is known of a key, if anything. What is read for it counts towards the limit of the listing.
    pub(super) fn status_in(&mut self, pages: &mut Pages, key: &Key) -> Result<Option<KeyStatus>, Failure> {
        if pages.received > listing_limit::BYTES {
            return Err(Failure::ListingTooLong);
        }
        let received = self.client.received;
        let status = self.status_of(key);
        pages.received += self.client.received - received;
        status
    }

    /// Returns whether a lock looks as if it could be pruned.
    pub(super) fn looks_prunable_now(&mut self, key: &Key, unused_for: Duration) -> Result<bool, Failure> {
        let found = self.look(key)?;
        let now_ms = self.client.now_ms()?;
        Ok(is_prunable(&found.state(None, now_ms, LeaseEnds::Expected), unused_for, &found.view(now_ms)))
    }

    /// Reads a lock with all its waiters.
    fn look(&mut self, key: &Key) -> Result<Snapshot, Failure> {
        let names = Names::new(&self.client.cluster.prefix, key);
        let scope = Scope { names, own_row: OwnRow::None, limit: 0, keeps_fence: true };
        self.read_scope(&scope, Moment::now() + self.timeout)
    }

    /// Returns what is known of a key, if anything.
    fn status_of(&mut self, key: &Key) -> Result<Option<KeyStatus>, Failure> {
        let (mut found, mut left) = self.look_at_leases(key)?;
        if left.contains(&Some(Duration::ZERO)) {
            // The lease may have been replaced by a renewal between the two requests. One that is there now and was not
            // before has just begun, even if it has been replaced, too.
            let before = found;
            (found, left) = self.look_at_leases(key)?;
            for (lease_key, left) in found.lease_keys.iter().zip(&mut left) {
                let is_new = !before.leases().any(|lease| lease == lease_key.lease);
                *left = left.filter(|left| !left.is_zero() || !is_new);
            }
        }
        let now_ms = self.client.now_ms()?;
        let state = found.state(None, now_ms, LeaseEnds::Expected);
        // A cancelled request alone does not make it a lock that has been held.
        if (LockState { cancelled: Vec::new(), ..state.clone() }) == LockState::default() {
            return Ok(None);
        }
        let view = found.view(now_ms);
        let mut status = state.status(key.clone(), &view);
        for holding in &mut status.holders {
            let at = found.lease_keys.iter().position(|lease_key| holding.token.as_ref() == Some(&lease_key.token));
            if holding.expires_in.is_some() {
                let left = at.and_then(|at| left[at].filter(|_| found.end_of(&found.lease_keys[at]).is_none()));
                holding.expires_in = left.or(holding.expires_in);
            }
        }
        Ok(Some(status))
    }

    /// Reads a lock, and then how long the lease of each of its holders still lasts; `None`: that is not known.
    fn look_at_leases(&mut self, key: &Key) -> Result<(Snapshot, Vec<Option<Duration>>), Failure> {
        let found = self.look(key)?;
        let leases: Vec<_> = found.lease_keys.iter().map(|lease_key| lease_key.lease).collect();
        let left = self.time_left(&leases)?;
        Ok((found, left))
    }

    /// Returns how long each of these leases still lasts; `None`: that is not known.
    pub(super) fn time_left(&mut self, leases: &[i64]) -> Result<Vec<Option<Duration>>, Failure> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let questions: Vec<_> = leases.iter().map(|lease| api::time_to_live(*lease)).collect();
        let responses = self.client.exchange(&questions, Effect::Reads, Moment::now() + self.timeout)?;
        let left = |response: &Response| {
            if Failure::of_response(response).is_some() {
                return Ok(None);
            }
            let seconds = u64::try_from(api::read::<api::Lease>(&response.body)?.ttl).unwrap_or(0);
            Ok(Some(Duration::from_secs(seconds)))
        };
        responses.iter().map(left).collect()
    }
}

/// Returns whether a lock can be pruned. Its fence outlives it, so it may be ahead of the clock, but not by more than
/// [`LEAD_MAX_MS`]. The time may be later than it is taken to be: a run that has just ended has not ended in the
/// future.
pub(super) fn is_prunable(state: &LockState, unused_for: Duration, view: &View) -> bool {
    let view = View { now_ms: view.now_ms.saturating_add(DATE_DOUBT_MS), ..*view };
    let fence = state.fence.min(view.now_ms);
    let is_near = state.fence <= view.now_ms.saturating_add(LEAD_MAX_MS);
    view.has_record && is_near && LockState { fence, ..state.clone() }.is_prunable(unused_for, &view)
}
