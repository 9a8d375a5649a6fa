//! Acquiring a lock, the same for all stores: try, and if the lock is held, wait in turn; sleep and try again until the
//! patience runs out, through stops of lockrun and outages of the store. Unless the lock is granted, the claim is
//! cancelled, however the wait ends.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::lock::lease::Terms;
use crate::lock::state::ASKS_PER_PLACE;
use crate::store::{
    Acquired, Claim, Grant, Held, IfHeld, RequestError, RetryClass, Store, StoreError, Wakeup, left_behind,
};
use crate::sys::backoff::Backoff;
use crate::sys::clock::Moment;
use crate::sys::signals::Signals;
use crate::sys::wait::{WaitObserver, Waiter, WakeReason};

/// How often the guardian checks whether a stopped lockrun was continued.
const CONTINUED_CHECK: Duration = Duration::from_millis(100);

/// How to wait for a lock.
pub struct Wait<'a> {
    /// How to wait in turn for a lock that is held; `None`: not at all.
    pub queue: Option<Queue>,
    /// For how long to go on trying a store that is away.
    pub store_retry: Duration,
    /// The terms of the lease of a lock that is handed over; `None` if the lease must last for its whole ttl, so that
    /// it is renewed first.
    pub terms: Option<Terms>,
    /// lockrun's signals. One that would terminate lockrun ends the wait.
    pub signals: &'a Signals,
    /// Observes the wait.
    pub watcher: &'a mut dyn Watcher,
}

/// How to wait in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// When to give up, also trying a store that is away; `None`: never.
    pub until: Option<Moment>,
    /// The claim does not join the queue if this many already wait; `None`: no limit.
    pub max_waiting: Option<u32>,
}

/// Observes a wait for a lock.
pub trait Watcher: WaitObserver {
    /// Returns whether lockrun, for which this process waits, is stopped. No lock must be acquired for it then.
    fn is_stopped(&self) -> bool;

    /// Called after each answer that the lock is held. Returns whether to go on waiting.
    fn waiting(&mut self, held: &Held) -> ControlFlow<()>;

    /// Called when the store is found to be away: why, and for how long the wait goes on if it stays so.
    fn store_away(&mut self, why: &StoreError, left: Duration);

    /// Called when the store, which was away, answers again.
    fn store_back(&mut self);

    /// Called when the wait is over, if the claim may have left something in the store for ever. `what` describes it.
    fn left_behind(&mut self, what: &str);
}

/// Acquires the lock, in turn with the other waiters if it is to wait for it. If the lock is not granted, the claim has
/// left the queue or has been cancelled. The answer is [`Acquired::Held`] if the lock is held and the claim does not
/// wait for it, or its time for that is over, or the watcher refused to wait for this holder.
pub fn acquire(store: &mut dyn Store, claim: &Claim, wait: Wait<'_>) -> Result<Acquired, StoreError> {
    let Wait { queue, store_retry, terms, signals, watcher } = wait;
    let mut waiting = WaitingClaim::new(store, claim, queue, store_retry, terms);
    waiting.wait(&mut Waiter::new(signals), watcher).map_err(|failed| {
        let is_clean = !waiting.has_asked || waiting.cancel();
        failed.after_cancel(claim, is_clean || !waiting.may_hold)
    })
}

/// A claim that is waiting, for the lock or for the store.
struct WaitingClaim<'a> {
    store: &'a mut dyn Store,
    claim: &'a Claim,
    /// See [`Wait::queue`].
    queue: Option<Queue>,
    /// See [`Wait::store_retry`].
    store_retry: Duration,
    /// See [`Wait::terms`].
    terms: Option<Terms>,
    /// From when an outage of the store counts: from the beginning, or from when the store last answered, or when the
    /// last sleep or stop of lockrun ended.
    outage_from: Moment,
    /// Whether the watcher knows of the present outage.
    is_away: bool,
    /// The holder that the store last named.
    held: Option<Held>,
    /// Whether a request may have reached the store, so that there is something to cancel.
    has_asked: bool,
    /// Whether a try was not answered: it may have acquired the lock, or still do so. A place in the queue alone is not
    /// left for ever.
    may_hold: bool,
}

impl<'a> WaitingClaim<'a> {
    /// Returns a claim for which nothing was asked yet.
    fn new(
        store: &'a mut dyn Store,
        claim: &'a Claim,
        queue: Option<Queue>,
        store_retry: Duration,
        terms: Option<Terms>,
    ) -> Self {
        let outage_from = Moment::now();
        let (is_away, has_asked, may_hold) = (false, false, false);
        WaitingClaim { store, claim, queue, store_retry, terms, outage_from, is_away, held: None, has_asked, may_hold }
    }

    fn wait(&mut self, waiter: &mut Waiter<'_>, watcher: &mut dyn Watcher) -> Result<Acquired, RequestError> {
        let until = self.queue.and_then(|queue| queue.until);
        let mut backoff = Backoff::new();
        loop {
            // While lockrun is stopped, do not listen to the store. When it is continued, request again: the place in
            // the queue may be lost. That time is no outage of the store.
            while watcher.is_stopped() {
                if let Some(signal) = self.pause(CONTINUED_CHECK, waiter, watcher)? {
                    return Ok(self.give_up(Acquired::Interrupted(signal), watcher));
                }
                self.outage_from = Moment::now();
            }
            let is_last = until.is_some_and(|until| Moment::now() >= until);
            let if_held = match self.queue.filter(|_| !is_last) {
                Some(Queue { until, max_waiting }) => IfHeld::Queue { max_waiting, until },
                None => IfHeld::Leave,
            };
            let sent_at = Moment::now();
            let tried = self.store.try_acquire(self.claim, if_held);
            self.has_asked |= tried.as_ref().map_or_else(|failed| !failed.never_sent, |_| true);
            self.may_hold |= tried.as_ref().is_err_and(|failed| !failed.never_sent);
            if tried.is_ok() && std::mem::take(&mut self.is_away) {
                watcher.store_back();
            }
            match tried {
                Ok(Acquired::Held(held)) if if_held != IfHeld::Leave => {
                    self.outage_from = Moment::now();
                    if watcher.waiting(&held).is_break() {
                        return Ok(self.give_up(Acquired::Held(held), watcher));
                    }
                    let slept_from = Moment::now();
                    let look_at = held.look_in.map(|look_in| slept_from + look_in);
                    // The kernel keeps a place for as long as its process lives.
                    let ask_at = held.place.map(|_| self.ask_at(sent_at, look_at));
                    let wake_at = until.into_iter().chain(ask_at).min();
                    let last_fence = held.last_fence;
                    self.held = Some(held);
                    match self.store.await_turn(self.claim, wake_at, waiter, watcher) {
                        // The lease counts from the last request that was answered "you wait": the store renewed the
                        // place when it arrived, and handed the lock over after that. A wake-up with an earlier fence
                        // was late: it says nothing of this place. While lockrun is stopped, nothing starts.
                        Ok(Wakeup::HandedOver { fence, slot })
                            if fence > last_fence && !watcher.is_stopped() && self.may_start(sent_at) =>
                        {
                            return Ok(Acquired::Mine(Grant {
                                fence,
                                slot,
                                lease_from: Some(sent_at),
                                by_hand_off: true,
                            }));
                        }
                        Ok(Wakeup::HandedOver { .. } | Wakeup::AskAgain) => {
                            // The store has worked until now.
                            self.outage_from = Moment::now();
                            backoff = Backoff::new();
                            continue;
                        }
                        Ok(Wakeup::Signal(signal)) => {
                            return Ok(self.give_up(Acquired::Interrupted(signal), watcher));
                        }
                        Err(failed) if failed.retry_class == RetryClass::Permanent => return Err(failed),
                        // The store answered before this failed sleep, too, so that is no reason to reset the pauses.
                        // But a connection that is cut from time to time must not keep the waiter away for longer each
                        // time.
                        Err(_) => {
                            let now = Moment::now();
                            self.outage_from = now;
                            backoff.worked_for(now.since(slept_from));
                        }
                    }
                }
                // After a failover, or after the start of a store that keeps nothing: as if it were still away.
                Ok(Acquired::Held(held))
                    if self.queue.is_none() && held.is_withheld() && !self.left(Moment::now()).is_zero() =>
                {
                    let _ = watcher.waiting(&held);
                }
                Ok(Acquired::Mine(grant)) => return Ok(Acquired::Mine(grant)),
                // An earlier request may still arrive.
                Ok(answer) if self.may_hold => return Ok(self.give_up(answer, watcher)),
                // Nothing to cancel: this request has left the queue, or has not joined it.
                Ok(answer) => return Ok(answer),
                Err(failed) if is_last => match (failed.retry_class, self.held.take()) {
                    // The store was too busy to answer the last request.
                    (RetryClass::Busy, Some(held)) => return Ok(self.give_up(Acquired::Held(held), watcher)),
                    _ => return Err(self.after_trying(failed)),
                },
                Err(failed) => match self.patience_with(failed.retry_class) {
                    None => return Err(self.after_trying(failed)),
                    // A store that is busy has answered.
                    Some(left) if failed.retry_class != RetryClass::Busy && !self.is_away => {
                        self.is_away = true;
                        let left = until.map_or(left, |until| until.since(Moment::now()).min(left));
                        watcher.store_away(&failed.error, left);
                    }
                    Some(_) => watcher.tick(),
                },
            }
            if let Some(signal) = self.pause(backoff.next(), waiter, watcher)? {
                return Ok(self.give_up(Acquired::Interrupted(signal), watcher));
            }
        }
    }

    /// Returns when to ask again if nothing happens: at `look_at`, or when the place has to be renewed that the
    /// request sent at `sent_at` has renewed.
    fn ask_at(&self, sent_at: Moment, look_at: Option<Moment>) -> Moment {
        let renew_at = sent_at + self.claim.place() / ASKS_PER_PLACE;
        look_at.map_or(renew_at, |look_at| look_at.min(renew_at))
    }

    /// Returns whether COMMAND may start under a lock that was handed over after the request sent at `sent_at`, before
    /// the lease is renewed.
    fn may_start(&self, sent_at: Moment) -> bool {
        let terms = self.terms.map(|terms| terms.after_hand_off(self.claim.place()));
        terms.is_some_and(|terms| terms.leave_time_to_renew(sent_at, Moment::now()))
    }

    /// Returns for how long to go on trying after a request that failed with this retry class; `None`: not at all.
    fn patience_with(&mut self, retry_class: RetryClass) -> Option<Duration> {
        let now = Moment::now();
        match retry_class {
            RetryClass::Permanent => return None,
            // The store works, but too many others request this lock: a waiter waits for that, too.
            RetryClass::Busy if self.queue.is_some() => {
                self.outage_from = now;
                return Some(Duration::MAX);
            }
            RetryClass::Unavailable | RetryClass::Slow | RetryClass::Busy => {}
        }
        Some(self.left(now)).filter(|left| !left.is_zero())
    }

    /// Returns for how long from `now` to go on trying a store that is away.
    fn left(&self, now: Moment) -> Duration {
        self.store_retry.saturating_sub(now.since(self.outage_from))
    }

    /// Returns the error of the last one of several tries, which says for how long it was tried.
    fn after_trying(&self, failed: RequestError) -> RequestError {
        if self.is_away { failed.after_trying_for(Moment::now().since(self.outage_from)) } else { failed }
    }

    /// Waits for `span`. Returns a signal that would terminate lockrun, if one came.
    fn pause(
        &mut self,
        span: Duration,
        waiter: &mut Waiter<'_>,
        watcher: &mut dyn Watcher,
    ) -> Result<Option<i32>, StoreError> {
        match waiter.wait_for(None, Some(Moment::now() + span), watcher)? {
            WakeReason::Signal(signal) => return Ok(Some(signal)),
            // It was stopped meanwhile, which is no outage, either.
            WakeReason::Resumed => self.outage_from = Moment::now(),
            WakeReason::Time | WakeReason::Ready => {}
        }
        Ok(None)
    }

    /// Cancels the claim, and reports what may be left in the store if it does not confirm that: no error reports it in
    /// this case. Returns the `answer`.
    fn give_up(&mut self, answer: Acquired, watcher: &mut dyn Watcher) -> Acquired {
        let is_clean = !self.has_asked || self.cancel();
        if let Some(left) = left_behind(self.claim, is_clean || !self.may_hold) {
            watcher.left_behind(&left);
        }
        answer
    }

    /// Cancels the claim. Returns whether the store has confirmed that.
    fn cancel(&mut self) -> bool {
        self.store.cancel(self.claim, false)
    }
}

#[cfg(test)]
mod tests;
