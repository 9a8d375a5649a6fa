//! What the clients of a history do and believe.

use std::time::Duration;

use super::super::tests::{ask, claim, mode, token};
use super::promises::are_allowed;
use super::*;
use crate::lock::answer::Grant;
use crate::lock::claim::{Claim, Mode};
use crate::lock::held::Held;
use crate::lock::lease::Ttl;

/// Returns the number of slots, as [`mode`] takes it.
fn slots_of(mode: Mode) -> u32 {
    match mode {
        Mode::Slots(slots) => slots,
        Mode::Shared => 0,
    }
}

impl History {
    pub(super) fn ask(&mut self, client: usize, slots: u32, by_hand: bool, if_held: IfHeld) {
        let name = self.name(client);
        let claim = Claim { by_hand, ttl: Ttl::Lasts(Duration::from_secs(TTL)), ..claim(&name, slots) };
        let leased = !self.on_files || by_hand;
        let place = self.state.waiters.iter().position(|waiter| waiter.token == claim.token);
        // A waiter that now wants another mode joins again.
        let place = place.filter(|place| self.state.waiters[*place].mode == claim.mode);
        let ahead = self.state.waiters[..place.unwrap_or(self.state.waiters.len())].to_vec();
        let ahead: Vec<_> = ahead.into_iter().filter(|waiter| waiter.token != claim.token).collect();
        let mut holders = self.state.holders.iter();
        let own = holders.find(|it| it.token == claim.token && self.ends(it) > self.now()).cloned();
        let is_refused = own.as_ref().is_some_and(|own| ![Mode::EXCLUSIVE, claim.mode].contains(&own.mode));
        let beside = self.held_beside(client);
        let request = Ask { leased, if_held, ..ask(&claim) };
        let answer = self.apply(|state, world| state.acquire(&request, world).expect("a fence is left"));
        let is_new = !self.believes(&self.clients[client]);
        match answer {
            Acquired::Mine(Grant { fence, slot, lease_from, .. }) => {
                let leased = lease_from.is_some();
                assert!(self.clients[client].refused_until <= self.now(), "a cancelled request holds nothing");
                assert!(!is_refused, "it holds the lock otherwise");
                // One to which the lock was handed learns it only now.
                let mode = own.as_ref().map_or(mode(slots), |own| own.mode);
                if is_new {
                    assert!(matches!(mode, Mode::Slots(slots) if slot < slots) || mode == Mode::Shared && slot > 0);
                    if own.is_none() {
                        self.is_not_overtaken(&ahead);
                    }
                    self.clients[client].by_hand = own.as_ref().map_or(by_hand, |own| own.purpose == Purpose::Hand);
                    self.clients[client].has_value = false;
                }
                let is_allowed = own.is_some() || are_allowed(mode, &beside);
                assert!(is_allowed, "{client} holds it as {mode:?}, beside {beside:?}");
                self.acquired(client, fence);
                let is_fixed = is_new && by_hand && own.as_ref().is_some_and(|own| own.purpose == Purpose::Run);
                let until = match &own {
                    // An acquisition by hand does not extend what was handed to a run.
                    Some(own) if is_fixed => Some(self.ends(own)),
                    _ if leased => self.promised(client, by_hand),
                    _ => Some(u64::MAX),
                };
                if !leased {
                    self.world.slots.insert(slot);
                }
                let client = &mut self.clients[client];
                (client.waits, client.holds_until) = (None, until);
                if is_new {
                    client.slots = slots_of(mode);
                }
            }
            Acquired::Held(_) | Acquired::NotQueued(_) if is_refused => {}
            Acquired::Held(Held { place: None, .. }) if self.clients[client].refused_until > self.now() => {
                self.has_looked = false;
            }
            Acquired::Held(Held { place, last_fence, .. }) => {
                let place = place.map(|place| usize::try_from(place).expect("is small"));
                assert!(is_new, "it has it");
                assert_eq!(place.is_some(), if_held != IfHeld::Leave);
                let waits = place.map(|_| Waits { asked_ms: self.now(), last_fence });
                let client = &mut self.clients[client];
                (client.waits, client.holds_until) = (waits, None);
                // The mode in which it joined counts.
                client.slots = place.map_or(slots, |place| slots_of(self.state.waiters[place].mode));
            }
            Acquired::NotQueued(_) => panic!("it is to wait in any case"),
            Acquired::NotNeeded(_) => panic!("it is to run in any case"),
            Acquired::Interrupted(_) => unreachable!("no rule says this"),
        }
    }

    /// The wake-ups of a client arrive. It holds the lock under the lease that its last answer promised, if that has
    /// not ended, and none of them is from before that answer.
    pub(super) fn wake_up(&mut self, client: usize) {
        let name = self.name(client);
        let sent: Vec<u64> = self.wake_ups.iter().filter(|(to, _)| *to == name).map(|(_, fence)| *fence).collect();
        for fence in sent {
            let Some(waits) = self.clients[client].waits.filter(|waits| fence > waits.last_fence) else { continue };
            let until = waits.asked_ms + TTL * 1000;
            if until <= self.now() {
                continue;
            }
            self.acquired(client, fence);
            let client = &mut self.clients[client];
            (client.waits, client.holds_until, client.by_hand, client.has_value) = (None, Some(until), false, false);
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
        if self.believes(&self.clients[client]) || self.clients[client].waits.is_some() {
            self.has_looked = false;
            return;
        }
        let wanted = Wanted::Next { from: 1, step: 1 };
        let request = Ask { leased: !self.on_files, ..ask(&claim) };
        let answer = self.apply(|state, world| state.reserve(&request, &wanted, world).expect("a fence is left"));
        match answer {
            Reserved::Mine(Grant { fence, slot, .. }, value) => {
                assert!(!self.used.contains(&value), "{value} was used");
                self.acquired(client, fence);
                let until = if self.on_files { u64::MAX } else { self.now() + TTL * 1000 };
                if self.on_files {
                    self.world.slots.insert(slot);
                }
                let client = &mut self.clients[client];
                (client.by_hand, client.has_value, client.holds_until) = (false, true, Some(until));
            }
            Reserved::Taken if self.clients[client].refused_until > self.now() => self.has_looked = false,
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
        match renewed {
            Renewed::Mine => {
                assert!(holder.is_none_or(|holder| holder.revoked_by.is_none()), "what was revoked is not renewed");
                let ends = holder.map(|holder| self.ends(holder));
                let client = &mut self.clients[client];
                assert!(client.by_hand || ends >= client.holds_until, "a command's lease is never shortened");
                if client.waits.take().is_some() {
                    // The lock was handed to it, which it learns by this.
                    (client.by_hand, client.has_value) = (holder.is_some_and(|it| it.purpose == Purpose::Hand), false);
                    client.slots = holder.map_or(client.slots, |holder| slots_of(holder.mode));
                }
                client.holds_until = ends;
            }
            Renewed::NotMine(_) => assert!(!self.believes(&self.clients[client]), "it was its own"),
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
            let client = &mut self.clients[client];
            (client.holds_until, client.by_hand, client.waits) = (ends, true, None);
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
            if held && !self.holds_anything(client) {
                (self.clients[client].holds_until, self.clients[client].waits) = (None, None);
            }
        }
    }

    /// The client dies. Its number goes to a new client.
    pub(super) fn die(&mut self, client: usize) {
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
        self.clients[client] = Client { life, refused_until, ..Client::default() };
    }
}
