//! Many reservations at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::crowd;
use crate::support::sequence::{next, reserve, reserved, status};
use crate::support::store::on_every_store;
use crate::support::{LONG, Lockrun, Running, Store, eventually};

/// Records when it begins, and how it is about to end. Appending is atomic and keeps the order, so the file shows
/// without any clock whether two runs had a value at once. Numbers 4, 12, 20 and so on fail, numbers 8, 16 and so on
/// are killed. Each keeps its value for a moment, in which another run that has it, too, would be seen.
const SCRIPT: &str = "read -r now rest </proc/uptime; echo \"in $LOCKRUN_VALUE $now $LOCKRUN_FENCE\" >>\"$1\"
sleep 0.01
how=ok; [ $(($0 % 4)) -ne 0 ] || how=failed
read -r now rest </proc/uptime; echo \"out $LOCKRUN_VALUE $now $how\" >>\"$1\"
[ $(($0 % 8)) -ne 0 ] || kill -KILL $$
[ $how = ok ]";

/// Returns how many run at the same time. On etcd, runs that change a lock at the same moment get in each other's way.
/// PostgreSQL starts a process for each run, and MariaDB a thread: no more may come at once than a busy machine can
/// start within a request's time.
fn at_once(store: &Store) -> usize {
    match store {
        _ if store.as_etcd().is_some() => 5,
        _ if store.as_postgres().is_some() || store.as_mariadb().is_some() => 10,
        _ => 40,
    }
}

/// What the commands have recorded.
struct Record {
    /// How often each value was used.
    used: BTreeMap<i64, usize>,
    /// How often each value failed.
    failed: BTreeMap<i64, usize>,
    /// The shortest time between the end of a run that failed and the next one with the same value, in hundredths of a
    /// second, which are the unit of /proc/uptime.
    shortest: Option<i64>,
}

/// Reads the record; fails if two runs had a value at once, or a used value came up again.
#[track_caller]
fn judge(text: &str) -> Record {
    let mut record = Record { used: BTreeMap::new(), failed: BTreeMap::new(), shortest: None };
    let (mut inside, mut ended, mut fences) = (BTreeSet::new(), BTreeMap::new(), BTreeSet::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, value, time, rest] = words[..] else { panic!("a broken line: {line:?}") };
        let (value, time): (i64, i64) =
            (value.parse().expect("a value"), time.replace('.', "").parse().expect("a time"));
        if what == "in" {
            assert!(inside.insert(value), "two had {value} at once:\n{text}");
            assert!(!record.used.contains_key(&value), "{value} came up again:\n{text}");
            assert!(fences.insert(rest.to_owned()), "the fence {rest} came twice:\n{text}");
            if let Some(before) = ended.get(&value) {
                let gap = time - before;
                record.shortest = Some(record.shortest.map_or(gap, |shortest: i64| shortest.min(gap)));
            }
        } else {
            assert!(inside.remove(&value), "{value} ended twice:\n{text}");
            let ends = if rest == "ok" { &mut record.used } else { &mut record.failed };
            *ends.entry(value).or_default() += 1;
            ended.insert(value, time);
        }
    }
    assert!(inside.is_empty(), "{inside:?}");
    record
}

// Tests the judge itself.
#[test]
#[should_panic(expected = "two had 1 at once")]
fn two_at_once_are_seen() {
    judge("in 1 0.05 1\nin 1 0.06 2\nout 1 0.07 ok\nout 1 0.08 ok\n");
}

#[test]
#[should_panic(expected = "1 came up again")]
fn a_used_value_is_seen() {
    judge("in 1 0.05 1\nout 1 0.06 ok\nin 1 0.07 2\nout 1 0.08 failed\n");
}

/// Starts this many runs of the call, some of them at a time, and waits for all of them.
#[track_caller]
fn run_all(store: &Store, call: &Lockrun, count: usize, log: &Path) {
    let _turn = crowd::turn_at(store);
    let log = log.to_str().expect("a plain path");
    let mut running: Vec<(usize, Running)> = Vec::new();
    let finish = |running: &mut Vec<(usize, Running)>, most: usize| {
        eventually(LONG, "some runs have ended", || {
            let (ended, others) =
                running.drain(..).map(|(n, mut run)| (run.has_ended(), n, run)).partition(|one| one.0);
            let (ended, others): (Vec<_>, Vec<_>) = (ended, others);
            for (_, number, run) in ended {
                let output = run.wait().silent();
                match (number % 4, number % 8) {
                    (_, 0) => output.died_of(Signal::SIGKILL),
                    (0, _) => output.exited(1),
                    _ => output.exited(0),
                };
            }
            running.extend(others.into_iter().map(|(_, number, run)| (number, run)));
            running.len() <= most
        });
    };
    for number in 1..=count {
        finish(&mut running, at_once(store) - 1);
        running.push((number, call.clone().command(["sh", "-c", SCRIPT, &number.to_string(), log]).spawn()));
    }
    finish(&mut running, 0);
}

// "200 concurrent reservations from 1: exactly 1 to 200, no duplicates", while every fourth command fails or is killed:
// those values stay reserved.
on_every_store!(two_hundred_at_once, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let log = directory.path().join("log");
    let call = reserve(store, "1").args(["--ttl", "1h"]);
    run_all(store, &call, 200, &log);
    let record = judge(&fs::read_to_string(&log).expect("a record"));
    let all: BTreeSet<i64> = record.used.keys().chain(record.failed.keys()).copied().collect();
    assert_eq!(all, (1..=200).collect());
    assert_eq!((record.used.len(), record.failed.len()), (150, 50));
    let kept: BTreeSet<i64> = reserved(store).iter().map(|value| value.parse().expect("a number")).collect();
    assert_eq!(kept, record.failed.keys().copied().collect());
    let last = record.used.keys().last().expect("one of them");
    assert_eq!(status(store)["last_value"], last.to_string());
    assert_eq!(next(&call), "201");
});

// "Those values may come up again only after their lease, and never twice at once": and a value that was used never
// does, in whatever order they end.
on_every_store!(failed_values_come_up_again, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let log = directory.path().join("log");
    // A request may take a sixth of the lease, with many at once.
    let ttl = if at_once(store) < 40 { 15 } else { 6 };
    let call = reserve(store, "1").args(["--ttl", &format!("{ttl}s")]);
    run_all(store, &call, 100, &log);
    // The last run fails, and one more gets its value.
    let path = log.to_str().expect("a plain path");
    call.clone().command(["sh", "-c", SCRIPT, "4", path]).run().silent().exited(1);
    eventually(LONG, "their leases have run out", || reserved(store).is_empty());
    run_all(store, &call, 1, &log);
    let record = judge(&fs::read_to_string(&log).expect("a record"));
    assert_eq!(record.used.len(), 76);
    // The lease begins a little after the command's last record; the server counts whole milliseconds, by its own clock.
    assert!(record.shortest.is_some_and(|gap| gap >= ttl * 100 - 1), "{:?}", record.shortest);
});

// The same where failed values come up again at once, so that an earlier value is often used after a later one.
on_every_store!(freed_values_come_up_again, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let log = directory.path().join("log");
    let call = reserve(store, "1").args(["--on-failure", "free"]);
    run_all(store, &call, 100, &log);
    let record = judge(&fs::read_to_string(&log).expect("a record"));
    assert_eq!(record.used.len(), 75);
    let last = record.used.keys().last().expect("one of them");
    assert_eq!(status(store)["last_value"], last.to_string());
    assert_eq!(reserved(store), Vec::<String>::new());
    assert_eq!(next(&call), (last + 1).to_string());
});

// "Taking one is atomic": also if a program computes the values.
on_every_store!(forty_at_once_with_a_program, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let log = directory.path().join("log");
    let script = "#!/bin/sh\necho $(($1 + 1))\n";
    let program = crate::support::holder::write_script(directory.path(), "next", script);
    let call = reserve(store, "1").args(["--ttl", "1h", "--next", &program]);
    run_all(store, &call, 40, &log);
    let record = judge(&fs::read_to_string(&log).expect("a record"));
    let all: BTreeSet<i64> = record.used.keys().chain(record.failed.keys()).copied().collect();
    assert_eq!(all, (1..=40).collect());
    assert_eq!(record.used.len(), 30);
    assert_eq!(next(&call), "41");
});
