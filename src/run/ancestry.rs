//! The runs around this process that only /proc still shows.

use std::fs;
use std::time::Duration;

use crate::lock::holder::host_name;
use crate::lock::state::Purpose;
use crate::store::{Claim, Held};
use crate::sys::clock::Moment;

/// The most ancestors that are looked at.
const GENERATIONS: usize = 1000;

/// How much later than the lock its holder may seem to have started: the store's clock and the kernel's may differ.
const TOLERANCE: Duration = Duration::from_secs(5);

/// A process in /proc.
struct Process {
    parent: u32,
    started: Moment,
}

/// Returns whether the lock that `claim` is about is held by a run whose command this process is part of: an ancestor
/// on this host has the holder's process id, is as old as the lock, and names the key in its command line, which no run
/// can do without. (A process that got the id of a dead holder is younger; and another container of the same host name
/// may have a process of the same id.) A revoked lock can become free before its command has ended.
pub(super) fn includes(held: &Held, claim: &Claim) -> bool {
    let Some(holder) = held.holder.as_ref().filter(|_| held.purpose == Purpose::Run && !held.is_revoked) else {
        return false;
    };
    // The guardian's parent is not around it.
    if holder.pid == claim.holder.pid || holder.host != host_name() {
        return false;
    }
    let parent = |pid: &u32| Process::read(*pid).map(|process| process.parent);
    let mut ancestors = std::iter::successors(parent(&std::process::id()), parent).take(GENERATIONS);
    ancestors.any(|pid| pid == holder.pid) && is_as_old(holder.pid, held.since) && names(holder.pid, claim.key.as_str())
}

/// Returns whether the process was there when the lock was acquired, `since` ago.
fn is_as_old(pid: u32, since: Option<Duration>) -> bool {
    let acquired = since.map(|since| Moment::now().before(since) + TOLERANCE);
    Process::read(pid).is_some_and(|process| acquired.is_none_or(|acquired| process.started <= acquired))
}

/// Returns whether one of the words of the process's command line is the key, or ends with it.
fn names(pid: u32, key: &str) -> bool {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.split(|byte| *byte == 0).any(|word| word.ends_with(key.as_bytes()))
}

impl Process {
    /// Reads `/proc/PID/stat`, see proc(5). `None` if there is no such process.
    fn read(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in front is in parentheses, and may contain blanks and parentheses.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        // In hundredths of a second since the machine has started.
        let started = fields.get(19)?.parse::<u64>().ok()?.checked_mul(10)?;
        Some(Process {
            parent: fields.get(1)?.parse().ok()?,
            started: Moment::from_boot(Duration::from_millis(started)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::holder::Holder;
    use crate::lock::key::Key;

    /// Returns whether a holder with this id, which has held the lock for so long, counts as around this process.
    fn includes_holder(pid: u32, key: &str, since: Duration, purpose: Purpose) -> bool {
        let holder = Some(Holder { host: host_name(), pid, ..Holder::default() });
        let claim = Claim { key: Key::new(key.as_ref()).expect("a key"), ..Claim::example() };
        includes(&Held { holder, since: Some(since), purpose, ..Held::default() }, &claim)
    }

    #[test]
    fn an_ancestor_that_names_the_key_and_is_old_enough_is_around_us() {
        let parent = std::os::unix::process::parent_id();
        let words = fs::read(format!("/proc/{parent}/cmdline")).expect("it lives");
        let named = String::from_utf8_lossy(words.split(|byte| *byte == 0).next().expect("a word")).into_owned();
        let key = named.get(named.len().saturating_sub(3)..).expect("plain letters");
        let age = Moment::now().since(Process::read(parent).expect("it lives").started);
        assert!(includes_holder(parent, key, Duration::ZERO, Purpose::Run));
        assert!(!includes_holder(parent, "another key", Duration::ZERO, Purpose::Run));
        assert!(!includes_holder(parent, key, age + 2 * TOLERANCE, Purpose::Run), "it has another's process id");
        assert!(!includes_holder(parent, key, Duration::ZERO, Purpose::Kept), "its run has ended");
        assert!(!includes_holder(std::process::id(), key, Duration::ZERO, Purpose::Run), "it is no ancestor");
    }
}
