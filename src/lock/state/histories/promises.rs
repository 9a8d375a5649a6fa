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
    /// Checks the order of live waiters: no waiter is granted the lock while an earlier one listens and has no grant.
    pub(super) fn grants_are_in_order(&self, before: &[WaiterState], granted: &[Token]) {
        for token in granted {
            let place = before.iter().position(|waiter| waiter.token == *token);
            // It may have joined just now; then all the others joined earlier.
            for ahead in &before[..place.unwrap_or(before.len())] {
                let now = self.state.waiters.iter().find(|waiter| waiter.token == ahead.token);
                // A waiter that asked for another mode has joined again, at the end.
                let place = |token: &Token| self.state.waiters.iter().position(|waiter| waiter.token == *token);
                let is_ahead = place(&ahead.token) < place(token);
                let is_passed_by = now.is_some_and(|now| self.is_willing(now)) && is_ahead;
                assert!(!is_passed_by, "{:?} is passed by for {token:?}", ahead.token.as_str());
            }
        }
    }

    pub(super) fn is_willing(&self, waiter: &WaiterState) -> bool {
        waiter.grant.is_none() && !waiter.is_unresponsive && self.world.presence(waiter) == Presence::Listening
    }

    pub(super) fn a_waiter_looks_in_time(&self, look_at: Option<u64>) {
        let ends = self.state.holders.iter().filter_map(|holder| holder.lease.and_then(|lease| lease.ends_ms));
        let ends = ends.chain(self.state.waiters.iter().filter_map(|waiter| waiter.grant.map(|grant| grant.ends_ms)));
        assert_eq!(look_at, ends.min());
    }

    /// Returns the modes of the other holders, if a client that has `seen` a holder acquires the lock now.
    pub(super) fn held_beside(&self, client: usize, seen: Option<&Seen>) -> Vec<Mode> {
        let others = self.clients.iter().enumerate().filter(|(other, _)| *other != client);
        let others = others.filter(|(_, it)| self.believes(it) && !it.has_value);
        let counts = others.filter(|(other, _)| !self.is_forgotten(*other) || self.is_remembered(*other, seen));
        counts.map(|(_, it)| mode(it.slots)).collect()
    }

    /// Returns whether a forgotten client is a holder again, or will be because it was `seen`: not if others may have held the
    /// lock since.
    fn is_remembered(&self, client: usize, seen: Option<&Seen>) -> bool {
        let name = token(&self.name(client));
        let is_seen = |seen: &Seen| seen.held.token == name && seen.ended_unix_ms == self.state.ended_unix_ms();
        let is_held = self.state.holders.iter().any(|holder| holder.purpose != Purpose::Forgotten);
        self.state.holders.iter().any(|holder| holder.token == name) || !is_held && seen.is_some_and(is_seen)
    }

    /// Records an acquisition. Its fence must be greater than all earlier ones.
    pub(super) fn acquired(&mut self, client: usize, fence: u64) {
        let name = self.name(client);
        let is_again = self.fences.get(&fence) == Some(&name);
        let greatest = self.fences.keys().next_back().copied().unwrap_or_default();
        assert!(is_again || fence > greatest, "{fence} after {greatest}");
        assert!(fence >= self.world.now.unix_ms || is_again || greatest + 1 == fence);
        self.fences.insert(fence, name);
    }

    pub(super) fn is_not_overtaken(&self, ahead: &[WaiterState]) {
        for ahead in ahead {
            let now = self.state.waiters.iter().find(|waiter| waiter.token == ahead.token);
            assert!(!now.is_some_and(|now| self.is_willing(now)), "{:?} is overtaken", ahead.token.as_str());
        }
    }

    /// Checks what must hold at any time.
    pub(super) fn holds(&self) {
        for client in (0..self.clients.len()).filter(|client| self.believes(&self.clients[*client])) {
            let name = token(&self.name(client));
            let holder = self.state.holders.iter().find(|holder| holder.token == name);
            assert!(holder.is_some() || self.is_forgotten(client), "what a client was promised is kept");
            assert!(holder.is_none_or(|holder| Some(self.ends(holder)) >= self.clients[client].holds_until));
        }
        if self.has_looked {
            // Nothing that has ended blocks the lock: a dead waiter costs no more than its claim window.
            let leases = self.state.holders.iter().map(|holder| self.ends(holder));
            let grants = self.state.waiters.iter().filter_map(|waiter| Some(waiter.grant?.ends_ms));
            assert!(leases.chain(grants).all(|ends| ends > self.now()), "it has ended: {:?}", self.state);
        }
        if self.state.holders.iter().any(|holder| self.forgotten.contains(holder.token.as_str())) {
            // A holder that was put back may be alone with the lock, and may have the slot of a grant made meanwhile.
            return;
        }
        let mut slots: Vec<_> = self.state.holders.iter().map(|holder| holder.slot).collect();
        slots.extend(self.state.waiters.iter().filter_map(|waiter| waiter.grant.map(|grant| grant.slot)));
        slots.sort_unstable();
        assert!(slots.windows(2).all(|pair| pair[0] < pair[1]), "no two have the same slot: {slots:?}");
        // A free slot is granted to a willing waiter at once.
        let held = u32::try_from(slots.len()).expect("a few");
        let is_in_the_way =
            |waiter: &WaiterState| waiter.grant.is_some() && matches!(waiter.mode, Mode::Slots(slots) if slots <= held);
        if self.has_looked && !self.state.waiters.iter().any(is_in_the_way) {
            let first = self.state.waiters.iter().find(|waiter| self.is_willing(waiter));
            let holders = self.state.holders.iter().map(|it| it.mode);
            let granted = self.state.waiters.iter().filter(|waiter| waiter.grant.is_some()).map(|waiter| waiter.mode);
            let beside: Vec<_> = holders.chain(granted).collect();
            assert!(first.is_none_or(|first| !are_allowed(first.mode, &beside)), "a free slot and a willing waiter");
        }
    }

    /// Checks that, whatever has happened, every live waiter gets the lock in the end, and then nothing is left.
    pub(super) fn ends_well(&mut self) {
        self.world.absent.retain(|_, presence| *presence == Presence::Gone);
        for _ in 0..4 * self.clients.len() {
            for client in 0..self.clients.len() {
                let is_dead = self.world.absent.contains_key(&self.name(client));
                if self.clients[client].is_waiting && !is_dead {
                    let slots = self.clients[client].slots;
                    self.step(&Step::Wait { client, slots });
                }
            }
            self.step(&Step::ClaimAll);
            for client in 0..self.clients.len() {
                if self.believes(&self.clients[client]) {
                    self.step(&Step::End { client, kept: None, succeeded: false });
                }
            }
            self.step(&Step::Pass(TTL * 1000));
        }
        for client in 0..self.clients.len() {
            let is_dead = self.world.absent.contains_key(&self.name(client));
            assert!(is_dead || !self.clients[client].is_waiting, "{client} waits for ever");
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
