//! The queue, for stores that do not have one of the kernel's: who is next, hand-off, cancelling.
//!
//! A waiter's life: it joins the queue, is granted a slot for the claim window, and claims it by asking again. It leaves the queue
//! when it claims, cancels, or is dead.

use serde::{Deserialize, Serialize};

use super::{Applied, Ask, Facts, Held, LockState, Now, Presence, Purpose};
use crate::lock::claim::Mode;
use crate::lock::holder::Holder;
use crate::lock::token::Token;

/// For how long a waiter that was granted the lock may take to claim it. A dead waiter costs the others no more than this, once
/// one of them looks.
pub const CLAIM_WINDOW_MS: u64 = 1400;

/// For how long a cancelled request that may still be on its way is refused. By then it has arrived, or never will.
const IN_FLIGHT_MS: u64 = 300_000;

/// A waiter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaiterState {
    /// The name of the acquisition that it waits for.
    pub token: Token,
    /// Who it is.
    pub who: Holder,
    /// How it may share the lock.
    pub mode: Mode,
    /// Since when it waits.
    pub joined_ms: u64,
    /// What was granted to it, until it claims it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<Grant>,
    /// It did not claim what was granted to it. Until it asks again it counts as [`Presence::Silent`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_unresponsive: bool,
}

/// A slot that is reserved for a waiter until it claims it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The slot.
    pub slot: u32,
    /// When it was granted.
    pub since_ms: u64,
    /// Until when it can be claimed.
    pub ends_ms: u64,
}

/// A request that was cancelled while it may still be on its way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancelled {
    /// Its token.
    pub token: Token,
    /// Until when it is refused.
    pub until_ms: u64,
}

impl WaiterState {
    /// Returns the waiter as others see it, if it was granted the lock.
    pub(super) fn held(&self) -> Option<Held> {
        let grant = self.grant?;
        Some(Held {
            who: self.who.clone(),
            since_ms: grant.since_ms,
            ends_ms: Some(grant.ends_ms),
            ttl_ms: None,
            purpose: Purpose::default(),
            is_alone: self.mode == Mode::EXCLUSIVE,
            fence: 0,
            token: self.token.clone(),
        })
    }

    /// A grant that was not claimed passes on. The waiter keeps its place: it may only have been cut off. But the others pass it
    /// by until it asks again, or each hand-off would wait for it once more.
    pub(super) fn end_grant_unless_in_time(&mut self, now: Now) {
        if self.grant.is_some_and(|grant| grant.ends_ms <= now.ms) {
            self.grant = None;
            self.is_unresponsive = true;
        }
    }

    /// Returns whether the waiter can be granted the lock in its turn.
    fn is_willing(&self, facts: &impl Facts) -> bool {
        self.grant.is_none() && !self.is_unresponsive && facts.presence(self) == Presence::Listening
    }
}

impl LockState {
    /// Cancels a request: leaves the queue, and drops the lock if this very request obtained it. Under a token of the user's own
    /// another request may have obtained it before, and that one stays.
    ///
    /// If the request `is_in_flight`, it may arrive after this: it is refused then. A token that is cancelled so must not be
    /// used again.
    ///
    /// Returns whether the token holds nothing any more.
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
                return self.applied(false, now, facts);
            }
            Some(at) => {
                self.holders.remove(at);
                self.note_end(now.unix_ms);
            }
            None => self.leave(token),
        }
        if is_in_flight {
            self.refuse_from_now_on(token, now, facts);
        }
        self.applied(true, now, facts)
    }

    /// Refuses requests that come late under this token.
    pub(super) fn refuse_from_now_on(&mut self, token: &Token, now: Now, facts: &impl Facts) {
        self.epoch = facts.epoch();
        self.cancelled.retain(|cancelled| cancelled.token != *token);
        self.cancelled.push(Cancelled { token: token.clone(), until_ms: now.ms.saturating_add(IN_FLIGHT_MS) });
    }

    /// Returns whether the request under this token was cancelled before it came.
    pub(super) fn is_cancelled(&self, token: &Token, now: Now, facts: &impl Facts) -> bool {
        let is_it = |cancelled: &Cancelled| cancelled.token == *token && now.ms < cancelled.until_ms;
        self.cancelled.iter().any(is_it) && !self.is_of_another_epoch(facts)
    }

    /// Joins the queue at its end, unless `max` wait already, or stays where it is. Returns the place, from 0.
    pub(super) fn join(&mut self, ask: &Ask<'_>, max: Option<u32>, now: Now, facts: &impl Facts) -> Option<usize> {
        let claim = ask.claim;
        if let Some(place) = self.waiters.iter().position(|waiter| waiter.token == claim.token) {
            return Some(place);
        }
        // One that was granted the lock does not wait any more, and one that is silent will not be granted it.
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

    /// A waiter has asked, so it is there. Returns the slot that was granted to it, if one was and is still free: a store may have
    /// overlooked the grant.
    pub(super) fn heard_of(&mut self, token: &Token) -> Option<u32> {
        let at = self.waiters.iter().position(|waiter| waiter.token == *token)?;
        self.waiters[at].is_unresponsive = false;
        let grant = self.waiters[at].grant.take()?;
        if !self.has_room(self.waiters[at].mode) || self.has_slot(grant.slot) {
            return None;
        }
        self.waiters[at].grant = Some(grant);
        Some(grant.slot)
    }

    /// Returns whether nobody is ahead of this request that could be granted the lock.
    pub(super) fn is_next(&self, token: &Token, facts: &impl Facts) -> bool {
        let ahead = self.waiters.iter().take_while(|waiter| waiter.token != *token);
        !ahead.into_iter().any(|waiter| waiter.is_willing(facts))
    }

    /// Returns whether the lock may be held in this mode now, beside those that hold it or were granted it. Not if one that was granted it
    /// would then find too many when it claims it: it is ahead, and the lock is handed off again when it has.
    pub fn has_room(&self, mode: Mode) -> bool {
        let granted = || self.waiters.iter().filter(|waiter| waiter.grant.is_some()).map(|waiter| waiter.mode);
        if self.holders.iter().any(|holder| holder.purpose == Purpose::Forgotten) {
            return false;
        }
        let share = || self.holders.iter().map(|it| it.is_shared).chain(granted().map(|it| it == Mode::Shared));
        match mode {
            Mode::Shared => share().all(|shares| shares),
            Mode::Slots(slots) => {
                let held = self.held();
                let is_in_the_way = |granted: Mode| matches!(granted, Mode::Slots(slots) if slots <= held);
                held < slots && !share().any(|shares| shares) && !granted().any(is_in_the_way)
            }
        }
    }

    /// Grants what is free to the first waiters that are willing, in their order: nobody is granted a slot that one ahead of it
    /// leaves unused because it lets fewer hold the lock. Returns their tokens.
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
            waiter.grant = Some(Grant { slot, since_ms: now.ms, ends_ms: now.ms.saturating_add(CLAIM_WINDOW_MS) });
            granted.push(waiter.token.clone());
        }
        granted
    }
}
