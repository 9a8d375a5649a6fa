//! Releasing the lock at the end of a run, and reporting it.

use std::time::Duration;

use super::Run;
use super::outcome::Outcome;
use super::renewal::Renewal;
use super::start::NotStarted;
use crate::lock::ending::Ending;
use crate::report::event::Event;
use crate::store::{Release, Released, Retain, Store, StoreError};
use crate::supervise::{Finished, StopReason};
use crate::sys::clock::Moment;

/// What is known of the loss of a lease, before the lock is released.
#[derive(Clone, Copy, Debug)]
pub(super) enum Loss<'a> {
    /// It was not lost, as far as is known.
    None,
    /// It was lost for this reason, which nothing has reported yet.
    Unreported(&'a str),
    /// The renewer has reported it.
    Reported,
}

impl Run<'_> {
    /// Returns why the `lease` was lost, if it was, of a COMMAND that ended at `ended_at`. The renewer has not reported
    /// the loss: it was still waiting for an answer of the store, or the guardian noticed first that TERM was due.
    pub(super) fn unreported_loss(&self, lease: &Renewal, finished: Finished, ended_at: Moment) -> Option<String> {
        let is_lost =
            if self.plan.kill_on_lost { finished.why == Some(StopReason::Lost) } else { lease.is_lost_at(ended_at) };
        is_lost.then(|| lease.why_lost())
    }

    /// Releases the lock, and reports how COMMAND ended, and before that the loss of the lease if nothing has reported
    /// it yet. The store's answer shows a loss that is not known before, because COMMAND ended before the next renewal.
    pub(super) fn finish(&self, store: &mut dyn Store, finished: Finished, how: Release, loss: Loss<'_>) {
        let is_lost = finished.why == Some(StopReason::Lost);
        let unreported = if let Loss::Unreported(why) = loss { Some(why) } else { None };
        let events = self.end_events(finished, unreported);
        events.clone().for_each(|event| self.reporter.log(&event));
        // Before any message: printing may have to wait for standard error, and the next holder must not wait for that.
        let released = (!finished.stuck).then(|| store.release(&self.claim.key, &self.claim.token, how));
        events.for_each(|event| self.reporter.print(&event));
        match released {
            None => {
                let why = "some of the command's processes cannot be killed; the lock is not released";
                self.reporter.report(Event::Failed { why });
            }
            Some(Ok(Released::NotMine(_))) if !how.keeps() && self.plan.store.has_leases() => {
                // Otherwise the loss was known before this answer, and is reported.
                if matches!(loss, Loss::None) {
                    let why = format!(
                        "the lock \"{}\" was no longer this run's when it was released: its lease had ended, or it was \
                         deleted or broken; another run may have held it beside the command",
                        self.key()
                    );
                    self.reporter.report(Event::Failed { why: &why });
                }
            }
            // After a loss that was reported, this says only that the lock is retained: of a free lock the store may know
            // nothing any more.
            Some(released) if !is_lost || matches!(released, Ok(Released::Retained)) => {
                self.report_released(how, released);
            }
            Some(_) => {}
        }
    }

    /// Releases a lock under which COMMAND was not started, and reports why. Returns the run's outcome.
    pub(super) fn finish_unstarted(&self, store: &mut dyn Store, why: NotStarted) -> Outcome {
        let outcome = self.outcome_unstarted(why);
        let how = Release::at_once(outcome.ending());
        // Before any message, as in `finish`.
        let released = store.release(&self.claim.key, &self.claim.token, how);
        self.report_not_started(why);
        self.report_released(how, released);
        outcome
    }

    /// Returns how to release the lock, which was granted at `granted_at`, after COMMAND has `finished` in this way.
    /// The store records lockrun's own ending: a COMMAND that had to be ended has failed, whatever its status.
    pub(super) fn release_after(&self, finished: Finished, granted_at: Moment) -> Release {
        let outcome = Outcome::of(finished);
        let succeeded = outcome == Outcome::Ended(Ending::Exited(0));
        let keep = match &self.plan.sequence {
            Some(sequence) => sequence.keep_on_failure && !succeeded,
            None => self.plan.keep && succeeded,
        };
        let retain = if keep {
            let least = self.plan.min_hold.saturating_sub(Moment::now().since(granted_at));
            Retain::Kept(self.claim.ttl.at_least(least))
        } else if self.plan.min_hold > Duration::ZERO {
            Retain::AtLeast(self.plan.min_hold)
        } else {
            Retain::Not
        };
        Release::Run { ending: outcome.ending(), succeeded, retain }
    }

    /// Releases the lock. If that fails, COMMAND's own status still counts.
    pub(super) fn release(&self, store: &mut dyn Store, how: Release) {
        self.report_released(how, store.release(&self.claim.key, &self.claim.token, how));
    }

    /// Reports the result of the release.
    fn report_released(&self, how: Release, released: Result<Released, StoreError>) {
        match released {
            Ok(released) => self.report_freed(how, &released),
            Err(error) => {
                // `renew --ttl none` may have made the lease endless; the run does not know it.
                let lasts = if self.plan.expires {
                    "until its lease expires, or `lockrun break` frees it"
                } else {
                    "until `lockrun break` frees it"
                };
                let failed = match &self.plan.sequence {
                    Some(_) => format!(
                        "cannot release the value of the sequence \"{}\": it stays reserved {lasts}, and may come up again",
                        self.key()
                    ),
                    None => format!("cannot release the lock \"{}\", which stays held {lasts}", self.key()),
                };
                self.reporter.fail(&error.context(failed));
            }
        }
    }

    /// Reports whether the lock is free or retained.
    fn report_freed(&self, how: Release, released: &Released) {
        if let Released::Unrecorded(why) = released {
            self.reporter.report(Event::Failed { why: &format!("{}: {why}", self.what_is_lost(how)) });
        }
        let why = format!("the lock \"{}\" could not be kept: this run no longer holds it", self.key());
        self.reporter.report(match (how, released) {
            (Release::Run { retain: Retain::Kept(_), .. }, Released::Retained) => Event::Kept,
            (Release::Run { retain: Retain::Kept(_), .. }, Released::NotMine(_)) => Event::Failed { why: &why },
            (Release::Run { retain: Retain::AtLeast(min_hold), .. }, Released::Retained) => {
                Event::Released { min_hold }
            }
            _ => Event::Released { min_hold: Duration::ZERO },
        });
    }

    /// Describes the consequence of a release that could not be recorded.
    fn what_is_lost(&self, how: Release) -> String {
        let what = match &self.plan.sequence {
            Some(_) => format!("the value of the sequence \"{}\"", self.key()),
            None => format!("the lock \"{}\"", self.key()),
        };
        match how {
            Release::Run { succeeded: true, .. } if self.plan.sequence.is_some() => {
                format!("{what} may come up again, although it was used")
            }
            Release::Run { retain: Retain::Kept(_) | Retain::AtLeast(_), .. } => {
                format!("{what} is free, although it should have been kept")
            }
            _ => format!("{what} is free, but how the run ended is not recorded"),
        }
    }
}
