//! The requests of a [`Store`](crate::store::Store), for every store that keeps records.

use crate::lock::holder::Holder;
use crate::lock::key::Key;
use crate::lock::lease::Ttl;
use crate::lock::state::{Applied, Ask, FenceExhausted, LockState};
use crate::lock::token::Token;
use crate::store::{
    Acquired, Claim, Held, IfHeld, KeyStatus, Listing, Release, Released, Renewed, RequestError, Reserved, Revoked,
    Sequences, Store, StoreError, Wakeup, Wanted,
};
use crate::sys::clock::Moment;
use crate::sys::wait::{WaitObserver, Waiter};

use super::listing::list;
use super::{Operation, Records, View};

impl<R: Records> Store for R {
    fn try_acquire(&mut self, claim: &Claim, if_held: IfHeld) -> Result<Acquired, RequestError> {
        let sent_at = Moment::now();
        let deadline = sent_at + self.timeout();
        if if_held != IfHeld::Leave
            && let Some(held) = self.renew_place(claim, deadline).map_err(|failure| self.failed(&failure))?
        {
            return Ok(Acquired::Held(held));
        }
        let ask = Ask { claim, leased: true, sent_at, if_held };
        // `may_be_done` stays as it is: an earlier attempt of this claim may be carried out until this one is answered.
        let operation = Operation::Acquire { claim, if_held };
        let acquired = self.operate_in_place(operation, deadline, &mut |state, view| state.acquire(&ask, view));
        let (answer, place) = acquired.map_err(|failure| {
            self.note_failure(&failure);
            self.failed(&failure)
        })?;
        self.note_answer(&answer);
        match (answer, place) {
            (Acquired::Mine(grant), _) => self.confirm_if_late(claim, grant, sent_at),
            // Only an answer of the rules that says "you wait" counts.
            (Acquired::Held(held @ Held { place: Some(_), .. }), Some(place)) => {
                let look_in = held.look_in.into_iter().chain(place.look_in).min();
                Ok(Acquired::Held(Held { place: Some(place.ahead), look_in, ..held }))
            }
            (answer, _) => Ok(answer),
        }
    }

    fn await_turn(
        &mut self,
        claim: &Claim,
        until: Option<Moment>,
        waiter: &mut Waiter<'_>,
        observer: &mut dyn WaitObserver,
    ) -> Result<Wakeup, RequestError> {
        let woken = self.sleep_in_queue(claim, until, waiter, observer);
        // No request for the lock was sent.
        woken.map_err(|failure| RequestError { never_sent: true, ..self.failed(&failure) })
    }

    fn renew(&mut self, key: &Key, token: &Token, ttl: Option<Ttl>) -> Result<Renewed, StoreError> {
        renew(self, key, token, ttl, |state, view| state.renew(token, ttl, view))
    }

    fn renew_run(&mut self, key: &Key, token: &Token, ttl: Ttl) -> Result<Renewed, StoreError> {
        renew(self, key, token, Some(ttl), |state, view| state.renew_run(token, ttl, view))
    }

    fn prepare_release(&mut self, key: &Key, token: &Token, until: Moment) {
        Records::prepare_release(self, key, token, until);
    }

    fn release(&mut self, key: &Key, token: &Token, how: Release) -> Result<Released, StoreError> {
        // The answer by what the last attempt went by. If its outcome is unknown, and the lock was ours by that and no
        // longer is, that attempt has released it, unless somebody has broken the lock since it was read.
        let mut before = None;
        *self.may_be_done() = false;
        let timeout = self.timeout();
        let released = self.until_answered(Operation::Release { key, token, how }, timeout, |state, view| {
            let applied = state.release(token, how, false, view);
            let is_done = view.may_be_done && matches!(applied.answer, Released::NotMine(_));
            let answer = before.take().filter(|_| is_done).unwrap_or(applied.answer);
            before = Some(answer.clone());
            Applied { answer, ..applied }
        });
        let answer = released.map_err(|failure| self.explain(&failure))?;
        self.tidy_up();
        Ok(answer)
    }

    /// If this fails, the lease expires, if the claim got one.
    fn cancel(&mut self, claim: &Claim, in_flight: bool) -> bool {
        let voids_late_requests = in_flight && claim.request.is_none();
        // A request of this process has already used its own time, one of another process has not.
        let timeout = if in_flight { self.timeout() } else { self.timeout() / 2 }.max(self.row_kept_for());
        // `may_be_done` stays as it is: a request of the claim may still be carried out.
        let matters = in_flight || claim.request.is_some() || *self.may_be_done() || self.is_waiting();
        let cancel = |state: &mut LockState, view: &View| {
            state.cancel(&claim.token, claim.request.as_ref(), voids_late_requests, view)
        };
        let operation = Operation::Cancel(claim);
        let cancelled = if matters {
            self.until_answered(operation, timeout, cancel)
        } else {
            self.operate(operation, Moment::now() + timeout, &mut |state, view| Ok(cancel(state, view)))
        };
        self.note_cancel(claim, cancelled.is_ok());
        self.tidy_up();
        cancelled.is_ok()
    }

    fn list(&mut self, key: Option<&Key>) -> Result<Listing<KeyStatus>, StoreError> {
        list(self, key)
    }

    fn revoke(&mut self, key: &Key, fence: Option<u64>, by: &Holder, now: bool) -> Result<Revoked, StoreError> {
        // The fences that the first attempt finds. And the last answer: if its outcome is unknown, it may have been
        // carried out.
        let (mut meant, mut answered): (Option<Vec<u64>>, Option<Revoked>) = (None, None);
        let revoked = self.once(Operation::OnLock(key), |state, view| {
            let fences = meant.get_or_insert_with(|| state.fences(fence));
            let applied = state.revoke(Some(fences), by, now, view);
            let answer = match answered.take().filter(|_| view.may_be_done) {
                Some(first) => first.made_again(&applied.answer),
                None => applied.answer,
            };
            answered = Some(answer.clone());
            Ok(Applied { answer, ..applied })
        });
        let mut revoked = revoked.map_err(|failure| self.explain(&failure))?;
        self.tidy_up();
        self.complete_revocation(&mut revoked);
        Ok(revoked)
    }
}

impl<R: Records> Sequences for R {
    fn reserve(&mut self, claim: &Claim, wanted: &Wanted) -> Result<Reserved, RequestError> {
        let ask = Ask { claim, leased: true, sent_at: Moment::now(), if_held: IfHeld::Leave };
        let reserved = self.once(Operation::Reserve(claim), |state, view| state.reserve(&ask, wanted, view));
        reserved.map_err(|failure| {
            self.note_failure(&failure);
            self.failed(&failure)
        })
    }
}

/// Renews a lease by these `rules`.
fn renew<R: Records>(
    store: &mut R,
    key: &Key,
    token: &Token,
    ttl: Option<Ttl>,
    rules: impl Fn(&mut LockState, &View) -> Applied<Renewed>,
) -> Result<Renewed, StoreError> {
    let began = Moment::now();
    let rules = |state: &mut LockState, view: &View| -> Result<_, FenceExhausted> { Ok(rules(state, view)) };
    let renewed = match store.once(Operation::Renew { key, token }, rules) {
        Err(failure) => match store.renew_otherwise(key, token, ttl, &failure) {
            Ok(true) => Ok(Renewed::Mine),
            Ok(false) => Err(failure),
            Err(failure) => Err(failure),
        },
        answered => answered,
    };
    // After a slow renewal little of the lease may be left, so return at once. The next renewal tidies up.
    if renewed.is_ok() && Moment::now().since(began) < store.timeout() / 4 {
        store.tidy_up();
    }
    renewed.map_err(|failure| store.explain(&failure))
}
