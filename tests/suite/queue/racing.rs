//! Many runs at once.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::support::crowd;
use crate::support::store::on_every_store;
use crate::support::{Lockrun, Running};

/// Appends `in` and `out` with its number to a file, and is busy for about a millisecond in between. Appending is
/// atomic and keeps the order, so the file shows without any clock whether two runs were inside at once.
const SCRIPT: &str = "echo in $0 >>\"$1\"; i=0; while [ $i -lt 1000 ]; do i=$((i+1)); done; echo out $0 >>\"$1\"";

const RUNS: usize = 50;

/// Returns the numbers of the runs that were inside, in order; fails if two were inside at once.
fn inside(log: &Path) -> Vec<usize> {
    let log = fs::read_to_string(log).expect("somebody was inside");
    let lines: Vec<&str> = log.lines().collect();
    let pairs = lines.chunks(2).map(|pair| {
        let number = pair[0].strip_prefix("in ").unwrap_or_else(|| panic!("overlap: {pair:?}"));
        assert_eq!(pair[1], format!("out {number}"), "overlap in {lines:?}");
        number.parse().expect("a number")
    });
    pairs.collect()
}

// Tests the judge itself: it notices two runs that were inside at once.
#[test]
#[should_panic(expected = "overlap")]
fn an_overlap_is_seen() {
    let directory = TempDir::new().expect("a temporary directory");
    let log = directory.path().join("log");
    fs::write(&log, "in 1\nin 2\nout 1\nout 2\n").expect("a record");
    inside(&log);
}

fn race(call: &Lockrun, log: &Path) -> Vec<Running> {
    let log = log.to_str().expect("a plain path");
    (0..RUNS)
        .map(|number| {
            let number = number.to_string();
            call.clone().command(["sh", "-c", SCRIPT, &number, log]).spawn()
        })
        .collect()
}

// "Exclusion. From COMMAND's first instruction until COMMAND is dead, no other run holds the same key in the same
// store": fifty at a time, all of them wait, all of them run.
on_every_store!(fifty_wait_and_run, |store| {
    let _turn = crowd::turn_at(store);
    let directory = TempDir::new().expect("a temporary directory");
    let rounds = if store.is_polled() { 1 } else { 5 };
    for round in 0..rounds {
        let log = directory.path().join(format!("round-{round}"));
        let call = Lockrun::new(store).key("race").arg("--wait");
        for run in race(&call, &log) {
            run.wait().exited(0).silent();
        }
        let mut ran = inside(&log);
        ran.sort_unstable();
        assert_eq!(ran, (0..RUNS).collect::<Vec<_>>());
    }
});

// "Exclusion", without waiting: runs that did not get the lock did not start COMMAND, and those that did were alone.
on_every_store!(fifty_try_and_some_run, |store| {
    let _turn = crowd::turn_at(store);
    let directory = TempDir::new().expect("a temporary directory");
    let log = directory.path().join("log");
    let call = Lockrun::new(store).key("race").args(["--fail", "-q"]);
    let mut ran = Vec::new();
    for (number, run) in race(&call, &log).into_iter().enumerate() {
        let output = run.wait().silent();
        match output.status {
            Some(0) => ran.push(number),
            Some(75) => {}
            _ => panic!("{output}"),
        }
    }
    let mut inside = inside(&log);
    inside.sort_unstable();
    assert_eq!(inside, ran);
    assert!(!ran.is_empty());
});
