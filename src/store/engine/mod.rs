//! The engine of the stores that keep the state of a lock in a record and change it in transactions.
//!
//! Such a store reads a lock, and commits a change to it unless others have changed the lock meanwhile ([`Records`]).
//! The engine does the rest, the same for all of them: it applies the rules of [`crate::lock::state`], goes on until an
//! operation is carried out or its outcome is known, and hands the lock to as many waiters as fit.

mod changes;
mod listing;
mod operation;
mod pages;
mod requests;
mod rows;
#[cfg(test)]
mod tests;
mod view;
mod wait;

use std::thread;
use std::time::Duration;

use super::failure::{Failure, Rejection};
use super::{Acquired, Claim, Grant, Held, KeyStatus, RequestError, Revoked, StoreError, Wakeup};
use crate::lock::key::Key;
use crate::lock::lease::Ttl;
use crate::lock::state::{Applied, FenceExhausted, LockState};
use crate::lock::token::Token;
use crate::sys::backoff::Backoff;
use crate::sys::clock::Moment;
use crate::sys::wait::{WaitObserver, Waiter};

pub(super) use changes::{Changes, RecordChange, json};
pub(super) use operation::Operation;
pub(super) use pages::{Keys, PAGE, Stored, TablePages};
pub(super) use rows::{FIRST_WAITERS, Found, HAND_OFFS_MAX, MORE_WAITERS, Queue, Row, read_record, read_state};
pub(super) use view::View;
pub(super) use wait::Wait;

/// For how many timeouts a release, or a cancel, goes on while others keep changing the lock.
const CONTENDED: u32 = 6;

/// How a store reads and changes the record of a lock.
pub(super) trait Transactions: Send {
    /// What was read of a lock.
    type Snapshot;
    /// An operation that is being carried out: what to read of the lock, and how long to go on.
    type Attempt<'a>;
    /// How the server rejects a request.
    type Rejection: Rejection;

    /// Begins an operation, which must be carried out by the `deadline`.
    fn begin<'a>(&mut self, operation: Operation<'a>, deadline: Moment) -> Self::Attempt<'a>;

    /// Reads the lock: what matters to the operation, as of one moment.
    fn read(&mut self, attempt: &mut Self::Attempt<'_>) -> Result<Self::Snapshot, Failure<Self::Rejection>>;

    /// Returns the state that was read, and what else the rules need to know.
    fn view(
        &mut self,
        attempt: &mut Self::Attempt<'_>,
        found: &Self::Snapshot,
    ) -> Result<(LockState, View), Failure<Self::Rejection>>;

    /// Commits a change to what was `found`. If others have changed the lock meanwhile, the rules need to know more of
    /// it, or another attempt may mend what has failed, returns what is there now. After a failure the outcome may be
    /// unknown: see [`Records::may_be_done`].
    fn commit(
        &mut self,
        attempt: &mut Self::Attempt<'_>,
        found: Self::Snapshot,
        transition: Transition,
    ) -> Result<Commit<Self::Snapshot>, Failure<Self::Rejection>>;

    /// Tidies up after an operation that has failed.
    fn abandon(&mut self, attempt: Self::Attempt<'_>, failure: &Failure<Self::Rejection>);
}

/// A store that keeps the state of each lock in a record, and changes it in transactions. The engine makes a
/// [`Store`](super::Store) of it.
pub(super) trait Records: Transactions {
    /// How far a listing has come.
    type Pages;
    /// What a page of a listing says of one key.
    type Entry;

    /// Returns the bound of every request.
    fn timeout(&self) -> Duration;

    /// Returns for how long at most a request that was given up without an answer keeps others from the lock, if that may
    /// be longer than a request takes.
    fn row_kept_for(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns whether an unanswered request may have been carried out since this was last set to `false`.
    fn may_be_done(&mut self) -> &mut bool;

    /// Returns whether we are in the queue, as far as we know.
    fn is_waiting(&self) -> bool;

    /// Renews the place of a waiter without reading the lock, if the store can. Returns the answer that the claim
    /// waits; `None` if it has to ask for the lock.
    fn renew_place(&mut self, _claim: &Claim, _deadline: Moment) -> Result<Option<Held>, Failure<Self::Rejection>> {
        Ok(None)
    }

    /// Checks a grant that answers a request sent at `sent_at`, if the answer came so late that the lock may have been
    /// lost. A store that waits for no answer longer than for the [timeout](Records::timeout) need not override this.
    fn confirm_if_late(&mut self, _claim: &Claim, grant: Grant, _sent_at: Moment) -> Result<Acquired, RequestError> {
        Ok(Acquired::Mine(grant))
    }

    /// Notes the answer to a request for the lock: the claim waits, or does so no more.
    fn note_answer(&mut self, _answer: &Acquired) {}

    /// Notes that a request failed that may have obtained something for a claim.
    fn note_failure(&mut self, _failure: &Failure<Self::Rejection>) {}

    /// Sleeps in the queue, as [`Store::await_turn`](super::Store::await_turn) says.
    fn sleep_in_queue(
        &mut self,
        claim: &Claim,
        until: Option<Moment>,
        waiter: &mut Waiter<'_>,
        observer: &mut dyn WaitObserver,
    ) -> Result<Wakeup, Failure<Self::Rejection>>;

    /// Renews a lease in another way after a renewal that has failed, if there is one. Returns whether that succeeded.
    fn renew_otherwise(
        &mut self,
        _key: &Key,
        _token: &Token,
        _ttl: Option<Ttl>,
        _failure: &Failure<Self::Rejection>,
    ) -> Result<bool, Failure<Self::Rejection>> {
        Ok(false)
    }

    /// See [`Store::prepare_release`](super::Store::prepare_release).
    fn prepare_release(&mut self, _key: &Key, _token: &Token, _until: Moment) {}

    /// Notes that a claim is cancelled: it has left the queue, or if that is not `confirmed`, may still be there.
    fn note_cancel(&mut self, claim: &Claim, confirmed: bool);

    /// Adds to the answer to a revocation what only the store knows.
    fn complete_revocation(&mut self, _revoked: &mut Revoked) {}

    /// Removes what operations have left behind, for which nobody waits.
    fn tidy_up(&mut self) {}

    /// Begins to list every key, or this one.
    fn pages(&mut self, key: Option<&Key>) -> Self::Pages;

    /// Returns the next keys; `None`: there are no more.
    fn next_page(&mut self, pages: &mut Self::Pages) -> Result<Option<Page<Self::Entry>>, Failure<Self::Rejection>>;

    /// Returns the status of a key, if it has ever been held or waited for.
    fn status(
        &mut self,
        pages: &mut Self::Pages,
        key: &Key,
        entry: &Self::Entry,
    ) -> Result<Option<KeyStatus>, Failure<Self::Rejection>>;

    /// Returns whether a key looks as if it could be pruned. If it is `really` pruned then, the transaction decides
    /// that, by [`Records::is_prunable`].
    fn looks_prunable(
        &mut self,
        key: &Key,
        entry: &Self::Entry,
        unused_for: Duration,
        really: bool,
    ) -> Result<bool, Failure<Self::Rejection>>;

    /// Returns whether a key in this state can be pruned.
    fn is_prunable(state: &LockState, unused_for: Duration, view: &View) -> bool {
        state.is_prunable(unused_for, view)
    }

    /// Returns the server, or the servers, for messages.
    fn server(&self) -> &<Self::Rejection as Rejection>::Server;

    /// Describes a failure: what failed, on what, and what to do about it.
    fn explain(&self, failure: &Failure<Self::Rejection>) -> StoreError {
        failure.explain(self.server())
    }

    /// Carries out an operation: applies `rules` to the state of the lock, and stores the result. They may be applied
    /// several times, each time to the state as last read; only the last result is stored. If it leaves waiters to
    /// which the lock can be handed, goes on with them.
    fn operate<T>(
        &mut self,
        operation: Operation<'_>,
        deadline: Moment,
        rules: &mut Rules<'_, T>,
    ) -> Result<T, Failure<Self::Rejection>>
    where
        Self: Sized,
    {
        self.operate_in_place(operation, deadline, rules).map(|(answer, _)| answer)
    }

    /// As [`Records::operate`]. Also returns the place of the claim in the queue, if it waits.
    fn operate_in_place<T>(
        &mut self,
        operation: Operation<'_>,
        deadline: Moment,
        rules: &mut Rules<'_, T>,
    ) -> Result<(T, Option<Place>), Failure<Self::Rejection>>
    where
        Self: Sized,
    {
        let (answer, place, mut is_unfinished) = carry_out(self, operation, deadline, rules)?;
        while is_unfinished {
            let look: &mut Rules<'_, ()> = &mut |state, view| Ok(state.look(view));
            let looked = carry_out(self, Operation::OnLock(operation.key()), deadline, look);
            // If this fails, the first of them look by themselves. What matters is the operation before.
            *self.may_be_done() = false;
            is_unfinished = looked.is_ok_and(|((), _, is_unfinished)| is_unfinished);
        }
        Ok((answer, place))
    }

    /// Carries out an operation within the timeout, as one of its own: no earlier attempt at it is left.
    fn once<T>(
        &mut self,
        operation: Operation<'_>,
        mut rules: impl FnMut(&mut LockState, &View) -> Result<Applied<T>, FenceExhausted>,
    ) -> Result<T, Failure<Self::Rejection>>
    where
        Self: Sized,
    {
        *self.may_be_done() = false;
        let deadline = Moment::now() + self.timeout();
        self.operate(operation, deadline, &mut rules)
    }

    /// Carries out an operation whose rules cannot fail, again and again until its outcome is known, it is rejected for
    /// good, or `timeout` is over; for longer if the store answers, but others keep changing the lock. One attempt
    /// takes at most half of that: a device on the way may have forgotten its connection.
    fn until_answered<T>(
        &mut self,
        operation: Operation<'_>,
        timeout: Duration,
        mut rules: impl FnMut(&mut LockState, &View) -> Applied<T>,
    ) -> Result<T, Failure<Self::Rejection>>
    where
        Self: Sized,
    {
        let began = Moment::now();
        let mut until = began + timeout;
        let mut backoff = Backoff::new();
        loop {
            let left = until.since(Moment::now());
            let deadline = Moment::now() + left.min(timeout / 2);
            let failure = match self.operate(operation, deadline, &mut |state, view| Ok(rules(state, view))) {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            if matches!(failure, Failure::Contended) {
                until = (Moment::now() + timeout).min(began + timeout * CONTENDED);
            }
            let pause = backoff.next();
            if !failure.is_transient() || Moment::now() + pause >= until {
                return Err(failure);
            }
            thread::sleep(pause);
        }
    }

    /// Returns the failure of a request that may have obtained something for a claim.
    fn failed(&mut self, failure: &Failure<Self::Rejection>) -> RequestError {
        let never_sent = !*self.may_be_done() && !self.is_waiting();
        RequestError { error: self.explain(failure), retry_class: failure.retry_class(), never_sent }
    }
}

/// Some keys in a listing.
pub(super) type Page<E> = Vec<(Key, E)>;

/// What an operation makes of the state of a lock.
type Rules<'r, T> = dyn FnMut(&mut LockState, &View) -> Result<Applied<T>, FenceExhausted> + 'r;

/// What the rules have made of a lock.
#[derive(Default)]
pub(super) struct Transition {
    /// The state that was read.
    pub(super) before: LockState,
    /// The state to be stored.
    pub(super) after: LockState,
    /// See [`Applied::woken`].
    pub(super) woken: Vec<Token>,
    /// See [`Applied::is_unfinished`].
    pub(super) is_unfinished: bool,
    /// See [`Applied::begins_lease`].
    pub(super) begins_lease: bool,
}

/// How committing a change has ended.
pub(super) enum Commit<S> {
    /// It was committed. If the claim that asks waits now: its place.
    Done(Option<Place>),
    /// The rules must be applied to this.
    Again(S),
}

/// A place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// How many waiters are ahead.
    pub(super) ahead: u64,
    /// In how long to look at the lock, if that may be sooner than the rules know.
    pub(super) look_in: Option<Duration>,
}

/// Carries out an operation once. Returns the answer of the rules, the place of the claim that asks, if it waits, and
/// whether the lock can be handed to more waiters.
fn carry_out<R: Records, T>(
    store: &mut R,
    operation: Operation<'_>,
    deadline: Moment,
    rules: &mut Rules<'_, T>,
) -> Result<(T, Option<Place>, bool), Failure<R::Rejection>> {
    let mut attempt = store.begin(operation, deadline);
    let carried_out = attempt_until_done(store, &mut attempt, rules);
    if let Err(failure) = &carried_out {
        store.abandon(attempt, failure);
    }
    carried_out
}

fn attempt_until_done<R: Records, T>(
    store: &mut R,
    attempt: &mut R::Attempt<'_>,
    rules: &mut Rules<'_, T>,
) -> Result<(T, Option<Place>, bool), Failure<R::Rejection>> {
    let mut found = store.read(attempt)?;
    loop {
        let (before, view) = store.view(attempt, &found)?;
        let mut after = before.clone();
        let Applied { answer, woken, is_unfinished, begins_lease } = rules(&mut after, &view)?;
        let transition = Transition { before, after, woken, is_unfinished, begins_lease };
        match store.commit(attempt, found, transition)? {
            Commit::Done(place) => return Ok((answer, place, is_unfinished)),
            Commit::Again(present) => found = present,
        }
    }
}
