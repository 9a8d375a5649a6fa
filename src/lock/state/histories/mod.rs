//! Random histories: clients wait, are woken, renew, release, cancel and die, in any order and at any time, with
//! different numbers of slots and shared locks. The promises hold after each step.
//!
//! What a client believes is kept apart from the state: it has the lock from the reply, or the wake-up, that says so
//! until the end of the lease that it was promised. A wake-up comes at any time, more than once, or never.

mod clients;
mod promises;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::tests::{QUEUE, World, token};
use super::*;
use crate::lock::answer::{Acquired, Released, Renewed, Reserved};

/// The lease of every run, in seconds.
const TTL: u64 = 10;

/// One step of a history. A client is named by its number.
#[derive(Clone, Debug)]
enum Step {
    /// Time passes, in ms.
    Pass(u64),
    /// The wall clock is set forward or back, in ms.
    SetWallClock(i64),
    /// Asks for the lock once.
    Try {
        client: usize,
        slots: u32,
        by_hand: bool,
    },
    /// Joins the queue, or asks again as a waiter.
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
    /// The client's run ends.
    End {
        client: usize,
        kept: Option<u64>,
        succeeded: bool,
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
    /// The wake-ups that were sent to the client arrive.
    WakeUp(usize),
    /// The client dies with its command. Its number goes to a new client.
    Die(usize),
    /// The machine restarts, and its clock with it: all clients are dead.
    Restart,
}

/// The state of a client.
#[derive(Clone, Debug, Default)]
struct Client {
    /// The number of its present acquisition: each has its own token.
    life: u32,
    /// How many holders it allows; 0: it shares the lock.
    slots: u32,
    /// The end of the lease that it was promised, if it has the lock.
    holds_until: Option<u64>,
    /// Whether it acquired the lock by hand: no command depends on the lease.
    by_hand: bool,
    /// Whether it has reserved a value, which is its own no matter who holds the lock.
    has_value: bool,
    /// Its last answer, if that was that it waits.
    waits: Option<Waits>,
    /// Until when its cancelled request is refused.
    refused_until: u64,
}

/// What a client knows that was answered that it waits.
#[derive(Clone, Copy, Debug)]
struct Waits {
    /// When it asked.
    asked_ms: u64,
    last_fence: u64,
}

struct History {
    state: LockState,
    world: World,
    clients: Vec<Client>,
    /// The fences issued, and to whom.
    fences: BTreeMap<u64, String>,
    used: Vec<String>,
    /// The wake-ups that were sent, with their fences.
    wake_ups: Vec<(String, u64)>,
    /// Whether the kernel holds the locks of runs.
    on_files: bool,
    /// Whether the last step has handed off what is free.
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
            wake_ups: Vec::new(),
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

    /// Applies an operation to the state, as a store would keep it.
    fn apply<T>(&mut self, operation: impl Fn(&mut LockState, &World) -> Applied<T>) -> T {
        // The first of two attempts loses the race to store its state.
        let mut lost = self.state.clone();
        operation(&mut lost, &self.world);
        let LockState { waiters: before, holders, .. } = self.state.clone();
        let applied = operation(&mut self.state, &self.world);
        assert_eq!(lost, self.state, "the same comes of the same");
        let text = serde_json::to_string(&self.state).expect("is JSON");
        self.state = serde_json::from_str(&text).expect("is a state");
        self.is_handed_off_in_order(&before, &applied.woken);
        self.new_holders_are_allowed(&holders);
        for holder in self.state.holders.iter().filter(|holder| applied.woken.contains(&holder.token)) {
            self.wake_ups.push((holder.token.as_str().to_owned(), holder.fence));
        }
        applied.answer
    }

    fn step(&mut self, step: &Step) {
        self.has_looked = !matches!(
            step,
            Step::Pass(_) | Step::SetWallClock(_) | Step::WakeUp(_) | Step::Die(_) | Step::Restart | Step::Renew { .. }
        );
        match *step {
            Step::Pass(millis) => {
                self.world.now = Now { ms: self.now() + millis, unix_ms: self.world.now.unix_ms + millis };
            }
            Step::SetWallClock(by) => self.world.now.unix_ms = self.world.now.unix_ms.saturating_add_signed(by),
            Step::Try { client, slots, by_hand } => self.ask(client, slots, by_hand, IfHeld::Leave),
            Step::Wait { client, slots } => {
                let if_held = if self.on_files { IfHeld::Leave } else { QUEUE };
                self.ask(client, slots, false, if_held);
            }
            Step::Reserve(client) => self.reserve(client),
            Step::Renew { client, ttl } => self.renew(client, ttl),
            Step::End { client, kept, succeeded } => self.end(client, kept, succeeded),
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
            Step::WakeUp(client) => self.wake_up(client),
            Step::Die(client) => self.die(client),
            Step::Restart => {
                for client in 0..self.clients.len() {
                    self.die(client);
                }
                self.world.epoch.push('+');
                self.world.now.ms = 1000;
            }
        }
        self.holds();
    }
}

const CLIENTS: usize = 7;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let client = || 0..CLIENTS;
    let slots = || prop_oneof![3 => Just(1_u32), 2 => 2_u32..=4, 3 => Just(0_u32)];
    let step = prop_oneof![
        4 => (0_u64..=2000).prop_map(Step::Pass),
        2 => (0_u64..=TTL * 1200).prop_map(Step::Pass),
        1 => (-3_600_000_i64..=3_600_000).prop_map(Step::SetWallClock),
        4 => (client(), slots(), prop::bool::weighted(0.2))
            .prop_map(|(client, slots, by_hand)| Step::Try { client, slots, by_hand }),
        12 => (client(), slots()).prop_map(|(client, slots)| Step::Wait { client, slots }),
        1 => client().prop_map(Step::Reserve),
        4 => (client(), prop::option::of(1_u64..=60)).prop_map(|(client, ttl)| Step::Renew { client, ttl }),
        8 => (client(), prop::option::weighted(0.2, 1_u64..=60), any::<bool>())
            .prop_map(|(client, kept, succeeded)| Step::End { client, kept, succeeded }),
        1 => client().prop_map(Step::ReleaseByHand),
        2 => (client(), prop::bool::weighted(0.2))
            .prop_map(|(client, is_in_flight)| Step::Cancel { client, is_in_flight }),
        1 => (prop::option::of(client()), any::<bool>())
            .prop_map(|(client, at_once)| Step::Revoke { client, at_once }),
        8 => client().prop_map(Step::WakeUp),
        2 => client().prop_map(Step::Die),
        1 => Just(Step::Restart),
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
