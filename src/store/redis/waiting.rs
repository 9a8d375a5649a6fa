//! Waiting in turn: a place in the lock's queue, and a mailbox at which to sleep.

use std::os::fd::AsFd;
use std::slice;
use std::time::Duration;

use super::connection::Connection;
use super::failure::Failure;
use super::reply::{Mail, read_mail};
use super::{RedisStore, keys};
use crate::lock::state::{Held, Seen};
use crate::store::{Claim, Wakeup};
use crate::sys::clock::Moment;
use crate::sys::wait::{WaitObserver, Waiter, WakeReason};

/// The state of our wait in the queue: what we know since our last look.
#[derive(Debug)]
pub(super) struct WaitState {
    /// Who held the lock.
    pub(super) seen: Option<Seen>,
    /// When to look again if no mail comes.
    look_at: Moment,
}

impl WaitState {
    /// Returns what is known after another look. `held`: the holder that it found; `ended_unix_ms`: when a hold had last
    /// ended; `look_in`: when the next look is due.
    pub(super) fn after(before: Option<Self>, held: Option<&Held>, ended_unix_ms: u64, look_in: Duration) -> Self {
        let seen = Seen::after(before.and_then(|before| before.seen), held, ended_unix_ms);
        WaitState { seen, look_at: Moment::now() + look_in }
    }
}

impl RedisStore {
    /// Sleeps until mail comes, until the next look is due, or until `until`.
    pub(super) fn sleep_at_mailbox(
        &mut self,
        claim: &Claim,
        until: Option<Moment>,
        waiter: &mut Waiter<'_>,
        observer: &mut dyn WaitObserver,
    ) -> Result<Wakeup, Failure> {
        let mailbox = format!("{}mailbox:{}", keys::base(&self.server.prefix, &claim.key), claim.token.as_str());
        let look_at = self.wait.as_ref().map(|wait| wait.look_at);
        let Some(mut until) = until.into_iter().chain(look_at).min() else { return Ok(Wakeup::TryAgain) };
        loop {
            let connection = self.connection.as_mut().ok_or(Failure::Closed)?;
            let left = until.since(Moment::now());
            if left < Duration::from_millis(2) {
                return Ok(Wakeup::TryAgain);
            }
            match pop(connection, &mailbox, left, until + self.timeout, waiter, observer) {
                Ok(Popped::Mail(Some(Mail::LookIn(wait)))) => until = until.min(Moment::now() + wait),
                Ok(Popped::Mail(Some(Mail::Granted) | None)) => return Ok(Wakeup::TryAgain),
                Ok(Popped::Interrupted(signal)) => {
                    // The answer is still to come on this connection.
                    self.connection = None;
                    return Ok(Wakeup::Signal(signal));
                }
                Err(failure) => {
                    self.connection = None;
                    return Err(failure);
                }
            }
        }
    }
}

/// The outcome of waiting for mail.
enum Popped {
    /// The mail; `None` if none came in time.
    Mail(Option<Mail>),
    /// A signal that ends lockrun.
    Interrupted(i32),
}

/// Waits for mail for `span`, as measured by the server; gives up on the server at `deadline`.
fn pop(
    connection: &mut Connection,
    mailbox: &str,
    span: Duration,
    deadline: Moment,
    waiter: &mut Waiter<'_>,
    observer: &mut dyn WaitObserver,
) -> Result<Popped, Failure> {
    let command = redis::cmd("BLPOP").arg(mailbox).arg(format!("{:.3}", span.as_secs_f64())).take();
    connection.send(slice::from_ref(&command), deadline)?;
    loop {
        match waiter.wait_for(Some(connection.as_fd()), Some(deadline), observer) {
            Ok(WakeReason::Signal(signal)) => return Ok(Popped::Interrupted(signal)),
            Ok(WakeReason::Ready) => break,
            Ok(WakeReason::Resumed) => {}
            Ok(WakeReason::Time) => return Err(Failure::NoAnswer("did not answer in time")),
            Err(errno) => return Err(Failure::NoWait(errno)),
        }
    }
    let reply = connection.receive(&command, deadline)?;
    Ok(Popped::Mail(read_mail(&reply)))
}
