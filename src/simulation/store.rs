//! The store of a run: a client of the simulated server.

use std::time::Duration;

use anyhow::anyhow;

use super::actors::Port;
use super::network::{Answer, Ask, Letter, Request, StoreEnd};
use super::world::{RunId, Side, World};
use crate::lock::holder::Holder;
use crate::lock::key::Key;
use crate::lock::lease::Ttl;
use crate::lock::token::Token;
use crate::store::{
    Acquired, Claim, IfHeld, KeyStatus, Listing, Release, Released, Renewed, RequestError, RetryClass, Revoked, Store,
    StoreError, Wakeup,
};
use crate::sys::clock::Moment;
use crate::sys::wait::{WaitObserver, Waiter};

/// A client of the server.
pub struct SimulatedStore {
    end: usize,
    claim: Claim,
    timeout: Duration,
    requests: u64,
    /// Whether a request may still be in flight.
    is_in_flight: bool,
}

impl SimulatedStore {
    /// Opens the store in a process of a run.
    pub fn open(world: &mut World, run: RunId, side: Side, port: &Port) -> Self {
        let end = world.stores.len();
        world.stores.push(StoreEnd { run, side, mailbox: std::collections::VecDeque::new(), reader: port.me() });
        let plan = &world.runs[run].plan;
        SimulatedStore {
            end,
            claim: plan.claim.clone(),
            timeout: plan.terms.store_timeout,
            requests: 0,
            is_in_flight: false,
        }
    }

    fn claim(&self) -> Box<Claim> {
        Box::new(self.claim.clone())
    }

    fn send(&mut self, port: &Port, what: Ask) -> u64 {
        self.requests += 1;
        let mut world = port.world();
        world.stores[self.end].reader = port.me();
        world.send(Request { store: self.end, number: self.requests, what });
        self.requests
    }

    /// Sends a request and waits for its answer, no longer than the timeout.
    fn ask(&mut self, what: Ask) -> Result<Answer, RequestError> {
        let port = Port::current();
        let until = Moment::now() + self.timeout;
        let was_in_flight = self.is_in_flight;
        let number = self.send(&port, what);
        loop {
            let answer = port.world().take_answer(self.end, number);
            match answer {
                Some(Answer::Refused) => {
                    let (error, retry_class) = (anyhow!("nothing listens there"), RetryClass::Unavailable);
                    return Err(RequestError { error, retry_class, never_sent: !was_in_flight });
                }
                Some(answer) => return Ok(answer),
                None if Moment::now() >= until => {
                    self.is_in_flight = true;
                    let (error, retry_class) = (anyhow!("no answer in time"), RetryClass::Unavailable);
                    return Err(RequestError { error, retry_class, never_sent: false });
                }
                None => port.wait(Some(until)),
            }
        }
    }
}

impl Store for SimulatedStore {
    fn try_acquire(&mut self, _: &Claim, if_held: IfHeld) -> Result<Acquired, RequestError> {
        let ask = Ask::Acquire { claim: self.claim(), sent_at: Moment::now(), if_held };
        let Answer::Acquired(acquired) = self.ask(ask)? else { unreachable!("answers what was asked") };
        Ok(acquired)
    }

    fn await_turn(
        &mut self,
        _: &Claim,
        until: Option<Moment>,
        _: &mut Waiter<'_>,
        _: &mut dyn WaitObserver,
    ) -> Result<Wakeup, RequestError> {
        let port = Port::current();
        loop {
            let letter = port.world().take_letter(self.end);
            match letter {
                Some(Letter::Woken { handed: Some((fence, slot)) }) => return Ok(Wakeup::HandedOver { fence, slot }),
                Some(Letter::Woken { handed: None }) => return Ok(Wakeup::AskAgain),
                Some(Letter::Reset) => {
                    let (error, retry_class) = (anyhow!("the connection was reset"), RetryClass::Unavailable);
                    return Err(RequestError { error, retry_class, never_sent: false });
                }
                Some(Letter::Answer { .. }) => continue,
                None => {}
            }
            if let Some(signal) = port.world().take_signal(port.me()) {
                return Ok(Wakeup::Signal(signal));
            }
            if until.is_some_and(|until| Moment::now() >= until) {
                return Ok(Wakeup::AskAgain);
            }
            port.wait(until);
        }
    }

    fn renew(&mut self, _: &Key, _: &Token, _: Option<Ttl>) -> Result<Renewed, StoreError> {
        match self.ask(Ask::Renew { claim: self.claim() }).map_err(|failed| failed.error)? {
            Answer::Renewed(renewed) => Ok(renewed),
            other => unreachable!("answers what was asked: {other:?}"),
        }
    }

    fn release(&mut self, _: &Key, _: &Token, how: Release) -> Result<Released, StoreError> {
        let ask = Ask::Release { claim: self.claim(), how, is_in_flight: self.is_in_flight };
        match self.ask(ask).map_err(|failed| failed.error)? {
            Answer::Released(released) => Ok(released),
            other => unreachable!("answers what was asked: {other:?}"),
        }
    }

    fn cancel(&mut self, _: &Claim, in_flight: bool) -> bool {
        let is_in_flight = self.is_in_flight || in_flight;
        matches!(self.ask(Ask::Cancel { claim: self.claim(), is_in_flight }), Ok(Answer::Cancelled(true)))
    }

    fn expect_late_requests(&mut self) {
        self.is_in_flight = true;
    }

    fn list(&mut self, _: Option<&Key>) -> Result<Listing<KeyStatus>, StoreError> {
        unreachable!("a run does not look around")
    }

    fn revoke(&mut self, _: &Key, _: Option<u64>, _: &Holder, _: bool) -> Result<Revoked, StoreError> {
        unreachable!("a run revokes nothing")
    }
}
