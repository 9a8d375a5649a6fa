//! Slots: how many, which one each holder has, and what becomes of them.

use std::time::Duration;

use crate::support::calm::in_time;
use crate::support::lockrun::PROGRAM;
use crate::support::queue::now;
use crate::support::slots::{SharedRecord, Slot, TELL, tell_and_wait_for};
use crate::support::store::on_every_store;
use crate::support::{Lockrun, Queue, Store};

/// Returns a call for a lock that this many runs may hold at once.
fn call(store: &Store, slots: u32) -> Lockrun {
    Lockrun::new(store).key("shared").args(["--slots", &slots.to_string()])
}

/// A command that prints its slot.
const SAY: &str = "echo slot ${LOCKRUN_SLOT-none}";

// "`--slots N`: up to N runs hold the lock at once": never more, never two with the same slot, and as many as may. Each
// acquisition gets a fence "greater than every earlier one".
on_every_store!(fifteen_runs_share_three_slots, |store| {
    let mut queue = Queue::new(store, "shared").with(&["--slots", "3"]).doing(&tell_and_wait_for(3));
    queue.storm(15);
    let record = SharedRecord::read(&queue.all_end(), 3).in_any_order(0..15);
    queue.nothing_is_left();
    assert_eq!(record.most, 3);
    assert_eq!(record.runs.iter().map(|run| run.slot).max(), Some(2));
});

// Tests the judge itself: it notices one holder too many, two in a slot, and a fence that does not grow.
#[test]
fn what_breaks_the_rules_is_seen() {
    let seen = |written: &str| std::panic::catch_unwind(|| SharedRecord::read(written, 2)).is_err();
    assert!(!seen("in 1 1.0\nslot 1 0 7\nin 2 1.0\nslot 2 1 8\nout 1 1.0\nout 2 1.0\n"));
    assert!(seen("in 1 1.0\nin 2 1.0\nin 3 1.0\nout 1 1.0\nout 2 1.0\nout 3 1.0\n"));
    assert!(seen("in 1 1.0\nslot 1 0 7\nin 2 1.0\nslot 2 0 8\nout 1 1.0\nout 2 1.0\n"));
    assert!(seen("in 1 1.0\nslot 1 0 7\nout 1 1.0\nin 2 1.0\nslot 2 0 7\nout 2 1.0\n"));
    assert!(seen("in 1 1.0\nslot 1 2 7\nout 1 1.0\n"));
    assert!(seen("in 1 1.0\nslot 1 0 7\n"));
}

// "The lowest free one", whichever comes free first.
on_every_store!(the_lowest_free_slot_is_taken, |store| {
    let call = call(store, 4);
    let mut held: Vec<Slot> = (0..4).map(|_| Slot::take(&call)).collect();
    let numbers: Vec<&str> = held.iter().map(|slot| slot.number.as_str()).collect();
    assert_eq!(numbers, ["0", "1", "2", "3"]);
    held.remove(2).end();
    held.remove(1).end();
    for number in ["1", "2"] {
        let slot = Slot::take(&call);
        assert_eq!(slot.number, number);
        held.push(slot);
    }
    let fences: Vec<u64> = held.iter().map(|slot| slot.fence).collect();
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
});

// "COMMAND finds, with slots, `LOCKRUN_SLOT` (0 to N-1) in its environment", and without slots does not.
on_every_store!(only_slots_have_a_variable, |store| {
    call(store, 3).sh(SAY).run().exited(0).printed("slot 0\n").silent();
    call(store, 1).sh(SAY).run().exited(0).printed("slot none\n").silent();
    Lockrun::new(store).key("shared").sh(SAY).run().exited(0).printed("slot none\n").silent();
    Lockrun::new(store).key("shared").env("LOCKRUN_SLOTS", "2").sh(SAY).run().exited(0).printed("slot 0\n").silent();
});

// "COMMAND finds, with slots, `LOCKRUN_SLOT`, under `reserve` `LOCKRUN_VALUE` (no slot)": those of its own run, not
// those of an outer one.
on_every_store!(the_slot_of_an_outer_run_is_not_inherited, |store| {
    const SAY: &str = "echo slot ${LOCKRUN_SLOT-none} value ${LOCKRUN_VALUE-none}";
    let url = store.url();
    let inner = |words: &str| format!("{PROGRAM} {words} --store {url} -- sh -c '{SAY}'");
    let (alone, shared) = (inner("--key other"), inner("--key other --slots 2"));
    let next = inner("reserve --key seq --from 41");
    // Not the slot that the inner run has.
    let _first = Slot::take(&call(store, 3));
    let output = call(store, 3).sh(&format!("{SAY}; {alone}; {shared}; {next}")).run().exited(0).silent();
    output.printed("slot 1 value none\nslot none value none\nslot 0 value none\nslot none value 41\n");
    let reserve = Lockrun::bare().args(["reserve", "--store", &url, "--key", "seq", "--from", "41"]);
    reserve
        .sh(&format!("{SAY}; {alone}"))
        .run()
        .exited(0)
        .silent()
        .printed("slot none value 42\nslot none value none\n");
});

// "`--fail`: when held": a lock with a free slot is not held. "75: the lock is held", with the holders' names.
on_every_store!(nobody_waits_while_a_slot_is_free, |store| {
    let call = call(store, 2);
    let first = Slot::take(&call);
    for how in ["--fail", "--skip", "--wait"] {
        call.clone().arg(how).sh(SAY).run().exited(0).printed("slot 1\n").silent();
    }
    let second = Slot::take(&call);
    let output = call.clone().arg("--fail").sh(SAY).run().exited(75).printed("").said("is held by");
    let pids = [first.pid(), second.pid()].map(|pid| format!(" pid {pid} "));
    assert!(pids.iter().any(|pid| output.stderr().contains(pid)), "{pids:?} in {output}");
    call.clone().arg("--skip").sh(SAY).run().exited(0).printed("").silent();
    call.clone().args(["--wait", "0.1"]).sh(SAY).run().exited(75).printed("").said("is held by");
});

// "A crash frees it within ttl + 1 s on a lease store, at once on the file store": only the dead holder's slot.
on_every_store!(the_slot_of_a_killed_holder_comes_back, |store| {
    let call = call(store, 3).args(["--ttl", "2s"]);
    let mut held: Vec<Slot> = (0..3).map(|_| Slot::take(&call)).collect();
    let mut queue = Queue::new(store, "shared").with(&["--slots", "3"]).doing(TELL);
    queue.join(1);
    let killed_at = now();
    held.remove(1).kill();
    let record = SharedRecord::read(&queue.all_end(), 3).in_any_order([0]);
    let waiter = record.run(0);
    assert_eq!(waiter.slot, 1);
    let limit = if store.has_leases() { Duration::from_secs(3) } else { Duration::ZERO };
    // The extra time for a busy machine.
    let limit = limit + Duration::from_millis(1500);
    let took = waiter.began.saturating_sub(killed_at);
    in_time(took, limit, "the slot came back");
});

// "A normal end unlocks explicitly, so a daemon that inherited the descriptor holds nothing": nor the slot of the run
// that started it.
on_every_store!(a_daemon_holds_no_slot, |store| {
    let call = call(store, 2);
    let _first = Slot::take(&call);
    call.clone().sh("sleep 600 >/dev/null 2>&1 &").spawn().wait_and_leave(|output| {
        output.exited(0).silent();
        call.clone().sh(SAY).run().exited(0).printed("slot 1\n").silent();
    });
});
