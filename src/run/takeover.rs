//! What lockrun does after its guardian has ended: nothing, or the rest of the guardian's work.

use super::Run;
use super::outcome::Outcome;
use super::release::Loss;
use crate::config::plan::Plan;
use crate::lock::milestones::Milestones;
use crate::report::event::Event;
use crate::store::{Backend, Claim, left_behind};
use crate::supervise::StopReason;
use crate::supervise::guardian::parent::GuardianEnd;
use crate::sys::clock::Moment;
use crate::sys::stderr;

/// Why there is no guardian in a sandbox that kills for a system call which lockrun needs, or would only like to make.
const KILLED_BY_FILTER: &str = "a filter of system calls (systemd's SystemCallFilter=, a container's seccomp profile) has killed lockrun's guardian \
                                process; allow the call that the kernel's log names, or let the filter return an error \
                                (SystemCallErrorNumber=EPERM)";

/// Why the lease was lost if lockrun had to take over in time before its end.
const GUARDIAN_LATE: &str =
    "lockrun's guardian process did not run in time: it was stopped or hung, or the machine was suspended";

/// Returns the outcome of a run whose guardian ended in this way. First cancels the claim or releases the lock, if the
/// guardian may not have done so. The guardian's own requests may still arrive after that: only the guardian knew
/// whether all were answered.
pub(super) fn complete(end: GuardianEnd, plan: &Plan, claim: Claim, mut store: Box<dyn Backend>) -> Outcome {
    stderr::limit_blocking();
    match end {
        GuardianEnd::Completed(ending) => Outcome::Ended(ending),
        GuardianEnd::NotStarted { milestones, by_filter } => {
            let is_clean = store.cancel(&claim, true);
            let left = left_behind(&claim, is_clean).map_or(String::new(), |left| format!("; {left}"));
            let killed = if by_filter { KILLED_BY_FILTER } else { "lockrun's guardian process was killed" };
            let why = format!("{killed}; the command was not started{left}");
            Run::resumed(plan, claim, milestones).reporter.report(Event::Failed { why: &why });
            Outcome::Failed
        }
        GuardianEnd::TakenOver(finished, milestones) => {
            let run = Run::resumed(plan, claim, milestones);
            let loss =
                if finished.why == Some(StopReason::Lost) { Loss::Unreported(GUARDIAN_LATE) } else { Loss::None };
            store.expect_late_requests();
            run.finish(&mut *store, finished, run.release_after(finished, granted_at(milestones)), loss);
            Outcome::of(finished)
        }
        GuardianEnd::Unreleased(finished, milestones) => {
            // If the guardian has already released the lock, releasing it again changes nothing.
            if !finished.stuck {
                let run = Run::resumed(plan, claim, milestones);
                store.expect_late_requests();
                run.release(&mut *store, run.release_after(finished, granted_at(milestones)));
            }
            Outcome::of(finished)
        }
    }
}

/// Returns when the lock was acquired, which the guardian has reported before COMMAND could start if the end depends on
/// it.
fn granted_at(milestones: Milestones) -> Moment {
    milestones.acquisition.map_or_else(Moment::now, |acquisition| acquisition.at)
}
