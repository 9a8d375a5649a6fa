//! Waiting in turn: a place in the lock's queue, and a mailbox at which to sleep.

use std::os::fd::AsFd;
use std::time::Duration;

use super::connection::{Connection, Failure};
use super::reply::{AcquireReply, Mail, read_mail};
use super::retry::Pauses;
use super::{Doubt, RedisStore, keys, millis, script};
use crate::store::{Acquired, Claim, StoreError, Wait, Watcher};
use crate::sys::clock::Moment;
use crate::sys::signals::Signals;
use crate::sys::wait::{Waiter, WakeReason};

/// For how long a waiter that had reached the server bears with its absence: a restart or a fail-over is over by then.
const OUTAGE_MAX: Duration = Duration::from_mins(1);

/// How often a waiter for whom lockrun is stopped looks whether it goes on.
const STOPPED: Duration = Duration::from_millis(100);

/// The holder that a waiter has seen when it last looked. If the store forgets it, its command may still run: until it hears
/// that its lock is gone, or for as long as its lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    ttl: Duration,
    /// When that look was, on the server's clock.
    at: i64,
    /// Since when it has been missing, if it is.
    missing_since: Option<Moment>,
}

impl Seen {
    /// What is known after another look, at `at` on the server's clock, that found a holder with a lease of `ttl`, or none.
    fn next(seen: Option<Self>, found: bool, ttl: Option<Duration>, at: i64) -> Option<Self> {
        if found {
            return ttl.map(|ttl| Seen { ttl, at, missing_since: None });
        }
        seen.map(|seen| Seen { missing_since: seen.missing_since.or(Some(Moment::now())), ..seen })
    }

    /// The acquire script's `caution` and `seen`, in milliseconds.
    pub(super) fn caution(&self) -> (u64, i64) {
        let is_over = self.missing_since.is_some_and(|since| Moment::now().since(since) >= self.ttl);
        (if is_over { 0 } else { millis(self.ttl) }, self.at)
    }
}

/// How the sleep at the mailbox ended.
enum Slept {
    /// It is time to ask for the lock.
    Look,
    /// A signal came that ends lockrun.
    Interrupted(i32),
    /// The connection is lost, or the server does not let us wait for now.
    Lost,
    /// The server does not let us wait.
    Refused(Failure),
}

impl RedisStore {
    /// Takes the lock, in turn with the other waiters.
    pub(super) fn wait_in_turn(&mut self, claim: &Claim, wait: Wait<'_>) -> Result<Acquired, StoreError> {
        let Wait { until, signals, watcher } = wait;
        // Before the server has been heard of once, its absence is an error like any other.
        let mut heard_at: Option<Moment> = None;
        let mut pauses = Pauses::new();
        let mut seen: Option<Seen> = None;
        let mut waiter = Waiter::new()?;
        loop {
            // It is as if we did not listen, until lockrun goes on: then we ask what has become of our place.
            while watcher.is_stopped() {
                let wake_at = Moment::now() + STOPPED;
                if let WakeReason::Signal(signal) = waiter.wait_for(None, Some(wake_at), signals, watcher)? {
                    self.cancel_claim(claim, self.doubt);
                    return Ok(Acquired::Interrupted(signal));
                }
            }
            let asked_at = Moment::now();
            let out_of_patience = until.is_some_and(|until| asked_at >= until);
            let pause = match self.ask(claim, !out_of_patience, seen.as_ref()) {
                Ok(AcquireReply::Mine(grant, handed)) => {
                    self.confirm_handoff(&claim.key, handed);
                    return Ok(Acquired::Mine(grant));
                }
                Ok(AcquireReply::NotMine { held, ttl, look_in, handed, now }) => {
                    seen = Seen::next(seen, held.holder.is_some(), ttl, now);
                    self.confirm_handoff(&claim.key, handed);
                    if out_of_patience {
                        return Ok(Acquired::Held(held));
                    }
                    if watcher.waiting(&held).is_break() {
                        self.cancel_claim(claim, self.doubt);
                        return Ok(Acquired::Held(held));
                    }
                    heard_at = Some(Moment::now());
                    self.has_joined = true;
                    // It has them from us. What takes time is done before our turn comes.
                    self.knows_scripts = true;
                    script::take_hashes();
                    let look_at = Moment::now() + look_in;
                    match self.sleep_at_mailbox(
                        claim,
                        until.map_or(look_at, |until| until.min(look_at)),
                        &mut waiter,
                        signals,
                        watcher,
                    ) {
                        Slept::Look => {
                            pauses = Pauses::new();
                            continue;
                        }
                        Slept::Interrupted(signal) => {
                            self.cancel_claim(claim, self.doubt);
                            return Ok(Acquired::Interrupted(signal));
                        }
                        Slept::Refused(failure) => {
                            self.cancel_claim(claim, self.doubt);
                            return Err(failure.explain(&self.server));
                        }
                        // An answer in between is no proof that the connection will hold.
                        Slept::Lost => pauses.next(),
                    }
                }
                Err(failure) => {
                    let bearable = heard_at.is_some_and(|heard_at| Moment::now().since(heard_at) < OUTAGE_MAX);
                    if out_of_patience || !bearable || !failure.may_pass() {
                        return Err(self.give_up(claim, &failure));
                    }
                    if matches!(failure, Failure::Closed | Failure::NoAnswer(_)) {
                        self.doubt = Doubt::Pending;
                    }
                    pauses.next()
                }
            };
            let wake_at = asked_at.max(Moment::now()) + pause;
            if let WakeReason::Signal(signal) = waiter.wait_for(None, Some(wake_at), signals, watcher)? {
                self.cancel_claim(claim, self.doubt);
                return Ok(Acquired::Interrupted(signal));
            }
        }
    }

    /// Sleeps until mail comes, or until `until`.
    fn sleep_at_mailbox(
        &mut self,
        claim: &Claim,
        mut until: Moment,
        waiter: &mut Waiter,
        signals: &Signals,
        watcher: &mut dyn Watcher,
    ) -> Slept {
        let mailbox = format!("{}mailbox:{}", keys::base(&self.server.prefix, &claim.key), claim.token.as_str());
        loop {
            let Some(connection) = &mut self.connection else { return Slept::Lost };
            let left = until.since(Moment::now());
            if left < Duration::from_millis(2) {
                return Slept::Look;
            }
            match pop(connection, &mailbox, left, until + self.timeout, waiter, signals, watcher) {
                Ok(Popped::Mail(Some(Mail::LookIn(wait)))) => until = until.min(Moment::now() + wait),
                Ok(Popped::Mail(Some(Mail::Granted) | None)) => return Slept::Look,
                Ok(Popped::Interrupted(signal)) => {
                    // The answer is still to come on this connection.
                    self.connection = None;
                    return Slept::Interrupted(signal);
                }
                Err(failure) => {
                    self.connection = None;
                    return if failure.may_pass() { Slept::Lost } else { Slept::Refused(failure) };
                }
            }
        }
    }
}

/// What came of waiting for mail.
enum Popped {
    /// Its contents; `None` if none came in time.
    Mail(Option<Mail>),
    /// A signal came that ends lockrun.
    Interrupted(i32),
}

/// Waits for mail for as long as `span`, as the server measures it; gives the server up at `deadline`.
fn pop(
    connection: &mut Connection,
    mailbox: &str,
    span: Duration,
    deadline: Moment,
    waiter: &mut Waiter,
    signals: &Signals,
    watcher: &mut dyn Watcher,
) -> Result<Popped, Failure> {
    let command = redis::cmd("BLPOP").arg(mailbox).arg(format!("{:.3}", span.as_secs_f64())).take();
    connection.send(&command, deadline)?;
    loop {
        match waiter.wait_for(Some(connection.as_fd()), Some(deadline), signals, watcher) {
            Ok(WakeReason::Signal(signal)) => return Ok(Popped::Interrupted(signal)),
            Ok(WakeReason::Ready) => break,
            Ok(WakeReason::Resumed) => {}
            Ok(WakeReason::Time) | Err(_) => return Err(Failure::NoAnswer("did not answer in time")),
        }
    }
    let reply = connection.receive(&command, deadline)?;
    Ok(Popped::Mail(read_mail(&reply)))
}
