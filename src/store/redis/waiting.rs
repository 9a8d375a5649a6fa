//! A waiter's mailbox, at which it sleeps until the lock is handed to it. Its place in the queue is acquire.lua's.

use std::os::fd::AsFd;
use std::slice;
use std::time::Duration;

use super::connection::Connection;
use super::failure::Failure;
use super::reply::read_mail;
use super::{RedisStore, keys};
use crate::store::{Claim, Wakeup};
use crate::sys::clock::Moment;
use crate::sys::wait::{WaitObserver, Waiter, WakeReason};

impl RedisStore {
    /// Sleeps until mail comes, or until `until`.
    pub(super) fn sleep_at_mailbox(
        &mut self,
        claim: &Claim,
        until: Option<Moment>,
        waiter: &mut Waiter<'_>,
        observer: &mut dyn WaitObserver,
    ) -> Result<Wakeup, Failure> {
        let mailbox = format!("{}mailbox:{}", keys::base(&self.server.prefix, &claim.key), claim.token.as_str());
        let Some(until) = until else { return Ok(Wakeup::AskAgain) };
        let left = until.since(Moment::now());
        if left < Duration::from_millis(2) {
            return Ok(Wakeup::AskAgain);
        }
        let connection = self.connection.as_mut().ok_or(Failure::Closed)?;
        let woken = pop(connection, &mailbox, left, until + self.timeout, waiter, observer);
        if !matches!(woken, Ok(Wakeup::AskAgain | Wakeup::HandedOver { .. })) {
            // The answer may still come on this connection.
            self.connection = None;
        }
        woken
    }
}

/// Waits for mail for `span`, as measured by the server; gives up on the server at `deadline`.
fn pop(
    connection: &mut Connection,
    mailbox: &str,
    span: Duration,
    deadline: Moment,
    waiter: &mut Waiter<'_>,
    observer: &mut dyn WaitObserver,
) -> Result<Wakeup, Failure> {
    let command = redis::cmd("BLPOP").arg(mailbox).arg(format!("{:.3}", span.as_secs_f64())).take();
    connection.send(slice::from_ref(&command), deadline)?;
    loop {
        match waiter.wait_for(Some(connection.as_fd()), Some(deadline), observer) {
            Ok(WakeReason::Signal(signal)) => return Ok(Wakeup::Signal(signal)),
            Ok(WakeReason::Ready) => break,
            Ok(WakeReason::Resumed) => {}
            Ok(WakeReason::Time) => return Err(Failure::Silent),
            Err(errno) => return Err(Failure::NoWait(errno)),
        }
    }
    let reply = connection.receive(&command, deadline)?;
    Ok(read_mail(&reply))
}
