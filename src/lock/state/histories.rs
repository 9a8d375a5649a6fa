//! Random histories: clients that come, wait, claim, renew, release, cancel, fall silent and die, in any order and at any time,
//! with different numbers of slots. After each step the promises hold.
//!
//! What a client believes is kept apart from the state: it has the lock from the answer that said so until the end of the lease
//! that it was promised.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::tests::{World, ask, claim, token};
use super::*;
use crate::lock::claim::Claim;
use crate::lock::lease::Ttl;

/// The lease of every run, in seconds.
const TTL: u64 = 10;

/// One step of a history. The client is one of a few, by its number.
#[derive(Clone, Debug)]
enum Step {
    /// Time passes, in ms.
    Pass(u64),
    /// Asks once.
    Try {
        client: usize,
        slots: u32,
        by_hand: bool,
    },
    /// Joins the queue, or asks how it stands there.
    Wait {
        client: usize,
        slots: u32,
    },
    /// Reserves a value.
    Reserve(usize),
    Renew {
        client: usize,
        ttl: Option<u64>,
    },
    /// Its run ends.
    End {
        client: usize,
        kept: Option<u64>,
        uses_value: bool,
    },
    ReleaseByHand(usize),
    Cancel {
        client: usize,
        is_in_flight: bool,
    },
    Revoke {
        client: Option<usize>,
        at_once: bool,
    },
    /// The waiter stops listening, is heard of again, or dies.
    Becomes {
        client: usize,
        presence: Presence,
    },
    /// All that was granted is claimed at once, as by waiters that are awake.
    ClaimAll,
    /// It dies with its command. The next request is another one's.
    Die(usize),
}

/// How a client stands.
#[derive(Clone, Debug, Default)]
struct Client {
    /// Which of its acquisitions it is at: each has a token of its own.
    life: u32,
    /// How many it lets hold the lock.
    slots: u32,
    /// The end of the lease that it was promised, if it has the lock.
    holds_until: Option<u64>,
    /// By hand no command counts on the lease.
    by_hand: bool,
    /// It has reserved a value, which is nobody else's, whoever holds the lock.
    has_value: bool,
    is_waiting: bool,
    /// Until when a request is refused that was cancelled.
    refused_until: u64,
}

struct History {
    state: LockState,
    world: World,
    clients: Vec<Client>,
    /// The fences that were given out, and to whom.
    fences: BTreeMap<u64, String>,
    used: Vec<String>,
    /// Whether the kernel holds the locks of runs.
    on_files: bool,
    /// Whether the last step has looked at what is free.
    has_looked: bool,
}

impl History {
    fn new(clients: usize, on_files: bool) -> Self {
        History {
            state: LockState::default(),
            world: World::new(),
            clients: vec![Client::default(); clients],
            fences: BTreeMap::new(),
            used: Vec::new(),
            on_files,
            has_looked: false,
        }
    }

    fn name(&self, client: usize) -> String {
        format!("{client}.{}", self.clients[client].life)
    }

    fn now(&self) -> u64 {
        self.world.now.ms
    }

    fn believes(&self, client: &Client) -> bool {
        client.holds_until.is_some_and(|until| until > self.now())
    }

    /// What the state becomes by an operation, as a store would keep it.
    fn apply<T>(&mut self, operation: impl Fn(&mut LockState, &World) -> Applied<T>) -> T {
        // The first of two attempts loses the race to store it.
        let mut lost = self.state.clone();
        operation(&mut lost, &self.world);
        let before: Vec<_> = self.state.waiters.clone();
        let applied = operation(&mut self.state, &self.world);
        assert_eq!(lost, self.state, "the same comes of the same");
        let text = serde_json::to_string(&self.state).expect("is JSON");
        self.state = serde_json::from_str(&text).expect("is a state");
        self.grants_are_in_order(&before, &applied.granted);
        self.somebody_looks_in_time(applied.look_at_ms);
        applied.answer
    }

    /// Order among live waiters: nobody is granted the lock while one that joined before it listens and has none.
    fn grants_are_in_order(&self, before: &[WaiterState], granted: &[Token]) {
        for token in granted {
            let place = before.iter().position(|waiter| waiter.token == *token);
            // It may have joined just now; then all the others were before it.
            for ahead in &before[..place.unwrap_or(before.len())] {
                let now = self.state.waiters.iter().find(|waiter| waiter.token == ahead.token);
                let is_passed_by = now.is_some_and(|now| self.is_willing(now));
                assert!(!is_passed_by, "{:?} is passed by for {token:?}", ahead.token.as_str());
            }
        }
    }

    fn is_willing(&self, waiter: &WaiterState) -> bool {
        waiter.grant.is_none() && !waiter.is_unresponsive && self.world.presence(waiter) == Presence::Listening
    }

    fn somebody_looks_in_time(&self, look_at: Option<u64>) {
        let ends = self.state.holders.iter().filter_map(|holder| holder.lease.and_then(|lease| lease.ends_ms));
        let ends = ends.chain(self.state.waiters.iter().filter_map(|waiter| waiter.grant.map(|grant| grant.ends_ms)));
        assert_eq!(look_at, ends.min());
    }

    /// One more has the lock: never more than it allows, and by a greater fence than anyone before.
    fn acquired(&mut self, client: usize, fence: u64, limit: Option<u32>) {
        let name = self.name(client);
        if let Some(limit) = limit
            && !self.believes(&self.clients[client])
        {
            let others = (0..self.clients.len()).filter(|other| *other != client);
            let others = others.filter(|other| !self.clients[*other].has_value);
            let beside = others.filter(|other| self.believes(&self.clients[*other])).count();
            assert!(beside < limit as usize, "{name} holds it beside {beside}, and allows {limit}");
        }
        let is_again = self.fences.get(&fence) == Some(&name);
        let greatest = self.fences.keys().next_back().copied().unwrap_or_default();
        assert!(is_again || fence > greatest, "{fence} after {greatest}");
        assert!(fence >= self.world.now.unix_ms || is_again || greatest + 1 == fence);
        self.fences.insert(fence, name);
    }

    fn ask(&mut self, client: usize, slots: u32, by_hand: bool, on_held: OnHeld) {
        let name = self.name(client);
        let claim = Claim { by_hand, ttl: Ttl::Lasts(Duration::from_secs(TTL)), ..claim(&name, slots) };
        let leased = !self.on_files || by_hand;
        let place = self.state.waiters.iter().position(|waiter| waiter.token == claim.token);
        let before = place.map(|place| self.state.waiters[place].clone());
        let ahead = self.state.waiters[..place.unwrap_or(self.state.waiters.len())].to_vec();
        let request = Ask { leased, on_held, ..ask(&claim) };
        let answer = self.apply(|state, world| state.acquire(&request, world).expect("a fence is left"));
        let is_new = !self.believes(&self.clients[client]);
        match answer {
            Acquired::Mine { fence, slot, leased } => {
                assert!(self.clients[client].refused_until <= self.now(), "a cancelled request holds nothing");
                let limit =
                    before.as_ref().filter(|waiter| waiter.grant.is_some()).map_or(slots, |waiter| waiter.slots);
                if is_new {
                    assert!(slot < limit);
                    if before.is_none_or(|waiter| waiter.grant.is_none()) {
                        self.is_not_overtaken(&ahead);
                    }
                    self.clients[client].by_hand = by_hand;
                    self.clients[client].has_value = false;
                }
                self.acquired(client, fence, Some(limit));
                let until = if leased { self.promised(client, by_hand) } else { Some(u64::MAX) };
                if !leased {
                    self.world.slots.insert(slot);
                }
                let client = &mut self.clients[client];
                (client.is_waiting, client.slots, client.holds_until) = (false, limit, until);
            }
            Acquired::Held { place, .. } => {
                assert!(is_new, "it has it");
                assert_eq!(place.is_some(), on_held == OnHeld::Wait);
                let client = &mut self.clients[client];
                (client.is_waiting, client.holds_until) = (place.is_some(), None);
                // What it asked for at first counts.
                client.slots = place.map_or(slots, |place| self.state.waiters[place].slots);
            }
            Acquired::Cancelled => {
                assert!(self.clients[client].refused_until > self.now());
                self.has_looked = false;
            }
        }
    }

    fn is_not_overtaken(&self, ahead: &[WaiterState]) {
        for ahead in ahead {
            let now = self.state.waiters.iter().find(|waiter| waiter.token == ahead.token);
            assert!(!now.is_some_and(|now| self.is_willing(now)), "{:?} is overtaken", ahead.token.as_str());
        }
    }

    /// Until when a client has the lock that was told that it has, now.
    fn promised(&self, client: usize, by_hand: bool) -> Option<u64> {
        let before = &self.clients[client];
        let holder = self.state.holders.iter().find(|holder| holder.token == token(&self.name(client)));
        let is_fixed = self.believes(before) && (by_hand && !before.by_hand || holder?.revoked_by.is_some());
        if is_fixed { before.holds_until } else { Some(self.now() + TTL * 1000) }
    }

    fn step(&mut self, step: &Step) {
        self.has_looked = !matches!(step, Step::Pass(_) | Step::Becomes { .. } | Step::Die(_) | Step::Renew { .. });
        match *step {
            Step::Pass(millis) => {
                self.world.now = Now { ms: self.now() + millis, unix_ms: self.world.now.unix_ms + millis };
            }
            Step::Try { client, slots, by_hand } => self.ask(client, slots, by_hand, OnHeld::Leave),
            Step::Wait { client, slots } => {
                let on_held = if self.on_files { OnHeld::Leave } else { OnHeld::Wait };
                self.ask(client, slots, false, on_held);
            }
            Step::Reserve(client) => self.reserve(client),
            Step::Renew { client, ttl } => self.renew(client, ttl),
            Step::End { client, kept, uses_value } => self.end(client, kept, uses_value),
            Step::ReleaseByHand(client) => {
                let name = token(&self.name(client));
                let released = self.apply(|state, world| state.release(&name, Release::ByHand, false, world));
                if released == Released::Free {
                    self.gone(client);
                }
            }
            Step::Cancel { client, is_in_flight } => {
                let name = token(&self.name(client));
                assert!(self.apply(|state, world| state.cancel(&name, None, is_in_flight, world)));
                assert!(!self.holds_anything(client), "a cancelled request holds nothing");
                self.gone(client);
                if is_in_flight {
                    self.clients[client].refused_until = self.now() + 300_000;
                }
            }
            Step::Revoke { client, at_once } => self.revoke(client, at_once),
            Step::Becomes { client, presence } => {
                self.world.absent.insert(self.name(client), presence);
            }
            Step::ClaimAll => self.claim_all(),
            Step::Die(client) => {
                self.world.absent.insert(self.name(client), Presence::Gone);
                self.gone(client);
                self.clients[client] = Client { life: self.clients[client].life + 1, ..Client::default() };
            }
        }
        self.holds();
    }

    fn reserve(&mut self, client: usize) {
        let claim = Claim { ttl: Ttl::Lasts(Duration::from_secs(TTL)), ..claim(&self.name(client), 1) };
        if self.believes(&self.clients[client]) || self.clients[client].is_waiting {
            self.has_looked = false;
            return;
        }
        let wanted = Wanted::Next { from: 1, step: 1 };
        let request = Ask { leased: !self.on_files, ..ask(&claim) };
        let answer = self.apply(|state, world| state.reserve(&request, &wanted, world).expect("a fence is left"));
        match answer {
            Reserved::Mine { fence, value, slot } => {
                assert!(!self.used.contains(&value), "{value} was used");
                self.acquired(client, fence, None);
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

    fn renew(&mut self, client: usize, ttl: Option<u64>) {
        let name = token(&self.name(client));
        let holders = self.state.holders.len();
        let ttl = ttl.map(|seconds| Ttl::Lasts(Duration::from_secs(seconds)));
        let renewed = self.apply(|state, world| state.renew(&name, ttl, world));
        assert!(self.state.holders.len() <= holders, "a renewal never creates");
        let holder = self.state.holders.iter().find(|holder| holder.token == name);
        match renewed {
            Renewed::Mine => {
                let ends = holder.map(|holder| self.ends(holder));
                let client = &mut self.clients[client];
                assert!(client.holds_until.is_some_and(|until| until > self.world.now.ms), "a renewal never creates");
                assert!(client.by_hand || ends >= client.holds_until, "a command's lease is never shortened");
                client.holds_until = ends;
            }
            Renewed::NotMine(_) => assert!(!self.believes(&self.clients[client]), "it was its own"),
            Renewed::Revoked(_) => {}
        }
    }

    fn end(&mut self, client: usize, kept: Option<u64>, uses_value: bool) {
        let name = token(&self.name(client));
        let before = self.state.holders.iter().find(|holder| holder.token == name).cloned();
        let stays = kept.map_or(Retain::Not, |seconds| Retain::Kept(Ttl::Lasts(Duration::from_secs(seconds))));
        let release = Release::Run { ending: Some(Ending::Exited(0)), uses_value, stays };
        let released = self.apply(|state, world| state.release(&name, release, false, world));
        // A repeated request to keep the lock changes nothing.
        let is_run = before.as_ref().is_some_and(|holder| holder.purpose == Purpose::Run);
        if uses_value && (is_run || released != Released::Stays) {
            self.used.extend(before.as_ref().and_then(|holder| Some(holder.value.as_ref()?.value.clone())));
        }
        let slot = value_slot(&before);
        if released == Released::Stays {
            let ends = self.state.holders.iter().find(|holder| holder.token == name).map(|holder| self.ends(holder));
            let client = &mut self.clients[client];
            (client.holds_until, client.by_hand) = (ends, true);
            self.world.slots.retain(|taken| Some(*taken) != slot);
        } else {
            assert!(!self.holds_anything(client), "a run that is over leaves nothing");
            self.world.slots.retain(|taken| Some(*taken) != slot);
            self.gone(client);
        }
    }

    fn revoke(&mut self, client: Option<usize>, at_once: bool) {
        let name = client.map(|client| token(&self.name(client)));
        let holder = self.state.holders.iter().find(|holder| Some(&holder.token) == name.as_ref());
        let fence = holder.map(|holder| holder.fence);
        let by = Holder::default();
        self.apply(|state, world| state.revoke(fence, &by, at_once, world));
        // Those that have nothing left do not know it yet; by then another may have the lock: that is what `--now` says.
        for client in 0..self.clients.len() {
            if !self.holds_anything(client) {
                self.clients[client].holds_until = None;
            }
        }
    }

    fn claim_all(&mut self) {
        self.has_looked = false;
        for _ in 0..self.clients.len() {
            let granted = (0..self.clients.len()).find(|client| {
                let name = token(&self.name(*client));
                self.state.waiters.iter().any(|waiter| waiter.token == name && waiter.grant.is_some())
            });
            let Some(client) = granted else { break };
            let slots = self.clients[client].slots;
            self.ask(client, slots, false, OnHeld::Wait);
            self.has_looked = true;
        }
    }

    /// The client is done with this acquisition, and so is the kernel.
    fn gone(&mut self, client: usize) {
        let name = token(&self.name(client));
        if let Some(holder) = self.state.holders.iter().find(|holder| holder.token == name && holder.lease.is_none()) {
            self.world.slots.remove(&holder.slot);
        }
        let Client { life, refused_until, .. } = self.clients[client];
        self.clients[client] = Client { life, refused_until, ..Client::default() };
    }

    /// When a holder loses the lock.
    fn ends(&self, holder: &HolderState) -> u64 {
        match holder.lease {
            Some(lease) => lease.ends_ms.unwrap_or(u64::MAX),
            None if self.world.slots.contains(&holder.slot) => u64::MAX,
            None => 0,
        }
    }

    fn holds_anything(&self, client: usize) -> bool {
        let name = token(&self.name(client));
        self.state.holders.iter().any(|holder| holder.token == name)
            || self.state.waiters.iter().any(|waiter| waiter.token == name)
    }

    /// What holds at any time.
    fn holds(&self) {
        let mut slots: Vec<_> = self.state.holders.iter().map(|holder| holder.slot).collect();
        slots.extend(self.state.waiters.iter().filter_map(|waiter| waiter.grant.map(|grant| grant.slot)));
        slots.sort_unstable();
        assert!(slots.windows(2).all(|pair| pair[0] < pair[1]), "no two have the same slot: {slots:?}");
        for client in (0..self.clients.len()).filter(|client| self.believes(&self.clients[*client])) {
            let name = token(&self.name(client));
            let holder = self.state.holders.iter().find(|holder| holder.token == name);
            let ends = self.ends(holder.expect("what a client was promised is kept"));
            assert!(Some(ends) >= self.clients[client].holds_until);
        }
        // A free slot with a willing waiter is granted at once.
        let held = u32::try_from(slots.len()).expect("a few");
        let is_in_the_way = |waiter: &WaiterState| waiter.grant.is_some() && waiter.slots <= held;
        if self.has_looked && !self.state.waiters.iter().any(is_in_the_way) {
            let first = self.state.waiters.iter().find(|waiter| self.is_willing(waiter));
            assert!(first.is_none_or(|first| first.slots <= held), "a free slot and a willing waiter");
        }
    }

    /// Whatever has happened: those that are alive get the lock in the end, and then nothing is left.
    fn ends_well(&mut self) {
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
                    self.step(&Step::End { client, kept: None, uses_value: false });
                }
            }
            self.step(&Step::Pass(TTL * 1000));
        }
        for client in 0..self.clients.len() {
            let is_dead = self.world.absent.contains_key(&self.name(client));
            assert!(is_dead || !self.clients[client].is_waiting, "{client} waits for ever");
        }
        self.step(&Step::Pass(1_000_000));
        self.apply(|state, world| state.cancel(&token("nobody"), None, false, world));
        let LockState { epoch, holders, waiters, cancelled, .. } = &self.state;
        assert!(
            epoch.is_empty() && holders.is_empty() && waiters.is_empty() && cancelled.is_empty(),
            "{:?}",
            self.state
        );
        assert_eq!(self.state.is_prunable(Duration::ZERO, &self.world), self.state.sequence.is_none());
    }
}

/// The slot of a holder.
fn value_slot(holder: &Option<HolderState>) -> Option<u32> {
    holder.as_ref().filter(|holder| holder.lease.is_none()).map(|holder| holder.slot)
}

const CLIENTS: usize = 7;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let client = || 0..CLIENTS;
    let slots = || prop_oneof![3 => Just(1_u32), 2 => 2_u32..=4];
    let presence = prop_oneof![3 => Just(Presence::Listening), 2 => Just(Presence::Silent), 1 => Just(Presence::Gone)];
    let step = prop_oneof![
        4 => (0_u64..=2000).prop_map(Step::Pass),
        2 => (0_u64..=TTL * 1200).prop_map(Step::Pass),
        4 => (client(), slots(), prop::bool::weighted(0.2))
            .prop_map(|(client, slots, by_hand)| Step::Try { client, slots, by_hand }),
        12 => (client(), slots()).prop_map(|(client, slots)| Step::Wait { client, slots }),
        1 => client().prop_map(Step::Reserve),
        4 => (client(), prop::option::of(1_u64..=60)).prop_map(|(client, ttl)| Step::Renew { client, ttl }),
        8 => (client(), prop::option::weighted(0.2, 1_u64..=60), any::<bool>())
            .prop_map(|(client, kept, uses_value)| Step::End { client, kept, uses_value }),
        1 => client().prop_map(Step::ReleaseByHand),
        2 => (client(), prop::bool::weighted(0.2))
            .prop_map(|(client, is_in_flight)| Step::Cancel { client, is_in_flight }),
        1 => (prop::option::of(client()), any::<bool>())
            .prop_map(|(client, at_once)| Step::Revoke { client, at_once }),
        3 => (client(), presence).prop_map(|(client, presence)| Step::Becomes { client, presence }),
        6 => Just(Step::ClaimAll),
        1 => client().prop_map(Step::Die),
    ];
    prop::collection::vec(step, 1..120)
}

fn play(steps: &[Step], on_files: bool) {
    let mut history = History::new(CLIENTS, on_files);
    for step in steps {
        history.step(step);
    }
    history.ends_well();
}

proptest! {
    #[test]
    fn the_promises_hold_on_a_lease_store(steps in steps()) {
        play(&steps, false);
    }

    #[test]
    fn the_promises_hold_on_files(steps in steps()) {
        play(&steps, true);
    }
}
