//! The queue, for stores without a queue of the kernel's: who is next, hand-off, cancelling.
//!
//! A waiter joins the queue, is granted a slot for the claim window, and claims it by asking again. It leaves the queue when it
//! claims, cancels, or dies.

use serde::{Deserialize, Serialize};

use super::{Applied, Ask, Facts, Held, LockState, Now, Presence, Purpose};
use crate::lock::claim::Mode;
use crate::lock::holder::Holder;
use crate::lock::token::Token;

/// How long a waiter may take to claim a grant. A dead waiter delays the others by no more than this, once one of them looks.
pub const CLAIM_WINDOW_MS: u64 = 1400;

/// How long a cancelled request that may be in flight is refused. By then it has arrived, or never will.
const IN_FLIGHT_MS: u64 = 300_000;

/// A waiter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaiterState {
    /// Identifies the acquisition that it waits for.
    pub token: Token,
    /// Who it is.
    pub who: Holder,
    /// How it may share the lock.
    pub mode: Mode,
    /// When it joined the queue.
    pub joined_ms: u64,
    /// Its grant, until it claims it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<Grant>,
    /// Whether it failed to claim a grant. Until it asks again, it counts as [`Presence::Silent`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_unresponsive: bool,
}

/// A slot reserved for a waiter until it claims it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The slot.
    pub slot: u32,
    /// When it was granted.
    pub since_ms: u64,
    /// When it can no longer be claimed.
    pub ends_ms: u64,
}

/// A cancelled request that may still be in flight.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancelled {
    /// Its token.
    pub token: Token,
    /// When requests under the token are accepted again.
    pub until_ms: u64,
}

impl WaiterState {
    /// Returns the waiter as others see it, if it has a grant.
    pub(super) fn held(&self) -> Option<Held> {
        let grant = self.grant?;
        Some(Held {
            who: self.who.clone(),
            since_ms: grant.since_ms,
            ends_ms: Some(grant.ends_ms),
            ttl_ms: None,
            purpose: Purpose::default(),
            is_exclusive: self.mode == Mode::EXCLUSIVE,
            fence: 0,
            token: self.token.clone(),
        })
    }

    /// Ends a grant that was not claimed in time. The waiter keeps its place, because it may only have been cut off. But others
    /// pass it by until it asks again; otherwise each hand-off would wait for it.
    pub(super) fn expire_grant(&mut self, now: Now) {
        if self.grant.is_some_and(|grant| grant.ends_ms <= now.ms) {
            self.grant = None;
            self.is_unresponsive = true;
        }
    }

    /// Returns whether the waiter can be granted the lock.
    fn is_willing(&self, facts: &impl Facts) -> bool {
        self.grant.is_none() && !self.is_unresponsive && facts.presence(self) == Presence::Listening
    }
}

impl LockState {
    /// Cancels a request: leaves the queue, and drops the lock if this very request obtained it. Another request may have
    /// obtained it before, under a token of the user's own: then it stays held.
    ///
    /// A request that `is_in_flight` may arrive after this; it is then refused. Such a token must not be used again.
    ///
    /// Returns whether the token now holds nothing.
    pub fn cancel(
        &mut self,
        token: &Token,
        request: Option<&Token>,
        is_in_flight: bool,
        facts: &impl Facts,
    ) -> Applied<bool> {
        let now = facts.now();
        self.drop_ended(None, now, facts);
        match self.position(token) {
            Some(at) if self.holders[at].request.as_ref() != request => {
                return self.finish(false, now, facts);
            }
            Some(at) => {
                self.holders.remove(at);
                self.note_end(now.unix_ms);
            }
            None => self.leave(token),
        }
        if is_in_flight {
            self.refuse_late_requests(token, now, facts);
        }
        self.finish(true, now, facts)
    }

    /// Keeps the record from being pruned for as long as a request may still arrive that fails only because of the record.
    /// It refuses no token: the next request under the same one may be meant.
    pub fn outlast_late_requests(&mut self, facts: &impl Facts) {
        self.refuse_late_requests(&Token::default(), facts.now(), facts);
    }

    /// Refuses requests under this token that arrive late.
    pub(super) fn refuse_late_requests(&mut self, token: &Token, now: Now, facts: &impl Facts) {
        self.epoch = facts.epoch();
        self.cancelled.retain(|cancelled| cancelled.token != *token);
        self.cancelled.push(Cancelled { token: token.clone(), until_ms: now.ms.saturating_add(IN_FLIGHT_MS) });
    }

    /// Returns whether the request under this token was cancelled before it arrived.
    pub(super) fn is_cancelled(&self, token: &Token, now: Now, facts: &impl Facts) -> bool {
        let is_it = |cancelled: &Cancelled| cancelled.token == *token && now.ms < cancelled.until_ms;
        self.cancelled.iter().any(is_it) && !self.is_of_another_epoch(facts)
    }

    /// Joins the end of the queue, unless `max` already wait, or stays in place. Returns the place, from 0.
    pub(super) fn join(&mut self, ask: &Ask<'_>, max: Option<u32>, now: Now, facts: &impl Facts) -> Option<usize> {
        let claim = ask.claim;
        if let Some(place) = self.waiters.iter().position(|waiter| waiter.token == claim.token) {
            return Some(place);
        }
        // A waiter with a grant no longer waits, and a silent one will not be granted the lock.
        let waiting = self.waiters.iter().filter(|waiter| waiter.is_willing(facts)).count();
        if max.is_some_and(|max| waiting >= max as usize) {
            return None;
        }
        self.epoch = facts.epoch();
        claim.key.as_str().clone_into(&mut self.key);
        self.waiters.push(WaiterState {
            token: claim.token.clone(),
            who: claim.holder.clone(),
            mode: claim.mode,
            joined_ms: now.ms,
            grant: None,
            is_unresponsive: false,
        });
        Some(self.waiters.len() - 1)
    }

    /// Leaves the queue.
    pub(super) fn leave(&mut self, token: &Token) {
        self.waiters.retain(|waiter| waiter.token != *token);
    }

    /// Notes that a waiter has asked, so it is alive. Returns its granted slot, if it has one that is still free: a store may
    /// have overlooked the grant and given the slot to another.
    pub(super) fn mark_responsive(&mut self, token: &Token) -> Option<u32> {
        let at = self.waiters.iter().position(|waiter| waiter.token == *token)?;
        self.waiters[at].is_unresponsive = false;
        let grant = self.waiters[at].grant.take()?;
        if !self.has_room(self.waiters[at].mode) || self.has_slot(grant.slot) {
            return None;
        }
        self.waiters[at].grant = Some(grant);
        Some(grant.slot)
    }

    /// Returns whether no waiter ahead of this request could be granted the lock.
    pub(super) fn is_next(&self, token: &Token, facts: &impl Facts) -> bool {
        let ahead = self.waiters.iter().take_while(|waiter| waiter.token != *token);
        !ahead.into_iter().any(|waiter| waiter.is_willing(facts))
    }

    /// Returns whether the lock may be held in this mode now, beside the holders and the waiters with a grant. It may not if
    /// one of those waiters would then find too many holders when it claims: that waiter is ahead, and its claim hands the lock
    /// off again.
    pub fn has_room(&self, mode: Mode) -> bool {
        let granted = || self.waiters.iter().filter(|waiter| waiter.grant.is_some()).map(|waiter| waiter.mode);
        if self.holders.iter().any(|holder| holder.purpose == Purpose::Forgotten) {
            return false;
        }
        let share = || self.holders.iter().map(|holder| holder.mode).chain(granted()).map(|mode| mode == Mode::Shared);
        match mode {
            Mode::Shared => share().all(|shares| shares),
            Mode::Slots(slots) => {
                let held = self.held();
                let is_in_the_way = |granted: Mode| matches!(granted, Mode::Slots(slots) if slots <= held);
                held < slots && !share().any(|shares| shares) && !granted().any(is_in_the_way)
            }
        }
    }

    /// Grants what is free to the first willing waiters, in order. A slot that a waiter cannot use, because it allows fewer
    /// holders, is not granted to those behind it. Returns their tokens.
    pub(super) fn hand_off(&mut self, now: Now, facts: &impl Facts) -> Vec<Token> {
        let mut granted = Vec::new();
        let outstanding = self.waiters.iter().filter(|waiter| waiter.grant.is_some()).count();
        for at in 0..self.waiters.len() {
            if outstanding + granted.len() >= facts.grants_max() {
                break;
            }
            if !self.waiters[at].is_willing(facts) {
                continue;
            }
            let mode = self.waiters[at].mode;
            if !self.has_room(mode) {
                break;
            }
            let Some(slot) = self.free_slot(mode, facts) else { break };
            let waiter = &mut self.waiters[at];
            let ends_ms = now.ms.saturating_add(facts.claim_window_ms(waiter));
            waiter.grant = Some(Grant { slot, since_ms: now.ms, ends_ms });
            granted.push(waiter.token.clone());
        }
        granted
    }
}
