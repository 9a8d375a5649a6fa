//! Reads a page of a listing.

use super::PostgresStore;
use super::batch::{Batch, SNAPSHOT};
use super::connection::Row;
use super::failure::Failure;
use super::mismatch::check_version;
use super::schema::Tables;
use crate::store::engine::{Keys, PAGE, Stored};
use crate::sys::clock::Moment;

impl PostgresStore {
    /// Reads what is stored for these keys, up to so many bytes. Returns nothing if the tables do not exist yet.
    pub(super) fn page(&mut self, keys: &Keys, left: usize) -> Result<Vec<Stored>, Failure> {
        let deadline = Moment::now() + self.timeout;
        match self.try_page(keys, left, deadline) {
            Err(Failure::Rejected(rejection)) if rejection.lacks_tables() => {
                // A first user may have created them meanwhile.
                if self.has_locks(deadline)? { self.try_page(keys, left, deadline) } else { Ok(Vec::new()) }
            }
            page => page,
        }
    }

    fn try_page(&mut self, keys: &Keys, left: usize, deadline: Moment) -> Result<Vec<Stored>, Failure> {
        let Tables { version, locks, waiters, .. } = self.tables.clone();
        let (condition, key) = match keys {
            Keys::Only(key) => ("key = $1", key.as_str()),
            Keys::After(key) => ("key > $1", key.as_str()),
        };
        let page = format!("FROM {locks} WHERE {condition} ORDER BY key LIMIT {PAGE}");
        let mut batch = Batch::transaction(SNAPSHOT, deadline);
        batch.listing_left = Some(left);
        batch.add(&format!("SELECT key, state {page}"), &[Some(key)]);
        batch.add(
            &format!(
                "SELECT key, place, waiter, ends_ms FROM {waiters} WHERE key IN (SELECT key {page}) ORDER BY key, place"
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
        let page = read_page(answers.into_iter().map(|answer| answer.rows), &self.tables)?;
        match keys {
            Keys::Only(key) if page.iter().any(|stored| stored.key != *key) => Err(Failure::other_key()),
            _ => Ok(page),
        }
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
            queue.push(std::array::from_fn(|at| row.get_mut(at + 1).and_then(Option::take).unwrap_or_default()));
        }
        Ok(Stored { key, record, queue, now_ms })
    };
    records.into_iter().map(stored).collect()
}
