//! The hand-off: a lock that is free goes to the first waiters in the same step. The lease of each place becomes the
//! lock's.

use std::time::Duration;

use super::{Ask, LockState, Now, Purpose, StoreView};
use crate::lock::claim::Mode;
use crate::lock::token::Token;

impl LockState {
    /// Returns whether the lock may be held in this mode now, beside the holders.
    pub fn has_room(&self, mode: Mode) -> bool {
        let mut modes = self.holders.iter().map(|holder| holder.mode);
        match mode {
            _ if self.holders.iter().any(|holder| holder.purpose == Purpose::Unrecorded) => false,
            Mode::Shared => modes.all(|mode| mode == Mode::Shared),
            Mode::Slots(slots) => self.held() < slots && !modes.any(|mode| mode == Mode::Shared),
        }
    }

    /// Makes the first waiters holders, in order, for as long as the next one fits beside the holders. A slot that it
    /// cannot use, because it allows fewer holders, is not handed to those behind it. A waiter whose run is not needed
    /// any more is removed. The request that asks gets the lease that it asks for.
    ///
    /// Adds the other waiters that this concerns to `woken`: they must be woken.
    pub(super) fn hand_off(
        &mut self,
        asking: Option<&Ask<'_>>,
        woken: &mut Vec<Token>,
        now: Now,
        view: &impl StoreView,
    ) {
        while let Some(waiter) = self.waiters.first().filter(|_| woken.len() < view.hand_offs_max()) {
            if self.recent_success(waiter.once_per_ms.map(Duration::from_millis), now).is_some() {
                woken.push(self.waiters.remove(0).token);
                continue;
            }
            let mode = waiter.mode;
            if !self.has_room(mode) {
                break;
            }
            // Without a fence nobody can hold the lock: the next request reports it.
            let Ok(fence) = self.next_fence(view) else { break };
            let Some(slot) = self.free_slot(mode, view) else { break };
            let waiter = self.waiters.remove(0);
            if let Some(ask) = asking.filter(|ask| ask.claim.token == waiter.token) {
                self.hold(ask, mode, slot, fence, None, view);
                continue;
            }
            woken.push(waiter.token.clone());
            self.fence = fence;
            self.holders.push(waiter.into_holder(slot, fence, now));
        }
    }
}
