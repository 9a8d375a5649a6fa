//! Lists and prunes all locks, some at a time. One that cannot be read does not hide the others.

use std::time::Duration;

use super::EtcdStore;
use super::api::{self, KeyValue, RequestOp};
use super::client::{DATE_DOUBT_MS, Effect};
use super::failure::Failure;
use super::found::{Found, OwnRow, Scope};
use super::http::Response;
use super::keys::{Names, all_states, decoded, range_end};
use super::operation::transacted;
use crate::lock::key::Key;
use crate::lock::state::{Applied, LockState};
use crate::store::engine::{Operation, Records as _, View};
use crate::store::{KeyStatus, Listing, Prune, StoreError, listing_limit};
use crate::sys::clock::Moment;
use crate::sys::counter::Counter;
use crate::text::escape::escaped;

/// How many names of locks are read at once.
const PAGE: u32 = 500;

/// By how much the fence of a lock that is pruned may be ahead of the clock, in ms: a day. Every lock that is acquired for the first time
/// gets a greater one, so a fence that is further ahead stays with its own lock.
const LEAD_MAX_MS: u64 = 24 * 60 * 60 * 1000;

/// The names of locks.
struct Keys {
    keys: Vec<Key>,
    /// Whether there are more, which were not read.
    are_cut: bool,
}

impl EtcdStore {
    /// Returns what is known of `key`, or of every key.
    pub(super) fn list(&mut self, key: Option<&Key>) -> Result<Listing<KeyStatus>, StoreError> {
        let mut listing = Listing { found: Vec::new(), unreadable: Vec::new() };
        if let Some(key) = key {
            let status = self.status_of(key).map_err(|failure| self.explain(&failure))?;
            listing.found.push(status.unwrap_or_else(|| KeyStatus::never_used(key.clone())));
            return Ok(listing);
        }
        let mut counter = Counter::new("reading locks", None);
        let received = self.client.received;
        let keys = self.keys().map_err(|failure| self.explain(&failure))?;
        if keys.are_cut {
            return Err(self.explain(&Failure::ListsTooMuch));
        }
        for key in keys.keys {
            counter.add(1);
            if self.client.received - received > listing_limit::BYTES {
                return Err(self.explain(&Failure::ListsTooMuch));
            }
            match self.status_of(&key) {
                Ok(status) => listing.found.extend(status),
                Err(failure @ Failure::Broken { .. }) => {
                    listing.unreadable.push(self.explain_of("read", &key, &failure));
                }
                Err(failure) => return Err(self.explain(&failure)),
            }
        }
        Ok(listing)
    }

    /// Says that one of many keys cannot be read, or pruned.
    fn explain_of(&self, verb: &str, key: &Key, failure: &Failure) -> StoreError {
        self.explain(failure).context(format!("cannot {verb} the lock \"{}\"", escaped(key.as_str())))
    }

    /// Returns the names of all locks, in order, or of the first if they reach the limit.
    fn keys(&mut self) -> Result<Keys, Failure> {
        let prefix = all_states(&self.client.cluster.prefix);
        let (mut from, to) = (prefix.clone(), range_end(&prefix));
        let (mut keys, received) = (Vec::new(), self.client.received);
        let are_cut = loop {
            let read = [RequestOp::Names { from: from.clone(), to: to.clone(), limit: PAGE }];
            let request = api::transaction(&[], &read, &[]);
            let responses = self.client.exchange(&[request], Effect::Reads, Moment::now() + self.timeout)?;
            let answer = transacted(responses.first().ok_or(Failure::Closed)?)?;
            let page = answer.responses.into_iter().next().unwrap_or_default().response_range;
            // Otherwise the same keys could come again and again.
            let names = || page.kvs.iter().map(|kv| kv.key.as_str());
            if page.kvs.len() > PAGE as usize
                || !names().is_sorted_by(|a, b| a < b)
                || names().any(|name| name < from.as_str())
            {
                return Err(Failure::NotEtcd("keys that are not in order"));
            }
            let name = |kv: &KeyValue| kv.key.strip_prefix(&prefix).and_then(decoded);
            keys.extend(page.kvs.iter().filter_map(name));
            match page.kvs.last() {
                Some(_) if self.client.received - received > listing_limit::BYTES => break true,
                Some(last) if page.more => from = format!("{}\0", last.key),
                _ => break false,
            }
        };
        keys.sort_by(|a: &Key, b| a.as_str().cmp(b.as_str()));
        Ok(Keys { keys, are_cut })
    }

    /// Reads a lock with all its waiters.
    fn look(&mut self, key: &Key) -> Result<Found, Failure> {
        let names = Names::new(&self.client.cluster.prefix, key);
        let scope = Scope { names, own_row: OwnRow::None, limit: 0, keeps_fence: true };
        self.read_scope(&scope, Moment::now() + self.timeout)
    }

    /// Returns what is known of a key, if anything.
    fn status_of(&mut self, key: &Key) -> Result<Option<KeyStatus>, Failure> {
        let (mut found, mut left) = self.look_at_leases(key)?;
        if left.contains(&Some(Duration::ZERO)) {
            // The lease may have been replaced by a renewal between the two requests. One that is there now and was not before has just
            // begun, even if it has been replaced, too.
            let before = found;
            (found, left) = self.look_at_leases(key)?;
            for (life, left) in found.lives.iter().zip(&mut left) {
                let is_new = !before.leases().any(|lease| lease == life.lease);
                *left = left.filter(|left| !left.is_zero() || !is_new);
            }
        }
        let now_ms = self.client.now_ms()?;
        let state = found.state(None, now_ms);
        // A cancelled request alone does not make it a lock that has been held.
        if (LockState { cancelled: Vec::new(), ..state.clone() }) == LockState::default() {
            return Ok(None);
        }
        let view = found.view(now_ms);
        let mut status = state.status(key.clone(), &view);
        for holding in &mut status.holders {
            let at = found.lives.iter().position(|life| holding.token.as_ref() == Some(&life.token));
            if holding.expires_in.is_some() {
                let left = at.and_then(|at| left[at].filter(|_| found.end_of(&found.lives[at]).is_none()));
                holding.expires_in = left.or(holding.expires_in);
            }
        }
        Ok(Some(status))
    }

    /// Reads a lock, and then how long the lease of each of its lives still lasts; `None`: that is not known.
    fn look_at_leases(&mut self, key: &Key) -> Result<(Found, Vec<Option<Duration>>), Failure> {
        let found = self.look(key)?;
        let leases: Vec<_> = found.lives.iter().map(|life| life.lease).collect();
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

/// Returns whether a lock can be pruned. Its fence outlives it, so it may be ahead of the clock, but not by more than [`LEAD_MAX_MS`].
/// The time may be later than it is taken to be: a run that has just ended has not ended in the future.
fn is_prunable(state: &LockState, unused_for: Duration, view: &View) -> bool {
    let view = View { now_ms: view.now_ms.saturating_add(DATE_DOUBT_MS), ..*view };
    let fence = state.fence.min(view.now_ms);
    let is_near = state.fence <= view.now_ms.saturating_add(LEAD_MAX_MS);
    view.has_record && is_near && LockState { fence, ..state.clone() }.is_prunable(unused_for, &view)
}

impl Prune for EtcdStore {
    fn prune(&mut self, key: Option<&Key>, unused_for: Duration, really: bool) -> Result<Listing<Key>, StoreError> {
        let mut listing = Listing { found: Vec::new(), unreadable: Vec::new() };
        let keys = if let Some(key) = key {
            vec![key.clone()]
        } else {
            let keys = self.keys().map_err(|failure| self.explain(&failure))?;
            // The next call goes on with what is left.
            listing.unreadable.extend(keys.are_cut.then(|| self.explain(&Failure::ListsTooMuch)));
            keys.keys
        };
        let mut counter = Counter::new("pruning locks", None);
        for key in keys {
            counter.add(1);
            match self.prune_key(&key, unused_for, really) {
                Ok(true) => listing.found.push(key),
                Ok(false) => {}
                Err(failure @ (Failure::Broken { .. } | Failure::Contended)) => {
                    listing.unreadable.push(self.explain_of("prune", &key, &failure));
                }
                Err(failure) if listing.found.is_empty() && listing.unreadable.is_empty() => {
                    return Err(self.explain(&failure));
                }
                // Return what was removed so far all the same.
                Err(failure) => {
                    listing.unreadable.push(self.explain(&failure).context("cannot remove the other old keys"));
                    return Ok(listing);
                }
            }
        }
        Ok(listing)
    }
}

impl EtcdStore {
    /// Removes the key if it has not been held for `unused_for`; unless `really`, only checks. Returns whether it can be
    /// removed.
    fn prune_key(&mut self, key: &Key, unused_for: Duration, really: bool) -> Result<bool, Failure> {
        if !really {
            let found = self.look(key)?;
            let now_ms = self.client.now_ms()?;
            let state = found.state(None, now_ms);
            let view = found.view(now_ms);
            return Ok(is_prunable(&state, unused_for, &view));
        }
        self.once(Operation::OnLock(key), |state, view| {
            let is_prunable = is_prunable(state, unused_for, view);
            if is_prunable {
                *state = LockState::default();
            }
            Ok(Applied::only(is_prunable))
        })
    }
}
