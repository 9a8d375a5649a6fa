//! The runs around this process that only /proc still shows.

use std::fs;
use std::time::Duration;

use libc::pid_t;

use crate::lock::holder::host_name;
use crate::lock::key::Key;
use crate::lock::state::Purpose;
use crate::store::{Claim, Held};
use crate::supervise::{parent_of, started};
use crate::sys::clock::Moment;

/// The most ancestors that are looked at.
const GENERATIONS: usize = 1000;

/// How much later than the lock its holder may seem to have started: the store's clock and the kernel's may differ.
const TOLERANCE: Duration = Duration::from_secs(5);

/// Returns whether the lock that `claim` is about is held by a run whose command this process is part of: an ancestor
/// on this host has the holder's process id, is as old as the lock, and is a lockrun with the key in its command line.
/// (A process that got the id of a dead holder is younger; and in another container of the same host name another
/// program may have that id.) A revoked lock can become free before its command has ended.
pub(super) fn includes(held: &Held, claim: &Claim) -> bool {
    let Some(holder) = held.holder.as_ref().filter(|_| held.purpose == Purpose::Run && !held.is_revoked) else {
        return false;
    };
    // This lockrun: the guardian is a child of it, and not around itself.
    let own = if claim.by_hand { std::process::id() } else { claim.holder.pid }.cast_signed();
    let pid = holder.pid.cast_signed();
    if pid == own || holder.host != host_name() {
        return false;
    }
    let mut ancestors = std::iter::successors(parent_of(own), |pid| parent_of(*pid)).take(GENERATIONS);
    ancestors.any(|ancestor| ancestor == pid) && is_lockrun(pid, own, held.since) && names(pid, &claim.key)
}

/// Returns whether the process has the name of our `own` one, and was there when the lock was acquired, `since` ago.
fn is_lockrun(pid: pid_t, own: pid_t, since: Option<Duration>) -> bool {
    let name = |pid: pid_t| fs::read(format!("/proc/{pid}/comm")).ok();
    let acquired = since.map(|since| Moment::now().before(since) + TOLERANCE);
    let started = started(pid).map(|ticks| Moment::from_boot(Duration::from_millis(ticks.saturating_mul(10))));
    name(pid).is_some_and(|found| name(own) == Some(found))
        && started.is_some_and(|started| acquired.is_none_or(|acquired| started <= acquired))
}

/// Returns whether a word of the process's command line is the key, or is an option that ends with it.
fn names(pid: pid_t, key: &Key) -> bool {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let key = key.as_str().as_bytes();
    words.split(|byte| *byte == 0).any(|word| word == key || word.starts_with(b"-") && word.ends_with(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::holder::Holder;

    /// Returns whether a holder with this id, which has held the lock for so long, counts as around this process.
    fn includes_holder(pid: u32, since: Duration, purpose: Purpose) -> bool {
        let holder = Some(Holder { host: host_name(), pid, ..Holder::default() });
        let claim = Claim { by_hand: true, ..Claim::example() };
        includes(&Held { holder, since: Some(since), purpose, ..Held::default() }, &claim)
    }

    // The parent of a test is no lockrun: each of the conditions is looked at by itself.
    #[test]
    fn an_ancestor_is_a_lockrun_that_is_as_old_as_the_lock_and_names_the_key() {
        let (own, parent) = (std::process::id(), std::os::unix::process::parent_id());
        assert!(
            !includes_holder(parent, Duration::ZERO, Purpose::Run)
                && !includes_holder(own, Duration::ZERO, Purpose::Run)
        );
        let own = own.cast_signed();
        assert!(is_lockrun(own, own, Some(Duration::ZERO)) && is_lockrun(own, own, None));
        assert!(!is_lockrun(own, own, Some(Moment::now().since_boot())), "it has another's process id");
        assert!(!is_lockrun(pid_t::MAX, own, None) && !is_lockrun(own, pid_t::MAX, None), "there is none");
        let key = |key: &str| Key::new(key.as_ref()).expect("a key");
        let first = std::env::args().next().expect("a word");
        assert!(names(own, &key(&first)) && !names(own, &key(&first[1..])) && !names(own, &key("another key")));
    }
}
