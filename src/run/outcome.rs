//! Every way a run can end, and its exit status.
//!
//! The exit statuses are part of the command line's contract: scripts depend on them.

use crate::lock::ending::Ending;
use crate::supervise::{Finished, StopReason};

/// Every way a run of lockrun can end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// COMMAND ran and ended by itself, or a signal interrupted lockrun before COMMAND started: lockrun ends the same
    /// way.
    Ended(Ending),
    /// COMMAND was not run: the lock was held and `--skip` applies, or a run had succeeded within `--once-per`.
    Skipped,
    /// The requested output was printed (help, version, status, a generated file).
    Printed,
    /// `doctor` found something that makes locks weaker or slower, but nothing worse.
    Weak,
    /// `doctor` found that locks are unreliable.
    Unsafe,
    /// The command line or the configuration is wrong.
    BadUsage,
    /// The store cannot be reached, rejects the request, or does not answer in time. COMMAND was not started.
    StoreFailed,
    /// The lock is held and was not waited for, or the wait timed out; the status is 75 unless `--conflict-exit-code`
    /// changed it.
    Held(u8),
    /// The lease was lost while COMMAND ran, and COMMAND was ended.
    Lost,
    /// COMMAND exceeded `--max-runtime` and was ended.
    TimedOut,
    /// lockrun itself failed, or its guardian was killed.
    Failed,
    /// COMMAND was found but cannot be executed.
    CannotExecute,
    /// COMMAND was not found.
    NotFound,
}

/// The exit status for a lock that is held, unless `--conflict-exit-code` changed it: `EX_TEMPFAIL` of sysexits.h.
pub const HELD: u8 = 75;

impl Outcome {
    /// Returns the outcome of a run whose COMMAND has `finished` in this way.
    pub fn of(finished: Finished) -> Self {
        match (finished.why, finished.command) {
            (Some(StopReason::Lost), _) => Outcome::Lost,
            (Some(StopReason::TimedOut), _) => Outcome::TimedOut,
            (Some(StopReason::LeftBehind) | None, Some(ending)) => Outcome::Ended(ending),
            (Some(StopReason::Unguarded | StopReason::Orphaned), _) | (Some(StopReason::LeftBehind) | None, None) => {
                Outcome::Failed
            }
        }
    }

    /// Returns the outcome of a run that this signal terminates.
    pub fn terminated_by(signal: i32) -> Self {
        Outcome::Ended(Ending::Signaled(signal))
    }

    /// Returns how lockrun's own process must end.
    pub const fn ending(self) -> Ending {
        Ending::Exited(match self {
            Outcome::Ended(ending) => return ending,
            Outcome::Skipped | Outcome::Printed => 0,
            Outcome::Weak => 1,
            Outcome::Unsafe => 2,
            Outcome::BadUsage => 64,
            Outcome::StoreFailed => 69,
            Outcome::Held(status) => status,
            Outcome::Lost => 79,
            Outcome::TimedOut => 124,
            Outcome::Failed => 125,
            Outcome::CannotExecute => 126,
            Outcome::NotFound => 127,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_statuses_is_as_documented() {
        let table = [
            (Outcome::Ended(Ending::Exited(3)), 3),
            (Outcome::Skipped, 0),
            (Outcome::Printed, 0),
            (Outcome::Weak, 1),
            (Outcome::Unsafe, 2),
            (Outcome::BadUsage, 64),
            (Outcome::StoreFailed, 69),
            (Outcome::Held(HELD), 75),
            (Outcome::Held(9), 9),
            (Outcome::Lost, 79),
            (Outcome::TimedOut, 124),
            (Outcome::Failed, 125),
            (Outcome::CannotExecute, 126),
            (Outcome::NotFound, 127),
        ];
        for (outcome, status) in table {
            assert_eq!(outcome.ending(), Ending::Exited(status), "{outcome:?}");
        }
        let died = Ending::Signaled(15);
        assert_eq!(Outcome::Ended(died).ending(), died);
    }
}
