//! Renewal of a lock, and of a place in the queue.
//!
//! Normally a holder's lease is replaced by a new one, which a majority of the members records. If the database is
//! full, nothing new can be written, and the lease is kept alive instead, as that of a waiter always is. A leader does
//! that alone, and may not know yet that it was replaced; so it counts only if the same member has answered it, and
//! before and after it, in the same term, because a term has only one leader. Such a lease keeps its length, so it does
//! not serve a holder that asks for a longer one.

use std::time::Duration;

use super::EtcdStore;
use super::api::{self, LeaseMessage};
use super::client::Effect;
use super::failure::Failure;
use super::operation::transacted;
use super::snapshot::{Attached, Scope, Snapshot};
use crate::lock::key::Key;
use crate::lock::lease::Ttl;
use crate::lock::token::Token;
use crate::store::engine::Operation;
use crate::sys::clock::Moment;

impl EtcdStore {
    /// Keeps the lease of a holder alive, without changing what is stored. Returns whether that succeeded, the lock is
    /// held under that lease, and the lease lasts for `ttl` at least (`None`: as long as it is).
    pub(super) fn keep_alive_holder(&mut self, key: &Key, token: &Token, ttl: Option<Ttl>) -> Result<bool, Failure> {
        let deadline = Moment::now() + self.timeout;
        let scope = self.scope(Operation::Renew { key, token });
        let before = self.read_scope(&scope, deadline)?;
        let Some(lease) = before.lease_of(token) else { return Ok(false) };
        let lease_key = Attached { name: scope.names.lease_key(token), lease, seen_by: before.member_and_term };
        let (found, lasts) = self.keep_alive(&lease_key, &scope, deadline)?;
        let is_ours = found.stored.holders.iter().any(|holder| holder.token == *token && holder.is_renewable());
        Ok(is_ours
            && match ttl {
                Some(Ttl::Lasts(ttl)) => lasts >= ttl,
                // No lease of etcd lasts for ever.
                Some(Ttl::None) => false,
                None => !lasts.is_zero(),
            })
    }

    /// Keeps alive the lease of a holder or a waiter of the lock, and reads the lock, in one flight. Returns what was
    /// found, and how long the lease lasts from a moment within this call; zero: that is not certain, or the key is not
    /// attached to it any more.
    pub(super) fn keep_alive(
        &mut self,
        key: &Attached,
        scope: &Scope,
        deadline: Moment,
    ) -> Result<(Snapshot, Duration), Failure> {
        let responses =
            self.client.exchange(&[api::keep_alive(key.lease), scope.request()], Effect::Reads, deadline)?;
        let [kept, read] = &responses[..] else { return Err(Failure::Closed) };
        let found = scope.read(transacted(read)?)?;
        let kept = match Failure::of_response(kept) {
            Some(Failure::Rejected(rejection)) if rejection.lease_is_missing() => api::Lease::default(),
            Some(failure) => return Err(failure),
            None => api::read::<LeaseMessage>(&kept.body)?.result,
        };
        // Behind one address for several members, each request may reach another one.
        let answered = [(kept.header.member_id, kept.header.raft_term), found.member_and_term.clone()];
        let counts = answered.iter().all(|by| *by == key.seen_by) && found.leases().any(|lease| lease == key.lease);
        let lasts = Duration::from_secs(u64::try_from(kept.ttl).unwrap_or(0));
        Ok((found, if counts { lasts } else { Duration::ZERO }))
    }
}
