//! A claim at a lock file: it waits in the kernel's queue for the turnstile, and then at the turnstile until a slot is
//! free.

mod blocked;
mod changes;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use anyhow::Context;

use super::directory::Directory;
use super::lock_file::{LockFile, RECORD_TIMEOUT, Turnstile};
use super::{ask, clock, no_fence};
use crate::lock::state::StoreView as _;
use crate::store::{Acquired, Claim, IfHeld, Mode, StoreError, Wakeup};
use crate::sys::children::ReapedByKernel;
use crate::sys::clock::Moment;
use crate::sys::wait::{WaitObserver, Waiter, WakeReason};
use changes::Changes;

pub(super) use blocked::blocked;

/// The first and the last of the doubling pauses between looks after a change: the kernel reports that a file was
/// closed just before it removes the closer's locks. If the kernel reports no changes, the last pause repeats.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(64));

/// The longest time between two looks, in case a report of a change was lost.
const LOOK_ANYWAY: Duration = Duration::from_secs(5);

/// How long a claim that may wait lets a run pass the turnstile before it joins the kernel's queue, where signals and
/// the claim's own time end its wait.
const PASSING: Duration = Duration::from_millis(100);

/// A claim on a lock file that has not acquired it yet. Dropping it closes the file, which frees all of the claim's
/// kernel locks on it.
#[derive(Debug)]
pub(super) struct PendingClaim {
    directory: Directory,
    file: LockFile,
    /// The claim's place among the waiters (see waiter_bytes.rs), while it waits.
    waits_at: Option<i64>,
    /// Whether the claim has the turnstile, and is the next to get the lock.
    is_next: bool,
    /// When the first of the leases ends that hold a slot.
    lease_ends_at: Option<Moment>,
    /// Watches the file, once the claim has slept at the turnstile.
    changes: Option<Changes>,
    /// The pause before the next look, if a change was reported or cannot be.
    look_again: Option<Duration>,
}

impl PendingClaim {
    /// Opens the lock file of the claim, creating it if it is missing.
    pub(super) fn at(directory: Directory, claim: &Claim) -> Result<Self, StoreError> {
        let file = LockFile::open_or_create(&directory, &claim.key)?;
        Ok(PendingClaim {
            directory,
            file,
            waits_at: None,
            is_next: false,
            lease_ends_at: None,
            changes: None,
            look_again: None,
        })
    }

    /// Passes the turnstile unless another run stays at it, takes the lowest free slot that the claim may have, and
    /// leaves the turnstile to the next run. If no slot is free, keeps the turnstile if the claim is to be queued. Does
    /// not wait for the lock. Returns `None` if the file has lost its name: the lock is another file now.
    pub(super) fn ask(&mut self, claim: &Claim, if_held: IfHeld) -> Result<Option<Acquired>, StoreError> {
        let turnstile = if self.is_next { Turnstile::Entered } else { self.enter(claim, if_held)? };
        self.is_next = turnstile == Turnstile::Entered;
        let found = self.find(turnstile, claim, if_held).and_then(|found| self.join(found, if_held));
        if self.is_next && (!matches!(found, Ok(Some(Acquired::Held(_)))) || if_held == IfHeld::Leave) {
            self.leave()?;
        }
        found
    }

    /// Takes a slot if the claim has the turnstile, or returns what can be seen from outside it.
    fn find(&mut self, turnstile: Turnstile, claim: &Claim, if_held: IfHeld) -> Result<Option<Acquired>, StoreError> {
        // A claim by hand may repeat the request of a holder, with its token. That takes no slot, so it needs no
        // turnstile.
        if self.is_next || claim.by_hand {
            if !self.file.has_its_name(&self.directory)? {
                return Ok(None);
            }
            if let Some(found) = self.take(claim)? {
                return Ok(Some(found));
            }
        }
        match self.look(claim)? {
            Acquired::Held(held) if self.has_room(claim)? => match self.blocked_by(turnstile, held, claim, if_held)? {
                Some(held) => Ok(Some(Acquired::Held(held))),
                None => self.ask(claim, if_held),
            },
            found => Ok(Some(found)),
        }
    }

    /// Takes a place among the waiters if the lock was found held and the claim is to be queued; otherwise frees the
    /// claim's place.
    fn join(&mut self, found: Option<Acquired>, if_held: IfHeld) -> Result<Option<Acquired>, StoreError> {
        match (found, if_held) {
            (Some(Acquired::Held(held)), IfHeld::Queue { max_waiting, .. }) => {
                if self.waits_at.is_none() {
                    self.waits_at = self.file.take_place(max_waiting)?;
                }
                let waits = self.waits_at.is_some();
                Ok(Some(if waits { Acquired::Held(held) } else { Acquired::NotQueued(held) }))
            }
            (found, _) => {
                // Explicitly: COMMAND will inherit the descriptor, and would keep the place.
                if let Some(place) = self.waits_at.take() {
                    self.file.free(place).with_context(|| self.cannot_lock())?;
                }
                Ok(found)
            }
        }
    }

    /// Returns what can be seen from outside the turnstile.
    fn look(&self, claim: &Claim) -> Result<Acquired, StoreError> {
        self.file.look(|state, view| {
            let now = view.now();
            Ok(match state.recent_success(claim.once_per, now) {
                Some(success) => Acquired::NotNeeded(success),
                None => Acquired::Held(state.first_held(now, view).unwrap_or_default()),
            })
        })
    }

    /// Returns whether the claim could get a slot if it had the turnstile.
    fn has_room(&self, claim: &Claim) -> Result<bool, StoreError> {
        Ok(!self.is_taken(claim.mode)? && self.file.look(|state, view| Ok(state.could_hold(claim.mode, view)))?)
    }

    fn enter(&self, claim: &Claim, if_held: IfHeld) -> Result<Turnstile, StoreError> {
        let patience = match if_held {
            IfHeld::Queue { .. } => PASSING,
            // The claim's time is over: do not even wait for a run that is only passing.
            IfHeld::Leave if self.waits_at.is_some() => Duration::ZERO,
            IfHeld::Leave if self.is_full(claim)? => return Ok(Turnstile::Occupied),
            IfHeld::Leave => RECORD_TIMEOUT,
        };
        self.file.enter_within(patience).with_context(|| self.cannot_lock())
    }

    /// Returns whether commands run in all slots that the claim could get. Then there is no need to pass the turnstile,
    /// which might send the next waiter to the end of the kernel's queue.
    fn is_full(&self, claim: &Claim) -> Result<bool, StoreError> {
        // A claim by hand may repeat the request of a holder, with its token.
        if claim.by_hand || !self.is_taken(claim.mode)? {
            return Ok(false);
        }
        self.file.has_its_name(&self.directory)
    }

    fn is_taken(&self, mode: Mode) -> Result<bool, StoreError> {
        let Mode::Slots(slots) = mode else { return Ok(self.file.is_held_exclusively()?) };
        for slot in 0..slots {
            if !self.file.slot_is_taken(slot)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes the lowest free slot that the claim may have. Without the turnstile, only answers a claim whose token
    /// holds the lock already; returns `None` if it does not.
    fn take(&mut self, claim: &Claim) -> Result<Option<Acquired>, StoreError> {
        let ask = ask(claim, claim.by_hand);
        self.file.edit(|state, view| {
            if !self.is_next && !state.is_held_by(&claim.token, view) {
                return Ok(None);
            }
            let applied = state.acquire(&ask, view).map_err(|error| no_fence(error, &self.file))?;
            if claim.by_hand {
                view.free_taken()?;
            }
            Ok(Some(match applied.answer {
                // In another mode. It would wait for itself.
                Acquired::Held(held) if state.is_held_by(&claim.token, view) => Acquired::NotQueued(held),
                Acquired::Held(held) => {
                    self.lease_ends_at = state.next_end().map(clock::at_boot_ms);
                    Acquired::Held(held)
                }
                answer => answer,
            }))
        })
    }

    /// Sleeps until the claim gets the turnstile, or if it has it, until the lock may have changed; but only until
    /// `until`, or until a signal comes that would terminate lockrun.
    pub(super) fn sleep(
        &mut self,
        until: Option<Moment>,
        waiter: &mut Waiter<'_>,
        observer: &mut dyn WaitObserver,
    ) -> Result<Wakeup, StoreError> {
        // If this fails, children that were inherited stay zombies until COMMAND runs.
        let _reaped = ReapedByKernel::begin();
        if !self.is_next {
            // The kernel queues this process, and removes it from the queue when the file is closed: nothing is left
            // behind.
            let woken = waiter.wait_in_call(until, observer, || self.file.enter());
            let woken = woken.with_context(|| self.cannot_lock())?;
            self.is_next = woken == WakeReason::Ready;
            return Ok(if let WakeReason::Signal(signal) = woken { Wakeup::Signal(signal) } else { Wakeup::AskAgain });
        }
        self.file.stay().with_context(|| self.cannot_lock())?;
        let Some(changes) = &self.changes else {
            // The lock may have changed before it was watched.
            self.changes = Some(Changes::of(&self.file));
            return Ok(Wakeup::AskAgain);
        };
        if changes.as_fd().is_none() {
            self.look_again = Some(LOOK_AGAIN.1);
        }
        let look_at = Moment::now() + self.look_again.unwrap_or(LOOK_ANYWAY);
        let wake_at = [until, self.lease_ends_at].into_iter().flatten().fold(look_at, Moment::min);
        let mut turn = TurnstileObserver { file: &self.file, is_ours: true, observer };
        let woken = waiter.wait_for(changes.as_fd(), Some(wake_at), &mut turn);
        self.is_next = turn.is_ours;
        match woken.with_context(|| self.cannot_lock())? {
            WakeReason::Signal(signal) => return Ok(Wakeup::Signal(signal)),
            WakeReason::Ready => {
                changes.drain();
                self.look_again = Some(LOOK_AGAIN.0);
            }
            // The turnstile was given up while lockrun was stopped: back into the queue.
            WakeReason::Resumed => {}
            WakeReason::Time => {
                self.look_again = self.look_again.map(|pause| pause * 2).filter(|pause| *pause <= LOOK_AGAIN.1);
            }
        }
        Ok(Wakeup::AskAgain)
    }

    /// Leaves the turnstile to the next run.
    fn leave(&mut self) -> Result<(), StoreError> {
        self.is_next = false;
        self.file.leave().with_context(|| self.cannot_lock())
    }

    /// Returns the lock file, for a claim that has acquired a slot.
    pub(super) fn into_file(self) -> LockFile {
        self.file
    }

    fn cannot_lock(&self) -> String {
        cannot_lock(&self.file)
    }
}

fn cannot_lock(file: &LockFile) -> String {
    format!("cannot lock {}", file.path())
}

/// Observes a wait at the turnstile. Gives the turnstile up before a stop signal stops lockrun: other runs must not
/// wait for one that is stopped.
struct TurnstileObserver<'a> {
    file: &'a LockFile,
    is_ours: bool,
    observer: &'a mut dyn WaitObserver,
}

impl WaitObserver for TurnstileObserver<'_> {
    fn tick_every(&self) -> Option<Duration> {
        self.observer.tick_every()
    }

    fn tick(&mut self) {
        self.observer.tick();
    }

    fn pause(&mut self) {
        if std::mem::take(&mut self.is_ours) {
            // If this fails, the end of the process frees the turnstile.
            let _ = self.file.leave();
        }
        self.observer.pause();
    }

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        self.observer.lifeline()
    }
}
