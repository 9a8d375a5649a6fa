//! Who gets the lock: slots, and requests that are repeated.

use super::{Applied, Facts, FenceExhausted, Held, HolderState, Lease, LockState, Now, Purpose, Value, millis};
use crate::lock::claim::{Claim, Mode};
use crate::lock::token::Token;

/// A request for the lock.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// What is asked.
    pub claim: &'a Claim,
    /// Whether the lock is to be held by a lease. Otherwise it is for as long as [`Facts::holds_slot`] says.
    pub leased: bool,
    /// Which request this is, where there may be several under its token: a user's own. [`LockState::cancel`] drops only what
    /// the request obtained that it cancels.
    pub request: Option<&'a Token>,
    /// What to do if the lock is held.
    pub on_held: OnHeld,
    /// The holder that this waiter has seen last.
    pub seen: Option<&'a Seen>,
}

/// What a request does if the lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnHeld {
    /// It joins the queue, or stays in it.
    Wait {
        /// Unless so many wait already.
        max: Option<u32>,
    },
    /// It leaves the queue, if it is in it.
    Leave,
}

/// A holder that a waiter has seen: should the store lose its data, the command may still run for as long as the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The holder.
    pub held: Held,
    /// What [`LockState::ended_unix_ms`] returned then.
    pub ended_unix_ms: u64,
}

impl Seen {
    /// Returns what a waiter remembers that has found this holder, if any, when a hold had ended last at `ended_unix_ms`. Nothing of one
    /// whose lease never ends, since nobody could wait for that. What it knew `before` counts on if it has found none; or one of which too
    /// little is known, as of a waiter to which the lock was granted; or if the store has gone back to an older state, since ends only rise.
    pub fn after(before: Option<Self>, held: Option<&Held>, ended_unix_ms: u64) -> Option<Self> {
        match held {
            _ if before.as_ref().is_some_and(|before| ended_unix_ms < before.ended_unix_ms) => before,
            Some(held) if held.ends_ms.is_none() => None,
            Some(held) if held.ttl_ms.is_some() => Some(Seen { held: held.clone(), ended_unix_ms }),
            _ => before,
        }
    }

    /// Returns what the holder holds the lock for when it is put back. A run only until its command has ended. What was acquired by hand or
    /// was kept is held as before, unless there may have been others beside it, of which nobody knows anything.
    pub fn purpose_put_back(&self) -> Purpose {
        match self.held.purpose {
            purpose @ (Purpose::Hand | Purpose::Kept) if self.held.is_alone => purpose,
            _ => Purpose::Forgotten,
        }
    }
}

/// The answer to a request for the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// It is its own.
    Mine {
        /// The fencing token.
        fence: u64,
        /// The slot.
        slot: u32,
        /// Whether it is held by a lease, from the moment on at which this request left.
        leased: bool,
    },
    /// It is held, or others are ahead.
    Held {
        /// By whom.
        first: Option<Held>,
        /// The place in the queue, from 0, if it waits. `None` for one that was to wait: too many do, or its token shares the lock
        /// already.
        place: Option<usize>,
        /// What [`LockState::ended_unix_ms`] returns, for [`Seen::after`].
        ended_unix_ms: u64,
    },
    /// It is not wanted: what [`Claim::once_per`] asks for is done.
    Done {
        /// When the run began that has done it, in Unix time.
        began_unix_ms: u64,
    },
    /// The request was cancelled before it came.
    Cancelled,
}

impl LockState {
    /// Acquires the lock if it was granted to this request, or if a slot is free and no waiter that is listening is ahead of it.
    /// Otherwise does as [`Ask::on_held`] says.
    ///
    /// Asked again under the same token, it answers as the first time: the answer may have been lost.
    ///
    /// On failure the state must not be stored.
    pub fn acquire(&mut self, ask: &Ask<'_>, facts: &impl Facts) -> Result<Applied<Acquired>, FenceExhausted> {
        let now = facts.now();
        let token = &ask.claim.token;
        if self.is_cancelled(token, now, facts) {
            return Ok(self.unchanged(Acquired::Cancelled, Vec::new()));
        }
        self.drop_ended(Some(token), now, facts);
        let is_not_as_asked = |holder: &HolderState| {
            // A grant would say that it holds the lock alone, or that it has never lost it.
            holder.is_shared && ask.claim.mode != Mode::Shared || holder.purpose == Purpose::Forgotten
        };
        if self.position(token).is_some_and(|at| is_not_as_asked(&self.holders[at])) {
            return Ok(self.refused(None, now, facts));
        }
        if let Some(at) = self.position(token) {
            let begins_lease = self.answer_again(at, ask, now, facts);
            let HolderState { fence, slot, lease, .. } = &self.holders[at];
            let mine = Acquired::Mine { fence: *fence, slot: *slot, leased: lease.is_some() };
            return Ok(Applied { begins_lease, ..self.applied(mine, now, facts) });
        }
        if self.waiters.iter().any(|it| it.token == *token && it.mode != ask.claim.mode) {
            // It does not want what it waits for.
            self.leave(token);
        }
        if let Some(began_unix_ms) = self.done_since(ask.claim.once_per, now) {
            self.leave(token);
            return Ok(self.applied(Acquired::Done { began_unix_ms }, now, facts));
        }
        if let Some(seen) = ask.seen.filter(|seen| self.has_forgotten(seen, now)) {
            self.put_back(seen, now, facts);
        }
        let granted = self.heard_of(token);
        let mode = ask.claim.mode;
        let may_have = granted.is_some() || self.has_room(mode) && self.is_next(token, facts);
        if may_have {
            let fence = self.next_fence(now)?;
            if let Some(slot) = granted.or_else(|| self.free_slot(mode, facts)) {
                self.leave(token);
                self.hold(ask, mode, slot, fence, None, facts);
                return Ok(self.applied(Acquired::Mine { fence, slot, leased: ask.leased }, now, facts));
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

    /// Hands off what is free, and answers that the lock is not this request's.
    fn refused(&mut self, place: Option<usize>, now: Now, facts: &impl Facts) -> Applied<Acquired> {
        let granted = self.hand_off(now, facts);
        let first = self.first_held(now, facts);
        self.unchanged(Acquired::Held { first, place, ended_unix_ms: self.ended_unix_ms() }, granted)
    }

    /// Returns whether the store has forgotten a holder that a waiter has seen: no hold has ended since, and nobody holds the lock but others that
    /// were forgotten. That somebody was granted the lock says nothing: who granted it need not have seen the holder.
    fn has_forgotten(&self, seen: &Seen, now: Now) -> bool {
        let held = &seen.held;
        let is_over = held.purpose == Purpose::Kept && held.ends_ms.is_some_and(|ends_ms| ends_ms <= now.ms);
        let is_forgotten = |holder: &HolderState| holder.purpose == Purpose::Forgotten && holder.token != held.token;
        !is_over && self.ended_unix_ms() <= seen.ended_unix_ms && self.holders.iter().all(is_forgotten)
    }

    /// Makes one a holder again that the store has forgotten, as [`Seen::purpose_put_back`] says: for a whole lease, since that may have been
    /// renewed just before. What was kept ends when it would have ended.
    fn put_back(&mut self, seen: &Seen, now: Now, facts: &impl Facts) {
        let Held { who, since_ms, ends_ms, ttl_ms, purpose, fence, token, .. } = seen.held.clone();
        self.leave(&token);
        self.epoch = facts.epoch();
        // What the store knew then it may have forgotten with the holder.
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

    /// The holder at this place asks again. The lease begins anew, except that of a command's run if the lock is asked for by hand
    /// under its token. Also one that was revoked: the answer that the lock is its own promises a whole lease, and its renewals will
    /// say that it was revoked. Returns whether it does.
    pub(super) fn answer_again(&mut self, at: usize, ask: &Ask<'_>, now: Now, facts: &impl Facts) -> bool {
        let holder = &self.holders[at];
        let is_its_own = holder.purpose != Purpose::Run || !ask.claim.by_hand;
        let lease = (holder.lease.is_some() && is_its_own).then(|| self.new_lease(ask.claim.ttl, now, facts));
        let holder = &mut self.holders[at];
        holder.lease = lease.or(holder.lease);
        if holder.request.as_ref() != ask.request {
            // Two have been told that the lock is theirs, so neither takes it back.
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
            has_slots: mode.several_slots().is_some(),
            is_shared: mode == Mode::Shared,
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

    /// Returns the lowest free slot, if the mode allows one more beside those that hold the lock. A slot that the store finds taken
    /// without a holder in the state has one all the same, whose record was lost. Slot 0 is never one of those that share the lock: a
    /// store may tell by it that the lock is held alone.
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

    /// Returns when a hold ended last, in milliseconds of Unix time; 0 if none is known. Whatever the clock says, it rises with each hold that
    /// ends.
    pub fn ended_unix_ms(&self) -> u64 {
        self.last.as_ref().map_or(0, |last| last.ended_unix_ms).max(self.lost_unix_ms)
    }
}
