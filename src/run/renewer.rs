//! The renewer: the thread that renews a lease for as long as COMMAND runs.
//!
//! It decides nothing by itself: [`crate::lock::lease`] computes what is due, and the guardian, which receives every renewal, ends
//! COMMAND when renewals stop, even if this thread has failed.

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
use crate::sys::priority;
use crate::sys::wait::readable;

/// Requests need little stack, a TLS handshake more; untouched pages cost nothing.
const STACK: usize = 512 * 1024;

/// A store that the renewer shares until the main thread takes it back. One thread at a time uses it.
pub struct SharedStore(Arc<Mutex<Option<Box<dyn Backend>>>>);

impl SharedStore {
    /// Shares `store`.
    pub fn new(store: Box<dyn Backend>) -> Self {
        SharedStore(Arc::new(Mutex::new(Some(store))))
    }

    /// Takes the store back, after which nothing is renewed. Waits for a renewal in progress.
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
    /// Where renewals are reported; `None` if a lost lease only causes a warning.
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
    /// Creates the thread, which waits for [`Renewer::start`] and ends if the renewer is dropped before. Fails if no descriptor or
    /// thread is left, which must be found out before COMMAND starts.
    pub fn prepare() -> Result<Self, anyhow::Error> {
        let what = "cannot prepare to renew the lease";
        let stop = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).context(what)?);
        let (alarm, its_stop) = (Alarm::new().context(what)?, Arc::clone(&stop));
        let (work, works) = sync_channel(1);
        let wait_and_renew = move || {
            if let Ok(work) = works.recv() {
                Renewing { work, stop: its_stop, alarm }.run();
            }
        };
        let thread = thread::Builder::new().name("renewer".into()).stack_size(STACK).spawn(wait_and_renew);
        Ok(Renewer { thread: thread.context("cannot start the renewal thread")?, stop, work })
    }

    /// Starts to renew. With a `control`, COMMAND is ended when the lease is lost; without, the loss is only reported.
    pub fn start(
        &self,
        store: &SharedStore,
        claim: Claim,
        lease: Lease,
        control: Option<Control>,
        reporter: Arc<Reporter>,
    ) {
        let store = SharedStore(Arc::clone(&store.0));
        // If the thread has failed, nothing is renewed, and COMMAND is ended in time as under any lease that is not renewed.
        let _ = self.work.send(Work { store, claim, lease, control, reporter, last_error: None });
    }

    /// Ends the thread, after the store was taken back.
    pub fn finish(self) -> Result<(), anyhow::Error> {
        self.stop.write(1)?;
        self.thread.join().map_err(|_| anyhow::anyhow!("the renewal thread has failed"))
    }
}

/// The result of an attempt to renew.
enum Attempt {
    /// The lease was renewed, or may still be.
    Going,
    /// The lock is not ours any more, for this reason.
    Lost(String),
    /// The store was taken back: nothing is to be renewed any more.
    Over,
}

impl Renewing {
    /// Renews until stopped, or until the lease is lost.
    fn run(&mut self) {
        priority::raise();
        loop {
            match self.work.lease.due(Moment::now()) {
                Due::Sleep(until) => {
                    if self.must_stop_before(until) {
                        return;
                    }
                }
                Due::Renew if self.must_stop() => return,
                Due::Renew => match self.renew() {
                    Attempt::Going => {}
                    Attempt::Lost(why) => return self.lost(&why),
                    Attempt::Over => return,
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

    /// Renews once, unless the store was taken back meanwhile.
    fn renew(&mut self) -> Attempt {
        if self.work.control.as_ref().is_some_and(Control::is_stopped) {
            self.work.last_error = Some(anyhow::anyhow!("lockrun is stopped"));
            self.work.lease.answered(Moment::now(), Answer::Unknown, Moment::now());
            return Attempt::Going;
        }
        let mut shared = self.work.store.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(store) = &mut *shared else { return Attempt::Over };
        let sent_at = Moment::now();
        let (answer, kept) = match store.renew(&self.work.claim.key, &self.work.claim.token, Some(self.work.claim.ttl))
        {
            Ok(Renewed::Mine) => (Answer::Mine, Attempt::Going),
            Ok(Renewed::NotMine(held)) => {
                (Answer::NotMine, Attempt::Lost(format!("it is not ours any more: {}", whose(held))))
            }
            Ok(Renewed::Revoked(by)) => (Answer::NotMine, Attempt::Lost(format!("it was revoked by {by}"))),
            Err(error) => {
                self.work.last_error = Some(error);
                (Answer::Unknown, Attempt::Going)
            }
        };
        drop(shared);
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

    fn must_stop(&self) -> bool {
        self.stop.read().is_ok()
    }

    /// Sleeps until `until`. Returns whether the renewer was stopped before.
    fn must_stop_before(&mut self, until: Moment) -> bool {
        // Without an alarm the lease cannot be renewed in time; without renewals COMMAND is surely ended in time.
        if self.alarm.set(Some(until)).is_err() {
            return true;
        }
        loop {
            match poll(&mut [readable(&*self.stop), readable(&self.alarm)], PollTimeout::NONE) {
                Err(Errno::EINTR) => {}
                _ => return self.must_stop(),
            }
        }
    }
}

/// Describes who holds the lock now.
fn whose(held: Option<Held>) -> String {
    held.map_or_else(|| "nobody holds it".into(), |held| format!("it is held by {held}"))
}
