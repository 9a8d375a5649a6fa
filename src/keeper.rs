//! The keeper: the thread that renews a lease for as long as COMMAND runs.
//!
//! It decides nothing by itself: [`crate::lease`] says what is due, and the guardian, who is told of every renewal, ends
//! COMMAND when the news stop, whatever became of this thread.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::Context;
use nix::errno::Errno;
use nix::poll::{PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::clock::{Alarm, Moment};
use crate::event::Event;
use crate::lease::{Answer, Due, Lease};
use crate::store::{Claim, Held, Renewed, Store, StoreError};
use crate::supervise::guardian::Control;
use crate::supervise::{memory, readable};
use crate::teller::Teller;

/// Requests need little, a TLS handshake more; pages that are not touched cost nothing.
const STACK: usize = 512 * 1024;

/// What the keeper needs of the system, had before COMMAND starts.
pub struct Provisions {
    stop: Arc<EventFd>,
    alarm: Alarm,
}

impl Provisions {
    /// Fails if the process has no descriptor left.
    pub fn new() -> Result<Self, anyhow::Error> {
        let stop = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let stop = stop.context("cannot prepare to renew the lease")?;
        Ok(Provisions { stop: Arc::new(stop), alarm: Alarm::new().context("cannot prepare to renew the lease")? })
    }
}

/// The renewal thread of one lease.
pub struct Keeper {
    thread: JoinHandle<Box<dyn Store>>,
    stop: Arc<EventFd>,
}

/// What the thread works with.
struct Work {
    store: Box<dyn Store>,
    claim: Claim,
    lease: Lease,
    /// Whom to tell; nobody if a lost lease is only worth a warning.
    control: Option<Control>,
    stop: Arc<EventFd>,
    alarm: Alarm,
    teller: Arc<Teller>,
    last_error: Option<StoreError>,
}

impl Keeper {
    /// Starts to renew. With a `control` COMMAND is ended when the lease is lost, without one that is only told.
    pub fn start(
        provisions: Provisions,
        store: Box<dyn Store>,
        claim: Claim,
        lease: Lease,
        control: Option<Control>,
        teller: Arc<Teller>,
    ) -> Result<Self, anyhow::Error> {
        let Provisions { stop, alarm } = provisions;
        let mut work = Work { store, claim, lease, control, stop: Arc::clone(&stop), alarm, teller, last_error: None };
        let thread = thread::Builder::new().name("keeper".into()).stack_size(STACK).spawn(move || {
            work.keep();
            work.store
        });
        Ok(Keeper { thread: thread.context("cannot start the renewal thread")?, stop })
    }

    /// Stops renewing, and gives the store back. Waits for a renewal that is on its way.
    pub fn finish(self) -> Result<Box<dyn Store>, anyhow::Error> {
        self.stop.write(1)?;
        self.thread.join().map_err(|_| anyhow::anyhow!("the renewal thread has failed"))
    }
}

impl Work {
    /// Renews until told to stop, or until there is nothing left to renew.
    fn keep(&mut self) {
        loop {
            match self.lease.due(Moment::now()) {
                Due::Sleep(until) => {
                    if self.is_told_to_stop_before(until) {
                        return;
                    }
                }
                Due::Renew if self.is_told_to_stop() => return,
                Due::Renew => {
                    if let Some(holder) = self.renew() {
                        return self.lost(&format!("it is not ours any more: {holder}"));
                    }
                }
                Due::Stop => {
                    let why = self.last_error.take().map_or_else(
                        || "it could not be renewed in time".into(),
                        |error| format!("it could not be renewed in time: {error:#}"),
                    );
                    return self.lost(&why);
                }
            }
        }
    }

    /// Renews once. Gives the words for who has the lock, if that is not us.
    fn renew(&mut self) -> Option<String> {
        let sent_at = Moment::now();
        let (answer, other) = match self.store.renew(&self.claim.key, &self.claim.token, Some(self.claim.ttl)) {
            Ok(Renewed::Mine) => (Answer::Mine, None),
            Ok(Renewed::NotMine(held)) => (Answer::NotMine, Some(whose(held))),
            Ok(Renewed::TakenAway(by)) => (Answer::NotMine, Some(format!("it was taken away by {by}"))),
            Err(error) => {
                self.last_error = Some(error);
                (Answer::Unknown, None)
            }
        };
        let moved = self.lease.answered(sent_at, answer, Moment::now());
        if let (Some(deadline), Some(control)) = (moved, &self.control) {
            control.renewed(deadline);
        }
        other
    }

    fn lost(&self, why: &str) {
        if let Some(control) = &self.control {
            control.lost();
        }
        self.teller.tell(Event::Lost { why, stops: self.control.is_some() });
    }

    fn is_told_to_stop(&self) -> bool {
        self.stop.read().is_ok()
    }

    /// Sleeps until `until`; tells whether it is over before.
    fn is_told_to_stop_before(&mut self, until: Moment) -> bool {
        // Without an alarm the lease cannot be kept; not renewing it is the end that is sure.
        if self.alarm.set(Some(until)).is_err() {
            return true;
        }
        memory::forget_program_pages();
        loop {
            match poll(&mut [readable(&*self.stop), readable(&self.alarm)], PollTimeout::NONE) {
                Err(Errno::EINTR) => {}
                _ => return self.is_told_to_stop(),
            }
        }
    }
}

/// Who has the lock now, in words.
fn whose(held: Option<Held>) -> String {
    held.map_or_else(|| "nobody holds it".into(), |held| format!("it is held by {held}"))
}
