//! Promises about time, which are judged where the machine gave its processes the time.
//!
//! A machine that others keep busy may let a process that could run stand still for seconds; a waiter that stands still for so long is
//! passed by, and a lease that its holder cannot renew is lost, as they are to be. So a contract that was broken only in time, while
//! processes waited for a processor, is tried again. One that was broken in any other way, such as by two that ran at once, is not:
//! it has to hold on every machine.

use std::cell::Cell;
use std::fs;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, Location, catch_unwind, panic_any, resume_unwind};
use std::thread;
use std::time::{Duration, Instant};

use super::deadline::{LONG, happens_within, stays_true_for};

/// How often a contract is tried at the most.
const ATTEMPTS: u32 = 4;

/// The machine is busy if for more than one part in this many of the time some process waited for a processor.
const BUSY: u32 = 4;

/// What fails a contract that was kept but for its times.
struct Late(String);

thread_local! {
    /// Whether this thread tries a contract that may be tried again.
    static IS_JUDGED: Cell<bool> = const { Cell::new(false) };
}

/// Fails the contract because of a time, or because of what comes of one: an order, a lease that could not be kept.
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

/// Fails the contract, because of what comes of a time, unless this `holds`.
#[track_caller]
pub(crate) fn held_in_time(holds: bool, what: &str) {
    if !holds {
        late(&format!("not so: {what}"));
    }
}

/// Waits until `condition` holds. Fails the contract because of a time when it does not.
#[track_caller]
pub(crate) fn eventually_in_time(what: &str, condition: impl FnMut() -> bool) {
    if !happens_within(LONG, condition) {
        late(&format!("not within {LONG:?}: {what}"));
    }
}

/// Looks all along, for `span`, that `holds`. Fails the contract, because of what comes of a time, when it does not.
#[track_caller]
pub(crate) fn stays_in_time_for(span: Duration, what: &str, holds: impl Fn() -> bool) {
    stays_true_for(span, what, || {
        if !holds() {
            late(&format!("not any more: {what}"));
        }
        true
    });
}

/// Tries the contract; again, if it was late on a busy machine.
#[track_caller]
pub(crate) fn judge(contract: impl Fn()) {
    for attempt in 1.. {
        let watch = Watch::start();
        IS_JUDGED.set(true);
        let tried = catch_unwind(AssertUnwindSafe(&contract));
        IS_JUDGED.set(false);
        let Err(payload) = tried else { return };
        let Some(Late(what)) = payload.downcast_ref() else { resume_unwind(payload) };
        assert!(watch.is_busy(), "{what}");
        assert!(attempt < ATTEMPTS, "{what}: in each of {ATTEMPTS} attempts, on a busy machine");
        // Not by a macro, whose output the test runner keeps to itself when the test succeeds.
        let test = thread::current().name().unwrap_or("a test").to_owned();
        let _ = writeln!(io::stderr(), "{test} is tried again, on a busy machine: {what}");
    }
}

/// How long, since it was started, some process waited for a processor.
struct Watch {
    started: Instant,
    waited: Duration,
}

impl Watch {
    fn start() -> Self {
        Self { started: Instant::now(), waited: waited() }
    }

    fn is_busy(&self) -> bool {
        // The kernel counts on every two seconds.
        thread::sleep(Duration::from_millis(2100));
        let waited = waited().saturating_sub(self.waited);
        eprintln!("processes waited for a processor for {waited:?} of {:?}", self.started.elapsed());
        waited * BUSY > self.started.elapsed()
    }
}

/// The time for which some process waited for a processor, since the machine has started. Where the kernel does not count it, none:
/// such a machine counts as quiet.
fn waited() -> Duration {
    let pressure = fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    let some = pressure.lines().find_map(|line| line.strip_prefix("some "));
    let total = some.and_then(|some| some.rsplit_once("total=")).and_then(|(_, total)| total.parse().ok());
    Duration::from_micros(total.unwrap_or(0))
}
