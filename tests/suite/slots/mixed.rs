//! Runs with different `--slots` for the same lock: safe, in turn, and none is stuck.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::calm::{in_time, stays_in_time_for};
use crate::support::proxy::Mode;
use crate::support::queue::{now, read_time};
use crate::support::slots::{SharedRecord, Slot, TELL};
use crate::support::store::{on_every_lease_store, on_every_store};
use crate::support::{LONG, Lockrun, Queue, Store, eventually};

/// For how long a slot may be unused because those whose turn it is have fallen silent, with a `--ttl` of 4 s.
const UNUSED: Duration = Duration::from_secs(4 + 1);

/// The time that a busy machine may need to start and run a few programs.
const ALLOWANCE: Duration = Duration::from_secs(2);

fn call(store: &Store, slots: &str) -> Lockrun {
    Lockrun::new(store).key("mixed").args(["--slots", slots])
}

/// Tries to acquire the lock without waiting, and returns its slot.
fn try_it(store: &Store, slots: &str) -> Option<String> {
    let output = call(store, slots).arg("-q").sh("echo ${LOCKRUN_SLOT-none}").run().silent();
    match output.status {
        Some(0) => Some(output.stdout().trim_end().to_owned()),
        Some(75) => None,
        _ => output.fail("neither free nor held"),
    }
}

// "Up to N runs hold the lock at once": each run gets it only if fewer hold it than it allows, whatever the others
// allow; and a slot "from 0 to N-1" by its own N.
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

/// Lets a waiter with one slot wait behind a holder, and a waiter with three slots behind that.
fn wait_behind_an_exclusive_waiter<'a>(store: &'a Store, wait: &[&str]) -> (Slot, Queue<'a>) {
    let holder = Slot::take(&call(store, "3"));
    let mut queue = Queue::new(store, "mixed").with(wait);
    queue.join(1);
    let mut queue = queue.with(&["--slots", "3"]).doing(TELL);
    queue.join(1);
    (holder, queue)
}

// "In turn": a slot that the first waiter cannot use yet goes neither to those behind it nor to a newcomer.
on_every_store!(the_first_waiter_is_not_overtaken, |store| {
    let (holder, mut queue) = wait_behind_an_exclusive_waiter(store, &[]);
    assert_eq!(try_it(store, "3"), None);
    assert!(queue.begun().is_empty());
    let freed_at = now();
    holder.end();
    let written = queue.all_end();
    queue.nothing_is_left();
    assert_eq!(queue.begun().len(), 2);
    // Both are woken at once, since there is room for the second one, too; a waiter that is not woken looks only after
    // seconds.
    let second = written.lines().find_map(|line| line.strip_prefix("in 1 ")).expect("it has run");
    let took = read_time(second).saturating_sub(freed_at);
    in_time(took, Duration::from_secs(3), "the second one has waited");
});

// "A wait that is cut short leaves the queue", and waiters behind it that allow more holders wait no longer.
on_every_store!(those_behind_go_on_when_the_first_one_leaves, |store| {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGKILL] {
        let (holder, mut queue) = wait_behind_an_exclusive_waiter(store, &["--ttl", "4s"]);
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
        // No notice says that a waiter was killed; those behind it find that out.
        let limit = if signal == Signal::SIGKILL && store.has_leases() { UNUSED } else { Duration::ZERO } + ALLOWANCE;
        let took = record.run(1).began.saturating_sub(gone_at);
        in_time(took, limit, &format!("stuck after {signal}"));
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
    in_time(took, ALLOWANCE, "stuck");
    holder.end();
});

/// Queues waiters behind a holder, first `alone` of them that want to be alone and then some that do not, and makes the
/// first `silent` of them fall silent: the next one is kept from its slot for one lease and a second at most.
#[track_caller]
fn the_next_one_runs_when(store: &Store, alone: usize, silent: usize, fall_silent: impl FnOnce(&mut Queue<'_>)) {
    let store = &store.another();
    let holder = Slot::take(&call(store, "3"));
    let mut queue = Queue::new(store, "mixed").with(&["--ttl", "4s"]);
    queue.join(alone);
    let mut queue = queue.with(&["--slots", "3"]).doing(TELL);
    queue.join(silent + 2 - alone);
    queue.settles();
    fall_silent(&mut queue);
    let silent_at = now();
    let next = silent.to_string();
    eventually(LONG, "the next one runs", || queue.begun().contains(&next));
    let took = now().saturating_sub(silent_at);
    in_time(took, UNUSED + ALLOWANCE, &format!("stuck behind {silent}"));
    queue.signal_all(Signal::SIGCONT);
    holder.end();
    drop(queue.all_end());
}

// "A waiter that lets its place run out has lost it", wherever in the queue: several of them together are stopped,
// among them those that would have noticed.
on_every_lease_store!(those_behind_go_on_when_the_first_ones_are_stopped, |store| {
    for (alone, silent) in [(1, 1), (4, 4), (1, 2)] {
        the_next_one_runs_when(store, alone, silent, |queue| queue.stop(0..silent));
    }
});

// The same when they are killed.
on_every_lease_store!(those_behind_go_on_when_the_first_ones_are_killed, |store| {
    for (alone, silent) in [(4, 4), (1, 2)] {
        the_next_one_runs_when(store, alone, silent, |queue| (0..silent).for_each(|number| queue.kill(number)));
    }
});

/// Lets a waiter that wants to be alone wait behind a holder, and twelve that do not behind that.
fn twelve_behind_one_that_lives(store: &Store) -> (Slot, Queue<'_>) {
    let holder = Slot::take(&call(store, "3").args(["--ttl", "10m"]));
    let mut queue = Queue::new(store, "mixed").with(&["--ttl", "10m"]);
    queue.join(1);
    let mut queue = queue.with(&["--slots", "3"]).doing(TELL);
    queue.join(12);
    queue.settles();
    (holder, queue)
}

// "In turn": a living waiter that wants to be alone keeps its place for as long as it has to wait.
on_every_lease_store!(a_living_waiter_is_not_passed_over, |store| {
    let (holder, mut queue) = twelve_behind_one_that_lives(store);
    stays_in_time_for(Duration::from_secs(10), "the first one is not passed by", || queue.begun().is_empty());
    holder.end();
    drop(queue.all_end());
});

// "Up to N runs hold the lock at once": a waiter that wants to be alone is alone when the lock is handed to it, however
// late it hears of that, although the next waiter, which does not, could hold it at the same time.
on_every_lease_store!(an_exclusive_waiter_is_alone_before_the_next_one, |store| {
    let proxy = store.proxy();
    let holder = Slot::take(&call(store, "3"));
    let mut queue = Queue::through(&proxy.url(), store, "mixed");
    queue.join_to("echo \"slot $tag 0 $LOCKRUN_FENCE\" >>\"$file\"");
    let mut queue = queue.by(&store.url()).with(&["--slots", "3"]).doing(TELL);
    queue.join(1);
    queue.settles();
    proxy.set(Mode::Delay(Duration::from_millis(300)));
    holder.end();
    let ran = queue.all_end();
    queue.nothing_is_left();
    let fence = |number: usize| {
        let line = ran.lines().find_map(|line| line.strip_prefix(&format!("slot {number} "))).expect("it has run");
        line.rsplit(' ').next().and_then(|fence| fence.parse::<u64>().ok()).expect("a fence")
    };
    assert!(fence(0) < fence(1), "the second one was first: {ran}");
});
