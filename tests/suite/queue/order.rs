//! Waiting in turn: the order, and that no one jumps the queue.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::beside::beside;
use crate::support::calm::held_in_time;
use crate::support::crowd;
use crate::support::hand::{is_held, renew, token};
use crate::support::proxy::Mode;
use crate::support::store::on_every_lease_store;
use crate::support::{Holder, LONG, Queue, Store, eventually};

// "Waiters get the lock in the order in which they came", one at a time, and "of a lock nothing is left" but its fence
// and its last run.
on_every_lease_store!(waiters_run_in_the_order_in_which_they_came, |store| {
    let _turn = crowd::turn_at(store);
    for count in [20, 100].map(|count| store.crowd(count)) {
        let store = &store.another();
        let holder = Holder::new(store, "order");
        let mut queue = Queue::new(store, "order");
        queue.join(count);
        holder.end();
        queue.end().in_order(0..count);
    }
});

/// The options of newcomers.
const NEWCOMERS: [&[&str]; 3] = [&["--fail", "-q"], &["--skip"], &["--wait", "30ms", "-q"]];

// "In turn": while anyone waits, no newcomer runs, not even while the lock is free and its new holder has not yet been
// notified. That moment is long here, since the waiters' network is slow, and there is always a newcomer.
on_every_lease_store!(a_newcomer_does_not_overtake_during_hand_offs, |store| {
    const WAITERS: usize = 15;
    let proxy = store.proxy();
    let holder = Holder::new(store, "hand-off");
    let mut queue = Queue::through(&proxy.url(), store, "hand-off");
    queue.join(WAITERS);
    proxy.set(Mode::Delay(Duration::from_millis(100)));
    let tried = AtomicUsize::new(0);
    let newcomer = |options: &[&str]| {
        let (call, tried) = (queue.newcomer("new", options), &tried);
        move || {
            let output = call.run().silent();
            assert!(matches!(output.status, Some(0 | 75)), "{output}");
            tried.fetch_add(1, Ordering::Relaxed);
        }
    };
    beside(NEWCOMERS.map(newcomer).into(), || {
        holder.end();
        let all_have_run = || queue.begun().iter().filter(|tag| *tag != "new").count() == WAITERS;
        eventually(LONG, "all waiters have run", all_have_run);
    });
    let record = queue.end();
    let ran: Vec<&str> = record.tags();
    let overtaken = ran.iter().take(WAITERS).filter(|tag| **tag == "new").count();
    assert_eq!(overtaken, 0, "{ran:?}");
    let refused = tried.into_inner() - (ran.len() - WAITERS);
    held_in_time(refused >= WAITERS, &format!("{WAITERS} newcomers come meanwhile, and not only {refused}"));
});

// "In turn": when a holder's lease has expired, the lock is the first waiter's, even if a newcomer asks first.
on_every_lease_store!(a_newcomer_does_not_overtake_when_a_lease_has_run_out, |store| {
    for options in NEWCOMERS {
        let store = &store.another();
        // Held by hand, so that nothing renews it and load cannot end it too early.
        let holder = token(store, "expired", &["--ttl", "10m"]);
        let mut queue = Queue::new(store, "expired");
        queue.join(3);
        // So that the waiters do not notice it by themselves.
        queue.signal_all(Signal::SIGSTOP);
        renew(store, "expired", &holder, &["--ttl", "1s"]).exited(0);
        eventually(LONG, "the lease has run out", || !is_held(store, "expired"));
        let newcomer = queue.newcomer("new", options).run().silent();
        queue.signal_all(Signal::SIGCONT);
        let status = if options.contains(&"--skip") { 0 } else { 75 };
        newcomer.exited(status);
        queue.end().in_any_order(0..3);
    }
});

// "A thousand waiters joining at once: no time-outs, no lost places"; here as many as a small machine can start.
on_every_lease_store!(a_storm_of_waiters, |store| {
    let _turn = crowd::turn_at(store);
    let mut queue = Queue::new(store, "storm");
    let waiters = store.crowd(200);
    queue.storm(waiters);
    queue.end().in_any_order(0..waiters);
});

// "A wait that is cut short leaves the queue", by a signal or by its time, whatever its place; those behind move up.
on_every_lease_store!(a_wait_that_is_cut_short_leaves_nothing, |store| {
    let holder = Holder::new(store, "cut");
    let kept = || store.server().left("cut", true);
    let mut queue = Queue::new(store, "cut");
    queue.join(3);
    let before = kept();
    let hasty = queue.newcomer("hasty", &["--wait", "300ms"]).run().exited(75);
    hasty.said("is held by");
    assert_eq!((queue.length(), kept()), (3, before), "after a wait that ran out");
    for (number, signal) in [(0, Signal::SIGTERM), (1, Signal::SIGINT)] {
        let waiter = queue.take(number);
        waiter.signal(signal);
        waiter.wait().died_of(signal).silent();
        assert_eq!(queue.length(), 2 - number, "after {signal}");
    }
    holder.end();
    queue.end().in_order([2]);
});

// "Waiters get the lock in the order in which they came", on files in the kernel's order: all run, one at a time, and a
// wait is cut short by its time and by a signal.
#[test]
fn waiters_on_files() {
    const WAITERS: usize = 30;
    let store = Store::file();
    let holder = Holder::new(&store, "files");
    let mut queue = Queue::new(&store, "files");
    queue.join(WAITERS);
    let asked_at = Instant::now();
    let hasty = queue.newcomer("hasty", &["--wait", "1s"]).run().exited(75).said("is held by");
    assert!(asked_at.elapsed() >= Duration::from_secs(1), "{hasty}");
    let waiter = queue.take(7);
    waiter.signal(Signal::SIGTERM);
    waiter.wait().died_of(Signal::SIGTERM);
    holder.end();
    let record = queue.end();
    assert_eq!(record.0.len(), WAITERS - 1);
    assert!(!record.tags().contains(&"7"));
}
