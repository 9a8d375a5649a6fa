//! Random faults under load, and what they must never cause.
//!
//! Workers run a command again and again under three locks: one at a time, in slots, as readers and writers. Meanwhile
//! processes are killed and stopped, the network is disturbed, and the server is stopped, killed and started again, in
//! an order that a seed fixes; primaries are replaced, and disks are full. Each command records when it lived; a judge
//! that knows nothing of lockrun reads that, and a checker of linearizability looks for an order of acquisitions and
//! releases that explains it.
//!
//! `SEED` repeats an order, `SECONDS_PER_STORE` lets it last longer: `make chaos`. `HISTORY` names a directory into
//! which the histories are written.

mod asked;
mod deadlines;
mod disk;
mod faults;
mod figures;
mod hand_offs;
mod history;
mod hosts;
mod judge;
mod kinds;
mod linearizable;
mod model;
mod runs;
mod soak;
mod storms;
mod subject;
mod workers;

use std::cell::RefCell;
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::beside::beside;
use crate::support::calm::held_in_time;
use crate::support::deadline::happens_within;
use crate::support::failover::{Cluster, Service};
use crate::support::store::on_every_store;
use crate::support::{LONG, Lockrun, Redis, Store, calm, memory};
use asked::asked;
use disk::{Disk, with_mounts};
use faults::{Faults, log};
use figures::Known;
use history::History;
use hosts::hosts;
use judge::judge;
use runs::{Holder, Past, holders};
use subject::Subject;
use workers::{Finished, LOCKS, Workers, now};

/// How often the workers are checked.
const TICK: Duration = Duration::from_millis(3);

/// How many seconds each store gets among all the other tests.
const SLICE: u64 = 4;

/// The same where servers are replaced, which takes its time.
const FAILOVER_SLICE: u64 = 8;

// "The command is dead before the lock can pass to another run", "nothing stays locked", and fences rise: whatever
// happens.
on_every_store!(whatever_happens, |store| go_on(&Subject::Plain(store), SLICE));

// The same where a replica takes the place of a primary, which may lack what was written last.
mod failovers {
    use super::*;

    #[test]
    fn sentinel() {
        calm::judge(|| go_on(&Subject::Sentinel(&Service::replicated()), FAILOVER_SLICE));
    }

    #[test]
    fn cluster() {
        calm::judge(|| go_on(&Subject::Cluster(&Cluster::in_a_hurry()), FAILOVER_SLICE));
    }
}

// The same where nothing more can be written for a while.
mod full_disks {
    use super::*;

    #[test]
    fn file() {
        with_mounts(|| {
            calm::judge(|| {
                let store = Store::file();
                let Store::File(directory) = &store else { unreachable!("just made") };
                let disk = Disk::mount(directory.path());
                go_on(&Subject::OnDisk(&store, &disk), SLICE);
            });
        });
    }

    #[test]
    fn redis() {
        with_mounts(|| {
            calm::judge(|| {
                let mounted = RefCell::new(None);
                let prepare = |directory: &Path| *mounted.borrow_mut() = Some(Disk::mount(directory));
                let store = Store::Redis(Redis::in_directory(prepare));
                let disk = mounted.take().expect("it has a directory");
                go_on(&Subject::OnDisk(&store, &disk), SLICE);
            });
        });
    }
}

/// Lets the workers go on for so many seconds while faults are injected, and judges what they have written down.
fn go_on(subject: &Subject<'_>, slice: u64) {
    let seed = asked("SEED").unwrap_or_else(|| fastrand::u64(..));
    let time = Duration::from_secs(asked("SECONDS_PER_STORE").unwrap_or(slice));
    // With more locks there is more to strike at.
    let sets = if time.as_secs() > slice { 2 } else { 1 };
    let directory = memory::directory();
    let record = directory.path().join("record");
    subject.prepare();
    let hosts = hosts(subject);
    let since = now();
    let workers = Workers::new(sets, subject, &hosts, &record, seed);
    let (count, workers) = (workers.count(), Mutex::new(workers));
    let mut faults = Faults::new(subject, &hosts, seed);
    let work = || {
        for at in 0..count {
            workers.lock().expect("nobody has panicked").work(at);
        }
        thread::sleep(TICK);
    };
    // The workers go on while a server is started again.
    beside(vec![work], || {
        let until = Instant::now() + time;
        // On a busy machine no command may have run yet.
        let goes_on = || Instant::now() < until || !record.exists() && Instant::now() < until + LONG;
        while goes_on() && !workers.is_poisoned() {
            faults.proceed(&workers);
            thread::sleep(TICK);
        }
    });
    let faults = faults.end();
    let Finished { ends, runs, deadlines } = workers.into_inner().expect("no worker has panicked").finish();
    let holders = holders(&record);
    let lease = i64::from(subject.ttl_secs()) * 1_000_000_000;
    let known = Known { lease, runs: &runs, holders: &holders, faults: &faults, deadlines: deadlines.as_ref() };
    let heading = format!("{}, SEED={seed}, {time:?}", subject.name());
    let (lines, mut wrong) = judged(subject, &runs, &holders, since);
    let stuck = stuck(subject, &runs);
    println!("{heading}\n{}{lines}  stuck locks {}\n  ends: {ends}", known.table(), stuck.len());
    wrong.extend(stuck);
    assert!(wrong.is_empty(), "{heading}\n{}\n{}", wrong.join("\n"), log(&faults, since));
    let lost = known.lost_for_nothing();
    held_in_time(lost.is_empty(), &format!("a lease is lost only if something is wrong: {lost:?}"));
}

/// Returns the locks that were used.
fn locks(runs: &[Past]) -> impl Iterator<Item = &'static str> {
    LOCKS.into_iter().filter(|lock| runs.iter().any(|run| run.lock == *lock))
}

/// What the judges say of all locks, in lines of the table, and what is wrong.
fn judged(subject: &Subject<'_>, runs: &[Past], holders: &[Holder], since: i64) -> (String, Vec<String>) {
    let (mut lines, mut wrong) = (String::new(), Vec::new());
    for lock in locks(runs) {
        let verdict = judge(holders.iter().filter(|holder| holder.lock == lock), since);
        let history = History::of(lock, runs, holders);
        if let Some(directory) = std::env::var_os("HISTORY") {
            history.write(&Path::new(&directory).join(format!("{}-{lock}.edn", subject.name())));
        }
        let explained = history.check();
        let margin = verdict.margin.map_or("-".into(), |nanos| (nanos / 1000).to_string());
        let line = format!(
            "  {lock:8}overlaps {}, fences out of order {}, {}, {margin} µs apart or more\n",
            verdict.overlaps.len(),
            verdict.fences.len(),
            if explained.is_ok() { "linearizable" } else { "NOT linearizable" },
        );
        lines += &line;
        wrong.extend(verdict.overlaps.into_iter().map(|both| format!("at once: {both}")));
        wrong.extend(verdict.fences.into_iter().map(|both| format!("a fence that does not rise: {both}")));
        wrong.extend(explained.err());
    }
    (lines, wrong)
}

/// The locks that cannot be acquired again, and what is left of those that were killed.
fn stuck(subject: &Subject<'_>, runs: &[Past]) -> Vec<String> {
    let mut stuck = Vec::new();
    for lock in locks(runs) {
        let call = Lockrun::at(&subject.url()).key(lock).args(["--ttl", "10m", "--wait", "30s"]).command(["true"]);
        let output = call.run();
        if output.status != Some(0) {
            stuck.push(format!("stuck: {output}"));
        }
        let mut left = Vec::new();
        let is_clean = happens_within(LONG, || {
            left = subject.left(lock);
            left.is_empty()
        });
        if !is_clean {
            stuck.push(format!("left of those that were killed: {left:?}"));
        }
    }
    stuck
}
