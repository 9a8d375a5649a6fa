//! A claim at a lock file: in the kernel's queue for the turnstile, and at the turnstile until a slot is free.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use anyhow::Context;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::directory::Directory;
use super::lock_file::LockFile;
use super::{answers, ask, clock, no_fence};
use crate::lock::state::{self, Facts as _};
use crate::store::{Claim, Done, Grant, Held, IfHeld, Mode, StoreError, Wakeup, from_state};
use crate::sys::clock::Moment;
use crate::sys::wait::{WaitObserver, Waiter, WakeReason};

/// The kernel tells that a file was closed just before it takes the closer's locks away: so after a change we look again, with
/// pauses that double from the first to the last. Where the kernel tells us nothing, the last goes on.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(64));

/// A change whose news was lost is seen after so long at the latest.
const LOOK_ANYWAY: Duration = Duration::from_secs(5);

/// What came of asking for a slot.
pub(super) enum Found {
    /// One is ours.
    Mine(Grant),
    /// None is free, or others are before us.
    Held(Held),
    /// The same, and too many wait to join them.
    QueueFull(Held),
    /// None is wanted: a run has succeeded lately.
    Done(Done),
    /// The file has lost its name: another one is the lock now.
    Vanished,
}

/// A claim's place at a lock file. When it is dropped, the file is closed, and with that whatever of the kernel's locks on it is ours
/// comes free.
#[derive(Debug)]
pub(super) struct Place {
    directory: Directory,
    file: LockFile,
    /// Our place among those that wait, once we do.
    waits_at: Option<i64>,
    /// Whether the turnstile is ours: we are the next to get the lock.
    is_next: bool,
    /// When the first lease ends under which a slot is held.
    lease_ends_at: Option<Moment>,
    /// Once we have slept at the turnstile.
    changes: Option<Changes>,
    look_again: Option<Duration>,
}

impl Place {
    /// Opens the lock file of the claim, and creates it if need be.
    pub(super) fn at(directory: Directory, claim: &Claim) -> Result<Self, StoreError> {
        let file = LockFile::open_or_create(&directory, &claim.key)?;
        Ok(Place {
            directory,
            file,
            waits_at: None,
            is_next: false,
            lease_ends_at: None,
            changes: None,
            look_again: None,
        })
    }

    /// Goes through the turnstile if nobody is at it, takes the lowest free slot of the claim's, and leaves the turnstile to the next
    /// one. If no slot is free, stays there if a claim is to be queued. Does not wait.
    pub(super) fn ask(&mut self, claim: &Claim, if_held: IfHeld) -> Result<Found, StoreError> {
        if !self.is_next && !self.enter(claim, if_held)? {
            let found = self.look(claim)?;
            return self.join(found, if_held);
        }
        self.is_next = true;
        let found = self.take(claim).and_then(|found| self.join(found, if_held));
        if !matches!(found, Ok(Found::Held(_))) || if_held == IfHeld::Leave {
            self.leave()?;
        }
        found
    }

    /// Joins those that wait, if the lock was found to be held and the claim is to be queued; otherwise leaves them.
    fn join(&mut self, found: Found, if_held: IfHeld) -> Result<Found, StoreError> {
        match (found, if_held) {
            (Found::Held(held), IfHeld::Queue { max_waiting, .. }) => {
                if self.waits_at.is_none() {
                    self.waits_at = self.file.take_place(max_waiting)?;
                }
                Ok(if self.waits_at.is_some() { Found::Held(held) } else { Found::QueueFull(held) })
            }
            (found, _) => {
                // COMMAND will inherit the descriptor.
                if let Some(place) = self.waits_at.take() {
                    self.file.free(place).with_context(|| self.cannot_lock())?;
                }
                Ok(found)
            }
        }
    }

    /// What there is to see from outside the turnstile.
    fn look(&self, claim: &Claim) -> Result<Found, StoreError> {
        self.file.look(|state, facts| {
            let now = facts.now();
            if let Some(began_ms) = state.done_since(claim.once_per, now) {
                return Ok(Found::Done(Done { began_ms, now_ms: now.unix_ms }));
            }
            Ok(Found::Held(state.first_held(now, facts).map(|held| from_state::held(held, now)).unwrap_or_default()))
        })
    }

    fn enter(&self, claim: &Claim, if_held: IfHeld) -> Result<bool, StoreError> {
        let entered = match if_held {
            // It no longer waits for a run that is only passing.
            IfHeld::Leave if self.waits_at.is_some() => self.file.enter_within(Duration::ZERO),
            IfHeld::Leave if self.is_full(claim)? => return Ok(false),
            _ => self.file.enter_now(),
        };
        entered.with_context(|| self.cannot_lock())
    }

    /// Whether commands run in all slots that the claim could get. Then there is no need to pass the turnstile: a run that is there for
    /// a moment sends those to the end of the kernel's queue who are next.
    fn is_full(&self, claim: &Claim) -> Result<bool, StoreError> {
        // By hand it may be asked for again under the token of one of them.
        if claim.by_hand || !self.is_taken(claim.mode)? {
            return Ok(false);
        }
        self.file.has_its_name(&self.directory)
    }

    fn is_taken(&self, mode: Mode) -> Result<bool, StoreError> {
        let Mode::Slots(slots) = mode else { return Ok(self.file.is_held_alone()?) };
        for slot in 0..slots {
            if !self.file.slot_is_taken(slot)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes the lowest free slot of the claim's. For one that is past the turnstile.
    fn take(&mut self, claim: &Claim) -> Result<Found, StoreError> {
        if !self.file.has_its_name(&self.directory)? {
            return Ok(Found::Vanished);
        }
        self.file.edit(|state, facts| {
            let applied =
                state.acquire(&ask(claim, claim.by_hand), facts).map_err(|error| no_fence(error, &self.file))?;
            if claim.by_hand {
                facts.free_taken()?;
            }
            Ok(match applied.answer {
                state::Acquired::Mine { fence, slot, leased } => Found::Mine(answers::grant(fence, slot, leased)),
                state::Acquired::Held { first, .. } => {
                    self.lease_ends_at = applied.look_at_ms.map(clock::at_boot_ms);
                    Found::Held(first.map(|first| from_state::held(first, facts.now())).unwrap_or_default())
                }
                state::Acquired::Done { began_unix_ms: began_ms } => {
                    Found::Done(Done { began_ms, now_ms: facts.now().unix_ms })
                }
                // No request is on its way to a file.
                state::Acquired::Cancelled => Found::Held(Held::default()),
            })
        })
    }

    /// Sleeps until it is our turn at the turnstile, or, if it is, until something about the lock has changed; until `until`, or until a
    /// signal comes that would end lockrun.
    pub(super) fn sleep(
        &mut self,
        until: Option<Moment>,
        waiter: &mut Waiter<'_>,
        observer: &mut dyn WaitObserver,
    ) -> Result<Wakeup, StoreError> {
        if !self.is_next {
            // The kernel queues us, and forgets us when the file is closed: nothing is left behind.
            let woken = waiter.wait_in_call(until, observer, || self.file.enter());
            let woken = woken.with_context(|| self.cannot_lock())?;
            self.is_next = woken == WakeReason::Ready;
            return Ok(if let WakeReason::Signal(signal) = woken { Wakeup::Signal(signal) } else { Wakeup::TryAgain });
        }
        self.file.stay().with_context(|| self.cannot_lock())?;
        let Some(changes) = &self.changes else {
            // It may have changed before we watched it.
            self.changes = Some(Changes::of(&self.file));
            return Ok(Wakeup::TryAgain);
        };
        if changes.0.is_none() {
            self.look_again = Some(LOOK_AGAIN.1);
        }
        let look_at = Moment::now() + self.look_again.unwrap_or(LOOK_ANYWAY);
        let wake_at = [until, self.lease_ends_at].into_iter().flatten().fold(look_at, Moment::min);
        let mut turn = Turn { file: &self.file, is_ours: true, observer };
        let woken = waiter.wait_for(changes.as_fd(), Some(wake_at), &mut turn);
        self.is_next = turn.is_ours;
        match woken.with_context(|| self.cannot_lock())? {
            WakeReason::Signal(signal) => return Ok(Wakeup::Signal(signal)),
            WakeReason::Ready => {
                changes.take_in();
                self.look_again = Some(LOOK_AGAIN.0);
            }
            // Our turn has passed to another: back into the queue.
            WakeReason::Resumed => {}
            WakeReason::Time => {
                self.look_again = self.look_again.map(|pause| pause * 2).filter(|pause| *pause <= LOOK_AGAIN.1);
            }
        }
        Ok(Wakeup::TryAgain)
    }

    /// Lets the next one come to the turnstile.
    fn leave(&mut self) -> Result<(), StoreError> {
        self.is_next = false;
        self.file.leave().with_context(|| self.cannot_lock())
    }

    /// The lock file, in which a slot is ours now.
    pub(super) fn into_file(self) -> LockFile {
        self.file
    }

    fn cannot_lock(&self) -> String {
        format!("cannot lock {}", self.file.path())
    }
}

/// Our turn at the turnstile. It is given up while lockrun is stopped by the terminal: the others must not wait for one that stands
/// still.
struct Turn<'a> {
    file: &'a LockFile,
    is_ours: bool,
    observer: &'a mut dyn WaitObserver,
}

impl WaitObserver for Turn<'_> {
    fn tick_every(&self) -> Option<Duration> {
        self.observer.tick_every()
    }

    fn tick(&mut self) {
        self.observer.tick();
    }

    fn pause(&mut self) {
        if std::mem::take(&mut self.is_ours) {
            // If this fails, the end of the process does it.
            let _ = self.file.leave();
        }
        self.observer.pause();
    }

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        self.observer.lifeline()
    }
}

/// The kernel's news of changes of a lock file; `None` if it gives us none, because this user has too many such watches.
///
/// They are never closed: for that the kernel makes us wait some milliseconds (for all processors to be done with them), which
/// must not stand between the lock and COMMAND. The end of the process closes them.
#[derive(Debug)]
struct Changes(Option<ManuallyDrop<Inotify>>);

impl Changes {
    fn of(file: &LockFile) -> Self {
        let watch = || {
            let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
            // By the descriptor, which is the file that we wait for, whatever its name is by now.
            let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
            inotify.add_watch(path.as_str(), AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CLOSE_WRITE)?;
            nix::Result::Ok(ManuallyDrop::new(inotify))
        };
        Changes(watch().ok())
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(|inotify| inotify.as_fd())
    }

    /// Reads the news, which say only that there are any.
    fn take_in(&self) {
        if let Some(inotify) = &self.0 {
            while inotify.read_events().is_ok_and(|events| !events.is_empty()) {}
        }
    }
}
