//! Runs that share a lock, runs that want it alone, and the judge of their record.

use std::collections::BTreeMap;

use super::lockrun::Lockrun;
use super::queue::Queue;
use super::store::Store;

/// Shares the lock.
pub(crate) const SHARED: &[&str] = &["--shared"];

/// Takes long enough for several to run at once.
pub(crate) const WORK: &str = "sleep 0.05";

/// What a reader's command does to say what it is: between the stamps that it began and ended.
pub(crate) const READ: &str = "echo \"shares $tag\" >>\"$file\"";

/// The same, and then waits until so many have begun: those are running at once.
pub(crate) fn read_beside(count: usize) -> String {
    format!("{READ}; until [ $(grep -c ^in \"$file\") -ge {count} ]; do sleep 0.01; done")
}

/// Whether the lock would be granted at this moment, shared or not.
#[track_caller]
pub(crate) fn would_get(store: &Store, key: &str, options: &[&str]) -> bool {
    let output = Lockrun::new(store).key(key).args(options).args(["--fail", "-q"]).sh(":").run().silent();
    match output.status {
        Some(0) => true,
        Some(75) => false,
        _ => output.fail("neither free nor held"),
    }
}

/// Lets a reader join the queue, and those that join later be writers again.
#[track_caller]
pub(crate) fn join_reader<'a>(store: &Store, queue: Queue<'a>) -> Queue<'a> {
    let mut queue = queue.with(SHARED).doing(READ);
    queue.join(1);
    queue.by(&store.url()).doing("")
}

/// Judges a record in which every run stamps its beginning and its end, and those whose tags begin with `r` are readers: no writer runs beside
/// anybody. Runs that were killed have no end; these end when a run begins that cannot be beside them, so they must be named as `killed`.
/// Returns how many readers ran at once at the most.
#[track_caller]
pub(crate) fn judge(written: &str, killed: &[String]) -> usize {
    let mut running: BTreeMap<&str, &str> = BTreeMap::new();
    let mut most = 0;
    for line in written.lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["in", tag, _] => {
                running.retain(|other, _| !killed.iter().any(|killed| killed == other));
                let is_reader = |tag: &str| tag.starts_with('r');
                let are_readers = running.keys().all(|other| is_reader(other));
                let is_alone = running.is_empty();
                assert!(is_alone || is_reader(tag) && are_readers, "{tag} beside {running:?} in {written}");
                running.insert(tag, line);
                most = most.max(if is_reader(tag) { running.len() } else { 0 });
            }
            ["out", tag, _] => drop(running.remove(tag)),
            _ => {}
        }
    }
    most
}
