//! What lockrun costs while nothing happens: no processor time, and no page that would have to be read again.

use crate::support::processes::{children, faults, processor_time};
use crate::support::store::{on_every_lease_store, on_every_store};
use crate::support::{Holder, LONG, Lockrun, eventually};

/// Out of a hundred ticks: far fewer than a busy loop gets even on a busy machine.
const FEW_TICKS: u64 = 5;

// "It costs no more than flock(1)": a run with a command and a waiter both just sleep.
on_every_store!(nobody_is_busy_while_a_command_sleeps, |store| {
    let holder = Holder::new(store, "idle");
    let mut waiter = Lockrun::new(store).key("idle").args(["--wait", "-v"]).command(["true"]).spawn();
    waiter.wait_for_stderr("waiting");
    let ours = [holder.pid(), waiter.pid()];
    // The guardians are among the children; COMMAND sleeps.
    let used = || -> u64 {
        let guardians = ours.iter().flat_map(|&pid| children(pid));
        ours.into_iter().chain(guardians).map(processor_time).sum()
    };
    // Without the start-up. Another run measures the second.
    let before = used();
    Lockrun::new(store).key("a second").command(["sleep", "1"]).run().exited(0);
    let after = used();
    assert!(after < before + FEW_TICKS, "{before} ticks before, {after} after");
    holder.end();
    waiter.wait().exited(0);
});

/// In two rounds of renewals. A program that drops its pages takes some twenty for each renewal.
const FEW_FAULTS: u64 = 10;

// "The command dies first", also if the disk hangs under memory pressure: lockrun and its guardian keep in memory what they need, and do
// not read it again at each renewal.
on_every_lease_store!(a_renewal_touches_nothing_anew, |store| {
    // The lease outlasts a busy machine's pauses.
    let call = Lockrun::new(store).key("idle").args(["--ttl", "30s", "--renew-every", "200ms"]);
    let holder = Holder::with(&call, &[]);
    let guardians = children(holder.pid());
    assert_eq!(guardians.len(), 1);
    let ours = || -> u64 { guardians.iter().copied().chain([holder.pid()]).map(faults).sum() };
    // The first renewals touch what the later ones need. So does one that has to be repeated over a new connection.
    let mut counts = vec![ours()];
    let stays_the_same = |_: u32| {
        let requests = store.server().requests();
        eventually(LONG, "the lease is renewed", || store.server().requests() >= requests + 8);
        counts.push(ours());
        matches!(counts[..], [.., before, _, now] if now < before + FEW_FAULTS)
    };
    assert!((0..6).any(stays_the_same), "faults so far, round by round: {counts:?}");
    holder.end();
});
