//! What lockrun costs while nothing happens: no processor time.

use crate::support::processes::{children, processor_time};
use crate::support::store::on_every_store;
use crate::support::{Holder, Lockrun};

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
