//! Who gets the lock: slots, and repeated requests.

use super::{Applied, FenceExhausted, HolderState, LeaseRecord, LockState, Now, Purpose, StoreView, Value, millis};
use crate::lock::answer::{Acquired, Grant};
use crate::lock::claim::{Claim, Mode};
use crate::lock::held::Held;
use crate::sys::clock::Moment;

/// A request for the lock.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The claim.
    pub claim: &'a Claim,
    /// Whether the lock is to be held by a lease. Otherwise it is held for as long as [`StoreView::holds_slot`] says.
    pub leased: bool,
    /// When the request was sent. The lease counts from then for the one that holds it.
    pub sent_at: Moment,
    /// What to do if the lock is held.
    pub if_held: IfHeld,
}

/// What to do with a claim if the lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfHeld {
    /// Join the queue, or stay in it.
    Queue {
        /// Unless this many already wait.
        max_waiting: Option<u32>,
        /// When the waiter gives up; `None`: never. A store need not enforce this.
        until: Option<Moment>,
    },
    /// Leave the queue, and nothing in the store.
    Leave,
}

impl LockState {
    /// Requests the lock: joins the queue, or renews the place in it, and hands the lock off to the first waiters. If
    /// the request is not one of them, it does as [`Ask::if_held`] says.
    ///
    /// A repeated request under the same token gets the same answer: the first reply, or the wake-up, may have been
    /// lost.
    ///
    /// On failure the state must not be stored.
    pub fn acquire(&mut self, ask: &Ask<'_>, view: &impl StoreView) -> Result<Applied<Acquired>, FenceExhausted> {
        let (now, before) = (view.now(), self.next_end());
        let Claim { token, mode, once_per, .. } = ask.claim;
        if self.is_cancelled(token, now, view) {
            // Nobody waits for this answer: a claim is cancelled only when it is given up.
            return Ok(self.finish_with(Acquired::Held(Held::default()), before, Vec::new(), view));
        }
        self.drop_ended(now, view);
        if let Some(at) = self.position(token) {
            if !self.is_held_as_asked(at, *mode) {
                let refused = self.held_by_others(ask, None, now, view);
                return Ok(self.finish(refused, before, now, view));
            }
            let begins_lease = self.answer_again(at, ask, now, view);
            let mine = Acquired::Mine(self.holders[at].grant(ask));
            return Ok(Applied { begins_lease, ..self.finish(mine, before, now, view) });
        }
        if let Some(success) = self.recent_success(*once_per, now) {
            self.leave(token);
            return Ok(self.finish(Acquired::NotNeeded(success), before, now, view));
        }
        let has_waited = self.place_of(token).is_some();
        self.join(ask, now);
        let mut woken = Vec::new();
        self.hand_off(Some(ask), &mut woken, now, view);
        if let Some(at) = self.position(token) {
            let mine = Acquired::Mine(self.holders[at].grant(ask));
            return Ok(self.finish_with(mine, before, woken, view));
        }
        if self.place_of(token) == Some(0) && self.has_room(*mode) {
            // Only a fence may be missing.
            self.next_fence(view)?;
        }
        let place = self.place_of(token).filter(|place| match ask.if_held {
            IfHeld::Queue { max_waiting, .. } => {
                has_waited || max_waiting.is_none_or(|max| place.saturating_add(view.unread_waiters()) < max as usize)
            }
            IfHeld::Leave => false,
        });
        if place.is_some() {
            self.epoch = view.epoch();
            ask.claim.key.as_str().clone_into(&mut self.key);
        } else {
            self.leave(token);
            // It may have stood in the way of those behind it.
            self.hand_off(None, &mut woken, now, view);
        }
        let held = self.held_by_others(ask, place, now, view);
        let applied = self.finish_with(held, before, woken, view);
        // The answer says when to look.
        Ok(Applied { woken: applied.woken.into_iter().filter(|woken| woken != token).collect(), ..applied })
    }

    /// Returns the answer to a request that does not hold the lock, and waits in this place or not at all.
    fn held_by_others(&self, ask: &Ask<'_>, place: Option<usize>, now: Now, view: &impl StoreView) -> Acquired {
        let held = Held {
            place: place.map(|place| place as u64),
            look_in: place.and_then(|place| self.looks_at_ms(place)).map(|at_ms| now.until(at_ms)),
            last_fence: self.fence,
            ..self.first_held(now, view).unwrap_or_default()
        };
        match (place, ask.if_held) {
            (None, IfHeld::Queue { .. }) => Acquired::NotQueued(held),
            _ => Acquired::Held(held),
        }
    }

    /// Returns whether a holder that asks again can be answered that it holds the lock. Otherwise the answer would say
    /// that it holds the lock in another mode, by which others are not admitted or refused. One that acquired it alone
    /// is answered in any mode.
    fn is_held_as_asked(&self, at: usize, mode: Mode) -> bool {
        let holder = &self.holders[at];
        holder.purpose != Purpose::Unrecorded && [Mode::EXCLUSIVE, mode].contains(&holder.mode)
    }

    /// Answers a holder that asks again. Its lease is restarted, except a run's if the lock is requested by hand under
    /// its token. So is a revoked lease: the answer promises a whole one, and the renewals will report the revocation.
    /// Returns whether the lease was restarted.
    pub(super) fn answer_again(&mut self, at: usize, ask: &Ask<'_>, now: Now, view: &impl StoreView) -> bool {
        let holder = &self.holders[at];
        let is_its_own = holder.purpose != Purpose::Run || !ask.claim.by_hand;
        let lease = (holder.lease.is_some() && is_its_own).then(|| self.new_lease(ask.claim.ttl, now, view));
        let holder = &mut self.holders[at];
        holder.lease = lease.or(holder.lease);
        if holder.request != ask.claim.request {
            // Two requests were answered that they hold the lock, so neither may cancel it.
            holder.request = None;
        }
        lease.is_some()
    }

    /// Makes the request a holder. Returns what it has obtained.
    pub(super) fn hold(
        &mut self,
        ask: &Ask<'_>,
        mode: Mode,
        slot: u32,
        fence: u64,
        value: Option<Value>,
        view: &impl StoreView,
    ) -> Grant {
        let (claim, now) = (ask.claim, view.now());
        let lease: Option<LeaseRecord> = ask.leased.then(|| self.new_lease(claim.ttl, now, view));
        claim.key.as_str().clone_into(&mut self.key);
        self.fence = fence;
        let holder = HolderState {
            token: claim.token.clone(),
            fence,
            slot,
            mode,
            once_per_ms: claim.once_per.map(millis),
            value,
            who: claim.holder.clone(),
            since_ms: now.ms,
            lease,
            purpose: claim.purpose(),
            is_released: false,
            revoked_by: None,
            request: claim.request.clone(),
        };
        let grant = holder.grant(ask);
        self.holders.push(holder);
        grant
    }

    /// Returns the lowest free slot, if the mode allows another holder. A slot that the store finds taken, without a
    /// holder in the state, counts as held: its record was lost. Shared holders never get slot 0, so a store can tell
    /// by it that the lock is held alone.
    pub(super) fn free_slot(&self, mode: Mode, view: &impl StoreView) -> Option<u32> {
        let (slots, limit) = match mode {
            Mode::Slots(slots) => (0..slots, slots),
            Mode::Shared if view.take_share() => (1..u32::MAX, u32::MAX),
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
            if view.take_slot(slot) {
                return Some(slot);
            }
            held += 1;
        }
        None
    }

    /// Returns whether this slot is held.
    pub(super) fn has_slot(&self, slot: u32) -> bool {
        self.holders.iter().any(|holder| holder.slot == slot)
    }
}

impl HolderState {
    /// Returns what the holder has obtained, as the answer to this request.
    pub(super) fn grant(&self, ask: &Ask<'_>) -> Grant {
        let lease_from = self.lease.map(|_| ask.sent_at);
        Grant { fence: self.fence, slot: self.slot, lease_from, by_hand_off: false }
    }
}
