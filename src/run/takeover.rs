//! What lockrun does when its guardian is done, or when it has to do the rest of the guardian's work itself.

use super::Run;
use super::outcome::Outcome;
use crate::config::plan::Plan;
use crate::report::event::Event;
use crate::store::{Backend, Claim, Release};
use crate::supervise::Why;
use crate::supervise::parent::End;
use crate::sys::clock::Moment;

/// Returns the outcome of a run whose guardian has come to this `end`, after the lock was cancelled or released if the guardian may not
/// have done so.
pub(super) fn after(end: End, plan: &Plan, claim: Claim, mut store: Box<dyn Backend>) -> Outcome {
    match end {
        End::Guarded(ending) => Outcome::Ended(ending),
        End::Gone => {
            store.cancel(&claim, true);
            let why = "the guardian, a process of lockrun's own, was killed; the command was not started";
            Run::new(plan, claim).reporter.tell(Event::Failed { why });
            Outcome::Failed
        }
        End::TakenOver(finished) => {
            let run = Run::new(plan, claim);
            if finished.why == Some(Why::Lost) {
                let why = "the guardian, a process of lockrun's own, was stopped or hung";
                run.reporter.tell(Event::Lost { why, stops: true });
            }
            run.finish(&mut *store, finished, Release::at_once(finished.command));
            Outcome::of(finished)
        }
        End::Unreleased(finished) => {
            // The guardian may have released it. To release it again changes nothing.
            if !finished.stuck {
                let run = Run::new(plan, claim);
                run.release(&mut *store, run.release_after(finished, Moment::now()));
            }
            Outcome::of(finished)
        }
    }
}
