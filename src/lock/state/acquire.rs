//! Who gets the lock: slots, and repeated requests.

use super::{Applied, Facts, FenceExhausted, Held, HolderState, Lease, LockState, Now, Purpose, Value, millis};
use crate::lock::claim::{Claim, Mode};
use crate::lock::token::Token;

/// A request for the lock.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The claim.
    pub claim: &'a Claim,
    /// Whether the lock is to be held by a lease. Otherwise it is held for as long as [`Facts::holds_slot`] says.
    pub leased: bool,
    /// Identifies this request if there may be several under its token, as with a token of the user's own.
    /// [`LockState::cancel`] drops only what the cancelled request obtained.
    pub request: Option<&'a Token>,
    /// What to do if the lock is held.
    pub on_held: OnHeld,
    /// The holder that this waiter saw last.
    pub seen: Option<&'a Seen>,
}

/// What a request does if the lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnHeld {
    /// Joins the queue, or stays in it.
    Wait {
        /// The request does not join if this many already wait.
        max: Option<u32>,
    },
    /// Leaves the queue, if it is in it.
    Leave,
}

/// A holder that a waiter has seen. If the store loses its data, that holder's command may still run for the length of the
/// lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The holder.
    pub held: Held,
    /// What [`LockState::ended_unix_ms`] returned at that time.
    pub ended_unix_ms: u64,
}

impl Seen {
    /// Returns what a waiter remembers once it has found this holder, if any, with the latest end of a hold at `ended_unix_ms`.
    /// It remembers no holder whose lease never ends, since nobody could wait that out. It keeps what it knew `before` if it
    /// found no holder; if too little is known about the holder, as about a waiter with a grant; or if the store has gone back
    /// to an older state, which shows because ends only rise.
    pub fn after(before: Option<Self>, held: Option<&Held>, ended_unix_ms: u64) -> Option<Self> {
        match held {
            _ if before.as_ref().is_some_and(|before| ended_unix_ms < before.ended_unix_ms) => before,
            Some(held) if held.ends_ms.is_none() => None,
            Some(held) if held.ttl_ms.is_some() => Some(Seen { held: held.clone(), ended_unix_ms }),
            _ => before,
        }
    }

    /// Returns the purpose for which the holder is put back. A run is put back only until its command has ended. A lock that
    /// was acquired by hand or kept is held as before, unless other holders may have been beside it, which nobody knows.
    pub fn purpose_put_back(&self) -> Purpose {
        match self.held.purpose {
            purpose @ (Purpose::Hand | Purpose::Kept) if self.held.is_exclusive => purpose,
            _ => Purpose::Forgotten,
        }
    }
}

/// The answer to a request for the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The request holds the lock.
    Mine {
        /// The fencing token.
        fence: u64,
        /// The slot.
        slot: u32,
        /// Whether it is held by a lease, counted from the moment at which this request was sent.
        leased: bool,
    },
    /// The lock is held, or other waiters are ahead.
    Held {
        /// The first holder.
        first: Option<Held>,
        /// The place in the queue, from 0, if the request waits. `None` if it did not ask to wait, if too many already do, or
        /// if its token already holds the lock otherwise or held it until the store forgot it.
        place: Option<usize>,
        /// What [`LockState::ended_unix_ms`] returns, for [`Seen::after`].
        ended_unix_ms: u64,
    },
    /// The lock is not needed: a run has succeeded within [`Claim::once_per`].
    NotNeeded {
        /// When that run began, in Unix time.
        began_unix_ms: u64,
    },
    /// The request was cancelled before it arrived.
    Cancelled,
}

impl LockState {
    /// Acquires the lock if it was granted to this request, or if a slot is free and no listening waiter is ahead. Otherwise
    /// does as [`Ask::on_held`] says.
    ///
    /// A repeated request under the same token gets the same answer: the first reply may have been lost.
    ///
    /// On failure the state must not be stored.
    pub fn acquire(&mut self, ask: &Ask<'_>, facts: &impl Facts) -> Result<Applied<Acquired>, FenceExhausted> {
        let now = facts.now();
        let token = &ask.claim.token;
        if self.is_cancelled(token, now, facts) {
            return Ok(self.finish_with(Acquired::Cancelled, Vec::new()));
        }
        self.drop_ended(Some(token), now, facts);
        if let Some(at) = self.position(token) {
            if !self.is_held_as_asked(at, ask.claim.mode) {
                return Ok(self.refused(None, now, facts));
            }
            let begins_lease = self.answer_again(at, ask, now, facts);
            let HolderState { fence, slot, lease, .. } = &self.holders[at];
            let mine = Acquired::Mine { fence: *fence, slot: *slot, leased: lease.is_some() };
            return Ok(Applied { begins_lease, ..self.finish(mine, now, facts) });
        }
        if self.waiters.iter().any(|it| it.token == *token && it.mode != ask.claim.mode) {
            // It now wants another mode than the one it waits for.
            self.leave(token);
        }
        if let Some(began_unix_ms) = self.done_since(ask.claim.once_per, now) {
            self.leave(token);
            return Ok(self.finish(Acquired::NotNeeded { began_unix_ms }, now, facts));
        }
        if let Some(seen) = ask.seen.filter(|seen| self.has_forgotten(seen, now)) {
            self.put_back(seen, now, facts);
        }
        let granted = self.mark_responsive(token);
        let mode = ask.claim.mode;
        let may_have = granted.is_some() || self.has_room(mode) && self.is_next(token, facts);
        if may_have {
            let fence = self.next_fence(facts)?;
            if let Some(slot) = granted.or_else(|| self.free_slot(mode, facts)) {
                self.leave(token);
                self.hold(ask, mode, slot, fence, None, facts);
                return Ok(self.finish(Acquired::Mine { fence, slot, leased: ask.leased }, now, facts));
            }
        }
        let place = match ask.on_held {
            OnHeld::Wait { max } => self.join(ask, max, now, facts),
            OnHeld::Leave => {
                self.leave(token);
                None
            }
        };
        Ok(self.refused(place, now, facts))
    }

    /// Returns whether a holder that asks again can be answered that it holds the lock. Otherwise the answer would say that it never
    /// lost the lock, or that it holds the lock in another mode, by which others are not admitted or refused. One that
    /// acquired it alone is answered in any mode.
    fn is_held_as_asked(&self, at: usize, mode: Mode) -> bool {
        let holder = &self.holders[at];
        holder.purpose != Purpose::Forgotten && [Mode::EXCLUSIVE, mode].contains(&holder.mode)
    }

    /// Hands off what is free, and answers that the request does not hold the lock.
    fn refused(&mut self, place: Option<usize>, now: Now, facts: &impl Facts) -> Applied<Acquired> {
        let granted = self.hand_off(now, facts);
        let first = self.first_held(now, facts);
        self.finish_with(Acquired::Held { first, place, ended_unix_ms: self.ended_unix_ms() }, granted)
    }

    /// Returns whether the store has forgotten a holder that a waiter has seen: no hold has ended since, and the only holders
    /// are others that were forgotten. A grant proves nothing: the process that made it need not have seen the holder.
    fn has_forgotten(&self, seen: &Seen, now: Now) -> bool {
        let held = &seen.held;
        let is_over = held.purpose == Purpose::Kept && held.ends_ms.is_some_and(|ends_ms| ends_ms <= now.ms);
        let is_forgotten = |holder: &HolderState| holder.purpose == Purpose::Forgotten && holder.token != held.token;
        !is_over && self.ended_unix_ms() <= seen.ended_unix_ms && self.holders.iter().all(is_forgotten)
    }

    /// Puts back a holder that the store has forgotten, for the purpose that [`Seen::purpose_put_back`] returns. It gets a
    /// whole lease, since its own may have been renewed just before. A kept lock ends no later than it would have ended.
    fn put_back(&mut self, seen: &Seen, now: Now, facts: &impl Facts) {
        let Held { who, since_ms, ends_ms, ttl_ms, purpose, fence, token, .. } = seen.held.clone();
        self.leave(&token);
        self.epoch = facts.epoch();
        // The store may have forgotten these together with the holder.
        self.fence = self.fence.max(fence);
        if self.ended_unix_ms() < seen.ended_unix_ms {
            self.note_end(seen.ended_unix_ms);
        }
        let renewed_ms = ttl_ms.map(|ttl_ms| now.ms.saturating_add(ttl_ms));
        let ends_ms = if purpose == Purpose::Kept { ends_ms.min(renewed_ms) } else { renewed_ms };
        let purpose = seen.purpose_put_back();
        let lease = Some(Lease { ends_ms, ttl_ms });
        self.holders.push(HolderState { token, fence, who, since_ms, lease, purpose, ..HolderState::default() });
    }

    /// Answers a holder that asks again. Its lease is restarted, except a run's if the lock is requested by hand under its
    /// token. So is a revoked lease: the answer promises a whole one, and the renewals will report the revocation. Returns
    /// whether the lease was restarted.
    pub(super) fn answer_again(&mut self, at: usize, ask: &Ask<'_>, now: Now, facts: &impl Facts) -> bool {
        let holder = &self.holders[at];
        let is_its_own = holder.purpose != Purpose::Run || !ask.claim.by_hand;
        let lease = (holder.lease.is_some() && is_its_own).then(|| self.new_lease(ask.claim.ttl, now, facts));
        let holder = &mut self.holders[at];
        holder.lease = lease.or(holder.lease);
        if holder.request.as_ref() != ask.request {
            // Two requests were told that they hold the lock, so neither may cancel it.
            holder.request = None;
        }
        lease.is_some()
    }

    /// Makes the request a holder.
    pub(super) fn hold(
        &mut self,
        ask: &Ask<'_>,
        mode: Mode,
        slot: u32,
        fence: u64,
        value: Option<Value>,
        facts: &impl Facts,
    ) {
        let (claim, now) = (ask.claim, facts.now());
        let lease: Option<Lease> = ask.leased.then(|| self.new_lease(claim.ttl, now, facts));
        claim.key.as_str().clone_into(&mut self.key);
        self.fence = fence;
        self.holders.push(HolderState {
            token: claim.token.clone(),
            fence,
            slot,
            mode,
            once_per_ms: claim.once_per.map(millis),
            value,
            who: claim.holder.clone(),
            since_ms: now.ms,
            lease,
            purpose: if claim.by_hand { Purpose::Hand } else { Purpose::Run },
            is_released: false,
            revoked_by: None,
            request: ask.request.cloned(),
        });
    }

    /// Returns the lowest free slot, if the mode allows another holder. A slot that the store finds taken, without a holder in
    /// the state, counts as held: its record was lost. Shared holders never get slot 0, so a store can tell by it that the lock
    /// is held alone.
    pub(super) fn free_slot(&self, mode: Mode, facts: &impl Facts) -> Option<u32> {
        let (slots, limit) = match mode {
            Mode::Slots(slots) => (0..slots, slots),
            Mode::Shared if facts.take_share() => (1..u32::MAX, u32::MAX),
            Mode::Shared => return None,
        };
        let mut held = self.held();
        for slot in slots {
            if held >= limit {
                break;
            }
            if self.has_slot(slot) {
                continue;
            }
            if facts.take_slot(slot) {
                return Some(slot);
            }
            held += 1;
        }
        None
    }

    /// Returns whether this slot is held or granted.
    pub(super) fn has_slot(&self, slot: u32) -> bool {
        let is_granted = self.waiters.iter().filter_map(|waiter| waiter.grant).any(|grant| grant.slot == slot);
        is_granted || self.holders.iter().any(|holder| holder.slot == slot)
    }

    /// Returns when the latest hold ended, in milliseconds of Unix time; 0 if none is known. It rises with each hold that ends,
    /// whatever the clock says.
    pub fn ended_unix_ms(&self) -> u64 {
        self.last.as_ref().map_or(0, |last| last.ended_unix_ms).max(self.unrecorded_end_unix_ms)
    }
}
