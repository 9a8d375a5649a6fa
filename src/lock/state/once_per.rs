//! `--once-per`: the runs that have succeeded, and whether such a success makes another run unneeded.

use std::time::Duration;

use super::{Applied, HolderState, LockState, Now, Success, millis};
use crate::lock::answer::RecentSuccess;

impl LockState {
    /// Records that the run of `holder` has succeeded.
    pub(super) fn record_success(&mut self, holder: &HolderState, now: Now) {
        let began_unix_ms = now.unix_of(holder.since_ms);
        // A success in the future comes from a clock that was wrong.
        let before = self.success.filter(|success| success.began_unix_ms <= now.unix_ms).unwrap_or_default();
        let until_unix_ms = holder.once_per_ms.map(|span| began_unix_ms.saturating_add(span));
        self.success = Some(Success {
            began_unix_ms: before.began_unix_ms.max(began_unix_ms),
            once_began_unix_ms: before.once_began_unix_ms.max(holder.once_per_ms.map(|_| began_unix_ms)),
            until_unix_ms: before.until_unix_ms.max(until_unix_ms),
        });
    }

    /// Forgets the successes that make other runs superfluous. Returns whether there were any.
    pub fn forget_success(&mut self) -> Applied<bool> {
        let forgotten = self.success.as_mut().and_then(|success| {
            success.until_unix_ms = None;
            success.once_began_unix_ms.take()
        });
        Applied::only(forgotten.is_some())
    }

    /// Returns the run that succeeded in this period, if there is one. A run that began in the future, because the
    /// clock was set back since, counts for no longer than one in the past.
    pub fn recent_success(&self, once_per: Option<Duration>, now: Now) -> Option<RecentSuccess> {
        let (once_per, began_ms) = (once_per?, self.success?.once_began_unix_ms?);
        let is_recent = now.unix_ms.abs_diff(began_ms) < millis(once_per);
        is_recent.then_some(RecentSuccess { began_ms, now_ms: now.unix_ms })
    }
}
