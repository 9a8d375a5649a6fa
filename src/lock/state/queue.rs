//! The queue, for stores without a queue of the kernel's: places, when a waiter looks, cancelling.
//!
//! A place in the queue is a lease: each request of the waiter that is answered "you wait" renews it, and at its end
//! it is lost. Whatever frees the lock hands it off in the same step: it makes the first waiters that fit holders, and
//! the lease of each place becomes the lock's. A waiter that is woken is a holder already; there is nothing to claim.
//!
//! So the dead do not keep the lock for longer than one lease, however many have died: their leases and places all end
//! within that.

use serde::{Deserialize, Serialize};

use super::{Applied, Ask, HolderState, LeaseRecord, LockState, Now, Purpose, StoreView, millis};
use crate::lock::claim::Mode;
use crate::lock::holder::Holder;
use crate::lock::token::Token;

/// How many of the first waiters look at the lock when a lease or a place ends, and the time between two of them: so
/// that the end is noticed although some of them are dead, and not by all at once.
pub const LOOKERS: usize = 4;
const LOOK_STEP_MS: u64 = 150;

/// A waiter asks again this many times in the length of its place.
pub const ASKS_PER_PLACE: u32 = 3;

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
    /// Its claim's [`Claim::once_per`](crate::lock::claim::Claim::once_per).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub once_per_ms: Option<u64>,
    /// What it wants the lock for.
    #[serde(default, skip_serializing_if = "Purpose::is_run")]
    pub purpose: Purpose,
    /// When it joined the queue.
    pub joined_ms: u64,
    /// How long its place lasts after each of its requests.
    pub place_ms: u64,
    /// When its place ends, unless it asks again.
    pub ends_ms: u64,
    /// The request that waits, if there may be several under its token, and only one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Token>,
}

/// Returns when the waiter in this place must look at the lock, although nothing wakes it. `end_ms`: when the next
/// lease, or place ahead of it, ends. `ending`: how many of the places ahead of it end before it asks again, which are
/// those of the dead, and when the last of them does. `None` if it need not look: others that are ahead of it do.
pub(super) fn look_at_ms(place: usize, end_ms: Option<u64>, ending: (usize, Option<u64>)) -> Option<u64> {
    let (dead, last_ms) = ending;
    // Its place among the living.
    let turn = place.saturating_sub(dead);
    let at_ms = if place < LOOKERS { end_ms } else { last_ms };
    at_ms.filter(|_| turn < LOOKERS).map(|at_ms| at_ms.saturating_add(LOOK_STEP_MS * turn as u64))
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
    /// Returns whether its place has not ended.
    pub fn is_in_force(&self, now: Now) -> bool {
        now.ms < self.ends_ms
    }

    /// Returns when it asks again if nothing wakes it.
    pub fn asks_at_ms(&self) -> u64 {
        self.ends_ms.saturating_sub(self.place_ms - self.place_ms / u64::from(ASKS_PER_PLACE))
    }

    /// Renews its place.
    fn renew(&mut self, place_ms: u64, now: Now) {
        self.place_ms = place_ms;
        self.ends_ms = now.ms.saturating_add(place_ms);
    }

    /// Returns the holder that the waiter becomes. Its lease ends when its place would have ended: that is what its
    /// last answer promised.
    pub(super) fn into_holder(self, slot: u32, fence: u64, now: Now) -> HolderState {
        HolderState {
            token: self.token,
            fence,
            slot,
            mode: self.mode,
            once_per_ms: self.once_per_ms,
            value: None,
            who: self.who,
            since_ms: now.ms,
            lease: Some(LeaseRecord { ends_ms: Some(self.ends_ms), ttl_ms: Some(self.place_ms) }),
            purpose: self.purpose,
            is_released: false,
            revoked_by: None,
            request: self.request,
        }
    }
}

impl LockState {
    /// Cancels a request: leaves the queue, and drops the lock if this very request obtained it, by itself or by a
    /// hand-off. Another request may have obtained it before, under a token of the user's own: then it stays held.
    ///
    /// A request that `is_in_flight` may arrive after this; it is then refused. Such a token must not be used again.
    ///
    /// Returns whether the token now holds nothing.
    pub fn cancel(
        &mut self,
        token: &Token,
        request: Option<&Token>,
        is_in_flight: bool,
        view: &impl StoreView,
    ) -> Applied<bool> {
        let now = view.now();
        let before = self.next_end();
        self.drop_ended(now, view);
        match self.position(token) {
            Some(at) if self.holders[at].request.as_ref() != request => {
                return self.finish(false, before, now, view);
            }
            Some(at) => {
                self.holders.remove(at);
            }
            None => self.leave(token),
        }
        if is_in_flight {
            self.refuse_late_requests(token, now, view);
        }
        self.finish(true, before, now, view)
    }

    /// Keeps the record from being pruned for as long as a request may still arrive that fails only because of the
    /// record. It refuses no token: the next request under the same one may be meant.
    pub fn outlast_late_requests(&mut self, view: &impl StoreView) {
        self.refuse_late_requests(&Token::default(), view.now(), view);
    }

    /// Refuses requests under this token that arrive late.
    pub(super) fn refuse_late_requests(&mut self, token: &Token, now: Now, view: &impl StoreView) {
        self.epoch = view.epoch();
        self.cancelled.retain(|cancelled| cancelled.token != *token);
        self.cancelled.push(Cancelled { token: token.clone(), until_ms: now.ms.saturating_add(IN_FLIGHT_MS) });
    }

    /// Returns whether the request under this token was cancelled before it arrived.
    pub(super) fn is_cancelled(&self, token: &Token, now: Now, view: &impl StoreView) -> bool {
        let is_it = |cancelled: &Cancelled| cancelled.token == *token && now.ms < cancelled.until_ms;
        self.cancelled.iter().any(is_it) && !self.is_of_another_epoch(view)
    }

    /// Returns the place in the queue under this token, from 0.
    pub(super) fn place_of(&self, token: &Token) -> Option<usize> {
        self.waiters.iter().position(|waiter| waiter.token == *token)
    }

    /// Renews the place of the claim, or joins the end of the queue. A claim that now wants another mode than the one
    /// that it waits for joins anew.
    pub(super) fn join(&mut self, ask: &Ask<'_>, now: Now) {
        let (claim, place_ms) = (ask.claim, millis(ask.claim.place()));
        self.waiters.retain(|waiter| waiter.token != claim.token || waiter.mode == claim.mode);
        if let Some(place) = self.place_of(&claim.token) {
            let waiter = &mut self.waiters[place];
            waiter.renew(place_ms, now);
            if waiter.request != claim.request {
                // Two requests wait in this place, so neither may cancel what the other obtains.
                waiter.request = None;
            }
            return;
        }
        self.waiters.push(WaiterState {
            token: claim.token.clone(),
            who: claim.holder.clone(),
            mode: claim.mode,
            once_per_ms: claim.once_per.map(millis),
            purpose: claim.purpose(),
            joined_ms: now.ms,
            place_ms,
            ends_ms: now.ms.saturating_add(place_ms),
            request: claim.request.clone(),
        });
    }

    /// Leaves the queue.
    pub(super) fn leave(&mut self, token: &Token) {
        self.waiters.retain(|waiter| waiter.token != *token);
    }

    /// Returns when the waiter in this place must look at the lock, although nothing wakes it: see [`look_at_ms`].
    pub(super) fn looks_at_ms(&self, place: usize) -> Option<u64> {
        let asks_at_ms = self.waiters.get(place)?.asks_at_ms();
        let ahead = self.waiters[..place].iter().map(|waiter| waiter.ends_ms);
        let ending = ahead.clone().filter(|ends_ms| *ends_ms < asks_at_ms);
        let end_ms = self.next_end().into_iter().chain(ahead).min();
        look_at_ms(place, end_ms, (ending.clone().count(), ending.max()))
    }

    /// Returns those of the first waiters that would ask again only after the next lease has ended, if that is sooner
    /// than it was `before`. They must be woken, so that they learn when to look.
    pub(super) fn to_notify_of_expiry(&self, before: Option<u64>) -> impl Iterator<Item = Token> {
        let sooner = self.next_end().filter(|end| before.is_none_or(|before| *end < before));
        let ask_too_late =
            self.waiters.iter().take(LOOKERS).filter(move |it| sooner.is_some_and(|end| end < it.asks_at_ms()));
        ask_too_late.map(|waiter| waiter.token.clone())
    }
}
