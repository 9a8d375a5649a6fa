//! Slots when holders, waiters or the server fail.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::calm::in_time;
use crate::support::hand::holders;
use crate::support::queue::now;
use crate::support::slots::{SharedRecord, Slot, TELL, tell_and_wait_for};
use crate::support::store::{on_every_lease_store, on_every_store};
use crate::support::{LONG, Lockrun, Queue, Store, eventually, processes};

/// The place of waiters some of which die, and for how long the dead may keep a slot unused.
const SHORT: [&str; 4] = ["--ttl", "4s", "--slots", "3"];
const UNUSED: Duration = Duration::from_secs(4 + 1);

/// The extra time that a busy machine may need to start and run a few programs.
const ALLOWANCE: Duration = Duration::from_millis(1500);

fn call(store: &Store, slots: &str) -> Lockrun {
    Lockrun::new(store).key("faults").args(["--slots", slots])
}

fn take(call: &Lockrun, count: usize) -> Vec<Slot> {
    (0..count).map(|_| Slot::take(call)).collect()
}

/// A gate through which commands pass when it is open.
struct Gate(TempDir);

impl Gate {
    fn new() -> Self {
        Self(TempDir::new().expect("a temporary directory"))
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("open")
    }

    /// Returns a script that prints its slot, and waits at the gate.
    fn tell_and_wait(&self) -> String {
        format!("{TELL}; until [ -e '{}' ]; do sleep 0.01; done", self.path().display())
    }

    fn open(&self) {
        fs::write(self.path(), "").expect("the gate opens");
    }
}

// "A crash frees it within ttl + 1 s", also if several holders die at once: each slot goes to a waiter in that time.
on_every_store!(slots_that_come_free_at_once_go_to_several, |store| {
    let held = take(&call(store, "4").args(["--ttl", "2s"]), 4);
    let mut queue = Queue::new(store, "faults").with(&["--slots", "4"]).doing(&tell_and_wait_for(4));
    queue.join(6);
    let killed_at = now();
    held.into_iter().for_each(Slot::kill);
    let record = SharedRecord::read(&queue.all_end(), 4).in_any_order(0..6);
    queue.nothing_is_left();
    let limit = Duration::from_secs(if store.has_leases() { 3 } else { 0 }) + ALLOWANCE;
    for number in 0..4 {
        let took = record.run(number).began.saturating_sub(killed_at);
        in_time(took, limit, &format!("{number} has waited"));
    }
});

// "However many died": even several at once among those whose turn has come, no slot is unused for longer than one
// lease.
on_every_store!(waiters_that_were_killed_cost_one_lease, |store| {
    let held = take(&call(store, "3"), 3);
    let mut queue = Queue::new(store, "faults").with(&SHORT).doing(&tell_and_wait_for(3));
    queue.join(8);
    for number in [0, 2, 3] {
        queue.kill(number);
    }
    let freed_at = now();
    held.into_iter().for_each(Slot::end);
    let record = SharedRecord::read(&queue.all_end(), 3).in_any_order([1, 4, 5, 6, 7]);
    queue.nothing_is_left();
    for number in [1, 4, 5] {
        let took = record.run(number).began.saturating_sub(freed_at);
        in_time(took, UNUSED + ALLOWANCE, &format!("{number} has waited"));
    }
});

// The same while the holders of the other slots keep renewing their leases.
on_every_lease_store!(a_waiter_that_was_killed_costs_one_lease_while_others_renew, |store| {
    let mut held = take(&call(store, "4").args(["--renew-every", "200ms"]), 4);
    let mut queue = Queue::new(store, "faults").with(&["--ttl", "4s", "--slots", "4"]).doing(TELL);
    queue.join(2);
    queue.kill(0);
    let freed_at = now();
    held.remove(0).end();
    let record = SharedRecord::read(&queue.all_end(), 4).in_any_order([1]);
    held.into_iter().for_each(Slot::end);
    queue.nothing_is_left();
    let took = record.run(1).began.saturating_sub(freed_at);
    in_time(took, UNUSED + ALLOWANCE, "the next one has waited");
});

// The same for waiters that die just when the slots are handed to them.
on_every_lease_store!(waiters_die_when_slots_are_handed_to_them, |store| {
    let held = take(&call(store, "3"), 3);
    let mut queue = Queue::new(store, "faults").with(&SHORT).doing(&tell_and_wait_for(3));
    queue.join(7);
    queue.stop([0, 1]);
    let freed_at = now();
    held.into_iter().for_each(Slot::end);
    queue.kill(0);
    queue.kill(1);
    let record = SharedRecord::read(&queue.all_end(), 3).in_any_order(2..7);
    queue.nothing_is_left();
    for number in [2, 3, 4] {
        let took = record.run(number).began.saturating_sub(freed_at);
        in_time(took, UNUSED + ALLOWANCE, &format!("{number} has waited"));
    }
});

// "Each has a slot number that no other holder has": also a waiter that was stopped when a slot was handed to it, which
// another one has by the time it is continued.
on_every_lease_store!(a_slot_that_was_lost_is_not_had_later, |store| {
    let mut held = take(&call(store, "2"), 2);
    let gate = Gate::new();
    let mut queue = Queue::new(store, "faults").with(&["--ttl", "4s", "--slots", "2"]).doing(&gate.tell_and_wait());
    queue.join(2);
    queue.stop([0]);
    held.remove(0).end();
    queue.have_begun(&["1"]);
    held.remove(0).end();
    eventually(LONG, "the other slot stands unused", || holders(store, "faults") == 1);
    queue.signal_all(Signal::SIGCONT);
    eventually(LONG, "the first one has a slot, too", || queue.begun().len() == 2);
    gate.open();
    let record = SharedRecord::read(&queue.all_end(), 2).in_any_order(0..2);
    assert_eq!((record.run(1).slot, record.run(0).slot), (0, 1));
    queue.nothing_is_left();
});

// "A store restarted with its data": holders keep their slots, waiters their places.
on_every_lease_store!(the_server_restarts, |store| {
    let server = store.server();
    let call = call(store, "3");
    let mut held = take(&call, 3);
    let gate = Gate::new();
    let mut queue = Queue::new(store, "faults").with(&["--slots", "3"]).doing(&gate.tell_and_wait());
    queue.join_and_hear(2);
    queue.settles();
    server.kill();
    server.start_again();
    queue.settles();
    call.clone().sh(":").run().exited(75);
    held.remove(1).end();
    queue.have_begun(&["0"]);
    held.remove(1).end();
    queue.have_begun(&["0", "1"]);
    gate.open();
    let record = SharedRecord::read(&queue.all_end(), 3).in_any_order(0..2);
    assert_eq!((record.run(0).slot, record.run(1).slot), (1, 2));
    held.remove(0).end();
    queue.nothing_is_left();
});

// "On the file store the kernel's lock passes to the command, so it stays held for as long as the command lives", each
// slot by its own command.
#[test]
fn a_slot_stays_with_the_command_of_a_killed_run() {
    let store = Store::file();
    let call = call(&store, "2");
    let mut held = take(&call, 2);
    let orphan = held[0].leave_an_orphan();
    let try_it = || call.clone().sh("echo $LOCKRUN_SLOT").run();
    try_it().exited(75);
    // A user who wants to end it must not be pointed to the other one, which uses the same file.
    let fence = held[0].fence.to_string();
    let breaking = Lockrun::bare().arg("break").args(["--store", &store.url(), "--key", "faults", "--fence", &fence]);
    let output = breaking.run().exited(75);
    let advice = format!("stop it with kill {orphan}\n");
    assert!(output.stderr().ends_with(&advice), "not {advice:?}: {output}");
    processes::send(orphan, Signal::SIGKILL);
    eventually(LONG, "the command is dead", || !processes::is_alive(orphan));
    eventually(LONG, "its slot is free", || try_it().status == Some(0));
    try_it().exited(0).printed("0\n");
}
