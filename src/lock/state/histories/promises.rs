//! The promises that every history must keep.

use std::time::Duration;

use super::super::tests::{mode, token};
use super::*;
use crate::lock::claim::Mode;

/// Returns whether the lock may be held in this mode beside these holders.
pub(super) fn are_allowed(asked: Mode, beside: &[Mode]) -> bool {
    match asked {
        Mode::Shared => beside.iter().all(|other| *other == Mode::Shared),
        Mode::Slots(slots) => beside.len() < slots as usize && !beside.contains(&Mode::Shared),
    }
}

impl History {
    /// Checks that the waiters that were woken to hold the lock were the first in their order.
    pub(super) fn is_handed_off_in_order(&self, before: &[WaiterState], woken: &[Token]) {
        let holds = |token: &Token| self.state.holders.iter().any(|holder| holder.token == *token);
        for token in woken.iter().filter(|token| holds(token)) {
            let place = before.iter().position(|waiter| waiter.token == *token).expect("it was there before");
            self.is_not_overtaken(&before[..place]);
        }
    }

    /// Returns the modes of the other clients that believe that they hold the lock.
    pub(super) fn held_beside(&self, client: usize) -> Vec<Mode> {
        let others = self.clients.iter().enumerate().filter(|(other, _)| *other != client);
        others.filter(|(_, it)| self.believes(it) && !it.has_value).map(|(_, it)| mode(it.slots)).collect()
    }

    /// Records the fences of the holders that were not there `before`. Each must be greater than all earlier ones, and
    /// each must be allowed beside the holders before it.
    pub(super) fn new_holders_are_allowed(&mut self, before: &[HolderState]) {
        for (at, holder) in self.state.holders.iter().enumerate() {
            if before.iter().any(|it| it.token == holder.token && it.fence == holder.fence) {
                continue;
            }
            let greatest = self.fences.keys().next_back().copied().unwrap_or_default();
            assert!(holder.fence > greatest, "{} after {greatest}", holder.fence);
            assert!(holder.fence >= self.world.now.unix_ms || greatest + 1 == holder.fence);
            self.fences.insert(holder.fence, holder.token.as_str().to_owned());
            let others = self.state.holders[..at].iter().filter(|other| self.ends(other) > self.now());
            let beside: Vec<_> = others.filter(|other| other.value.is_none()).map(|other| other.mode).collect();
            assert!(holder.value.is_some() || are_allowed(holder.mode, &beside), "{holder:?} is beside {beside:?}");
        }
    }

    /// Checks that the fence in the answer to a client is that of its acquisition.
    pub(super) fn acquired(&self, client: usize, fence: u64) {
        assert_eq!(self.fences.get(&fence), Some(&self.name(client)));
    }

    pub(super) fn is_not_overtaken(&self, ahead: &[WaiterState]) {
        for ahead in ahead.iter().filter(|waiter| waiter.is_in_force(self.world.now)) {
            let mut waiters = self.state.waiters.iter();
            // One that asked for another mode has joined again, at the end.
            let still_waits =
                waiters.any(|it| it.token == ahead.token && it.joined_ms == ahead.joined_ms && it.mode == ahead.mode);
            assert!(!still_waits, "{:?} is overtaken", ahead.token.as_str());
        }
    }

    /// Checks what must hold at any time.
    pub(super) fn holds(&self) {
        for client in (0..self.clients.len()).filter(|client| self.believes(&self.clients[*client])) {
            let name = token(&self.name(client));
            let holder = self.state.holders.iter().find(|holder| holder.token == name);
            assert!(holder.is_some(), "what a client was promised is kept");
            assert!(holder.is_none_or(|holder| Some(self.ends(holder)) >= self.clients[client].holds_until));
        }
        for client in 0..self.clients.len() {
            // It may be woken at any moment.
            let waits = self.clients[client].waits.filter(|waits| waits.asked_ms + TTL * 1000 > self.now());
            let (Some(waits), name) = (waits, token(&self.name(client))) else { continue };
            let holder = self.state.holders.iter().find(|holder| holder.token == name);
            let ends_ms = holder.map(|holder| self.ends(holder));
            let waiter = self.state.waiters.iter().find(|waiter| waiter.token == name);
            let ends_ms = ends_ms.or(waiter.map(|waiter| waiter.ends_ms));
            assert!(
                ends_ms.is_none_or(|ends_ms| ends_ms >= waits.asked_ms + TTL * 1000),
                "its place is shorter than promised"
            );
        }
        if self.has_looked {
            // Nothing that has ended blocks the lock.
            let leases = self.state.holders.iter().map(|holder| self.ends(holder));
            let places = self.state.waiters.iter().map(|waiter| waiter.ends_ms);
            assert!(leases.chain(places).all(|ends| ends > self.now()), "it has ended: {:?}", self.state);
        }
        let mut slots: Vec<_> = self.state.holders.iter().map(|holder| holder.slot).collect();
        slots.sort_unstable();
        assert!(slots.windows(2).all(|pair| pair[0] < pair[1]), "no two have the same slot: {slots:?}");
        if self.has_looked {
            let beside: Vec<_> = self.state.holders.iter().map(|it| it.mode).collect();
            let first = self.state.waiters.first();
            assert!(first.is_none_or(|first| !are_allowed(first.mode, &beside)), "a free slot and a waiter");
        }
    }

    /// Checks that, whatever has happened, every live waiter gets the lock in the end, and then nothing is left.
    pub(super) fn ends_well(&mut self) {
        for _ in 0..4 * self.clients.len() {
            for client in 0..self.clients.len() {
                if self.clients[client].waits.is_some() {
                    let slots = self.clients[client].slots;
                    self.step(&Step::Wait { client, slots });
                }
            }
            for client in 0..self.clients.len() {
                if self.believes(&self.clients[client]) {
                    self.step(&Step::End { client, kept: None, succeeded: false });
                }
            }
            self.step(&Step::Pass(TTL * 1000 / 3));
        }
        for client in 0..self.clients.len() {
            assert!(self.clients[client].waits.is_none(), "{client} waits for ever");
        }
        self.step(&Step::Pass(1_000_000));
        // A fence that is ahead of a clock that was set back is kept.
        self.step(&Step::SetWallClock(1 << 40));
        self.apply(|state, world| state.cancel(&token("nobody"), None, false, world));
        let LockState { epoch, holders, waiters, cancelled, .. } = &self.state;
        assert!(
            epoch.is_empty() && holders.is_empty() && waiters.is_empty() && cancelled.is_empty(),
            "{:?}",
            self.state
        );
        assert_eq!(self.state.is_prunable(Duration::ZERO, &self.world), self.state.sequence.is_none());
    }

    /// Returns when a holder loses the lock.
    pub(super) fn ends(&self, holder: &HolderState) -> u64 {
        match holder.lease {
            Some(lease) => lease.ends_ms.unwrap_or(u64::MAX),
            None if self.world.slots.contains(&holder.slot) => u64::MAX,
            None => 0,
        }
    }

    pub(super) fn holds_anything(&self, client: usize) -> bool {
        let name = token(&self.name(client));
        self.state.holders.iter().any(|holder| holder.token == name)
            || self.state.waiters.iter().any(|waiter| waiter.token == name)
    }
}
