//! The end of a hold: a run is over, or a user releases the lock; and what is recorded as the last run.

use std::time::Duration;

use super::{Applied, Facts, Held, HolderState, LastRun, Lease, LockState, Now, Purpose, Success, millis};
use crate::lock::ending::Ending;
use crate::lock::lease::Ttl;
use crate::lock::token::Token;

/// Why a lock is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// A run is over.
    Run {
        /// How COMMAND ended; `None` if it was never started.
        ending: Option<Ending>,
        /// Whether it has used the value of a sequence that it had reserved.
        succeeded: bool,
        /// Whether the lock stays held nevertheless.
        retain: Retain,
    },
    /// By hand, by anybody who has the token.
    ByHand,
}

/// Whether a lock stays held after its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retain {
    /// No.
    Not,
    /// Until it has been held for so long.
    AtLeast(Duration),
    /// Until it is released by its token, or so long from now on.
    Kept(Ttl),
}

/// The answer to a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Released {
    /// The lock is free.
    Free,
    /// It stays held as was asked.
    Retained,
    /// It will be free when the command has ended that runs under it.
    WhenItEnds,
    /// It was not its own (any more). By hand: whose it is.
    NotMine(Option<Held>),
}

impl Release {
    /// Returns the end of a run that has failed, and releases its lock at once.
    pub fn at_once(ending: Option<Ending>) -> Self {
        Release::Run { ending, succeeded: false, retain: Retain::Not }
    }
}

impl LockState {
    /// Releases the lock under `token`, or lets it stay, and records the run.
    ///
    /// A request for the lock under this token that `is_in_flight` is refused when it arrives.
    pub fn release(
        &mut self,
        token: &Token,
        release: Release,
        is_in_flight: bool,
        facts: &impl Facts,
    ) -> Applied<Released> {
        let now = facts.now();
        self.void_other_epochs(facts);
        let answer = match release {
            Release::ByHand => self.release_by_hand(token, now, facts),
            Release::Run { ending, succeeded, retain } => {
                // Before those are dropped whose lease has run out: how such a run ended is known all the same.
                let answer = self.end_run(token, ending, succeeded, retain, now, facts);
                self.leave(token);
                answer
            }
        };
        if is_in_flight {
            self.refuse_from_now_on(token, now, facts);
        }
        self.drop_ended(None, now, facts);
        self.applied(answer, now, facts)
    }

    /// Releases by hand. A command that runs under the lock counts on it, so it holds it until it has ended; then the lock is not
    /// kept.
    fn release_by_hand(&mut self, token: &Token, now: Now, facts: &impl Facts) -> Released {
        // Of one that was forgotten nobody knows whether a command runs under it.
        let is_its_own = |holder: &HolderState| holder.is_in_force(now, facts) && holder.purpose != Purpose::Forgotten;
        let at = self.position(token).filter(|at| is_its_own(&self.holders[*at]));
        let Some(at) = at else { return Released::NotMine(self.first_held(now, facts)) };
        if self.holders[at].purpose == Purpose::Run {
            self.holders[at].is_released = true;
            return Released::WhenItEnds;
        }
        let holder = self.holders.remove(at);
        self.record(&holder, None, now);
        Released::Free
    }

    /// The run under `token` is over.
    fn end_run(
        &mut self,
        token: &Token,
        ending: Option<Ending>,
        succeeded: bool,
        retain: Retain,
        now: Now,
        facts: &impl Facts,
    ) -> Released {
        let Some(at) = self.position(token) else {
            // Its lease had run out, and others may have had the lock since: how their runs ended stays. But a careful waiter wants to
            // hear that a command is dead whose lock was lost.
            self.note_end(now.unix_ms);
            return Released::NotMine(None);
        };
        let holder = &self.holders[at];
        let is_in_force = holder.is_in_force(now, facts) && holder.purpose != Purpose::Forgotten;
        if is_in_force && self.holders[at].purpose != Purpose::Run && retain != Retain::Not {
            // It was done, and the answer was lost.
            return Released::Retained;
        }
        let holder = self.holders.remove(at);
        // No later run is over yet: to acquire the lock is to drop first those whose lease has run out.
        self.record(&holder, ending, now);
        if succeeded && is_in_force && holder.revoked_by.is_none() && holder.purpose == Purpose::Run {
            self.record_success(&holder, now);
        }
        // That the lease ran out unnoticed changes nothing: used is used.
        if succeeded {
            self.use_value(&holder);
        }
        // What was revoked does not stay, even if its command ended before it learnt of that.
        if !is_in_force || holder.revoked_by.is_some() {
            return Released::NotMine(None);
        }
        let Some(lease) = lease_after(&holder, retain, now) else { return Released::Free };
        self.epoch = facts.epoch();
        self.holders.insert(at, HolderState { lease: Some(lease), purpose: Purpose::Kept, ..holder });
        Released::Retained
    }

    /// Notes that a hold has ended at `unix_ms`, or a waiter that saw it would think that the store has forgotten it. Two ends are told apart
    /// even if the clock shows the same, or was set back.
    pub(super) fn note_end(&mut self, unix_ms: u64) {
        self.lost_unix_ms = self.ended_unix_ms().saturating_add(1).max(unix_ms);
    }

    /// Records a hold that is over as the last run. A kept lock's run was recorded when it ended, and its result stays.
    pub(super) fn record(&mut self, holder: &HolderState, ending: Option<Ending>, now: Now) {
        let before = self.ended_unix_ms();
        self.note_end(now.unix_ms);
        if holder.purpose != Purpose::Kept {
            if before < now.unix_ms {
                self.lost_unix_ms = 0;
            }
            self.last = Some(LastRun {
                who: holder.who.clone(),
                started_unix_ms: now.unix_of(holder.since_ms),
                ended_unix_ms: now.unix_ms,
                ending,
            });
        }
    }

    /// Records that the run of `holder` has succeeded.
    fn record_success(&mut self, holder: &HolderState, now: Now) {
        let began_unix_ms = now.unix_of(holder.since_ms);
        // One in the future is by a clock that was wrong.
        let before = self.success.filter(|success| success.began_unix_ms <= now.unix_ms).unwrap_or_default();
        let until_unix_ms = holder.once_per_ms.map(|span| began_unix_ms.saturating_add(span));
        self.success = Some(Success {
            began_unix_ms: before.began_unix_ms.max(began_unix_ms),
            until_unix_ms: before.until_unix_ms.max(until_unix_ms),
        });
    }

    /// Returns the beginning of the run that has done the work of this period, which is `once_per` long, if there is one. One that began
    /// in the future, by a clock that was set back since, counts for no longer than one in the past.
    pub fn done_since(&self, once_per: Option<Duration>, now: Now) -> Option<u64> {
        let (once_per, Success { began_unix_ms, .. }) = (once_per?, self.success?);
        (now.unix_ms.abs_diff(began_unix_ms) < millis(once_per)).then_some(began_unix_ms)
    }
}

/// Returns the lease under which the lock stays held after the run of `holder`, if it does.
fn lease_after(holder: &HolderState, retain: Retain, now: Now) -> Option<Lease> {
    let lease = match retain {
        Retain::Not => return None,
        Retain::Kept(_) if holder.is_released => return None,
        Retain::Kept(ttl) => Lease::new(ttl, now),
        Retain::AtLeast(span) => Lease::new(Ttl::Lasts(span), Now { ms: holder.since_ms, ..now }),
    };
    Some(lease).filter(|lease| lease.is_in_force(now))
}
