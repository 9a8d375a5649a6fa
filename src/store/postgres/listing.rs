//! Lists and prunes all locks, page by page. A lock that cannot be read, or is busy, does not affect the others.

use std::iter;

use super::PostgresStore;
use super::batch::{Batch, SNAPSHOT};
use super::connection::{Connection, Row};
use super::failure::Failure;
use super::mismatch::check_version;
use super::reading::read_record;
use super::schema::Tables;
use super::waiter_row::{Queued, WAITER_COLUMNS};
use crate::lock::key::Key;
use crate::lock::state::LockState;
use crate::store::engine::Page;
use crate::store::{KeyStatus, listing_limit};
use crate::sys::clock::Moment;

/// How many keys are read at once: few enough for a slow network, and so many that the round trips cost little time.
const PAGE: usize = 500;

/// The conditions for one key, and for the keys that come after it in the order of their names.
const IS: &str = "key = $1";
const IS_AFTER: &str = "key > $1";

/// What is stored for one key.
pub(in crate::store) struct Stored {
    key: String,
    record: String,
    queue: Vec<Row>,
    /// When it was read, in milliseconds of Unix time by the server's clock.
    pub(super) now_ms: u64,
}

/// All keys, page by page.
pub(in crate::store) struct Pages {
    /// The last key of the previous page; `None`: there is no further page.
    after: Option<String>,
    /// The condition for the next page, with `after` as its parameter.
    condition: &'static str,
    /// How many more bytes the pages may take.
    left: usize,
}

impl Pages {
    /// Returns the pages of all keys, or of this one.
    pub(super) fn of(key: Option<&Key>) -> Self {
        let (after, condition) = match key {
            Some(key) => (key.as_str(), IS),
            // The empty string is less than any key.
            None => ("", IS_AFTER),
        };
        Pages { after: Some(after.to_owned()), condition, left: listing_limit::BYTES }
    }

    /// Reads the next page; `None`: there is none. Leaves out what is no key.
    pub(super) fn next(&mut self, store: &mut PostgresStore) -> Result<Option<Page<Stored>>, Failure> {
        let Some(after) = self.after.take() else { return Ok(None) };
        let page = store.page(self.condition, &after, self.left)?;
        let received = store.connection.as_ref().map_or(0, Connection::received);
        self.left = self.left.saturating_sub(received + page.len() * size_of::<KeyStatus>());
        let keys = || page.iter().map(|stored| stored.key.as_str());
        if self.condition == IS {
            if keys().any(|key| key != after) {
                return Err(Failure::other_key());
            }
        } else if !iter::once(after.as_str()).chain(keys()).is_sorted_by(|one, next| ascends(one, next)) {
            // Such a server might never come to an end.
            return Err(Failure::UnexpectedReply("its list of locks is not in order"));
        }
        self.after = page.last().filter(|_| page.len() == PAGE).map(|last| last.key.clone());
        let key = |stored: Stored| Some((Key::new(stored.key.as_ref()).ok()?, stored));
        Ok(Some(page.into_iter().filter_map(key).collect()))
    }
}

/// Returns whether a key comes before the `next` one in the order of their bytes, as far as that can be said: where
/// both have a character that is not ASCII, their order depends on the database's encoding.
fn ascends(key: &str, next: &str) -> bool {
    let mut pairs = key.chars().map(Some).chain([None]).zip(next.chars().map(Some).chain([None]));
    let is_ascii = |character: Option<char>| character.is_none_or(|character| character.is_ascii());
    pairs
        .find(|(one, other)| one != other)
        .is_some_and(|(one, other)| one < other || !is_ascii(one) && !is_ascii(other))
}

impl Stored {
    /// Returns the state, with its waiters.
    pub(super) fn state(&self) -> Result<LockState, Failure> {
        let waiters = self.queue.iter().map(|row| Queued::read(row).map(|row| row.waiter));
        Ok(LockState { waiters: waiters.collect::<Result<_, _>>()?, ..read_record(&self.record)? })
    }
}

impl PostgresStore {
    /// Reads what is stored for the first keys for which this `condition` on `key` holds, up to so many bytes. Returns
    /// none if the tables do not exist yet.
    fn page(&mut self, condition: &str, key: &str, left: usize) -> Result<Vec<Stored>, Failure> {
        let deadline = Moment::now() + self.timeout;
        match self.try_page(condition, key, left, deadline) {
            Err(Failure::Rejected(rejection)) if rejection.lacks_tables() => {
                // A first user may have created them meanwhile.
                if self.has_locks(deadline)? { self.try_page(condition, key, left, deadline) } else { Ok(Vec::new()) }
            }
            page => page,
        }
    }

    fn try_page(&mut self, condition: &str, key: &str, left: usize, deadline: Moment) -> Result<Vec<Stored>, Failure> {
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
        read_page(answers.into_iter().map(|answer| answer.rows), &self.tables)
    }
}

/// Reads the answers: the keys with their records, the rows of the queues in the same order, and the time with the
/// version.
fn read_page(mut answers: impl Iterator<Item = Vec<Row>>, tables: &Tables) -> Result<Vec<Stored>, Failure> {
    const LACKS_COLUMNS: Failure = Failure::UnexpectedReply("an answer lacks columns");
    let (Some(records), Some(queues), Some(facts)) = (answers.next(), answers.next(), answers.next()) else {
        return Err(LACKS_COLUMNS);
    };
    let Some([Some(now_ms), version]) = facts.first().map(|row| &row[..]) else { return Err(LACKS_COLUMNS) };
    check_version(version.as_deref(), tables)?;
    let now_ms = now_ms.parse().map_err(|_| LACKS_COLUMNS)?;
    let mut queues = queues.into_iter().peekable();
    let stored = |mut row: Row| {
        let (Some(record), Some(key)) = (row.pop().flatten(), row.pop().flatten()) else {
            return Err(LACKS_COLUMNS);
        };
        let mut queue = Vec::new();
        while let Some(mut row) = queues.next_if(|row| row.first() == Some(&Some(key.clone()))) {
            row.remove(0);
            queue.push(row);
        }
        Ok(Stored { key, record, queue, now_ms })
    };
    records.into_iter().map(stored).collect()
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
