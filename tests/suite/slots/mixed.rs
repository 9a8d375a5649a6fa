//! Runs that let a different number hold the same lock at once: safe, in turn, and nobody is stuck.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::queue::{now, read_time};
use crate::support::slots::{SharedRecord, Slot, TELL};
use crate::support::store::on_every_store;
use crate::support::{LONG, Lockrun, Queue, Store, eventually};

/// What a busy machine may take, to start a few programs and to run them.
const ALLOWANCE: Duration = Duration::from_secs(2);

fn call(store: &Store, slots: &str) -> Lockrun {
    Lockrun::new(store).key("mixed").args(["--slots", slots])
}

/// Tries to get the lock at once, and gives its slot.
fn try_it(store: &Store, slots: &str) -> Option<String> {
    let output = call(store, slots).arg("-q").sh("echo ${LOCKRUN_SLOT-none}").run().silent();
    match output.status {
        Some(0) => Some(output.stdout().trim_end().to_owned()),
        Some(75) => None,
        _ => panic!("neither free nor held: {output}"),
    }
}

// "Up to N runs hold the lock at once": each run gets it only if fewer hold it than it allows, whatever the others allow; and
// a slot "from 0 to N-1" by its own N.
on_every_store!(each_goes_by_its_own_number, |store| {
    let mut held: Vec<Slot> = (0..3).map(|_| Slot::take(&call(store, "3"))).collect();
    assert_eq!(["1", "2", "3"].map(|slots| try_it(store, slots)), [None, None, None]);
    assert_eq!(try_it(store, "4").as_deref(), Some("3"));
    held.remove(0).end();
    assert_eq!(["1", "2"].map(|slots| try_it(store, slots)), [None, None]);
    assert_eq!(try_it(store, "3").as_deref(), Some("0"));
    held.remove(0).end();
    assert_eq!(held[0].number, "2");
    assert_eq!(try_it(store, "1"), None);
    assert_eq!(try_it(store, "2").as_deref(), Some("0"));
    held.remove(0).end();
    let alone = call(store, "1").sh("echo ready; exec sleep 600").spawn();
    eventually(LONG, "one that wants to be alone runs", || alone.stdout() == "ready\n");
    assert_eq!(try_it(store, "1"), None);
    assert_eq!(try_it(store, "3").as_deref(), Some("1"));
});

/// One that wants to be alone waits behind a holder, and behind it one that does not.
fn wait_behind_one_that_wants_to_be_alone<'a>(store: &'a Store, wait: &[&str]) -> (Slot, Queue<'a>) {
    let holder = Slot::take(&call(store, "3"));
    let mut queue = Queue::new(store, "mixed").with(wait);
    queue.join(1);
    let mut queue = queue.with(&["--slots", "3"]).doing(TELL);
    queue.join(1);
    (holder, queue)
}

// "In turn": a slot that the first waiter does not want yet is not for those behind it, nor for one that comes later.
on_every_store!(the_first_waiter_is_not_overtaken, |store| {
    let (holder, mut queue) = wait_behind_one_that_wants_to_be_alone(store, &[]);
    assert_eq!(try_it(store, "3"), None);
    assert!(queue.begun().is_empty());
    let freed_at = now();
    holder.end();
    let written = queue.all_end();
    queue.nothing_is_left();
    assert_eq!(queue.begun().len(), 2);
    // Both are woken at once, for there is room for the second one, too; who is not woken looks only after seconds.
    let second = written.lines().find_map(|line| line.strip_prefix("in 1 ")).expect("it has run");
    let took = read_time(second).saturating_sub(freed_at);
    assert!(took <= Duration::from_secs(3), "the second one has waited for {took:?}");
});

// "A wait that is cut short leaves the queue", and those behind it, who wanted less, do not wait any longer.
on_every_store!(those_behind_go_on_when_the_first_one_leaves, |store| {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGKILL] {
        let (holder, mut queue) = wait_behind_one_that_wants_to_be_alone(store, &[]);
        if signal == Signal::SIGKILL {
            queue.kill(0);
        } else {
            let first = queue.take(0);
            first.signal(signal);
            first.wait().died_of(signal);
        }
        let gone_at = now();
        let record = SharedRecord::read(&queue.all_end(), 3);
        assert_eq!(record.run(1).slot, 1, "after {signal}");
        // Nobody is told that one was killed; those behind it find out when they look, every 12 s at the latest.
        let limit = if signal == Signal::SIGKILL && store.has_leases() { 13 } else { 0 };
        let limit = Duration::from_secs(limit) + ALLOWANCE;
        let took = record.run(1).began.saturating_sub(gone_at);
        assert!(took <= limit, "stuck for {took:?} after {signal}");
        holder.end();
    }
});

// The same when its time is over.
on_every_store!(those_behind_go_on_when_a_wait_runs_out, |store| {
    let holder = Slot::take(&call(store, "3"));
    let mut hasty = call(store, "1").args(["--wait", "3s", "-v"]).sh(":").spawn();
    hasty.wait_for_stderr("waiting");
    let mut waiter = call(store, "3").args(["--wait", "-v"]).sh("echo slot $LOCKRUN_SLOT").spawn();
    waiter.wait_for_stderr("waiting");
    hasty.wait().exited(75);
    let gone_at = now();
    waiter.wait().exited(0).printed("slot 1\n");
    let took = now().saturating_sub(gone_at);
    assert!(took <= ALLOWANCE, "stuck for {took:?}");
    holder.end();
});
