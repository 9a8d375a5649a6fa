//! The end of a hold: a run is over, or a user releases the lock. What is recorded as the last run.

use std::time::Duration;

use super::{Applied, HolderState, LastRun, LeaseRecord, LockState, Now, Purpose, StoreView};
use crate::lock::answer::Released;
use crate::lock::ending::Ending;
use crate::lock::lease::Ttl;
use crate::lock::token::Token;

/// Why a lock is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// A run is over.
    Run {
        /// How the run ended.
        ending: Ending,
        /// Whether COMMAND succeeded, and so has used the sequence value that it had reserved.
        succeeded: bool,
        /// Whether the lock stays held all the same.
        retain: Retain,
    },
    /// A user with the token releases the lock by hand.
    ByHand,
}

/// Whether a lock stays held after its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retain {
    /// No.
    Not,
    /// Until it has been held for this long.
    AtLeast(Duration),
    /// Until it is released by its token, or for this long from now.
    Kept(Ttl),
}

impl Release {
    /// Returns the release of a run that has failed, which frees the lock at once.
    pub fn at_once(ending: Ending) -> Self {
        Release::Run { ending, succeeded: false, retain: Retain::Not }
    }

    /// Returns whether the lock is to stay held after the run (`--keep`).
    pub fn keeps(self) -> bool {
        matches!(self, Release::Run { retain: Retain::Kept(_), .. })
    }
}

impl LockState {
    /// Releases the lock under `token`, or retains it, and records the run.
    ///
    /// A request for the lock under this token that `is_in_flight` is refused when it arrives.
    pub fn release(
        &mut self,
        token: &Token,
        release: Release,
        is_in_flight: bool,
        view: &impl StoreView,
    ) -> Applied<Released> {
        let (now, before) = (view.now(), self.next_end());
        self.void_other_epochs(view);
        let answer = match release {
            Release::ByHand => self.release_by_hand(token, now, view),
            Release::Run { ending, succeeded, retain } => {
                // Before expired leases are dropped: how such a run ended is still worth recording.
                let answer = self.end_run(token, ending, succeeded, retain, now, view);
                self.leave(token);
                answer
            }
        };
        if is_in_flight {
            self.refuse_late_requests(token, now, view);
        }
        self.drop_ended(now, view);
        self.finish(answer, before, now, view)
    }

    /// Releases the lock by hand. A command that runs under the lock depends on it, so the lock stays held until the
    /// command has ended; then it is not retained.
    fn release_by_hand(&mut self, token: &Token, now: Now, view: &impl StoreView) -> Released {
        // Whether a command runs under an unrecorded lease is unknown.
        let is_its_own = |holder: &HolderState| holder.is_in_force(now, view) && holder.purpose != Purpose::Unrecorded;
        let at = self.position(token).filter(|at| is_its_own(&self.holders[*at]));
        let Some(at) = at else { return Released::NotMine(self.first_held(now, view)) };
        if self.holders[at].purpose == Purpose::Run {
            self.holders[at].is_released = true;
            return Released::WhenItEnds;
        }
        let holder = self.holders.remove(at);
        self.record(&holder, None, now);
        Released::Free
    }

    /// Ends the run under `token`.
    fn end_run(
        &mut self,
        token: &Token,
        ending: Ending,
        succeeded: bool,
        retain: Retain,
        now: Now,
        view: &impl StoreView,
    ) -> Released {
        // Without it, its lease has expired, and other runs may have ended since: their record stays.
        let Some(at) = self.position(token) else { return Released::NotMine(None) };
        let holder = &self.holders[at];
        let is_in_force = holder.is_in_force(now, view) && holder.purpose != Purpose::Unrecorded;
        if is_in_force && self.holders[at].purpose != Purpose::Run && retain != Retain::Not {
            // A repeated request: the first reply was lost.
            return Released::Retained;
        }
        let holder = self.holders.remove(at);
        // No run has ended since this one's lease expired: its release would have dropped this holder.
        self.record(&holder, Some(ending), now);
        if succeeded && is_in_force && holder.revoked_by.is_none() && holder.purpose == Purpose::Run {
            self.record_success(&holder, now);
        }
        // A lost lease changes nothing here: the value was used.
        if succeeded {
            self.use_value(&holder);
        }
        if !is_in_force {
            return Released::NotMine(None);
        }
        // A revoked lock was held until now, but is not retained, even if its command ended before it learned of the
        // revocation.
        if holder.revoked_by.is_some() {
            return if matches!(retain, Retain::Kept(_)) { Released::NotMine(None) } else { Released::Free };
        }
        let Some(lease) = lease_after(&holder, retain, now) else { return Released::Free };
        self.epoch = view.epoch();
        self.holders.insert(at, HolderState { lease: Some(lease), purpose: Purpose::Kept, ..holder });
        Released::Retained
    }

    /// Records an ended hold as the last run. A kept lock's run was recorded when it ended, and its result stays.
    pub(super) fn record(&mut self, holder: &HolderState, ending: Option<Ending>, now: Now) {
        if holder.purpose != Purpose::Kept {
            self.last = Some(LastRun {
                who: holder.who.clone(),
                started_unix_ms: now.unix_of(holder.since_ms),
                ended_unix_ms: now.unix_ms,
                ending,
            });
        }
    }
}

/// Returns the lease under which the lock stays held after the run of `holder`, if it does.
fn lease_after(holder: &HolderState, retain: Retain, now: Now) -> Option<LeaseRecord> {
    if holder.is_released {
        return None;
    }
    let lease = match retain {
        Retain::Not => return None,
        Retain::Kept(ttl) => LeaseRecord::new(ttl, now),
        Retain::AtLeast(span) => LeaseRecord::new(Ttl::Lasts(span), Now { ms: holder.since_ms, ..now }),
    };
    Some(lease).filter(|lease| lease.is_in_force(now))
}
