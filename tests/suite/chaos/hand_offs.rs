//! Many hand-offs without faults: no waiter is lost, no lock is handed off while another run holds it, and fences rise.
//!
//! `HANDOFFS` asks for more: `make handoffs`.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::asked::asked;
use crate::support::store::on_every_store;
use crate::support::{LONG, Lockrun, Running, Store, memory};

/// How many runs want the lock at any time.
const WAITERS: u64 = 10;

/// The number of hand-offs among all the other tests.
const SLICE: u64 = 100;

/// Runs the call this often, one after the other.
const LOOP: &str = r#"while [ "$left" -gt 0 ]; do "$@" || exit; left=$((left - 1)); done"#;

/// Records that it has the lock, and that it gives it back. Appending keeps the order.
const COMMAND: &str = r#"echo "in $LOCKRUN_FENCE" >>"$0"; echo "out $LOCKRUN_FENCE" >>"$0""#;

// "Waiters get the lock in turn": each of them, as often as it wants it.
on_every_store!(in_turn, |store| hand_off(store, asked("HANDOFFS").unwrap_or(SLICE)));

fn hand_off(store: &Store, count: u64) {
    let directory = memory::directory();
    let record = directory.path().join("record");
    let command = ["sh", "-c", COMMAND, record.to_str().expect("a plain path")];
    let call = Lockrun::new(store).key("turn").arg("--wait").command(command);
    let rounds = count.div_ceil(WAITERS);
    let began = Instant::now();
    let call = call.env("left", rounds.to_string()).in_shell(LOOP);
    let mut loops: Vec<Running> = (0..WAITERS).map(|_| call.spawn_alone()).collect();
    until_all_have_ended(&mut loops, &record);
    let took = began.elapsed();
    for one in loops {
        one.wait().exited(0);
    }
    let runs = judge(&fs::read_to_string(&record).expect("they have written"));
    assert_eq!(runs, rounds * WAITERS, "each has run");
    let pace = Duration::from_secs_f64(took.as_secs_f64() / f64::from(u32::try_from(runs).expect("not so many")));
    println!("{}: {runs} runs in turn in {took:.1?}, {pace:.2?} each: overlaps 0, fences out of order 0", store.name());
}

/// Waits for all, however long that takes, as long as there is progress.
fn until_all_have_ended(loops: &mut [Running], record: &Path) {
    let mut seen = (0, Instant::now());
    while loops.iter_mut().filter_map(|one| (!one.has_ended()).then_some(())).count() > 0 {
        let length = fs::metadata(record).map_or(0, |record| record.len());
        if length > seen.0 {
            seen = (length, Instant::now());
        }
        assert!(seen.1.elapsed() < LONG, "nobody has had the lock for {LONG:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Counts the runs of a record. Fails if two were at once, or a fence does not rise.
fn judge(record: &str) -> u64 {
    let lines: Vec<&str> = record.lines().collect();
    let (mut last, mut runs) = (0, 0);
    for pair in lines.chunks(2) {
        let words: Vec<&str> = pair.iter().flat_map(|line| line.split(' ')).collect();
        let ["in", fence, "out", same] = words[..] else { panic!("two at once after {runs} runs: {pair:?}") };
        assert_eq!(fence, same, "two at once after {runs} runs");
        let fence: u64 = fence.parse().expect("a number");
        assert!(fence > last, "after {runs} runs, a fence that does not rise: {last}, then {fence}");
        (last, runs) = (fence, runs + 1);
    }
    runs
}

#[test]
fn a_good_record() {
    assert_eq!(judge("in 1\nout 1\nin 3\nout 3\n"), 2);
}

#[test]
#[should_panic(expected = "two at once after 1 runs")]
fn two_at_once() {
    judge("in 1\nout 1\nin 2\nin 3\nout 2\nout 3\n");
}

#[test]
#[should_panic(expected = "a fence that does not rise: 3, then 2")]
fn a_fence_that_falls() {
    judge("in 3\nout 3\nin 2\nout 2\n");
}
