//! A store on which the kernel holds the locks of runs, and whose clock restarts with the machine.

use super::*;

impl Lock {
    /// A run acquires the lock, and its process holds the slot.
    fn run(&mut self, name: &str, slots: u32) -> Option<u32> {
        let claim = claim(name, slots);
        let slot = slot(&self.ask(&Ask { leased: false, ..ask(&claim) }))?;
        self.world.slots.insert(slot);
        Some(slot)
    }
}

#[test]
fn a_run_holds_the_lock_for_as_long_as_the_kernel_says() {
    let mut lock = Lock::new();
    assert_eq!(lock.run("a", 1), Some(0));
    assert_eq!((lock.ends_in, lock.state.epoch.as_str()), (None, ""), "it has no lease, and needs no epoch");
    lock.pass(1_000_000);
    assert_eq!(lock.run("b", 1), None);
    assert_eq!(lock.renew("a", None), Renewed::Mine);
    lock.world.slots.clear();
    assert_eq!(lock.run("b", 1), Some(0));
}

#[test]
fn a_slot_whose_record_was_lost_counts() {
    let mut lock = Lock::new();
    lock.world.slots.insert(0);
    assert_eq!(lock.run("a", 1), None);
    assert_eq!(lock.run("a", 2), Some(1));
    assert_eq!(lock.run("b", 2), None);
    assert_eq!(lock.run("b", 3), Some(2));
}

#[test]
fn a_slot_whose_record_was_lost_counts_beside_one_with_a_greater_number() {
    let mut lock = Lock::new();
    lock.run("a", 1);
    assert_eq!(lock.run("b", 2), Some(1));
    lock.state.holders.remove(0);
    assert_eq!(lock.run("c", 2), None, "both slots are held");
    lock.state.holders[0].slot = 5;
    lock.world.slots = HashSet::from([0, 5]);
    assert_eq!(lock.run("c", 2), None, "slots 0 and 5 are held, and two may hold the lock");
}

#[test]
fn a_run_may_be_kept_by_a_lease() {
    let mut lock = Lock::new();
    lock.run("a", 1);
    lock.pass(5000);
    assert_eq!(lock.release("a", keep(lasts(60))), Released::Retained);
    lock.world.slots.clear();
    assert_eq!((lock.holders(), lock.ends_in, lock.state.epoch.as_str()), (vec!["a"], Some(60_000), "one"));
    assert_eq!(lock.run("b", 1), None);
}

#[test]
fn what_a_living_process_holds_cannot_be_revoked() {
    let mut lock = Lock::new();
    lock.run("a", 2);
    let claim = Claim { by_hand: true, ..claim("b", 2) };
    lock.ask(&ask(&claim));
    let Revoked::From { from, living, .. } = lock.revoke(None, true) else { panic!("it is held") };
    assert_eq!((from.len(), from[0].token.clone()), (1, Some(token("b"))));
    assert_eq!((living.len(), living[0].held.token.clone(), living[0].slot), (1, Some(token("a")), 0));
    assert_eq!(lock.holders(), ["a"]);
}

#[test]
fn a_restart_of_the_clock_voids_all_but_the_fence_the_last_run_and_the_sequence() {
    let mut lock = Lock::new();
    lock.run("a", 3);
    lock.release("a", DONE);
    lock.world.slots.clear();
    let claim = Claim { by_hand: true, ttl: Ttl::None, ..claim("b", 3) };
    lock.ask(&ask(&claim));
    lock.state.sequence = Some(SequenceState { last: "7".into(), place: 1, fence: 1 });
    let before = lock.state.clone();
    lock.world.epoch = "two".into();
    lock.world.now.ms = 5000;
    assert_eq!(lock.holders(), [""; 0]);
    assert!(matches!(lock.renew("b", None), Renewed::NotMine(None)));
    assert_eq!(lock.state, LockState { holders: Vec::new(), epoch: String::new(), ..before });
    assert_eq!(fence(&lock.by_hand("c")), START + 2);
    assert_eq!(lock.state.epoch, "two");
}

#[test]
fn every_operation_sees_that_the_clock_was_restarted() {
    let held = || {
        let mut lock = Lock::new();
        lock.by_hand("a");
        lock.world.epoch = "two".into();
        lock.world.now.ms = 5000;
        lock
    };
    assert_eq!(slot(&held().by_hand("b")), Some(0));
    assert_eq!(held().run("b", 1), Some(0));
    assert_eq!(held().release("a", Release::ByHand), Released::NotMine(None));
    assert_eq!(held().release("a", DONE), Released::NotMine(None));
    assert_eq!(held().renew("a", None), Renewed::NotMine(None));
    assert_eq!(held().revoke(None, false), Revoked::Free);
    assert!(held().cancel("a", None, false));
    let mut lock = Lock::new();
    lock.cancel("a", None, true);
    lock.world.epoch = "two".into();
    assert_eq!(slot(&lock.acquire("a", 1)), Some(0));
    let lock = held();
    assert!(lock.state.is_prunable(Duration::ZERO, &lock.world));
    assert_eq!((lock.holders(), lock.state.first_held(lock.world.now, &lock.world)), (vec![], None));
}

#[test]
fn a_lease_counts_where_the_epoch_is_unknown_to_either_side() {
    for (here, there) in [("one", UNKNOWN_EPOCH), (UNKNOWN_EPOCH, "one"), (UNKNOWN_EPOCH, UNKNOWN_EPOCH)] {
        let mut lock = Lock::new();
        lock.world.epoch = here.into();
        lock.by_hand("a");
        lock.world.epoch = there.into();
        assert_eq!(lock.run("b", 1), None, "{here} {there}, in the same millisecond");
        lock.pass(29_999);
        assert_eq!(lock.run("b", 1), None, "{here} {there}");
        assert_eq!(lock.renew("a", None), Renewed::Mine);
        lock.pass(30_000);
        assert_eq!(lock.run("b", 1), Some(0), "{here} {there}");
    }
}

#[test]
fn times_from_the_future_are_of_another_epoch_even_if_it_is_unknown() {
    let held = |ttl| {
        let mut lock = Lock::new();
        lock.world.epoch = UNKNOWN_EPOCH.into();
        lock.world.now.ms = 5000;
        lock.ask(&ask(&Claim { by_hand: true, ttl, ..claim("a", 1) }));
        lock
    };
    for ttl in [lasts(30), Ttl::None] {
        let mut lock = held(ttl);
        lock.world.now.ms = 4999;
        assert_eq!(lock.run("b", 1), Some(0));
    }
    let mut lock = held(lasts(30));
    lock.world.now.ms = 1_000_000;
    lock.ask(&ask(&Claim { by_hand: true, ..claim("c", 1) }));
    lock.pass(20_000);
    lock.renew("c", Some(lasts(60)));
    lock.world.now.ms -= 1;
    assert_eq!(lock.holders(), [""; 0], "it was renewed later than this");
    let mut lock = Lock::new();
    lock.world.epoch = UNKNOWN_EPOCH.into();
    for (name, ms) in [("a", 5000), ("b", 6000)] {
        lock.world.now.ms = ms;
        lock.ask(&ask(&Claim { by_hand: true, ..claim(name, 2) }));
    }
    lock.world.now.ms = 5500;
    assert_eq!(lock.holders(), [""; 0], "one of the two has acquired it later than this");
}

#[test]
fn the_epoch_goes_with_the_last_time_that_counts() {
    let mut lock = Lock::new();
    lock.by_hand("a");
    assert_eq!(lock.state.epoch, "one");
    lock.release("a", Release::ByHand);
    assert_eq!(lock.state.epoch, "");
}

#[test]
fn times_for_people_are_of_their_clock() {
    let mut lock = Lock::new();
    // The machine has been up for a minute.
    lock.world.now.ms = 60_000;
    lock.run("a", 1);
    lock.pass(2000);
    lock.release("a", DONE);
    let last = lock.state.last.as_ref().expect("it is recorded");
    assert_eq!((last.started_unix_ms, last.ended_unix_ms), (START, START + 2000));
    assert_eq!(lock.state.fence, START);
}
