//! When lost leases expired, as the server says right after their runs have ended.

use std::collections::BTreeMap;

use serde_json::Value;

use super::workers::now;
use crate::support::{Lockrun, Running};

/// A request to the server whose answer is read later.
struct Asked {
    run: usize,
    /// The process id of the run's lockrun.
    pid: i32,
    at: i64,
    status: Running,
}

/// The ends of leases by the runs that lost them, in nanoseconds of the boot clock.
pub(super) struct Deadlines {
    url: String,
    asked: Vec<Asked>,
    known: BTreeMap<usize, i64>,
}

impl Deadlines {
    /// Returns those of the store with this URL, over an undisturbed network.
    pub(super) fn of(url: &str) -> Self {
        Self { url: url.to_owned(), asked: Vec::new(), known: BTreeMap::new() }
    }

    /// Asks when the lease of this run ends.
    pub(super) fn ask(&mut self, run: usize, lock: &str, pid: i32) {
        let call = Lockrun::bare().args(["status", "--store", &self.url, "--json", "--store-timeout", "1s"]).key(lock);
        self.asked.push(Asked { run, pid, at: now(), status: call.spawn() });
    }

    /// Reads the answers that have come. There is none if the server is down, or the lock has been handed off.
    pub(super) fn look(&mut self) {
        for mut question in std::mem::take(&mut self.asked) {
            if !question.status.has_ended() {
                self.asked.push(question);
                continue;
            }
            let Asked { run, pid, at, status } = question;
            let locks: Value = serde_json::from_slice(&status.wait().stdout).unwrap_or_default();
            let holders = locks[0]["holders"].as_array();
            let ours = holders.into_iter().flatten().find(|holder| holder["pid"] == pid);
            // Counted from before the request, so that it is not too late.
            let left = ours.and_then(|holder| holder["expires_in_ms"].as_i64());
            self.known.extend(left.map(|ms| (run, at + ms * 1_000_000)));
        }
    }

    /// Returns the end of the lease that this run lost.
    pub(super) fn get(&self, run: usize) -> Option<i64> {
        self.known.get(&run).copied()
    }
}
