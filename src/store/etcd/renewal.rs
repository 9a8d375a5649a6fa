//! Renewal of a lock.
//!
//! Normally the lease is replaced by a new one, which a majority of the members records. If the database is full, nothing new
//! can be written, and the lease is kept alive instead. A leader does that alone, and may not know yet that it was replaced;
//! so it counts only if the same member read the lock before and after it in the same term, because a term has only one
//! leader. Such a lease keeps its length, so it does not serve a holder that asks for a longer one.

use std::time::Duration;

use super::api::{self, LeaseMessage};
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
    /// Renews the lease for `ttl` from now (`None`: for its present ttl).
    pub(super) fn renew_lease(&mut self, key: &Key, token: &Token, ttl: Option<Ttl>) -> Result<Renewed, Failure> {
        let subject = Subject { asking: Some(token), ..on(key) };
        let began = Moment::now();
        let committed = match self.once(subject, |state, facts| Ok(state.renew(token, ttl, facts))) {
            Err(failure) if failure.is_no_space() && self.keep_alive_holder(key, token, ttl)? => {
                return Ok(Renewed::Mine);
            }
            outcome => outcome?,
        };
        // After a slow renewal little of the lease may be left, so return at once. The next renewal tidies up.
        if Moment::now().since(began) < self.timeout / 4 {
            self.revoke_unused_leases();
        }
        Ok(from_state::renewed(committed.answer, Now::unix(committed.now_ms)))
    }

    /// Keeps the lease of a holder alive, without changing what is stored. Returns whether that succeeded, the lock is held
    /// under that lease, and the lease lasts for `ttl` at least (`None`: as long as it is).
    fn keep_alive_holder(&mut self, key: &Key, token: &Token, ttl: Option<Ttl>) -> Result<bool, Failure> {
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
        let lasts = api::read::<LeaseMessage>(&kept.body)?.result.ttl;
        let lasts = Duration::from_secs(u64::try_from(lasts).unwrap_or(0));
        let is_long_enough = match ttl {
            Some(Ttl::Lasts(ttl)) => lasts >= ttl,
            // No lease of etcd lasts for ever.
            Some(Ttl::None) => false,
            None => !lasts.is_zero(),
        };
        let after = scope.read(transacted(read)?)?;
        let is_same =
            after.member_and_term == before.member_and_term && after.record_revision == before.record_revision;
        Ok(is_ours && is_long_enough && is_same && after.lease_of(token) == Some(lease))
    }
}
