//! Contracts about time, which count only while the machine is not too busy.
//!
//! On a busy machine a process that could run may wait for a processor for seconds. A waiter that waits for so long is
//! passed over, and a lease that its holder cannot renew is lost, as they should be. So a contract that failed only in
//! its times, while processes waited for a processor, is tried again, and no other contract begins meanwhile; those
//! that run already go on. A contract that failed in any other way, such as by two runs at once, is not: it must hold on
//! every machine.

use std::cell::Cell;
use std::fs;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, Location, catch_unwind, panic_any, resume_unwind};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::deadline::stays_true_for;

/// The most attempts at a contract.
const ATTEMPTS: u32 = 4;

/// The machine is busy if some process waited for a processor for more than this fraction of the time: one in so many.
const BUSY: u32 = 4;

/// Held by an attempt after the first, so that it does not meet with the same load again.
static CALM: Mutex<()> = Mutex::new(());

/// The payload of a panic about a time, or a consequence of one.
struct Late(String);

thread_local! {
    /// Whether this thread runs a contract that may be tried again.
    static IS_JUDGED: Cell<bool> = const { Cell::new(false) };
}

/// Fails the contract because of a time, or a consequence of one: another order, or a lease that could not be kept.
#[track_caller]
pub(crate) fn late(what: &str) -> ! {
    assert!(IS_JUDGED.get(), "{what}");
    panic_any(Late(format!("{what} (at {})", Location::caller())));
}

/// Fails the contract if `took` is more than `limit`.
#[track_caller]
pub(crate) fn in_time(took: Duration, limit: Duration, what: &str) {
    if took > limit {
        late(&format!("{what}: it took {took:?}, and the limit is {limit:?}"));
    }
}

/// Fails the contract, as a consequence of a time, unless this `holds`.
#[track_caller]
pub(crate) fn held_in_time(holds: bool, what: &str) {
    if !holds {
        late(&format!("not so: {what}"));
    }
}

/// Checks throughout `span` that `holds`. If not, fails the contract as a consequence of a time.
#[track_caller]
pub(crate) fn stays_in_time_for(span: Duration, what: &str, holds: impl Fn() -> bool) {
    stays_true_for(span, what, || {
        if !holds() {
            late(&format!("not any more: {what}"));
        }
        true
    });
}

/// Runs the contract, and again if it was late on a busy machine. The contract starts everything that it needs: a store
/// used by a failed attempt may still contain that attempt's lock.
#[track_caller]
pub(crate) fn judge(contract: impl Fn()) {
    judge_among(&CALM, contract);
}

/// As [`judge`], but only the contracts that are judged with the same mutex wait for each other.
#[track_caller]
pub(crate) fn judge_among(calm: &Mutex<()>, contract: impl Fn()) {
    assert!(!IS_JUDGED.get(), "this contract is judged as a part of another one");
    for attempt in 1.. {
        // A first attempt only waits for its turn.
        let calm = calm.lock().unwrap_or_else(PoisonError::into_inner);
        let _calm = (attempt > 1).then_some(calm);
        let watch = Watch::start();
        IS_JUDGED.set(true);
        let tried = catch_unwind(AssertUnwindSafe(&contract));
        IS_JUDGED.set(false);
        let Err(payload) = tried else { return };
        let Some(Late(what)) = payload.downcast_ref() else { resume_unwind(payload) };
        assert!(watch.is_busy(), "{what}");
        assert!(attempt < ATTEMPTS, "{what}: in each of {ATTEMPTS} attempts, on a busy machine");
        // Not by a macro, whose output the test runner hides when the test succeeds.
        let test = thread::current().name().unwrap_or("a test").to_owned();
        let _ = writeln!(io::stderr(), "{test} is tried again, on a busy machine: {what}");
    }
}

/// Measures for how long some process has waited for a processor.
struct Watch {
    started: Instant,
    waited: Duration,
}

impl Watch {
    fn start() -> Self {
        Self { started: Instant::now(), waited: waited() }
    }

    fn is_busy(&self) -> bool {
        // The kernel updates the total every two seconds.
        thread::sleep(Duration::from_millis(2100));
        let waited = waited().saturating_sub(self.waited);
        eprintln!("processes waited for a processor for {waited:?} of {:?}", self.started.elapsed());
        waited * BUSY > self.started.elapsed()
    }
}

/// Returns for how long some process has waited for a processor since the machine started. Zero if the kernel does not
/// count it: such a machine is never busy.
fn waited() -> Duration {
    let pressure = fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    let some = pressure.lines().find_map(|line| line.strip_prefix("some "));
    let total = some.and_then(|some| some.rsplit_once("total=")).and_then(|(_, total)| total.parse().ok());
    Duration::from_micros(total.unwrap_or(0))
}
