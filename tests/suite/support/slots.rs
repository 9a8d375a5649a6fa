//! Runs that share a lock with several slots, and the check of their record.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::deadline::{LONG, eventually};
use super::lockrun::{Lockrun, Running};
use super::queue::{Queue, read_time};
use super::store::Store;

/// The body of a waiter's command that records its slot, between the stamps of its beginning and its end.
pub(crate) const TELL: &str = "echo \"slot $tag $LOCKRUN_SLOT $LOCKRUN_FENCE\" >>\"$file\"";

/// Returns a body like [`TELL`] that then waits until so many commands have begun, so that they run at once.
pub(crate) fn tell_and_wait_for(count: usize) -> String {
    format!("{TELL}; until [ $(grep -c ^in \"$file\") -ge {count} ]; do sleep 0.01; done")
}

/// A run that holds a slot until [`Slot::end`]. It and its command are killed when this is dropped.
pub(crate) struct Slot {
    run: Running,
    pub(crate) number: String,
    pub(crate) fence: u64,
}

impl Slot {
    /// Acquires a slot by this call. Returns when the command runs.
    #[track_caller]
    pub(crate) fn take(call: &Lockrun) -> Self {
        let mut run = call.clone().sh("echo $LOCKRUN_SLOT $LOCKRUN_FENCE; echo ready; exec sleep 600").spawn();
        run.wait_for_line("ready");
        let said = run.stdout();
        let (number, fence) = said.lines().next().and_then(|line| line.split_once(' ')).expect("a slot and a fence");
        Self { number: number.to_owned(), fence: fence.parse().expect("a number"), run }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.run.pid()
    }

    /// Kills lockrun alone. Returns the process id of its command, which lives on.
    #[track_caller]
    pub(crate) fn leave_an_orphan(&mut self) -> i32 {
        self.run.signal(Signal::SIGKILL);
        eventually(LONG, "lockrun is dead", || self.run.has_ended());
        self.run.command()
    }

    /// Kills the run and everything that it has started.
    pub(crate) fn kill(mut self) {
        self.run.kill_everything();
    }

    /// Ends the command, and with it the run.
    #[track_caller]
    pub(crate) fn end(self) {
        self.run.signal(Signal::SIGTERM);
        self.run.wait().died_of(Signal::SIGTERM);
    }
}

/// One run of a command under a slot.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) tag: String,
    pub(crate) slot: usize,
    pub(crate) began: Duration,
}

/// The runs, in the order in which they began, and the most that ran at once.
pub(crate) struct SharedRecord {
    pub(crate) runs: Vec<Shared>,
    pub(crate) most: usize,
}

impl SharedRecord {
    /// Reads what waiters with the body [`TELL`] have written, which must all have ended. Fails if more than `slots`
    /// ran at once, if two had the same slot at once, or if a later holder of a slot had no greater fence.
    #[track_caller]
    pub(crate) fn read(written: &str, slots: usize) -> Self {
        let (mut running, mut most) = (BTreeMap::new(), 0);
        let mut runs = Vec::new();
        let mut fences: BTreeMap<usize, u64> = BTreeMap::new();
        let mut all_fences = BTreeSet::new();
        for line in written.lines() {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["in", tag, time] => {
                    running.insert(tag, (read_time(time), None));
                    most = most.max(running.len());
                    assert!(running.len() <= slots, "{} at once at {line:?} in {written}", running.len());
                }
                ["slot", tag, slot, fence] => {
                    let slot: usize = slot.parse().expect("a slot");
                    let fence: u64 = fence.parse().expect("a fence");
                    assert!(slot < slots, "{line:?}");
                    assert!(
                        running.values().all(|(_, other)| *other != Some(slot)),
                        "overlap at {line:?} in {written}"
                    );
                    let last = fences.insert(slot, fence);
                    assert!(last.is_none_or(|last| fence > last), "{line:?} after {last:?} in {written}");
                    assert!(all_fences.insert(fence), "a fence given out twice: {line:?} in {written}");
                    let (began, own) = running.get_mut(tag).expect("it has begun");
                    *own = Some(slot);
                    runs.push(Shared { tag: tag.to_owned(), slot, began: *began });
                }
                ["out", tag, _] => drop(running.remove(tag).expect("it has begun")),
                _ => panic!("not understood: {line:?}"),
            }
        }
        assert!(running.is_empty(), "not ended: {running:?}");
        Self { runs, most }
    }

    /// Asserts that these have run, once each, in any order.
    #[track_caller]
    pub(crate) fn in_any_order(self, numbers: impl IntoIterator<Item = usize>) -> Self {
        let mut ran: Vec<usize> = self.runs.iter().map(|run| run.tag.parse().expect("a number")).collect();
        ran.sort_unstable();
        let mut wanted: Vec<usize> = numbers.into_iter().collect();
        wanted.sort_unstable();
        assert_eq!(ran, wanted);
        self
    }

    /// Returns the run with this number.
    #[track_caller]
    pub(crate) fn run(&self, number: usize) -> &Shared {
        let tag = number.to_string();
        self.runs.iter().find(|run| run.tag == tag).expect("it has run")
    }
}

/// The options of all runs. The lease is so long that no renewal is counted among the requests.
const EIGHT: [&str; 4] = ["--slots", "8", "--ttl", "10m"];

/// Acquires all eight slots of a lock, and starts so many waiters for them. Returns the queue and the holders.
pub(crate) fn wait_for_eight<'a>(store: &'a Store, key: &str, count: usize) -> (Queue<'a>, Vec<Slot>) {
    let call = Lockrun::new(store).key(key).args(EIGHT);
    let held = (0..8).map(|_| Slot::take(&call)).collect();
    let mut queue = Queue::new(store, key).with(&EIGHT).doing(TELL);
    queue.join(count);
    (queue, held)
}
