//! The renewer: the thread that renews a lease for as long as COMMAND runs.
//!
//! It decides nothing itself: [`super::renewal`] says what is due, and the guardian's main thread, to which it reports
//! every renewal, ends COMMAND when renewals stop, even if this thread has failed.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, anyhow};
use nix::errno::Errno;
use nix::poll::{PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::renewal::{Next, Renewal};
use super::report_end::why_no_process;
use crate::lock::lease::LocalLease;
use crate::report::event::Event;
use crate::report::reporter::Reporter;
use crate::store::{Backend, Claim};
use crate::supervise::guardian::Control;
use crate::sys::clock::{Alarm, Moment};
use crate::sys::priority;
use crate::sys::wait::readable;

/// The thread's stack size: enough for a TLS handshake. Untouched pages cost nothing.
const STACK: usize = 512 * 1024;

/// A store that the main thread and the renewer share until the main thread takes it back. One thread at a time uses
/// it.
pub struct SharedStore(Arc<Mutex<Option<Shared>>>);

/// What the two threads share.
struct Shared {
    store: Box<dyn Backend>,
    /// The lease, from [`Renewer::start`] until the renewer reports its loss.
    renewal: Option<Renewal>,
}

impl SharedStore {
    /// Shares `store`.
    pub fn new(store: Box<dyn Backend>) -> Self {
        SharedStore(Arc::new(Mutex::new(Some(Shared { store, renewal: None }))))
    }

    /// Takes the store back, so that nothing is renewed any more. Waits for a renewal in progress. Also returns the
    /// lease, if there is one and the renewer has not reported its loss: then it never will.
    pub fn take_back(self) -> (Box<dyn Backend>, Option<Renewal>) {
        let Shared { store, renewal } = self.lock().take().expect("it is taken back once");
        (store, renewal)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Shared>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The renewal thread of one lease.
pub struct Renewer {
    thread: JoinHandle<()>,
    stop: Arc<EventFd>,
    work: SyncSender<Work>,
}

/// What the thread needs to renew a lease.
struct Work {
    shared: SharedStore,
    claim: Claim,
    /// The handle to the guardian; `None` if a lost lease only causes a warning.
    control: Option<Control>,
    reporter: Arc<Reporter>,
}

/// A change in what the store does with renewals.
enum Change {
    /// It is away: why, and for how long the lease is kept without it.
    Away { why: String, left: Duration },
    /// It answers again.
    Back,
}

/// The state of the running thread.
struct Renewing {
    work: Work,
    stop: Arc<EventFd>,
    alarm: Alarm,
    /// Whether an outage of the store was reported that has not ended.
    is_away: bool,
}

impl Renewer {
    /// Creates the thread, which waits for [`Renewer::start`], and ends if the renewer is dropped before that. Fails if
    /// no descriptor or thread is left, which must be known before COMMAND starts.
    pub fn prepare() -> Result<Self, anyhow::Error> {
        let what = "cannot prepare to renew the lease";
        let stop = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).context(what)?);
        let (alarm, its_stop) = (Alarm::new().context(what)?, Arc::clone(&stop));
        let (work, works) = sync_channel(1);
        let wait_and_renew = move || {
            if let Ok(work) = works.recv() {
                Renewing { work, stop: its_stop, alarm, is_away: false }.run();
            }
        };
        let thread = thread::Builder::new().name("renewer".into()).stack_size(STACK).spawn(wait_and_renew);
        let thread = thread.map_err(|error| {
            let errno = Errno::from_raw(error.raw_os_error().unwrap_or(libc::EAGAIN));
            anyhow!("cannot start the renewal thread: {}", why_no_process(errno))
        })?;
        Ok(Renewer { thread, stop, work })
    }

    /// Starts to renew. With a `control`, COMMAND is ended when the lease is lost; without one, the loss is only
    /// reported.
    pub fn start(
        &self,
        store: &SharedStore,
        claim: Claim,
        lease: LocalLease,
        control: Option<Control>,
        reporter: Arc<Reporter>,
    ) {
        if let Some(shared) = &mut *store.lock() {
            shared.renewal = Some(Renewal::new(lease));
        }
        let shared = SharedStore(Arc::clone(&store.0));
        // If the thread has failed, nothing is renewed, and the guardian ends COMMAND in time (not with `--on-lost
        // warn`).
        let _ = self.work.send(Work { shared, claim, control, reporter });
    }

    /// Stops the thread after the renewal in progress, before the store is taken back: COMMAND has ended, and the
    /// thread, which cannot know how, must not report a loss any more.
    pub fn stop(&self) {
        // Cannot fail: the counter is far from full.
        let _ = self.stop.write(1);
    }

    /// Waits for the end of the stopped thread, after the store was taken back.
    pub fn finish(self) -> Result<(), anyhow::Error> {
        self.thread.join().map_err(|_| anyhow::anyhow!("the renewal thread has failed"))
    }
}

impl Renewing {
    /// Renews until stopped, or until the lease is lost.
    fn run(&mut self) {
        priority::raise();
        let shared = SharedStore(Arc::clone(&self.work.shared.0));
        let mut is_prepared = false;
        loop {
            let mut locked = shared.lock();
            let Some(Shared { store, renewal: lease }) = &mut *locked else { return };
            let Some(renewal) = lease else { return };
            if self.must_stop() {
                return;
            }
            match renewal.next(Moment::now()) {
                Next::Sleep(until) => {
                    if !std::mem::replace(&mut is_prepared, true) {
                        store.prepare_release(&self.work.claim.key, &self.work.claim.token, until);
                    }
                    drop(locked);
                    if self.must_stop_before(until) {
                        return;
                    }
                }
                Next::Renew => {
                    if let Some(change) = self.renew(&mut **store, renewal) {
                        self.report(&change, locked);
                    }
                }
                Next::GiveUp(why) => {
                    *lease = None;
                    return self.lost(&why, locked);
                }
            }
        }
    }

    /// Renews once, unless lockrun is stopped. Returns whether an outage of the store has begun or ended.
    fn renew(&mut self, store: &mut dyn Backend, renewal: &mut Renewal) -> Option<Change> {
        let Work { claim, control, .. } = &self.work;
        if control.as_ref().is_some_and(Control::is_stopped) {
            renewal.skip(Moment::now());
            return None;
        }
        let sent_at = Moment::now();
        let answer = store.renew_run(&claim.key, &claim.token, claim.ttl);
        let failure = answer.as_ref().err().map(|error| format!("cannot renew the lease: {error:#}"));
        let moved = renewal.answered(sent_at, answer, Moment::now());
        if let (Some(deadline), Some(control)) = (moved, control) {
            control.renewed(deadline);
        }
        let was_away = std::mem::replace(&mut self.is_away, failure.is_some());
        match failure {
            Some(why) if !was_away => Some(Change::Away { why, left: renewal.left(Moment::now()) }),
            None if was_away && moved.is_some() => Some(Change::Back),
            _ => None,
        }
    }

    /// Reports that an outage has begun or ended. If standard error has no room, the message is lost: it must not delay
    /// the next renewal.
    fn report(&self, change: &Change, locked: MutexGuard<'_, Option<Shared>>) {
        let event = match change {
            Change::Away { why, left } => Event::Outage { why, left: *left },
            Change::Back => Event::Recovered,
        };
        // While the main thread cannot take the store back, and so cannot log the end of COMMAND before this.
        self.work.reporter.log(&event);
        drop(locked);
        self.work.reporter.print_if_there_is_room(&event);
    }

    /// Ends COMMAND, if the loss has to end it, and reports the loss.
    fn lost(&self, why: &str, locked: MutexGuard<'_, Option<Shared>>) {
        let Work { control, reporter, .. } = &self.work;
        if let Some(control) = control {
            control.lost();
        }
        let event = Event::Lost { why, stops: control.is_some() };
        // While the main thread cannot take the store back, and so cannot log the end of COMMAND before this.
        reporter.log(&event);
        drop(locked);
        reporter.print(&event);
    }

    fn must_stop(&self) -> bool {
        self.stop.read().is_ok()
    }

    /// Sleeps until `until`. Returns `true` if the thread must end: it was stopped meanwhile, or cannot set its alarm.
    fn must_stop_before(&mut self, until: Moment) -> bool {
        // Without an alarm the lease cannot be renewed in time; without renewals, the guardian ends COMMAND in time.
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
