//! Lists and prunes all locks, some at a time. One that cannot be read, or is busy, does not hide the others.

use std::time::Duration;

use super::{Operation, Records};
use crate::lock::key::Key;
use crate::lock::state::{Applied, LockState};
use crate::store::failure::Failure;
use crate::store::{KeyStatus, Listing, Prune, RetryClass, StoreError};
use crate::sys::counter::Counter;
use crate::text::escape::escaped;

impl<R: Records> Prune for R {
    fn prune(&mut self, key: Option<&Key>, unused_for: Duration, really: bool) -> Result<Listing<Key>, StoreError> {
        let mut listing = Listing { found: Vec::new(), unreadable: Vec::new() };
        match prune_all(self, key, unused_for, really, &mut listing) {
            Err(failure) => listing.ended_by(self.explain(&failure)),
            Ok(()) => Ok(listing),
        }
    }

    fn forget_success(&mut self, key: &Key) -> Result<bool, StoreError> {
        let forgotten = self.once(Operation::OnLock(key), |state, view| {
            let applied = state.forget_success();
            // An earlier attempt may have done it.
            Ok(Applied { answer: applied.answer || view.may_be_done, ..applied })
        });
        forgotten.map_err(|failure| self.explain(&failure))
    }
}

/// Returns the status of every key, in the order of their names, or of this one.
pub(super) fn list<R: Records>(store: &mut R, key: Option<&Key>) -> Result<Listing<KeyStatus>, StoreError> {
    let mut listing = Listing { found: Vec::new(), unreadable: Vec::new() };
    list_all(store, key, &mut listing).map_err(|failure| store.explain(&failure))?;
    if let Some(key) = key.filter(|_| listing.found.is_empty()) {
        listing.found.push(KeyStatus::never_used(key.clone()));
    }
    listing.found.sort_by(|a, b| a.key.as_str().cmp(b.key.as_str()));
    Ok(listing)
}

fn list_all<R: Records>(
    store: &mut R,
    asked: Option<&Key>,
    listing: &mut Listing<KeyStatus>,
) -> Result<(), Failure<R::Rejection>> {
    let mut pages = store.pages(asked);
    let mut counter = Counter::new("reading locks", None);
    while let Some(page) = store.next_page(&mut pages)? {
        for (key, entry) in page {
            counter.add(1);
            match store.status(&mut pages, &key, &entry) {
                Ok(status) => listing.found.extend(status),
                Err(failure) if asked.is_none() && matches!(failure, Failure::Broken(_)) => {
                    listing.unreadable.push(explain_of(store, "read", &key, &failure));
                }
                Err(failure) => return Err(failure),
            }
        }
    }
    Ok(())
}

fn prune_all<R: Records>(
    store: &mut R,
    asked: Option<&Key>,
    unused_for: Duration,
    really: bool,
    listing: &mut Listing<Key>,
) -> Result<(), Failure<R::Rejection>> {
    let mut pages = store.pages(asked);
    let mut counter = Counter::new("pruning locks", None);
    while let Some(page) = store.next_page(&mut pages)? {
        for (key, entry) in page {
            counter.add(1);
            let pruned = match store.looks_prunable(&key, &entry, unused_for, really) {
                Ok(true) if really => prune_key(store, &key, unused_for),
                looked => looked,
            };
            match pruned {
                Ok(true) => listing.found.push(key),
                Ok(false) => {}
                Err(failure) if matches!(failure, Failure::Broken(_)) => {
                    listing.unreadable.push(explain_of(store, "read", &key, &failure));
                }
                Err(failure) if failure.retry_class() == RetryClass::Busy => {
                    listing.unreadable.push(explain_of(store, "prune", &key, &failure));
                }
                Err(failure) => return Err(failure),
            }
        }
    }
    Ok(())
}

/// Removes the key if it has not been held for `unused_for`. Returns whether it was removed.
fn prune_key<R: Records>(store: &mut R, key: &Key, unused_for: Duration) -> Result<bool, Failure<R::Rejection>> {
    store.once(Operation::OnLock(key), |state, view| {
        let is_prunable = R::is_prunable(state, unused_for, view);
        if is_prunable {
            *state = LockState::default();
        }
        Ok(Applied::only(is_prunable))
    })
}

/// Returns the error that one key of many cannot be read or pruned.
fn explain_of<R: Records>(store: &R, verb: &str, key: &Key, failure: &Failure<R::Rejection>) -> StoreError {
    store.explain(failure).context(format!("cannot {verb} the lock \"{}\"", escaped(key.as_str())))
}
