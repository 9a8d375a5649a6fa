//! What the clients of a history do and believe.

use std::time::Duration;

use super::super::tests::{ask, claim, mode, token};
use super::promises::are_allowed;
use super::*;
use crate::lock::claim::{Claim, Mode};
use crate::lock::lease::Ttl;

/// Returns the number of slots, as [`mode`] takes it.
fn slots_of(mode: Mode) -> u32 {
    match mode {
        Mode::Slots(slots) => slots,
        Mode::Shared => 0,
    }
}

impl History {
    pub(super) fn ask(&mut self, client: usize, slots: u32, by_hand: bool, on_held: OnHeld) {
        if self.is_forgotten(client) {
            if self.believes(&self.clients[client]) {
                self.has_looked = false;
                return;
            }
            self.gone(client);
        }
        let name = self.name(client);
        let claim = Claim { by_hand, ttl: Ttl::Lasts(Duration::from_secs(TTL)), ..claim(&name, slots) };
        let leased = !self.on_files || by_hand;
        let place = self.state.waiters.iter().position(|waiter| waiter.token == claim.token);
        // A waiter that now wants another mode joins again.
        let place = place.filter(|place| self.state.waiters[*place].mode == claim.mode);
        let before = place.map(|place| self.state.waiters[place].clone());
        let ahead = self.state.waiters[..place.unwrap_or(self.state.waiters.len())].to_vec();
        let ahead: Vec<_> = ahead.into_iter().filter(|waiter| waiter.token != claim.token).collect();
        let mut holders = self.state.holders.iter();
        let own = holders.find(|it| it.token == claim.token && self.ends(it) > self.now());
        let is_refused = own.is_some_and(|own| ![Mode::EXCLUSIVE, claim.mode].contains(&own.mode));
        let seen = self.clients[client].seen.take().filter(|_| on_held != OnHeld::Leave);
        let beside = self.held_beside(client, seen.as_ref());
        let request = Ask { leased, on_held, seen: seen.as_ref(), ..ask(&claim) };
        let answer = self.apply(|state, world| state.acquire(&request, world).expect("a fence is left"));
        let is_new = !self.believes(&self.clients[client]);
        match answer {
            Acquired::Mine { fence, slot, leased } => {
                assert!(self.clients[client].refused_until <= self.now(), "a cancelled request holds nothing");
                assert!(!is_refused, "it holds the lock otherwise");
                let mode = mode(slots);
                if is_new {
                    assert!(matches!(mode, Mode::Slots(slots) if slot < slots) || mode == Mode::Shared && slot > 0);
                    if before.is_none_or(|waiter| waiter.grant.is_none()) {
                        self.is_not_overtaken(&ahead);
                    }
                    self.clients[client].by_hand = by_hand;
                    self.clients[client].has_value = false;
                }
                assert!(!is_new || are_allowed(mode, &beside), "{client} holds it as {mode:?}, beside {beside:?}");
                self.acquired(client, fence);
                let until = if leased { self.promised(client, by_hand) } else { Some(u64::MAX) };
                if !leased {
                    self.world.slots.insert(slot);
                }
                let client = &mut self.clients[client];
                (client.is_waiting, client.holds_until) = (false, until);
                if is_new {
                    client.slots = slots_of(mode);
                }
            }
            Acquired::Held { place: None, .. } if is_refused => {}
            Acquired::Held { first, place, ended_unix_ms } => {
                assert!(is_new, "it has it");
                assert_eq!(place.is_some(), on_held != OnHeld::Leave);
                let client = &mut self.clients[client];
                (client.is_waiting, client.holds_until) = (place.is_some(), None);
                client.seen = place.and_then(|_| Seen::after(seen, first.as_ref(), ended_unix_ms));
                // The mode in which it joined counts.
                client.slots = place.map_or(slots, |place| slots_of(self.state.waiters[place].mode));
            }
            Acquired::Cancelled => {
                assert!(self.clients[client].refused_until > self.now());
                self.has_looked = false;
            }
            Acquired::NotNeeded { .. } => panic!("it is to run in any case"),
        }
    }

    /// Returns until when a client has the lock that learns now that it has it.
    pub(super) fn promised(&self, client: usize, by_hand: bool) -> Option<u64> {
        let before = &self.clients[client];
        let is_fixed = self.believes(before) && by_hand && !before.by_hand;
        if is_fixed { before.holds_until } else { Some(self.now() + TTL * 1000) }
    }

    pub(super) fn reserve(&mut self, client: usize) {
        let claim = Claim { ttl: Ttl::Lasts(Duration::from_secs(TTL)), ..claim(&self.name(client), 1) };
        if self.believes(&self.clients[client]) || self.clients[client].is_waiting || self.is_forgotten(client) {
            self.has_looked = false;
            return;
        }
        let wanted = Wanted::Next { from: 1, step: 1 };
        let request = Ask { leased: !self.on_files, ..ask(&claim) };
        let answer = self.apply(|state, world| state.reserve(&request, &wanted, world).expect("a fence is left"));
        match answer {
            Reserved::Mine { fence, value, slot } => {
                assert!(!self.used.contains(&value), "{value} was used");
                self.acquired(client, fence);
                let until = if self.on_files { u64::MAX } else { self.now() + TTL * 1000 };
                if self.on_files {
                    self.world.slots.insert(slot);
                }
                let client = &mut self.clients[client];
                (client.by_hand, client.has_value, client.holds_until) = (false, true, Some(until));
            }
            Reserved::Cancelled => {
                assert!(self.clients[client].refused_until > self.now());
                self.has_looked = false;
            }
            other => panic!("no value: {other:?}"),
        }
    }

    pub(super) fn renew(&mut self, client: usize, ttl: Option<u64>) {
        let name = token(&self.name(client));
        let holders = self.state.holders.len();
        let ttl = ttl.map(|seconds| Ttl::Lasts(Duration::from_secs(seconds)));
        let renewed = self.apply(|state, world| state.renew(&name, ttl, world));
        assert!(self.state.holders.len() <= holders, "a renewal never creates");
        let holder = self.state.holders.iter().find(|holder| holder.token == name);
        let is_forgotten = self.is_forgotten(client);
        match renewed {
            Renewed::Mine => {
                assert!(holder.is_none_or(|holder| holder.revoked_by.is_none()), "what was revoked is not renewed");
                let ends = holder.map(|holder| self.ends(holder));
                let client = &mut self.clients[client];
                let is_its_own = client.holds_until.is_some_and(|until| until > self.world.now.ms);
                assert!(is_its_own || is_forgotten, "a renewal never creates");
                assert!(client.by_hand || ends >= client.holds_until, "a command's lease is never shortened");
                // Nobody knows that a forgotten holder shared the lock.
                client.holds_until = ends.filter(|_| !is_forgotten);
            }
            Renewed::NotMine(_) => assert!(!self.believes(&self.clients[client]) || is_forgotten, "it was its own"),
            Renewed::Revoked(_) => {}
        }
    }

    pub(super) fn end(&mut self, client: usize, kept: Option<u64>, succeeded: bool) {
        let name = token(&self.name(client));
        let before = self.state.holders.iter().find(|holder| holder.token == name).cloned();
        let retain = kept.map_or(Retain::Not, |seconds| Retain::Kept(Ttl::Lasts(Duration::from_secs(seconds))));
        let release = Release::Run { ending: Ending::Exited(0), succeeded, retain };
        let released = self.apply(|state, world| state.release(&name, release, false, world));
        // A repeated request to keep the lock changes nothing.
        let is_run = before.as_ref().is_some_and(|holder| holder.purpose == Purpose::Run);
        if succeeded && (is_run || released != Released::Retained) {
            self.used.extend(before.as_ref().and_then(|holder| Some(holder.value.as_ref()?.value.clone())));
        }
        let slot = before.as_ref().filter(|holder| holder.lease.is_none()).map(|holder| holder.slot);
        if released == Released::Retained {
            let ends = self.state.holders.iter().find(|holder| holder.token == name).map(|holder| self.ends(holder));
            let ends = ends.filter(|_| !self.is_forgotten(client));
            let client = &mut self.clients[client];
            (client.holds_until, client.by_hand) = (ends, true);
            self.world.slots.retain(|taken| Some(*taken) != slot);
        } else {
            assert!(!self.holds_anything(client), "a run that is over leaves nothing");
            self.world.slots.retain(|taken| Some(*taken) != slot);
            self.gone(client);
        }
    }

    pub(super) fn revoke(&mut self, client: Option<usize>, at_once: bool) {
        let name = client.map(|client| token(&self.name(client)));
        let holder = self.state.holders.iter().find(|holder| Some(&holder.token) == name.as_ref());
        let fence = holder.map(|holder| holder.fence);
        let by = Holder::default();
        let held: Vec<_> = (0..self.clients.len()).map(|client| self.holds_anything(client)).collect();
        self.apply(|state, world| state.revoke(fence.as_ref().map(std::slice::from_ref), &by, at_once, world));
        // A client that has lost the lock does not know it yet; by then another may hold it: `--now` accepts that.
        for (client, held) in held.into_iter().enumerate() {
            if !self.holds_anything(client) && (held || !self.is_forgotten(client)) {
                self.clients[client].holds_until = None;
            }
        }
    }

    pub(super) fn claim_all(&mut self) {
        self.has_looked = false;
        for _ in 0..self.clients.len() {
            let granted = (0..self.clients.len()).find(|client| {
                let name = token(&self.name(*client));
                self.state.waiters.iter().any(|waiter| waiter.token == name && waiter.grant.is_some())
            });
            let Some(client) = granted else { break };
            let slots = self.clients[client].slots;
            self.ask(client, slots, false, OnHeld::Wait { max: None });
            self.has_looked = true;
        }
    }

    /// The client dies. Its number goes to a new client.
    pub(super) fn die(&mut self, client: usize) {
        self.world.absent.insert(self.name(client), Presence::Gone);
        self.gone(client);
        self.clients[client] = Client { life: self.clients[client].life + 1, ..Client::default() };
    }

    /// The client gives up this acquisition, and its kernel lock.
    pub(super) fn gone(&mut self, client: usize) {
        let name = token(&self.name(client));
        if let Some(holder) = self.state.holders.iter().find(|holder| holder.token == name && holder.lease.is_none()) {
            self.world.slots.remove(&holder.slot);
        }
        let Client { life, refused_until, .. } = self.clients[client];
        let life = life + u32::from(self.is_forgotten(client));
        self.clients[client] = Client { life, refused_until, ..Client::default() };
    }

    /// The store forgets the holders. A command depends on the lease that its lockrun was promised, not on time added by hand;
    /// no command depends on a lease by hand.
    pub(super) fn forget_holders(&mut self) {
        self.forgotten.extend(self.state.holders.drain(..).map(|holder| holder.token.as_str().to_owned()));
        let most = self.now() + TTL * 1000;
        for client in &mut self.clients {
            client.holds_until = client.holds_until.map(|until| until.min(most)).filter(|_| !client.by_hand);
        }
    }
}
