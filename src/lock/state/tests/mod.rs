//! Tests of the rules, one by one.

mod acquiring;
mod files;
mod leases;
mod queue;
mod releasing;
mod revoking;
mod sequences;
mod wait_answer;

use std::collections::HashSet;
use std::time::Duration;

use super::*;
use crate::lock::answer::{Acquired, Grant, RecentSuccess, Released, Renewed, Reserved, Revoked};
use crate::lock::claim::{Claim, Mode};
use crate::lock::key::Key;
use crate::lock::lease::Ttl;
use crate::sys::clock::Moment;

/// The Unix time at which the tests begin.
const START: u64 = 1_800_000_000_000;

/// What the store knows.
#[derive(Clone)]
pub(in crate::lock::state) struct World {
    pub(in crate::lock::state) now: Now,
    pub(in crate::lock::state) epoch: String,
    /// The slots that processes hold in the kernel.
    pub(in crate::lock::state) slots: HashSet<u32>,
    /// How many waiters were not read.
    unread_waiters: usize,
    /// To how many waiters one operation may hand the lock.
    pub(in crate::lock::state) hand_offs_max: usize,
}

impl StoreView for World {
    fn now(&self) -> Now {
        self.now
    }

    fn epoch(&self) -> String {
        self.epoch.clone()
    }

    fn holds_slot(&self, holder: &HolderState) -> bool {
        self.slots.contains(&holder.slot)
    }

    fn take_share(&self) -> bool {
        !self.slots.contains(&0)
    }

    fn take_slot(&self, slot: u32) -> bool {
        !self.slots.contains(&slot)
    }

    fn unread_waiters(&self) -> usize {
        self.unread_waiters
    }

    fn hand_offs_max(&self) -> usize {
        self.hand_offs_max
    }
}

/// The lock of one key, and its surroundings. After each operation the state goes through JSON, as in a store.
struct Lock {
    state: LockState,
    world: World,
    /// The waiters that the last operation woke.
    woken: Vec<String>,
    /// In how many ms the next lease ends, after the last operation.
    ends_in: Option<u64>,
}

/// The claim of a run named `name` to one of this many slots; with 0 it shares the lock.
pub(in crate::lock::state) fn claim(name: &str, slots: u32) -> Claim {
    Claim {
        key: Key::new("k".as_ref()).expect("is a key"),
        token: token(name),
        ttl: Ttl::Lasts(Duration::from_secs(30)),
        holder: who(name),
        mode: mode(slots),
        once_per: None,
        by_hand: false,
        request: None,
    }
}

/// The mode with this many slots; 0 means shared.
pub(in crate::lock::state) fn mode(slots: u32) -> Mode {
    if slots == 0 { Mode::Shared } else { Mode::Slots(slots) }
}

pub(in crate::lock::state) fn token(name: &str) -> Token {
    Token::parse(name).expect("is a token")
}

fn who(name: &str) -> Holder {
    Holder { command: name.into(), ..Holder::default() }
}

pub(in crate::lock::state) fn ask(claim: &Claim) -> Ask<'_> {
    Ask { claim, leased: true, sent_at: Moment::from_boot(Duration::ZERO), if_held: IfHeld::Leave }
}

/// The release of a run whose command has exited with 0.
const DONE: Release = Release::Run { ending: Ending::Exited(0), succeeded: true, retain: Retain::Not };

/// To wait in turn.
pub(in crate::lock::state) const QUEUE: IfHeld = IfHeld::Queue { max_waiting: None, until: None };

/// To wait unless this many already do.
fn queue_up_to(max: u32) -> IfHeld {
    IfHeld::Queue { max_waiting: Some(max), until: None }
}

fn keep(ttl: Ttl) -> Release {
    Release::Run { ending: Ending::Exited(3), succeeded: false, retain: Retain::Kept(ttl) }
}

fn lasts(seconds: u64) -> Ttl {
    Ttl::Lasts(Duration::from_secs(seconds))
}

impl World {
    pub(in crate::lock::state) fn new() -> Self {
        World {
            now: Now::unix(START),
            epoch: "one".into(),
            slots: HashSet::new(),
            unread_waiters: 0,
            hand_offs_max: usize::MAX,
        }
    }
}

impl Lock {
    fn new() -> Self {
        Lock { state: LockState::default(), world: World::new(), woken: Vec::new(), ends_in: None }
    }

    /// Records the result of an operation.
    fn done<T>(&mut self, applied: Applied<T>) -> T {
        let text = serde_json::to_string(&self.state).expect("is JSON");
        let read: LockState = serde_json::from_str(&text).expect("is a state");
        assert_eq!(read, self.state, "{text}");
        self.woken = applied.woken.iter().map(|token| token.as_str().to_owned()).collect();
        self.ends_in = self.state.next_end().map(|at| at.saturating_sub(self.world.now.ms));
        applied.answer
    }

    fn pass(&mut self, millis: u64) {
        self.world.now.ms += millis;
        self.world.now.unix_ms += millis;
    }

    fn try_ask(&mut self, ask: &Ask<'_>) -> Result<Acquired, FenceExhausted> {
        let applied = self.state.acquire(ask, &self.world)?;
        Ok(self.done(applied))
    }

    fn ask(&mut self, ask: &Ask<'_>) -> Acquired {
        self.try_ask(ask).expect("a fence is left")
    }

    fn acquire(&mut self, name: &str, slots: u32) -> Acquired {
        self.ask(&ask(&claim(name, slots)))
    }

    fn by_hand(&mut self, name: &str) -> Acquired {
        let claim = Claim { by_hand: true, ..claim(name, 1) };
        self.ask(&ask(&claim))
    }

    fn wait(&mut self, name: &str, slots: u32) -> Acquired {
        let claim = claim(name, slots);
        self.ask(&Ask { if_held: QUEUE, ..ask(&claim) })
    }

    fn release(&mut self, name: &str, release: Release) -> Released {
        let applied = self.state.release(&token(name), release, false, &self.world);
        self.done(applied)
    }

    fn renew(&mut self, name: &str, ttl: Option<Ttl>) -> Renewed {
        let applied = self.state.renew(&token(name), ttl, &self.world);
        self.done(applied)
    }

    fn cancel(&mut self, name: &str, request: Option<&str>, is_in_flight: bool) -> bool {
        let request = request.map(token);
        let applied = self.state.cancel(&token(name), request.as_ref(), is_in_flight, &self.world);
        self.done(applied)
    }

    fn revoke(&mut self, fence: Option<u64>, at_once: bool) -> Revoked {
        let applied = self.state.revoke(fence.as_ref().map(std::slice::from_ref), &who("admin"), at_once, &self.world);
        self.done(applied)
    }

    fn holders(&self) -> Vec<&str> {
        self.state.holders_in_force(&self.world).iter().map(|holder| holder.token.as_str()).collect()
    }

    fn waiters(&self) -> Vec<&str> {
        self.state.waiters_in_force(&self.world).iter().map(|waiter| waiter.token.as_str()).collect()
    }

    /// The holder of the last run, and how it ended.
    fn last(&self) -> Option<(&str, Option<Ending>)> {
        self.state.last.as_ref().map(|last| (last.who.command.as_str(), last.ending))
    }
}

/// The slot, if the lock was acquired.
fn slot(acquired: &Acquired) -> Option<u32> {
    match acquired {
        Acquired::Mine(grant) => Some(grant.slot),
        _ => None,
    }
}

/// The grant of a lease that was requested at the beginning.
fn mine(fence: u64, slot: u32) -> Acquired {
    let lease_from = Some(Moment::from_boot(Duration::ZERO));
    Acquired::Mine(Grant { fence, slot, lease_from, by_hand_off: false })
}

fn fence(acquired: &Acquired) -> u64 {
    match acquired {
        Acquired::Mine(grant) => grant.fence,
        _ => panic!("not acquired: {acquired:?}"),
    }
}

/// The first holder, and the waiter's place.
fn held(acquired: &Acquired) -> (Option<&str>, Option<u64>) {
    match acquired {
        Acquired::Held(held) | Acquired::NotQueued(held) => (held.token.as_ref().map(Token::as_str), held.place),
        _ => panic!("not held: {acquired:?}"),
    }
}
