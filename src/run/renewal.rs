//! When to renew a lease, and what each answer of the store changes.
//!
//! Pure: it is given the time and the answers. The thread that asks the store is in [`super::renewer`].

use std::time::Duration;

use crate::lock::lease::{Deadline, Due, LocalLease, RenewalAnswer};
use crate::store::{Held, Renewed, StoreError};
use crate::sys::clock::Moment;

/// A lease and the state of its renewal.
pub struct Renewal {
    lease: LocalLease,
    /// The last error of an attempt, if there was one.
    failure: Option<StoreError>,
    /// Why the lock is no longer ours, if the store has refused a renewal.
    refusal: Option<String>,
}

/// What the renewer has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing until that moment.
    Sleep(Moment),
    /// Renew the lease.
    Renew,
    /// Report that the lease is lost for this reason, and end.
    GiveUp(String),
}

impl Renewal {
    /// Begins to renew `lease`.
    pub fn new(lease: LocalLease) -> Self {
        Renewal { lease, failure: None, refusal: None }
    }

    /// Returns what to do at `now`.
    pub fn next(&mut self, now: Moment) -> Next {
        match self.lease.due(now) {
            Due::Sleep(until) => Next::Sleep(until),
            Due::Renew => Next::Renew,
            Due::Stop => Next::GiveUp(self.why_lost()),
        }
    }

    /// Records the store's answer, received at `now`, to the renewal sent at `sent_at`. Returns the new deadline if the
    /// answer moved it.
    pub fn answered(&mut self, sent_at: Moment, answer: Result<Renewed, StoreError>, now: Moment) -> Option<Deadline> {
        let answer = match answer {
            Ok(Renewed::Mine) => {
                self.failure = None;
                RenewalAnswer::Mine
            }
            Ok(Renewed::NotMine(held)) => {
                self.refusal = Some(format!("this run no longer holds it: {}", whose(held)));
                RenewalAnswer::NotMine
            }
            Ok(Renewed::Revoked(by)) => {
                self.refusal = Some(format!("it was revoked by {by}"));
                RenewalAnswer::NotMine
            }
            Err(error) => {
                self.failure = Some(error);
                RenewalAnswer::Unknown
            }
        };
        self.lease.answered(sent_at, answer, now)
    }

    /// Skips a renewal that is due at `now`, because lockrun is stopped. It becomes due again as if the store had not
    /// answered.
    pub fn skip(&mut self, now: Moment) {
        self.answered(now, Err(anyhow::anyhow!("lockrun is stopped")), now);
    }

    /// Returns whether the lease was lost at `at`, or the store has refused to renew it since.
    pub fn is_lost_at(&self, at: Moment) -> bool {
        self.refusal.is_some() || at >= self.lease.term_at()
    }

    /// Returns for how long from `now` a store that is away is asked again, before the lease counts as lost.
    pub fn left(&self, now: Moment) -> Duration {
        self.lease.term_at().since(now)
    }

    /// Returns the reason for the loss of the lease.
    pub fn why_lost(&self) -> String {
        match (&self.refusal, &self.failure) {
            (Some(refusal), _) => refusal.clone(),
            (None, Some(failure)) => format!("it could not be renewed in time: {failure:#}"),
            (None, None) => "it could not be renewed in time".into(),
        }
    }
}

/// Describes who holds the lock now.
fn whose(held: Option<Held>) -> String {
    held.map_or_else(|| "nobody holds it".into(), |held| format!("it is {held}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::holder::Holder;
    use crate::lock::lease::Terms;

    const TERMS: Terms = Terms {
        ttl: Duration::from_secs(30),
        renew_every: Duration::from_secs(10),
        kill_after: Duration::from_secs(10),
        store_timeout: Duration::from_secs(5),
    };

    fn at(seconds: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(seconds))
    }

    fn granted() -> Renewal {
        Renewal::new(LocalLease::granted(TERMS, TERMS, at(0)))
    }

    #[test]
    fn a_renewal_is_asked_for_when_it_is_due() {
        let mut renewal = granted();
        assert_eq!(renewal.next(at(0)), Next::Sleep(at(10)));
        assert_eq!(renewal.next(at(10)), Next::Renew);
        assert_eq!(renewal.answered(at(10), Ok(Renewed::Mine), at(12)), Some(TERMS.deadline(at(10))));
        assert_eq!(renewal.next(at(12)), Next::Sleep(at(20)));
    }

    #[test]
    fn a_lease_that_is_refused_is_given_up_at_once_for_that_reason() {
        let by =
            Holder { host: "web-1".into(), pid: 7, user: "op".into(), command: "lockrun break".into(), label: None };
        for (answer, why) in [
            (Renewed::NotMine(None), "this run no longer holds it: nobody holds it".to_owned()),
            (Renewed::Revoked(by.clone()), format!("it was revoked by {by}")),
        ] {
            let mut renewal = granted();
            assert_eq!(renewal.answered(at(10), Err(anyhow::anyhow!("no answer")), at(12)), None);
            assert_eq!(renewal.answered(at(13), Ok(answer), at(13)), None);
            assert_eq!(renewal.next(at(13)), Next::GiveUp(why));
        }
    }

    #[test]
    fn a_lease_is_lost_from_when_term_is_due_or_when_it_is_refused() {
        let mut renewal = granted();
        // The answer came after the end of COMMAND, and too late for TERM: that changes nothing.
        renewal.answered(at(15), Err(anyhow::anyhow!("no answer")), at(20));
        assert!(!renewal.is_lost_at(at(18)) && renewal.is_lost_at(at(19)));
        assert_eq!(renewal.why_lost(), "it could not be renewed in time: no answer");
        let mut renewed = granted();
        renewed.answered(at(10), Err(anyhow::anyhow!("no answer")), at(12));
        renewed.answered(at(12), Ok(Renewed::Mine), at(13));
        assert_eq!(renewed.why_lost(), "it could not be renewed in time", "an earlier failure is not the reason");
        let mut refused = granted();
        refused.answered(at(10), Ok(Renewed::NotMine(None)), at(11));
        assert!(refused.is_lost_at(at(11)));
    }

    #[test]
    fn without_an_answer_it_is_tried_again_until_it_is_time_for_term() {
        let mut renewal = granted();
        renewal.skip(at(10));
        assert_eq!(renewal.next(at(11)), Next::Renew);
        renewal.answered(at(11), Err(anyhow::anyhow!("no answer")), at(16));
        assert_eq!(renewal.next(at(17)), Next::Renew);
        assert_eq!(renewal.next(at(19)), Next::GiveUp("it could not be renewed in time: no answer".into()));
        assert_eq!(granted().next(at(19)), Next::GiveUp("it could not be renewed in time".into()));
    }
}
