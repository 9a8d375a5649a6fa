//! Renewing a lock.
//!
//! As a rule the lease is replaced by a new one, which a majority of the members notes. Where the database is full, nothing new can be
//! written, and the lease is kept alive instead. A leader does that alone, and one that was replaced by another may not know it yet: so that
//! counts only if the same member read the lock before and after it in the same term, in which there is one leader.

use super::api::{self, Streamed};
use super::client::Effect;
use super::failure::Failure;
use super::operation::{Subject, transacted};
use super::{EtcdStore, on};
use crate::lock::key::Key;
use crate::lock::lease::Ttl;
use crate::lock::state::Now;
use crate::lock::token::Token;
use crate::store::{Renewed, from_state};
use crate::sys::clock::Moment;

impl EtcdStore {
    /// Prolongs the lease by `ttl` from now (`None`: by as long as it was taken for).
    pub(super) fn renew_lease(&mut self, key: &Key, token: &Token, ttl: Option<Ttl>) -> Result<Renewed, Failure> {
        let subject = Subject { asking: Some(token), ..on(key) };
        let began = Moment::now();
        let committed = match self.once(subject, |state, facts| Ok(state.renew(token, ttl, facts))) {
            Err(failure) if failure.is_no_space() && self.keep_alive_holder(key, token)? => return Ok(Renewed::Mine),
            outcome => outcome?,
        };
        // A renewal that took long may be the last that is in time, and must be heard of at once. The next one tidies up.
        if Moment::now().since(began) < self.timeout / 4 {
            self.tidy();
        }
        Ok(from_state::renewed(committed.answer, Now::unix(committed.now_ms)))
    }

    /// Lets the lease of a holder begin anew, without a change of what is stored. Returns whether it has, and the lock is held under it.
    fn keep_alive_holder(&mut self, key: &Key, token: &Token) -> Result<bool, Failure> {
        let deadline = Moment::now() + self.timeout;
        let scope = self.scope(Subject { asking: Some(token), ..on(key) });
        let before = self.read(&scope, deadline)?;
        let Some(lease) = before.lease_of(token) else { return Ok(false) };
        let is_ours = before.stored.holders.iter().any(|holder| holder.token == *token && holder.is_renewable());
        let responses = self.client.exchange(&[api::keep_alive(lease), scope.request()], Effect::Reads, deadline)?;
        let [kept, read] = &responses[..] else { return Err(Failure::Closed) };
        if let Some(failure) = Failure::of_response(kept) {
            return Err(failure);
        }
        let is_alive = api::read::<Streamed>(&kept.body)?.result.ttl > 0;
        let after = scope.read(transacted(read)?)?;
        let is_same = after.asked == before.asked && after.record_revision == before.record_revision;
        Ok(is_ours && is_alive && is_same && after.lease_of(token) == Some(lease))
    }
}
