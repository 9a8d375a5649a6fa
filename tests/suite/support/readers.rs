//! Runs that share a lock, runs that hold it alone, and the check of their record.

use std::collections::BTreeMap;

use super::lockrun::Lockrun;
use super::queue::Queue;
use super::store::Store;

/// The options of a reader.
pub(crate) const SHARED: &[&str] = &["--shared"];

/// A command long enough for several to run at once.
pub(crate) const WORK: &str = "sleep 0.05";

/// The body of a reader's command, which records that it is a reader, between the stamps of its beginning and its end.
pub(crate) const READ: &str = "echo \"shares $tag\" >>\"$file\"";

/// Returns a body like [`READ`] that then waits until so many commands have begun, so that they run at once.
pub(crate) fn read_beside(count: usize) -> String {
    format!("{READ}; until [ $(grep -c ^in \"$file\") -ge {count} ]; do sleep 0.01; done")
}

/// Returns whether a run with these options could acquire the lock at this moment.
#[track_caller]
pub(crate) fn would_get(store: &Store, key: &str, options: &[&str]) -> bool {
    let output = Lockrun::new(store).key(key).args(options).args(["--fail", "-q"]).sh(":").run().silent();
    match output.status {
        Some(0) => true,
        Some(75) => false,
        _ => output.fail("neither free nor held"),
    }
}

/// Adds a reader to the queue. Waiters that join later are writers again.
#[track_caller]
pub(crate) fn join_reader<'a>(store: &Store, queue: Queue<'a>) -> Queue<'a> {
    let mut queue = queue.with(SHARED).doing(READ);
    queue.join(1);
    queue.by(&store.url()).doing("")
}

/// Checks a record in which every run stamps its beginning and its end, and tags that begin with `r` are readers':
/// asserts that no writer runs beside another run. Runs that were `killed` have no end stamp; they count as ended when
/// the next run begins. Returns the most readers that ran at once.
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
