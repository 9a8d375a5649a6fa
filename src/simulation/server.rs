//! The server: it applies the rules to the lock's state, one request after another, by its own clock.
//!
//! It tracks the waiters' presence, and wakes them, in the simplest way that keeps the promises: when a waiter is granted the
//! lock, all others are asked for a sign of life.

use std::collections::BTreeMap;
use std::time::Duration;

use super::network::{Answer, Ask, Letter, Look, Request};
use super::world::{Event, MILLISECOND, Nanos, World};
use crate::lock::holder::Holder;
use crate::lock::state::{self, Acquired, Facts, LockState, Now, OnHeld, Presence, WaiterState};
use crate::lock::token::Token;
use crate::store::IfHeld;

/// What the server's clock shows at the beginning of the simulation.
const START_MS: u64 = 1_800_000_000_000;

/// A live waiter gives the next sign of life within this time.
const HEARD_WITHIN_MS: u64 = 13_000;

/// A waiter counts as silent this long after [`HEARD_WITHIN_MS`], and as dead `GONE_MS` after its last sign of life.
const LATE_MS: u64 = 700;
const GONE_MS: u64 = 75_000;

/// A waiter that was asked for a sign of life and gives none within this time is silent.
const SHOWS_WITHIN_MS: u64 = 700;

/// How often a waiter looks at the lock while waiters ahead, which cannot have it, keep it from the lock.
const BEAT: Duration = Duration::from_millis(800);

/// The server.
pub struct Server {
    pub state: LockState,
    pub is_up: bool,
    pub is_paused: bool,
    sessions: BTreeMap<String, Session>,
    backlog: Vec<Request>,
}

/// What the server knows about a waiter.
struct Session {
    store: usize,
    /// The newest request received.
    number: u64,
    heard_ms: u64,
    is_cut_off: bool,
    /// When it was asked for a sign of life, if it has given none since.
    asked_ms: Option<u64>,
}

/// What the server knows at a moment.
struct Known<'a> {
    now_ms: u64,
    sessions: &'a BTreeMap<String, Session>,
    asking: Option<&'a Token>,
}

impl Facts for Known<'_> {
    fn now(&self) -> Now {
        Now::unix(self.now_ms)
    }

    fn presence(&self, waiter: &WaiterState) -> Presence {
        if self.asking == Some(&waiter.token) {
            return Presence::Listening;
        }
        let Some(session) = self.sessions.get(waiter.token.as_str()) else { return Presence::Silent };
        let unheard = self.now_ms.saturating_sub(session.heard_ms);
        let is_mute = session.asked_ms.is_some_and(|asked| self.now_ms.saturating_sub(asked) > SHOWS_WITHIN_MS);
        if unheard > GONE_MS {
            Presence::Gone
        } else if session.is_cut_off || is_mute || unheard > HEARD_WITHIN_MS + LATE_MS {
            Presence::Silent
        } else {
            Presence::Listening
        }
    }
}

impl Server {
    pub fn new() -> Self {
        Server {
            state: LockState::default(),
            is_up: true,
            is_paused: false,
            sessions: BTreeMap::new(),
            backlog: Vec::new(),
        }
    }

    fn note_request(&mut self, token: &Token, request: &Request, is_alive: bool, now_ms: u64) {
        let session = Session {
            store: request.store,
            number: request.number,
            heard_ms: now_ms,
            is_cut_off: !is_alive,
            asked_ms: None,
        };
        match self.sessions.get_mut(token.as_str()) {
            // A late request, from a connection that was given up.
            Some(known) if known.store == request.store && known.number > request.number => {}
            Some(known) => *known = session,
            None => {
                self.sessions.insert(token.as_str().to_owned(), session);
            }
        }
    }

    /// Returns whether the waiter would be granted the lock in its turn.
    pub fn is_willing(&self, waiter: &WaiterState, now_ms: u64) -> bool {
        let known = Known { now_ms, sessions: &self.sessions, asking: None };
        waiter.grant.is_none() && !waiter.is_unresponsive && known.presence(waiter) == Presence::Listening
    }

    /// Returns whether a waiter has missed a call: it has a grant, or let one lapse. Every store repeats the call at the
    /// waiter's next sign of life.
    fn has_missed_a_call(&self, token: &Token) -> bool {
        let has_missed = |waiter: &WaiterState| waiter.grant.is_some() || waiter.is_unresponsive;
        self.state.waiters.iter().any(|waiter| waiter.token == *token && has_missed(waiter))
    }

    /// Returns whether only the waiters ahead keep a waiter from the lock.
    fn is_blocked(&self, token: &Token) -> bool {
        let mut waiters = self.state.waiters.iter();
        waiters.any(|waiter| waiter.token == *token && waiter.grant.is_none() && self.state.has_room(waiter.mode))
    }

    fn look(&self, token: &Token, now_ms: u64) -> Look {
        let beat = self.is_blocked(token).then_some(BEAT);
        let ends_in = self.state.next_end().map(|end| Duration::from_millis(end.saturating_sub(now_ms)));
        let ahead = self.state.waiters.iter().take_while(|waiter| waiter.token != *token);
        let turn = ahead.filter(|waiter| self.is_willing(waiter, now_ms)).count();
        Look { ends_in, turn: u32::try_from(turn).unwrap_or(u32::MAX), beat }
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
            if !matches!(request.what, Ask::Heartbeat { .. }) {
                self.post(request.store, Letter::Answer { to: request.number, answer: Answer::Refused });
            }
            return;
        }
        self.runs[run].last_arrival = self.now;
        let (now_ms, store, number) = (self.server_ms(), request.store, request.number);
        let is_alive = self.runs[run].process(self.stores[store].side).is_alive;
        if let Ask::Acquire { claim, .. } | Ask::Heartbeat { claim } = &request.what {
            self.server.note_request(&claim.token, &request, is_alive, now_ms);
        }
        let before = self.server.state.clone();
        let Server { state, sessions, .. } = &mut self.server;
        let known = |asking| Known { now_ms, sessions, asking };
        let (granted, answer) = match &request.what {
            Ask::Acquire { claim, if_held } => {
                let on_held = match *if_held {
                    IfHeld::Queue { max_waiting, .. } => OnHeld::Wait { max: max_waiting },
                    IfHeld::Leave => OnHeld::Leave,
                };
                let ask = state::Ask { claim, leased: true, request: None, on_held, seen: None };
                let applied = state.acquire(&ask, &known(Some(&claim.token))).expect("a fence is left");
                let acquired = applied.answer;
                if let Acquired::Mine { fence, .. } = acquired {
                    self.acquired(run, &before, fence);
                }
                let look = self.server.look(&claim.token, now_ms);
                (applied.granted, Some(Answer::Acquired { acquired, look, now_ms }))
            }
            Ask::Renew { claim } => {
                let applied = state.renew_run(&claim.token, claim.ttl, &known(None));
                (applied.granted, Some(Answer::Renewed(applied.answer)))
            }
            Ask::Release { claim, how, is_in_flight } => {
                let applied = state.release(&claim.token, *how, *is_in_flight, &known(None));
                (applied.granted, Some(Answer::Released(applied.answer)))
            }
            Ask::Cancel { claim, is_in_flight } => {
                let applied = state.cancel(&claim.token, None, *is_in_flight, &known(None));
                (applied.granted, Some(Answer::Cancelled(applied.answer)))
            }
            Ask::Heartbeat { .. } => (Vec::new(), None),
        };
        let what = answer.as_ref().map_or_else(|| "is there".to_owned(), |answer| said(&request.what, answer));
        self.say(run, &format!("at the server: request {number} {what}"));
        self.grants_are_in_order(&before, &granted);
        self.holders_are_compatible();
        if let Some(answer) = answer {
            self.post(store, Letter::Answer { to: number, answer });
        }
        if let Ask::Heartbeat { claim } = &request.what
            && self.server.has_missed_a_call(&claim.token)
        {
            self.post(store, Letter::Granted);
        }
        let asking = if let Ask::Acquire { claim, .. } = &request.what { Some(&claim.token) } else { None };
        self.wake(&before, &granted, asking);
    }

    /// Wakes the waiters with a new grant, and asks the others for a sign of life, also if a lease or grant ends sooner than
    /// they know.
    fn wake(&mut self, before: &LockState, granted: &[Token], asking: Option<&Token>) {
        let (waiters, now_ms) = (&self.server.state.waiters, self.server_ms());
        let is_known = |token: &str| waiters.iter().any(|waiter| waiter.token.as_str() == token);
        self.server.sessions.retain(|token, _| is_known(token));
        let (ends, ended) = (self.server.state.next_end(), before.next_end());
        let is_sooner = ends.is_some_and(|ends| ended.is_none_or(|ended| ends < ended));
        // The waiters ahead of one that is kept from the lock must give a sign of life.
        let is_blocked = asking.is_some_and(|asking| self.server.is_blocked(asking));
        if granted.is_empty() && !is_sooner && !is_blocked {
            return;
        }
        for waiter in self.server.state.waiters.clone() {
            let look = self.server.look(&waiter.token, now_ms);
            let Some(session) = self.server.sessions.get_mut(waiter.token.as_str()) else { continue };
            if session.is_cut_off {
                continue;
            }
            let store = session.store;
            if granted.contains(&waiter.token) {
                self.say(self.stores[store].run, "is granted the lock");
                self.post(store, Letter::Granted);
            } else if waiter.grant.is_none() && asking != Some(&waiter.token) {
                session.asked_ms.get_or_insert(now_ms);
                self.post(store, Letter::Watch { look });
            }
        }
    }

    /// Handles the news that the process at the other end is gone.
    pub fn closed(&mut self, store: usize) {
        let host = self.runs[self.stores[store].run].host;
        if self.hosts[host].loses.0 > 0 || self.server.is_paused {
            // The kernel will send it again.
            self.schedule(self.now + 500 * MILLISECOND, Event::Closed { store });
            return;
        }
        for session in self.server.sessions.values_mut().filter(|session| session.store == store) {
            session.is_cut_off = true;
        }
    }

    /// Stops the server, which keeps its data.
    pub fn server_down(&mut self) {
        self.server.is_up = false;
        for session in std::mem::take(&mut self.server.sessions).into_values() {
            self.post(session.store, Letter::Reset);
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
        let (now_ms, before) = (self.server_ms(), self.server.state.clone());
        let Server { state, sessions, .. } = &mut self.server;
        let known = Known { now_ms, sessions, asking: None };
        let applied = state.revoke(None, &by, false, &known);
        self.grants_are_in_order(&before, &applied.granted);
        self.wake(&before, &applied.granted, None);
    }

    /// Checks that the lock has no holder and no waiter in the end, once everything has expired.
    pub fn nothing_is_left(&mut self) {
        self.now += nanos_of_ms(GONE_MS + HEARD_WITHIN_MS + 300_000);
        let now_ms = self.server_ms();
        let Server { state, sessions, .. } = &mut self.server;
        let known = Known { now_ms, sessions, asking: None };
        let token = Token::parse("nobody").expect("is a token");
        state.cancel(&token, None, false, &known);
        // Waiters that have not contacted the server since its restart count as silent for ever: each real store drops them by
        // itself.
        state.waiters.retain(|waiter| sessions.contains_key(waiter.token.as_str()));
        if !(state.holders.is_empty() && state.waiters.is_empty() && state.cancelled.is_empty()) {
            let left = format!("something is left in the store: {state:?}");
            self.fail(&left);
        }
    }
}

fn nanos_of_ms(ms: u64) -> Nanos {
    ms * MILLISECOND
}

/// Describes a request and its answer.
fn said(ask: &Ask, answer: &Answer) -> String {
    let asked = match ask {
        Ask::Acquire { if_held: IfHeld::Leave, .. } => "acquire at once",
        Ask::Acquire { .. } => "acquire",
        Ask::Renew { .. } => "renew",
        Ask::Release { .. } => "release",
        Ask::Cancel { .. } => "cancel",
        Ask::Heartbeat { .. } => "show",
    };
    match answer {
        Answer::Acquired { acquired: Acquired::Mine { fence, slot, .. }, .. } => {
            format!("{asked}: mine, fence …{}, slot {slot}", fence % 1_000_000)
        }
        Answer::Acquired { acquired: Acquired::Held { place, .. }, .. } => format!("{asked}: held, place {place:?}"),
        Answer::Acquired { acquired, .. } => format!("{asked}: {acquired:?}"),
        Answer::Renewed(renewed) => format!("{asked}: {renewed:?}"),
        Answer::Released(released) => format!("{asked}: {released:?}"),
        other => format!("{asked}: {other:?}"),
    }
}
