//! Waiting for a lock, above all stores: try, sleep and try again until the patience runs out, through stops of lockrun and
//! outages of the store; and whatever ends the wait, nothing of the claim stays in the store.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::store::{
    Claim, Done, Grant, Held, IfHeld, RequestError, Store, StoreError, Tried, Trouble, Wakeup, left_behind,
};
use crate::sys::backoff::Backoff;
use crate::sys::clock::Moment;
use crate::sys::signals::Signals;
use crate::sys::wait::{WaitObserver, Waiter, WakeReason};

/// How long a waiter that has reached the store before tolerates an outage: a restart or a failover is over by then.
const OUTAGE_MAX: Duration = Duration::from_mins(1);

/// How often a guardian whose lockrun is stopped checks whether it was continued.
const STOPPED: Duration = Duration::from_millis(100);

/// How to wait for a lock that is held.
pub struct Wait<'a> {
    /// Until when; `None`: for ever.
    pub until: Option<Moment>,
    /// How many may wait already; `None`: any number.
    pub max_waiting: Option<u32>,
    /// The signals, some of which end the wait.
    pub signals: &'a Signals,
    /// Hears how the wait goes.
    pub watcher: &'a mut dyn Watcher,
}

/// Looks on while lockrun waits.
pub trait Watcher: WaitObserver {
    /// The lock is held, and we wait: called when the wait begins, and whenever the store tells something newer.
    /// Returns whether to go on waiting.
    fn waiting(&mut self, held: &Held) -> ControlFlow<()>;

    /// The wait is over, and something of the claim may be left in the store for ever: what, in words.
    fn left_behind(&mut self, what: &str);
}

/// How a wait for a lock has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The lock is ours.
    Mine(Grant),
    /// Another holds it, and the patience is at its end.
    Held(Held),
    /// Another holds it, and too many wait for it already.
    QueueFull(Held),
    /// The lock is not wanted: a run has succeeded lately.
    Done(Done),
    /// A signal of this number ended the wait.
    Interrupted(i32),
}

/// Asks for the lock once, and does not wait. After an error the claim is cancelled.
pub fn try_once(store: &mut dyn Store, claim: &Claim) -> Result<Tried, StoreError> {
    store.try_acquire(claim, IfHeld::Leave).map_err(|failed| failed.cancel(store, claim))
}

/// Acquires the lock, in turn with the other waiters. If it does not get it, the claim has left the queue and is cancelled.
pub fn in_turn(store: &mut dyn Store, claim: &Claim, wait: Wait<'_>) -> Result<Acquired, StoreError> {
    let Wait { until, max_waiting, signals, watcher } = wait;
    let mut attempt = Attempt { store, claim, heard_at: None, held: None, may_hold: false };
    let acquired = attempt.wait(until, max_waiting, &mut Waiter::new(signals), watcher);
    match acquired {
        // Nothing to cancel: the claim has left the queue by its last request, or has not joined it.
        Ok(Over::Granted(grant)) => Ok(Acquired::Mine(grant)),
        Ok(Over::OutOfPatience(held)) => Ok(Acquired::Held(held)),
        Ok(Over::QueueFull(held)) => Ok(Acquired::QueueFull(held)),
        Ok(Over::NotWanted(done)) => Ok(Acquired::Done(done)),
        Ok(Over::Hopeless(held)) => {
            attempt.cancel_or_tell(watcher);
            Ok(Acquired::Held(held))
        }
        Ok(Over::Signal(signal)) => {
            attempt.cancel_or_tell(watcher);
            Ok(Acquired::Interrupted(signal))
        }
        Err(failed) => {
            let is_clean = attempt.heard_at.is_none() && failed.left_nothing || attempt.cancel();
            Err(failed.after_cancel(claim, is_clean || !attempt.may_hold))
        }
    }
}

/// Why a wait is over.
enum Over {
    /// The lock is ours.
    Granted(Grant),
    /// The lock was still held when the patience was at its end, and we have left the queue.
    OutOfPatience(Held),
    /// Too many wait already.
    QueueFull(Held),
    /// A run has succeeded lately.
    NotWanted(Done),
    /// The watcher does not want to wait for this holder, or the store had no time to answer once more.
    Hopeless(Held),
    /// A signal of this number came.
    Signal(i32),
}

/// A claim that waits.
struct Attempt<'a> {
    store: &'a mut dyn Store,
    claim: &'a Claim,
    /// When the store last said that we are in the queue, or that it is busy, or was found to be gone while we waited; before that, when
    /// it was found to be slow. Before it has been heard of once, its absence is an error like any other.
    heard_at: Option<Moment>,
    /// Who held the lock when the store said so last.
    held: Option<Held>,
    /// Whether a try was not answered: it may have acquired the lock, or still do so. A place in the queue alone is not left for ever.
    may_hold: bool,
}

impl Attempt<'_> {
    fn wait(
        &mut self,
        until: Option<Moment>,
        max_waiting: Option<u32>,
        waiter: &mut Waiter<'_>,
        watcher: &mut dyn Watcher,
    ) -> Result<Over, RequestError> {
        let mut backoff = Backoff::new();
        loop {
            // Until lockrun is continued, we do not listen; then we ask what has become of our place.
            while watcher.is_stopped() {
                if let Some(signal) = pause(STOPPED, waiter, watcher)? {
                    return Ok(Over::Signal(signal));
                }
            }
            let is_last = until.is_some_and(|until| Moment::now() >= until);
            let if_held = if is_last { IfHeld::Leave } else { IfHeld::Queue { max_waiting, until } };
            let tried = self.store.try_acquire(self.claim, if_held);
            self.may_hold |= tried.as_ref().is_err_and(|failed| !failed.left_nothing);
            match tried {
                Ok(Tried::Mine(grant)) => return Ok(Over::Granted(grant)),
                Ok(Tried::QueueFull(held)) => return Ok(Over::QueueFull(held)),
                Ok(Tried::Done(done)) => return Ok(Over::NotWanted(done)),
                Ok(Tried::Held(held)) if is_last => return Ok(Over::OutOfPatience(held)),
                Ok(Tried::Held(held)) => {
                    self.heard_at = Some(Moment::now());
                    if watcher.waiting(&held).is_break() {
                        return Ok(Over::Hopeless(held));
                    }
                    self.held = Some(held);
                    match self.store.sleep(self.claim, until, waiter, watcher) {
                        Ok(Wakeup::TryAgain) => {
                            // Until now nothing was wrong with it.
                            self.heard_at = Some(Moment::now());
                            backoff = Backoff::new();
                            continue;
                        }
                        Ok(Wakeup::Signal(signal)) => return Ok(Over::Signal(signal)),
                        Err(failed) if failed.trouble == Trouble::Lasting => return Err(failed),
                        // That it answered before is no proof that the next try will do better: the pauses grow.
                        Err(_) => self.heard_at = Some(Moment::now()),
                    }
                }
                Err(failed) if is_last => match (failed.trouble, self.held.take()) {
                    (Trouble::Busy, Some(held)) => return Ok(Over::Hopeless(held)),
                    _ => return Err(failed),
                },
                Err(failed) if !self.bears_with(failed.trouble) => return Err(failed),
                Err(_) => {}
            }
            if let Some(signal) = pause(backoff.next(), waiter, watcher)? {
                return Ok(Over::Signal(signal));
            }
        }
    }

    /// Returns whether to try again after a request that has met with this trouble.
    fn bears_with(&mut self, trouble: Trouble) -> bool {
        let now = Moment::now();
        match trouble {
            Trouble::Lasting => return false,
            Trouble::Away => {}
            // So many others come at once that the server had no time for us, or it hangs.
            Trouble::Slow => self.heard_at = self.heard_at.or(Some(now)),
            // So many others wait for this lock.
            Trouble::Busy => self.heard_at = Some(now),
        }
        self.heard_at.is_some_and(|heard_at| now.since(heard_at) < OUTAGE_MAX)
    }

    /// Leaves the queue, where no error tells what may be left if the store does not confirm that.
    fn cancel_or_tell(&mut self, watcher: &mut dyn Watcher) {
        let is_clean = self.cancel();
        if let Some(left) = left_behind(self.claim, is_clean || !self.may_hold) {
            watcher.left_behind(&left);
        }
    }

    /// Leaves the queue. Returns whether the store has confirmed that.
    fn cancel(&mut self) -> bool {
        self.store.cancel(self.claim, false)
    }
}

/// Waits for `span`. Returns the signal that came, if one did that would end lockrun.
fn pause(span: Duration, waiter: &mut Waiter<'_>, watcher: &mut dyn Watcher) -> Result<Option<i32>, StoreError> {
    match waiter.wait_for(None, Some(Moment::now() + span), watcher)? {
        WakeReason::Signal(signal) => Ok(Some(signal)),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests;
