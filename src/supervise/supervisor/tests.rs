//! Tests of the rules by which COMMAND is ended.

use std::cell::Cell;

use super::*;
use crate::lock::lease::Terms;

/// A COMMAND without other processes, which cannot be killed.
struct Unkillable(Cell<Option<Ending>>);

impl Processes for Unkillable {
    fn ended(&self) -> Option<Ending> {
        self.0.get()
    }

    fn is_gone(&self) -> bool {
        false
    }

    fn terminate(&self, _until: Moment) {}

    fn kill(&mut self) -> bool {
        true
    }
}

fn at(seconds: u64) -> Moment {
    Moment::from_boot(Duration::from_secs(seconds))
}

fn deadline(sent_at: u64) -> Deadline {
    let second = Duration::from_secs(1);
    let terms = Terms { ttl: 30 * second, renew_every: 10 * second, kill_after: second, store_timeout: 5 * second };
    terms.deadline(at(sent_at))
}

/// A supervisor whose COMMAND may run for a second, under a lease granted at 0.
fn supervisor(descendants: Descendants) -> Supervisor<Unkillable> {
    let launch = Launch {
        argv: Vec::new(),
        env: Vec::new(),
        kill_after: Duration::from_secs(1),
        max_runtime: Some(Duration::from_secs(1)),
        descendants,
        ends_with_lease: true,
    };
    Supervisor::new(Unkillable(Cell::new(None)), &launch, Some(deadline(0)), at(0))
}

/// Runs the supervisor once a second, with renewals or without. Returns when everything ended, and how.
fn works(
    supervisor: &mut Supervisor<Unkillable>,
    seconds: std::ops::Range<u64>,
    renews: bool,
) -> Option<(u64, Finished)> {
    seconds.into_iter().find_map(|second| {
        if renews {
            supervisor.renewed(deadline(second));
        }
        supervisor.proceed(at(second)).map(|finished| (second, finished))
    })
}

#[test]
fn the_lock_is_held_for_what_cannot_be_killed() {
    let mut its = supervisor(Descendants::Leave);
    assert_eq!(works(&mut its, 0..20, true), None);
    assert!(!its.is_newly_stuck());
    assert_eq!(works(&mut its, 20..1000, true), None);
    assert!(its.is_newly_stuck() && !its.is_newly_stuck());
    // Even if the lease is not renewed, the supervisor wakes by the time it ends.
    assert!(its.wakes_at().is_some_and(|wakes_at| wakes_at <= deadline(999).term_at));
    let (ended, finished) = works(&mut its, 1000..1100, false).expect("the lease lapses");
    assert!(at(ended) >= deadline(999).term_at && at(ended - 1) < deadline(999).term_at, "{ended}");
    assert_eq!((finished.why, finished.stuck), (Some(StopReason::TimedOut), true));
}

#[test]
fn a_lock_that_is_lost_is_not_held() {
    for orphaned in [false, true] {
        let mut its = supervisor(Descendants::Leave);
        assert_eq!(works(&mut its, 0..5, true), None);
        its.end(StopReason::Lost, at(5));
        if orphaned {
            its.end(StopReason::Orphaned, at(5));
        }
        let (ended, finished) = works(&mut its, 5..100, true).expect("it is given up");
        assert!(ended < 30 && finished.stuck, "{ended} {finished:?}");
    }
}

#[test]
fn a_lease_that_is_over_does_not_wake_it_again_and_again() {
    let mut its = supervisor(Descendants::Leave);
    assert_eq!(works(&mut its, 0..100, true), None);
    assert!(its.is_newly_stuck());
    // The lease expires before the processes, which are being killed again, count as stuck again.
    assert_eq!(works(&mut its, 100..115, false), None);
    its.end(StopReason::Orphaned, at(115));
    assert_eq!(works(&mut its, 115..130, false), None);
    let lapsed_at = deadline(99).term_at;
    assert!(lapsed_at < at(129));
    assert_ne!(its.wakes_at(), Some(lapsed_at));
}

#[test]
fn what_is_left_behind_holds_nothing_unless_it_is_waited_for() {
    for (descendants, holds) in [(Descendants::Leave, false), (Descendants::Wait, true), (Descendants::Kill, true)] {
        let mut its = supervisor(descendants);
        assert_eq!(works(&mut its, 0..5, true), None);
        its.tree.0.set(Some(Ending::Exited(0)));
        assert_eq!(works(&mut its, 5..100, true).is_none(), holds, "{descendants:?}");
    }
}
