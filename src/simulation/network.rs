//! Hosts with their own clocks, and the network between them and the server.
//!
//! A message may be lost, delayed, or overtaken by another. An answer is never delivered twice: no transport in use
//! does that, and a request repeated under the same token is a different message. A wake-up may be.

use std::collections::VecDeque;
use std::time::Duration;

use super::actors::ActorId;
use super::world::{Event, MILLISECOND, Nanos, RunId, SECOND, Side, World};
use crate::lock::claim::Claim;
use crate::lock::state::Release;
use crate::store::{Acquired, IfHeld, Released, Renewed};
use crate::sys::clock::Moment;

/// The greatest drift of a clock, in parts per million.
const DRIFT: i64 = 10_000;

/// A machine.
pub struct Host {
    /// What its clock showed at the beginning of the simulation.
    offset: Nanos,
    /// How much faster its clock runs than the server's, in parts per million.
    drift: i64,
    /// The percentages of messages lost on the way to the server, and from it.
    pub loses: (u32, u32),
    /// The longest delay of a message.
    pub late: Nanos,
}

/// A message to the server.
#[derive(Debug)]
pub struct Request {
    pub store: usize,
    pub number: u64,
    pub what: Ask,
}

/// What a request asks for.
#[derive(Debug)]
pub enum Ask {
    Acquire { claim: Box<Claim>, sent_at: Moment, if_held: IfHeld },
    Renew { claim: Box<Claim> },
    Release { claim: Box<Claim>, how: Release, is_in_flight: bool },
    Cancel { claim: Box<Claim>, is_in_flight: bool },
}

/// A message from the server.
#[derive(Clone, Debug)]
// There are few at a time.
#[allow(clippy::large_enum_variant)]
pub enum Letter {
    /// The answer to the request with this number.
    Answer { to: u64, answer: Answer },
    /// The waiter is woken: the lock was handed to it, with this fence and slot, or it must ask again.
    Woken { handed: Option<(u64, u32)> },
    /// The connection is gone.
    Reset,
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub enum Answer {
    Acquired(Acquired),
    Renewed(Renewed),
    Released(Released),
    Cancelled(bool),
    /// No server is listening.
    Refused,
}

/// A process's end of its connection to the server.
#[derive(Debug)]
pub struct StoreEnd {
    pub run: RunId,
    pub side: Side,
    pub mailbox: VecDeque<Letter>,
    /// The actor that waits for messages.
    pub reader: ActorId,
}

impl Host {
    pub fn new(rng: &mut fastrand::Rng) -> Self {
        // Often the extreme drifts.
        let drift = match rng.u32(..6) {
            0 => -DRIFT,
            1 => DRIFT,
            _ => rng.i64(-DRIFT..=DRIFT),
        };
        Host { offset: rng.u64(..1_000_000 * SECOND), drift, loses: (0, 0), late: 0 }
    }

    /// Returns what its clock shows at a moment of the server's clock.
    pub fn local(&self, now: Nanos) -> Moment {
        let now = i128::from(now);
        let shown = now + now * i128::from(self.drift) / 1_000_000 + i128::from(self.offset);
        Moment::from_boot(Duration::from_nanos(u64::try_from(shown).unwrap_or(0)))
    }

    /// Returns the earliest moment at which its clock shows this.
    pub fn global(&self, moment: Moment) -> Nanos {
        let shown = i128::try_from(moment.since_boot().as_nanos()).unwrap_or(0) - i128::from(self.offset);
        let rate = 1_000_000 + i128::from(self.drift);
        Nanos::try_from(shown * 1_000_000 / rate + 2).unwrap_or(0)
    }

    pub fn is_sound(&self) -> bool {
        self.loses == (0, 0) && self.late == 0
    }
}

impl World {
    /// Sends a request to the server.
    pub fn send(&mut self, request: Request) {
        let (run, number) = (self.runs[self.stores[request.store].run].host, request.number);
        let host = &self.hosts[run];
        let (loses, late) = (host.loses.0, host.late);
        if self.rng.u32(..100) < loses {
            let run = self.stores[request.store].run;
            self.say(run, &format!("request {number} is lost"));
        } else {
            let at = self.now + self.on_the_way(late);
            self.schedule(at, Event::Arrive(Box::new(request)));
        }
    }

    /// Sends a message to a process.
    pub fn post(&mut self, store: usize, letter: Letter) {
        let run = self.stores[store].run;
        let host = &self.hosts[self.runs[run].host];
        let (loses, late) = (host.loses.1, host.late);
        if self.rng.u32(..100) < loses {
            self.say(run, &format!("is not reached by {letter:?}"));
        } else {
            let at = self.now + self.on_the_way(late);
            self.schedule(at, Event::Deliver { store, letter: Box::new(letter) });
        }
    }

    fn on_the_way(&mut self, late: Nanos) -> Nanos {
        let usual = self.rng.u64(MILLISECOND / 20..MILLISECOND);
        if late > 0 && self.rng.u32(..3) == 0 { usual + self.rng.u64(..late) } else { usual }
    }

    /// Delivers a message to a process.
    pub fn deliver(&mut self, store: usize, letter: Letter) {
        let StoreEnd { run, side, .. } = self.stores[store];
        if self.runs[run].process(side).is_alive {
            self.stores[store].mailbox.push_back(letter);
            self.notify(self.stores[store].reader);
        }
    }

    /// Makes a host's network sound again.
    pub fn heal(&mut self, host: usize) {
        let host_now = &mut self.hosts[host];
        if !host_now.is_sound() {
            (host_now.loses, host_now.late) = ((0, 0), 0);
            self.trace.note(self.now, || format!("host {host} has a sound network again"));
            self.promises.sound_since = self.now;
        }
    }
}
