//! Lists and prunes all locks, page by page. A lock that cannot be read, or is busy, does not affect the others.

use std::iter;
use std::time::Duration;

use super::PostgresStore;
use super::batch::{Batch, SNAPSHOT};
use super::connection::{Connection, Row};
use super::facts::{Queued, WAITER_COLUMNS};
use super::failure::Failure;
use super::mismatch::check_version;
use super::reading::read_record;
use super::schema::Tables;
use crate::lock::key::Key;
use crate::lock::state::{Applied, LockState};
use crate::store::engine::{Operation, Records as _, View};
use crate::store::{KeyStatus, Listing, Prune, RetryClass, StoreError, listing_limit};
use crate::sys::clock::Moment;
use crate::sys::counter::Counter;
use crate::text::escape::escaped;

/// How many keys are read at once: few enough for a slow network, and so many that the round trips cost little time.
const PAGE: usize = 500;

/// The conditions for one key, and for the keys that come after it in the order of their names.
const IS: &str = "key = $1";
const IS_AFTER: &str = "key > $1";

/// What is stored for some keys, in the order of their names, as of one moment.
#[derive(Default)]
struct Page {
    /// When that was, in milliseconds of Unix time by the server's clock.
    now_ms: u64,
    keys: Vec<Stored>,
}

/// What is stored for one key.
struct Stored {
    key: String,
    record: String,
    queue: Vec<Row>,
}

/// All keys, page by page.
struct Pages {
    /// The last key of the previous page; `None`: there is no further page.
    after: Option<String>,
    /// The condition for the next page, with `after` as its parameter.
    condition: &'static str,
    /// How many more bytes the pages may take.
    left: usize,
}

impl Pages {
    /// Returns the pages from the first one on.
    fn all() -> Self {
        // The empty string is less than any key.
        Pages { after: Some(String::new()), condition: IS_AFTER, left: listing_limit::BYTES }
    }

    /// Returns the page of this key alone.
    fn of(key: &Key) -> Self {
        Pages { after: Some(key.as_str().to_owned()), condition: IS, left: listing_limit::BYTES }
    }

    fn next(&mut self, store: &mut PostgresStore) -> Result<Option<Page>, Failure> {
        let Some(after) = self.after.take() else { return Ok(None) };
        let page = store.page(self.condition, &after, self.left)?;
        let received = store.connection.as_ref().map_or(0, Connection::received);
        self.left = self.left.saturating_sub(received + page.keys.len() * size_of::<KeyStatus>());
        let keys = || page.keys.iter().map(|stored| stored.key.as_str());
        if self.condition == IS {
            if keys().any(|key| key != after) {
                return Err(Failure::OtherKey);
            }
        } else if !iter::once(after.as_str()).chain(keys()).is_sorted_by(|one, next| ascends(one, next)) {
            // Such a server might never come to an end.
            return Err(Failure::ListingOutOfOrder);
        }
        self.after = page.keys.last().filter(|_| page.keys.len() == PAGE).map(|last| last.key.clone());
        Ok(Some(page))
    }
}

/// Returns whether a key comes before the `next` one in the order of their bytes, as far as that can be said: where both have a character
/// that is not ASCII, their order depends on the database's encoding.
fn ascends(key: &str, next: &str) -> bool {
    let mut pairs = key.chars().map(Some).chain([None]).zip(next.chars().map(Some).chain([None]));
    let is_ascii = |character: Option<char>| character.is_none_or(|character| character.is_ascii());
    pairs
        .find(|(one, other)| one != other)
        .is_some_and(|(one, other)| one < other || !is_ascii(one) && !is_ascii(other))
}

impl Stored {
    /// Returns what `judge` makes of the state with its waiters, and of the facts at `now_ms`.
    fn judge<T>(&self, now_ms: u64, judge: impl FnOnce(&LockState, &View) -> T) -> Result<T, Failure> {
        let mut state = read_record(&self.record)?;
        let waiters = self.queue.iter().map(|row| Queued::read(row).map(|row| row.waiter));
        state.waiters = waiters.collect::<Result<_, _>>()?;
        Ok(judge(&state, &View::at(now_ms)))
    }

    fn status(&self, key: Key, now_ms: u64) -> Result<KeyStatus, Failure> {
        self.judge(now_ms, |state, facts| state.status(key, facts))
    }
}

impl PostgresStore {
    /// Returns the status of `key`, or of every key.
    pub(super) fn list(&mut self, key: Option<&Key>) -> Result<Listing<KeyStatus>, StoreError> {
        match key {
            Some(key) => {
                let status = self.status_of(key).map_err(|failure| self.explain(&failure))?;
                Ok(Listing { found: vec![status], unreadable: Vec::new() })
            }
            None => self.list_all().map_err(|failure| self.explain(&failure)),
        }
    }

    fn status_of(&mut self, key: &Key) -> Result<KeyStatus, Failure> {
        let page = Pages::of(key).next(self)?.unwrap_or_default();
        let stored = page.keys.first();
        stored.map_or_else(|| Ok(KeyStatus::never_used(key.clone())), |stored| stored.status(key.clone(), page.now_ms))
    }

    fn list_all(&mut self) -> Result<Listing<KeyStatus>, Failure> {
        let mut listing = Listing { found: Vec::new(), unreadable: Vec::new() };
        let mut pages = Pages::all();
        let mut counter = Counter::new("reading locks", None);
        while let Some(Page { now_ms, keys }) = pages.next(self)? {
            for stored in keys {
                counter.add(1);
                let Ok(key) = Key::new(stored.key.as_ref()) else { continue };
                match stored.status(key.clone(), now_ms) {
                    Ok(status) => listing.found.push(status),
                    Err(failure) => listing.unreadable.push(self.explain_of("read", &key, &failure)),
                }
            }
        }
        Ok(listing)
    }

    /// Returns the error that one key of many cannot be read or pruned.
    fn explain_of(&self, verb: &str, key: &Key, failure: &Failure) -> StoreError {
        self.explain(failure).context(format!("cannot {verb} the lock \"{}\"", escaped(key.as_str())))
    }

    /// Reads what is stored for the first keys for which this `condition` on `key` holds, up to so many bytes. Returns none if the tables
    /// do not exist yet.
    fn page(&mut self, condition: &str, key: &str, left: usize) -> Result<Page, Failure> {
        let deadline = Moment::now() + self.timeout;
        match self.try_page(condition, key, left, deadline) {
            Err(Failure::Refused(refusal)) if refusal.lacks_tables() => {
                // A first user may have created them meanwhile.
                if self.has_locks(deadline)? {
                    self.try_page(condition, key, left, deadline)
                } else {
                    Ok(Page::default())
                }
            }
            page => page,
        }
    }

    fn try_page(&mut self, condition: &str, key: &str, left: usize, deadline: Moment) -> Result<Page, Failure> {
        let Tables { version, locks, waiters, .. } = self.tables.clone();
        let keys = format!("FROM {locks} WHERE {condition} ORDER BY key LIMIT {PAGE}");
        let mut batch = Batch::transaction(SNAPSHOT, deadline);
        batch.listing_left = Some(left);
        batch.add(&format!("SELECT key, state {keys}"), &[Some(key)]);
        batch.add(
            &format!(
                "SELECT key, {WAITER_COLUMNS} FROM {waiters} WHERE key IN (SELECT key {keys}) ORDER BY key, place"
            ),
            &[Some(key)],
        );
        batch.add(
            &format!(
                "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, (SELECT max(version) FROM {version})"
            ),
            &[],
        );
        batch.add("COMMIT", &[]);
        let answers = self.connected_in_time(deadline)?.run(&batch, deadline);
        let answers = answers.map_err(|failure| self.find_mismatch(failure, deadline))?;
        Page::read(answers.into_iter().map(|answer| answer.rows))
    }
}

impl Page {
    /// Reads the answers: the keys with their records, the rows of the queues in the same order, and the time with the version.
    fn read(mut answers: impl Iterator<Item = Vec<Row>>) -> Result<Self, Failure> {
        const LACKS_COLUMNS: Failure = Failure::UnexpectedReply("an answer lacks columns");
        let (Some(records), Some(queues), Some(facts)) = (answers.next(), answers.next(), answers.next()) else {
            return Err(LACKS_COLUMNS);
        };
        let Some([Some(now_ms), version]) = facts.first().map(|row| &row[..]) else { return Err(LACKS_COLUMNS) };
        check_version(version.as_deref())?;
        let now_ms = now_ms.parse().map_err(|_| LACKS_COLUMNS)?;
        let mut page = Page { now_ms, keys: Vec::with_capacity(records.len()) };
        let mut queues = queues.into_iter().peekable();
        for mut row in records {
            let (Some(record), Some(key)) = (row.pop().flatten(), row.pop().flatten()) else {
                return Err(LACKS_COLUMNS);
            };
            let mut queue = Vec::new();
            while let Some(mut row) = queues.next_if(|row| row.first() == Some(&Some(key.clone()))) {
                row.remove(0);
                queue.push(row);
            }
            page.keys.push(Stored { key, record, queue });
        }
        Ok(page)
    }
}

impl Prune for PostgresStore {
    fn prune(&mut self, key: Option<&Key>, unused_for: Duration, really: bool) -> Result<Listing<Key>, StoreError> {
        let mut listing = Listing { found: Vec::new(), unreadable: Vec::new() };
        match self.prune_all(key, unused_for, really, &mut listing) {
            Ok(()) => Ok(listing),
            Err(failure) if listing.found.is_empty() && listing.unreadable.is_empty() => Err(self.explain(&failure)),
            // The keys that were removed must be reported nevertheless.
            Err(failure) => {
                listing.unreadable.push(self.explain(&failure).context("cannot remove the other old keys"));
                Ok(listing)
            }
        }
    }
}

impl PostgresStore {
    fn prune_all(
        &mut self,
        key: Option<&Key>,
        unused_for: Duration,
        really: bool,
        listing: &mut Listing<Key>,
    ) -> Result<(), Failure> {
        let mut pages = key.map_or_else(Pages::all, Pages::of);
        let mut counter = Counter::new("pruning locks", None);
        while let Some(Page { now_ms, keys }) = pages.next(self)? {
            for stored in keys {
                counter.add(1);
                let Ok(key) = Key::new(stored.key.as_ref()) else { continue };
                let pruned = match stored.judge(now_ms, |state, facts| state.is_prunable(unused_for, facts)) {
                    Ok(true) if really => self.prune_key(&key, unused_for),
                    found => found,
                };
                match pruned {
                    Ok(true) => listing.found.push(key),
                    Ok(false) => {}
                    Err(failure @ Failure::Broken(_)) => {
                        listing.unreadable.push(self.explain_of("read", &key, &failure));
                    }
                    Err(failure) if failure.trouble() == RetryClass::Busy => {
                        listing.unreadable.push(self.explain_of("prune", &key, &failure));
                    }
                    Err(failure) => return Err(failure),
                }
            }
        }
        Ok(())
    }

    /// Removes the key if it has not been held for `unused_for`; checks this again with its row locked. Returns whether the key was
    /// removed.
    fn prune_key(&mut self, key: &Key, unused_for: Duration) -> Result<bool, Failure> {
        self.once(Operation::OnLock(key), |state, facts| {
            let is_prunable = state.is_prunable(unused_for, facts);
            if is_prunable {
                *state = LockState::default();
            }
            Ok(Applied::only(is_prunable))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_ascend_in_every_encoding() {
        for (key, next) in
            [("", "a"), ("a", "b"), ("a", "aa"), ("a", "é"), ("é", "è"), ("è", "é"), ("aé", "b"), ("é", "éa")]
        {
            assert!(ascends(key, next), "{key} {next}");
        }
        for (key, next) in
            [("", ""), ("a", "a"), ("b", "a"), ("aa", "a"), ("é", "a"), ("é", "é"), ("éa", "é"), ("éb", "éa")]
        {
            assert!(!ascends(key, next), "{key} {next}");
        }
    }
}
