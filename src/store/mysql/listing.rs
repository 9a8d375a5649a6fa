//! Reads a page of a listing.

use super::MysqlStore;
use super::connection::Batch;
use super::failure::Failure;
use super::schema::{Tables, bytes};
use super::transaction::{NOW, check_version};
use crate::store::engine::{Keys, PAGE, Stored};
use crate::sys::clock::Moment;

impl MysqlStore {
    /// Reads what is stored for these keys, up to so many bytes, as of one moment. Returns nothing if the tables do not
    /// exist yet.
    pub(super) fn page(&mut self, keys: &Keys, left: usize) -> Result<Vec<Stored>, Failure> {
        let deadline = Moment::now() + self.timeout;
        let Tables { version, locks, waiters } = self.tables.clone();
        let (operator, key) = match keys {
            Keys::Only(key) => ("=", bytes(key)),
            Keys::After(key) => (">", bytes(key)),
        };
        let page = format!("FROM {locks} WHERE k {operator} {key} ORDER BY k LIMIT {PAGE}");
        let mut batch = Batch::outside("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ");
        batch.add("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY");
        let facts_at = batch.add(format!("SELECT {NOW}, (SELECT MAX(version) FROM {version})"));
        let records_at = batch.add(format!("SELECT k, state {page}"));
        let queues_at = batch.add(format!(
            "SELECT it.k, it.place, it.waiter, it.ends_ms FROM (SELECT k {page}) AS page JOIN {waiters} AS it USING (k) \
             ORDER BY it.k, it.place"
        ));
        batch.add("ROLLBACK");
        let mut was_open = self.is_connected();
        let mut answers = loop {
            let connection = self.connected_in_time(deadline)?;
            connection.roll_back(deadline)?;
            match connection.run_page(&batch, left, deadline) {
                // Nothing was written.
                Err(failure) if was_open && failure.is_closed() => was_open = false,
                // As when another client has just created the tables.
                Err(Failure::Rejected(rejection)) if rejection.is_worth_repeating() && Moment::now() < deadline => {}
                answers => break answers,
            }
        };
        if let Err(Failure::Rejected(rejection)) = &answers
            && rejection.lacks_tables()
        {
            answers = Ok(Vec::new());
        }
        let mut answers = answers.map_err(Failure::or_mismatch)?;
        if answers.is_empty() {
            return Ok(Vec::new());
        }
        let [Some(now_ms), version] = answers[facts_at].row()? else { return Err(Failure::INCOMPLETE) };
        check_version(version.as_deref())?;
        let now_ms = now_ms.parse().map_err(|_| Failure::INCOMPLETE)?;
        let mut queues = std::mem::take(&mut answers[queues_at].rows).into_iter().peekable();
        let stored = |row: Vec<Option<String>>| {
            let Ok([Some(key), Some(record)]) = <[_; 2]>::try_from(row) else { return Err(Failure::INCOMPLETE) };
            let mut queue = Vec::new();
            while let Some(mut row) = queues.next_if(|row| row.first() == Some(&Some(key.clone()))) {
                queue.push(std::array::from_fn(|at| row.get_mut(at + 1).and_then(Option::take).unwrap_or_default()));
            }
            Ok(Stored { key, record, queue, now_ms })
        };
        std::mem::take(&mut answers[records_at].rows).into_iter().map(stored).collect()
    }
}
