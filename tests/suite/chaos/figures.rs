//! The figures of chaos: one table per store.

use std::fmt::Write as _;

use super::deadlines::Deadlines;
use super::faults::{Injected, Target, by_kind};
use super::runs::{Holder, Past};

/// All that is known in the end.
pub(super) struct Known<'a> {
    /// How long a lease is, in nanoseconds.
    pub(super) lease: i64,
    pub(super) runs: &'a [Past],
    pub(super) holders: &'a [Holder],
    pub(super) faults: &'a [Injected],
    /// When the lost leases expired.
    pub(super) deadlines: Option<&'a Deadlines>,
}

impl Known<'_> {
    fn run(&self, number: usize) -> &Past {
        let at = self.runs.binary_search_by_key(&number, |run| run.number);
        &self.runs[at.expect("every command belongs to a run")]
    }

    /// Returns, for each holder whose lockrun or guardian was killed while another run waited for its lock, how long
    /// that run then waited until it had the lock, in nanoseconds, and whether nothing else disturbed either of them.
    fn stale(&self) -> Vec<(i64, bool)> {
        let kills = self.faults.iter().filter(|fault| fault.has_killed);
        let mut found: Vec<_> = kills.filter_map(|kill| self.stale_after(kill)).collect();
        found.sort_unstable();
        found
    }

    fn stale_after(&self, kill: &Injected) -> Option<(i64, bool)> {
        let Target::Run(run) = kill.target else { return None };
        let killed = self.holders.iter().find(|holder| holder.run == run && holder.first <= kill.from)?;
        // It held the lock when it was killed, if its command was seen right before.
        (killed.last > kill.from - 50_000_000).then_some(())?;
        let later = self.holders.iter().filter(|other| other.lock == killed.lock && other.fence > killed.fence);
        let next = later.filter(|other| other.excludes(killed)).min_by_key(|other| other.fence)?;
        (self.run(next.run).invoked < kill.from).then_some(())?;
        let others = || self.faults.iter().filter(|fault| !std::ptr::eq(*fault, kill));
        let is_disturbed = |number| others().any(|fault| self.concerns(fault, number, kill.from, next.first));
        Some((next.first - kill.from, !is_disturbed(run) && !is_disturbed(next.run)))
    }

    /// Returns how long before the end of each lost lease the last stamp was, in nanoseconds.
    fn margins(&self) -> Vec<i64> {
        let margin = |holder: &Holder| Some(self.deadlines?.get(holder.run)? - holder.last);
        let mut margins: Vec<i64> = self.holders.iter().filter_map(margin).collect();
        margins.sort_unstable();
        margins
    }

    /// Returns whether this fault could have disturbed a run between these moments.
    fn concerns(&self, fault: &Injected, run: usize, from: i64, to: i64) -> bool {
        let is_on = match fault.target {
            Target::Run(other) => other == run,
            Target::Host(host) => self.run(run).host == host,
            Target::Server(_) => true,
        };
        is_on && fault.from <= to && fault.to >= from
    }

    /// Returns those of these runs that no fault explains: none disturbed the run, or did so up to one lease before it
    /// began.
    fn unexplained<'a>(&'a self, of: impl Fn(&Past) -> bool + 'a) -> impl Iterator<Item = &'a Past> {
        let explained = |run: &&Past| {
            self.faults.iter().any(|fault| self.concerns(fault, run.number, run.invoked - self.lease, run.ended))
        };
        self.runs.iter().filter(move |run| of(run)).filter(move |run| !explained(run))
    }

    /// Returns the runs that lost their lease although no fault explains it.
    pub(super) fn lost_for_nothing(&self) -> Vec<&Past> {
        self.unexplained(|run| run.has_lost).collect()
    }

    /// Returns the runs that failed although no fault of their own explains it. On files a run also fails behind a
    /// first waiter that was stopped.
    pub(super) fn failed_for_nothing(&self) -> Vec<&Past> {
        self.unexplained(|run| run.error.is_some()).collect()
    }

    /// Returns the table, without the judges' verdicts.
    pub(super) fn table(&self) -> String {
        let mut table = String::new();
        let mut line = |name: &str, value: String| writeln!(table, "  {name:38}{value}").expect("a text");
        line("faults", self.faults.len().to_string());
        for (kind, count) in by_kind(self.faults) {
            line(&format!("  {kind}"), count.to_string());
        }
        line("runs", self.runs.len().to_string());
        line("runs that held a lock", self.holders.len().to_string());
        let stale = self.stale();
        let calm: Vec<i64> = stale.iter().filter(|(_, is_calm)| *is_calm).map(|(time, _)| *time).collect();
        line("stale after SIGKILL, in ms", spread(&calm));
        line("  under other faults, too", spread(&stale.iter().map(|(time, _)| *time).collect::<Vec<_>>()));
        line("last stamp to lease's end, in ms", spread(&self.margins()));
        line("leases lost", self.runs.iter().filter(|run| run.has_lost).count().to_string());
        line("leases lost without a fault", self.lost_for_nothing().len().to_string());
        line("failed", self.runs.iter().filter(|run| run.error.is_some()).count().to_string());
        line("failed without a fault of their own", self.failed_for_nothing().len().to_string());
        table
    }
}

/// Returns the least, the median, the 99th percentile and the greatest of sorted times, in milliseconds.
fn spread(sorted: &[i64]) -> String {
    let (Some(least), Some(greatest)) = (sorted.first(), sorted.last()) else { return "none measured".into() };
    let at = |percent: usize| ms(sorted[(sorted.len() - 1) * percent / 100]);
    format!("min {}, p50 {}, p99 {}, max {} of {}", ms(*least), at(50), at(99), ms(*greatest), sorted.len())
}

fn ms(nanos: i64) -> String {
    format!("{}.{}", nanos / 1_000_000, (nanos / 100_000 % 10).abs())
}
