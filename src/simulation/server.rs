//! The server: it applies the rules to the lock's state, one request after another, by its own clock, and wakes the
//! waiters that the rules name.

use std::collections::BTreeMap;

use super::network::{Answer, Ask, Letter, Request};
use super::world::{MILLISECOND, RunId, World};
use crate::lock::holder::Holder;
use crate::lock::state::{self, LockState, Now, StoreView};
use crate::lock::token::Token;
use crate::store::{Acquired, Grant, IfHeld};

/// What the server's clock shows at the beginning of the simulation.
const START_MS: u64 = 1_800_000_000_000;

/// Later than anything ends that a run has left in the store, in ms.
const ALL_ENDED_MS: u64 = 400_000;

/// The server.
pub struct Server {
    pub state: LockState,
    pub is_up: bool,
    pub is_paused: bool,
    /// From which store the claim under a token last asked for the lock: there it is woken.
    listeners: BTreeMap<String, usize>,
    backlog: Vec<Request>,
}

/// The server's clock, in ms.
struct Clock(u64);

impl StoreView for Clock {
    fn now(&self) -> Now {
        Now::unix(self.0)
    }
}

impl Server {
    pub fn new() -> Self {
        Server {
            state: LockState::default(),
            is_up: true,
            is_paused: false,
            listeners: BTreeMap::new(),
            backlog: Vec::new(),
        }
    }

    /// Returns whether this token holds the lock, by the server's clock.
    pub fn is_held_by(&self, token: &Token, now_ms: u64) -> bool {
        let now = Now::unix(now_ms);
        let mut holders = self.state.holders.iter();
        holders.any(|holder| holder.token == *token && holder.lease.is_none_or(|lease| lease.is_in_force(now)))
    }
}

impl World {
    /// Returns what the server's clock shows.
    pub fn server_ms(&self) -> u64 {
        START_MS + self.now / MILLISECOND
    }

    /// Handles a request that reaches the server.
    pub fn arrive(&mut self, request: Request) {
        let run = self.stores[request.store].run;
        if self.server.is_paused {
            self.server.backlog.push(request);
            return;
        }
        if !self.server.is_up {
            self.post(request.store, Letter::Answer { to: request.number, answer: Answer::Refused });
            return;
        }
        self.runs[run].last_arrival = self.now;
        let (now_ms, store, number) = (self.server_ms(), request.store, request.number);
        let before = self.server.state.clone();
        let Server { state, listeners, .. } = &mut self.server;
        let clock = Clock(now_ms);
        let (woken, answer) = match &request.what {
            Ask::Acquire { claim, sent_at, if_held } => {
                listeners.insert(claim.token.as_str().to_owned(), store);
                let ask = state::Ask { claim, leased: true, sent_at: *sent_at, if_held: *if_held };
                let applied = state.acquire(&ask, &clock).expect("a fence is left");
                (applied.woken, Answer::Acquired(applied.answer))
            }
            Ask::Renew { claim } => {
                let applied = state.renew_run(&claim.token, claim.ttl, &clock);
                (applied.woken, Answer::Renewed(applied.answer))
            }
            Ask::Release { claim, how, is_in_flight } => {
                let applied = state.release(&claim.token, *how, *is_in_flight, &clock);
                (applied.woken, Answer::Released(applied.answer))
            }
            Ask::Cancel { claim, is_in_flight } => {
                let applied = state.cancel(&claim.token, None, *is_in_flight, &clock);
                (applied.woken, Answer::Cancelled(applied.answer))
            }
        };
        self.say(run, &format!("at the server: request {number} {}", said(&request.what, &answer)));
        self.lock_was_handed_off(&before);
        self.post(store, Letter::Answer { to: number, answer });
        self.wake(&woken);
    }

    /// Wakes these waiters; one in a while twice.
    fn wake(&mut self, woken: &[Token]) {
        for token in woken {
            let Some(store) = self.server.listeners.get(token.as_str()).copied() else { continue };
            let holder = self.server.state.holders.iter().find(|holder| holder.token == *token);
            let handed = holder.map(|holder| (holder.fence, holder.slot));
            self.say(self.stores[store].run, &format!("is woken: {handed:?}"));
            self.post(store, Letter::Woken { handed });
            if self.rng.u32(..10) == 0 {
                self.post(store, Letter::Woken { handed });
            }
        }
    }

    /// Stops the server, which keeps its data.
    pub fn server_down(&mut self) {
        self.server.is_up = false;
        for store in std::mem::take(&mut self.server.listeners).into_values() {
            self.post(store, Letter::Reset);
        }
    }

    /// Continues or restarts the server.
    pub fn server_back(&mut self) {
        if !self.server.is_up || self.server.is_paused {
            self.trace.note(self.now, || "the server is back".to_owned());
            self.promises.sound_since = self.now;
        }
        (self.server.is_up, self.server.is_paused) = (true, false);
        for request in std::mem::take(&mut self.server.backlog) {
            self.arrive(request);
        }
    }

    /// Revokes the lock, as an administrator.
    pub fn revoke(&mut self) {
        let by = Holder { host: "admin".into(), ..Holder::default() };
        let (clock, before) = (Clock(self.server_ms()), self.server.state.clone());
        let applied = self.server.state.revoke(None, &by, false, &clock);
        self.lock_was_handed_off(&before);
        self.wake(&applied.woken);
    }

    /// Checks that the lock has no holder and no waiter in the end, once everything has ended.
    pub fn nothing_is_left(&mut self) {
        let clock = Clock(self.server_ms() + ALL_ENDED_MS);
        self.server.state.look(&clock);
        let state = &self.server.state;
        if !(state.holders.is_empty() && state.waiters.is_empty() && state.cancelled.is_empty()) {
            let left = format!("something is left in the store: {state:?}");
            self.fail(&left);
        }
    }
}

/// Returns the run that acquires under this token.
pub fn run_of(token: &Token) -> RunId {
    token.as_str().parse().expect("is the number of a run")
}

/// Describes a request and its answer.
fn said(ask: &Ask, answer: &Answer) -> String {
    let asked = match ask {
        Ask::Acquire { if_held: IfHeld::Leave, .. } => "acquire at once",
        Ask::Acquire { .. } => "acquire",
        Ask::Renew { .. } => "renew",
        Ask::Release { .. } => "release",
        Ask::Cancel { .. } => "cancel",
    };
    match answer {
        Answer::Acquired(Acquired::Mine(Grant { fence, slot, .. })) => {
            format!("{asked}: mine, fence …{}, slot {slot}", fence % 1_000_000)
        }
        Answer::Acquired(Acquired::Held(held)) => format!("{asked}: held, place {:?}", held.place),
        Answer::Acquired(acquired) => format!("{asked}: {acquired:?}"),
        Answer::Renewed(renewed) => format!("{asked}: {renewed:?}"),
        Answer::Released(released) => format!("{asked}: {released:?}"),
        other => format!("{asked}: {other:?}"),
    }
}
