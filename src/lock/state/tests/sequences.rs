//! Sequences.

use super::*;

const USED: Release = Release::Run { ending: Ending::Exited(0), succeeded: true, retain: Retain::Not };

impl Lock {
    pub(super) fn reserve(&mut self, name: &str, wanted: &Wanted) -> Reserved {
        let claim = claim(name, 1);
        let applied = self.state.reserve(&ask(&claim), wanted, &self.world).expect("a fence is left");
        self.done(applied)
    }

    /// The next value.
    fn next(&mut self, name: &str) -> String {
        match self.reserve(name, &Wanted::Next { from: 7, step: 1 }) {
            Reserved::Mine(_, value) => value,
            other => panic!("no value: {other:?}"),
        }
    }

    fn last_value(&self) -> Option<&str> {
        self.state.sequence.as_ref().map(|sequence| sequence.last.as_str())
    }
}

#[test]
fn each_value_is_reserved_once() {
    let mut lock = Lock::new();
    assert_eq!([lock.next("a"), lock.next("b"), lock.next("a")], ["7", "8", "7"]);
    assert_eq!(lock.last_value(), None);
    lock.release("a", USED);
    assert_eq!(lock.last_value(), Some("7"));
    assert_eq!(lock.next("c"), "9");
    lock.release("c", USED);
    assert_eq!(lock.last_value(), Some("9"));
}

#[test]
fn a_value_that_was_not_used_comes_up_again() {
    let mut lock = Lock::new();
    lock.next("a");
    lock.release("a", Release::at_once(Ending::Exited(3)));
    assert_eq!(lock.next("b"), "7");
    lock.pass(30_000);
    assert_eq!(lock.next("c"), "7");
}

#[test]
fn the_last_value_is_the_one_that_comes_last_in_the_sequence() {
    let mut lock = Lock::new();
    lock.next("a");
    lock.next("b");
    lock.release("b", USED);
    assert_eq!(lock.last_value(), Some("8"));
    lock.release("a", USED);
    assert_eq!(lock.last_value(), Some("8"), "the later run has used an earlier value");
    assert_eq!(lock.next("c"), "9");
}

#[test]
fn a_used_value_counts_though_the_lease_was_lost() {
    let mut lock = Lock::new();
    lock.next("a");
    lock.pass(30_000);
    assert_eq!(lock.release("a", USED), Released::NotMine(None));
    assert_eq!(lock.last_value(), Some("7"));
}

#[test]
fn a_value_that_was_searched_must_follow_the_last_one() {
    let mut lock = Lock::new();
    let value = |value: &str, after: Option<&str>, steps| Wanted::Value {
        value: value.into(),
        after: after.map(str::to_owned),
        steps,
    };
    assert!(matches!(lock.reserve("a", &value("x", None, 1)), Reserved::Mine(Grant { slot: 0, .. }, _)));
    assert_eq!(lock.reserve("b", &value("x", None, 1)), Reserved::Taken);
    assert!(matches!(lock.reserve("b", &value("y", None, 2)), Reserved::Mine(Grant { slot: 1, .. }, _)));
    lock.release("b", USED);
    assert_eq!(lock.reserve("c", &value("y", None, 2)), Reserved::LastChanged(Some("y".into())));
    assert_eq!(lock.reserve("c", &Wanted::Next { from: 0, step: 1 }), Reserved::NoNext("y".into()));
    assert_eq!(lock.state.sequence.as_ref().map(|sequence| sequence.place), Some(2));
}

#[test]
fn what_has_ended_is_the_waiters_before_a_reservation_takes_a_slot() {
    let mut lock = Lock::new();
    lock.acquire("a", 1);
    lock.pass(1);
    lock.wait("b", 1);
    lock.pass(29_999);
    let wanted = Wanted::Next { from: 1, step: 1 };
    assert!(matches!(lock.reserve("c", &wanted), Reserved::Mine(Grant { slot: 1, .. }, _)));
    assert_eq!(lock.woken, ["b"]);
}

#[test]
fn integers_end() {
    let mut lock = Lock::new();
    let wanted = Wanted::Next { from: i64::MAX, step: 1 };
    assert!(matches!(lock.reserve("a", &wanted), Reserved::Mine(..)));
    assert_eq!(lock.reserve("b", &wanted), Reserved::NoNext(i64::MAX.to_string()));
}

#[test]
fn integers_are_written_in_one_way() {
    assert_eq!([integer("-5"), integer("007"), integer("+1"), integer("x")], [Some(-5), None, None, None]);
}
