//! Faults at random, under load, and what they must never do.
//!
//! Workers run a command again and again under three locks: one at a time, in slots, as readers and writers. Meanwhile processes are killed
//! and stopped, the network is disturbed, and the server is stopped, killed and started again, in an order that a seed fixes. Each
//! command writes down when it lived; a judge that knows nothing of lockrun reads that.
//!
//! `SEED` repeats an order, `SECONDS_PER_STORE` lets it last longer: `make chaos`.

mod faults;
mod judge;
mod workers;

use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::deadline::happens_within;
use crate::support::store::on_every_store;
use crate::support::{LONG, Lockrun, Store};
use faults::{Faults, Hosts};
use workers::{LOCKS, Workers};

/// How often the workers are looked after.
const TICK: Duration = Duration::from_millis(3);

/// The number in this variable.
fn asked(variable: &str) -> Option<u64> {
    let number = |asked: String| asked.parse().unwrap_or_else(|_| panic!("{variable} is no number: {asked}"));
    std::env::var(variable).ok().filter(|asked| !asked.is_empty()).map(number)
}

// "The command is dead before the lock can pass to another run", "nothing stays locked", and fences rise: whatever happens.
on_every_store!(whatever_happens, |store| {
    let seed = asked("SEED").unwrap_or_else(|| fastrand::u64(..));
    let time = Duration::from_secs(asked("SECONDS_PER_STORE").unwrap_or(6));
    let directory = TempDir::new().expect("a temporary directory");
    let record = directory.path().join("record");
    let hosts = Hosts::new(store);
    let mut workers = Workers::new(&hosts.urls(), &record, seed);
    let mut faults = Faults::new(store, &hosts, seed);
    let until = Instant::now() + time;
    while Instant::now() < until {
        workers.work();
        faults.proceed(&workers);
        std::thread::sleep(TICK);
    }
    faults.end();
    let ends = workers.finish();
    let heading = format!("{}, SEED={seed}: {} runs ended {ends}; {}", store.name(), ends.count(), faults.summary());
    let verdict = judge::judge(&record);
    println!("{heading}; {}", verdict.summary);
    assert!(verdict.wrong.is_empty(), "{heading}\n{}\n{}", verdict.wrong.join("\n"), faults.log());
    is_as_good_as_new(store);
});

/// Every lock can be had again, and nothing is left of those that were killed.
fn is_as_good_as_new(store: &Store) {
    for lock in LOCKS {
        Lockrun::new(store).key(lock).args(["--ttl", "10m", "--wait", "30s"]).command(["true"]).run().exited(0);
        let Some(server) = store.lease_server() else { continue };
        let is_left = |what: &String| what.contains(lock);
        let mut left = Vec::new();
        let is_clean = happens_within(LONG, || {
            left = server.left(lock, false).into_iter().filter(is_left).collect();
            left.is_empty()
        });
        assert!(is_clean, "left of those that were killed: {left:?}");
    }
}
