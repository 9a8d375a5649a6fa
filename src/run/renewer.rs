//! The renewer: the thread that renews a lease for as long as COMMAND runs.
//!
//! It decides nothing by itself: [`crate::lock::lease`] says what is due, and the guardian, which hears of every renewal, ends
//! COMMAND when the news stop, whatever became of this thread.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::Context;
use nix::errno::Errno;
use nix::poll::{PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::lock::lease::{Answer, Due, Lease};
use crate::report::event::Event;
use crate::report::reporter::Reporter;
use crate::store::{Backend, Claim, Held, Renewed, StoreError};
use crate::supervise::guardian::Control;
use crate::sys::clock::{Alarm, Moment};
use crate::sys::wait::readable;

/// Requests need little, a TLS handshake more; pages that are not touched cost nothing.
const STACK: usize = 512 * 1024;

/// A store that is lent to the renewer until it is taken back. One thread at a time has it.
pub struct SharedStore(Arc<Mutex<Option<Box<dyn Backend>>>>);

impl SharedStore {
    /// Nobody uses it yet.
    pub fn new(store: Box<dyn Backend>) -> Self {
        SharedStore(Arc::new(Mutex::new(Some(store))))
    }

    /// Takes the store back: from then on nothing is renewed. Waits for a renewal that is on its way.
    pub fn take_back(self) -> Box<dyn Backend> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().expect("it is taken back once")
    }
}

/// The renewal thread of one lease.
pub struct Renewer {
    thread: JoinHandle<()>,
    stop: Arc<EventFd>,
    work: SyncSender<Work>,
}

/// A lease that is to be renewed.
struct Work {
    store: SharedStore,
    claim: Claim,
    lease: Lease,
    /// Whom to tell; nobody if a lost lease is only worth a warning.
    control: Option<Control>,
    reporter: Arc<Reporter>,
    last_error: Option<StoreError>,
}

/// The thread, at work.
struct Renewing {
    work: Work,
    stop: Arc<EventFd>,
    alarm: Alarm,
}

impl Renewer {
    /// Makes the thread, which waits for [`Renewer::start`]; dropped before that, it ends. Fails if a descriptor or a thread
    /// cannot be had: that must come out before there is a COMMAND.
    pub fn prepare() -> Result<Self, anyhow::Error> {
        let what = "cannot prepare to renew the lease";
        let stop = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).context(what)?);
        let (alarm, its_stop) = (Alarm::new().context(what)?, Arc::clone(&stop));
        let (work, works) = sync_channel(1);
        let wait_and_keep = move || {
            if let Ok(work) = works.recv() {
                Renewing { work, stop: its_stop, alarm }.keep();
            }
        };
        let thread = thread::Builder::new().name("renewer".into()).stack_size(STACK).spawn(wait_and_keep);
        Ok(Renewer { thread: thread.context("cannot start the renewal thread")?, stop, work })
    }

    /// Starts to renew. With a `control` COMMAND is ended when the lease is lost, without one that is only told.
    pub fn start(
        &self,
        store: &SharedStore,
        claim: Claim,
        lease: Lease,
        control: Option<Control>,
        reporter: Arc<Reporter>,
    ) {
        let store = SharedStore(Arc::clone(&store.0));
        // If the thread is gone, nothing is renewed, and COMMAND is ended in time like under any lease that is not.
        let _ = self.work.send(Work { store, claim, lease, control, reporter, last_error: None });
    }

    /// Ends the thread. The store was taken back before.
    pub fn finish(self) -> Result<(), anyhow::Error> {
        self.stop.write(1)?;
        self.thread.join().map_err(|_| anyhow::anyhow!("the renewal thread has failed"))
    }
}

/// What has come of an attempt to renew.
enum Kept {
    /// It was renewed, or may be yet.
    Going,
    /// It is not ours any more: why.
    Lost(String),
    /// The store was taken back: there is nothing to renew any more.
    Over,
}

impl Renewing {
    /// Renews until told to stop, or until there is nothing left to renew.
    fn keep(&mut self) {
        loop {
            match self.work.lease.due(Moment::now()) {
                Due::Sleep(until) => {
                    if self.is_told_to_stop_before(until) {
                        return;
                    }
                }
                Due::Renew if self.is_told_to_stop() => return,
                Due::Renew => match self.renew() {
                    Kept::Going => {}
                    Kept::Lost(why) => return self.lost(&why),
                    Kept::Over => return,
                },
                Due::Stop => {
                    let why = self.work.last_error.take().map_or_else(
                        || "it could not be renewed in time".into(),
                        |error| format!("it could not be renewed in time: {error:#}"),
                    );
                    return self.lost(&why);
                }
            }
        }
    }

    /// Renews once, if the store was not taken back meanwhile.
    fn renew(&mut self) -> Kept {
        if self.work.control.as_ref().is_some_and(Control::is_stopped) {
            self.work.last_error = Some(anyhow::anyhow!("lockrun is stopped"));
            self.work.lease.answered(Moment::now(), Answer::Unknown, Moment::now());
            return Kept::Going;
        }
        let mut lent = self.work.store.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(store) = &mut *lent else { return Kept::Over };
        let sent_at = Moment::now();
        let (answer, kept) = match store.renew(&self.work.claim.key, &self.work.claim.token, Some(self.work.claim.ttl))
        {
            Ok(Renewed::Mine) => (Answer::Mine, Kept::Going),
            Ok(Renewed::NotMine(held)) => {
                (Answer::NotMine, Kept::Lost(format!("it is not ours any more: {}", whose(held))))
            }
            Ok(Renewed::Revoked(by)) => (Answer::NotMine, Kept::Lost(format!("it was revoked by {by}"))),
            Err(error) => {
                self.work.last_error = Some(error);
                (Answer::Unknown, Kept::Going)
            }
        };
        drop(lent);
        let moved = self.work.lease.answered(sent_at, answer, Moment::now());
        if let (Some(deadline), Some(control)) = (moved, &self.work.control) {
            control.renewed(deadline);
        }
        kept
    }

    fn lost(&self, why: &str) {
        if let Some(control) = &self.work.control {
            control.lost();
        }
        self.work.reporter.tell(Event::Lost { why, stops: self.work.control.is_some() });
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
