//! The operations on a lock, as a linearizability checker takes them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::linearizable::{Operation, check};
use super::model::{Action, Held, Lock, Mode};
use super::runs::{Holder, Past, SLOTS};

/// All operations on one lock.
pub(super) struct History<'a> {
    lock: &'a str,
    /// Each run that asked for the lock, with its command's life under it.
    runs: Vec<(&'a Past, Option<&'a Holder>)>,
}

impl<'a> History<'a> {
    pub(super) fn of(lock: &'a str, runs: &'a [Past], holders: &'a [Holder]) -> Self {
        let holders: BTreeMap<usize, &Holder> = holders.iter().map(|holder| (holder.run, holder)).collect();
        let runs = runs.iter().filter(|run| run.lock == lock);
        Self { lock, runs: runs.map(|run| (run, holders.get(&run.number).copied())).collect() }
    }

    /// Returns the acquisitions and releases. A run that held the lock held it from when its command was first seen
    /// until it was last seen. A run that was not seen with the lock may have held it for a while, which changes
    /// nothing for the others.
    fn operations(&self) -> Vec<Operation<Action>> {
        let seen = self.runs.iter().filter_map(|(run, holder)| Some((run, (*holder)?)));
        let both = |(run, holder): (&&Past, &Holder)| {
            let acquire = Action::Acquire { run: run.number, mode: holder.mode, fence: holder.fence };
            [
                Operation { what: acquire, invoked: run.invoked, responded: Some(holder.first) },
                Operation {
                    what: Action::Release { run: run.number },
                    invoked: holder.last,
                    responded: run.released(),
                },
            ]
        };
        seen.flat_map(both).collect()
    }

    /// Looks for an order in which each acquisition and release took effect at one moment. Fails with where there is
    /// none.
    pub(super) fn check(&self) -> Result<(), String> {
        let operations = self.operations();
        let slots = if self.lock.starts_with("slots") { SLOTS } else { 1 };
        let lock = Lock::of(slots, operations.iter().map(|operation| &operation.what));
        check(&lock, Held::default(), &operations).map_err(|stuck| {
            let Operation { what, invoked, responded } = &operations[stuck];
            format!("no order explains the history of {}: {what:?} from {invoked} to {responded:?} ns", self.lock)
        })
    }

    /// Writes the history as Jepsen's checkers read it: a map for each invocation and completion, in order of time.
    /// Each run is a process of its own.
    pub(super) fn write(&self, file: &Path) {
        let mut lines = Vec::new();
        for (run, holder) in &self.runs {
            let mut add = |time: i64, kind: &str, what: &str, value: &str| {
                let map =
                    format!("{{:type :{kind}, :f :{what}, :value {value}, :process {}, :time {time}}}", run.number);
                lines.push((time, map));
            };
            add(run.invoked, "invoke", "acquire", "nil");
            let Some(holder) = holder else {
                add(run.ended, if run.is_refused { "fail" } else { "info" }, "acquire", "nil");
                continue;
            };
            let mode = match holder.mode {
                Mode::Exclusive => ":mode :exclusive".to_owned(),
                Mode::Shared => ":mode :shared".to_owned(),
                Mode::Slot(slot) => format!(":mode :slot, :slot {slot}"),
            };
            add(holder.first, "ok", "acquire", &format!("{{{mode}, :fence {}}}", holder.fence));
            add(holder.last, "invoke", "release", "nil");
            let end = run.released();
            add(end.unwrap_or(run.ended.max(holder.last)), if end.is_some() { "ok" } else { "info" }, "release", "nil");
        }
        lines.sort_by_key(|(time, _)| *time);
        let mut text = String::new();
        for (_, line) in lines {
            writeln!(text, "{line}").expect("a text");
        }
        fs::write(file, text).expect("the history is written");
    }
}

mod tests {
    use tempfile::TempDir;

    use super::super::judge::judge;
    use super::super::runs::holders;
    use super::*;

    fn run(number: usize, invoked: i64, ended: i64, has_released: bool) -> Past {
        let lock = "alone1";
        Past { number, lock, host: 0, invoked, ended, is_refused: false, has_released, has_lost: false, error: None }
    }

    /// Returns the judges' verdict on a record: how many overlaps and falling fences, and whether an order explains it;
    /// and its history.
    fn judged(runs: &[Past], record: &str) -> (usize, usize, bool, String) {
        let directory = TempDir::new().expect("a temporary directory");
        let file = directory.path().join("record");
        fs::write(&file, record).expect("our own file");
        let holders = holders(&file);
        let history = History::of("alone1", runs, &holders);
        history.write(&file);
        let verdict = judge(&holders, 0);
        let text = fs::read_to_string(&file).expect("our own file");
        (verdict.overlaps.len(), verdict.fences.len(), history.check().is_ok(), text)
    }

    // The judges reject a record in which two runs overlap, and one in which a fence falls.
    #[test]
    fn a_bad_record_is_seen() {
        let runs = [run(0, 0, 50, true), run(1, 5, 70, false), run(2, 8, 60, false)];
        let good = "alone1-w-0-7- 100 10\nalone1-w-0-7- 100 40\nalone1-w-1-8- 101 45\nalone1-w-1-8- 101 65\n";
        let (overlaps, fences, is_explained, history) = judged(&runs, good);
        assert_eq!((overlaps, fences, is_explained), (0, 0, true));
        let wanted = "\
{:type :invoke, :f :acquire, :value nil, :process 0, :time 0}
{:type :invoke, :f :acquire, :value nil, :process 1, :time 5}
{:type :invoke, :f :acquire, :value nil, :process 2, :time 8}
{:type :ok, :f :acquire, :value {:mode :exclusive, :fence 7}, :process 0, :time 10}
{:type :invoke, :f :release, :value nil, :process 0, :time 40}
{:type :ok, :f :acquire, :value {:mode :exclusive, :fence 8}, :process 1, :time 45}
{:type :ok, :f :release, :value nil, :process 0, :time 50}
{:type :info, :f :acquire, :value nil, :process 2, :time 60}
{:type :invoke, :f :release, :value nil, :process 1, :time 65}
{:type :info, :f :release, :value nil, :process 1, :time 70}
";
        assert_eq!(history, wanted);
        let at_once = judged(&runs, &good.replace("101 45", "101 39"));
        assert_eq!((at_once.0, at_once.1, at_once.2), (1, 0, false));
        let falling = judged(&runs, &good.replace("1-8-", "1-6-"));
        assert_eq!((falling.0, falling.1, falling.2), (0, 1, false));
    }
}
