//! All locks there are: looked at, and pruned. One that cannot be read spoils no other.

use std::collections::BTreeMap;
use std::time::Duration;

use super::batch::{Batch, SNAPSHOT};
use super::connection::Row;
use super::facts::{Queued, TableFacts};
use super::failure::Failure;
use super::operation::Subject;
use super::reading::read_record;
use super::schema::Tables;
use super::{PostgresStore, on};
use crate::lock::key::Key;
use crate::lock::state::{Applied, LockState};
use crate::store::{KeyStatus, Listing, Prune, StoreError, from_state};
use crate::sys::clock::Moment;
use crate::text::escape::escaped;

/// What is stored of one key.
struct Stored {
    record: String,
    queue: Vec<Row>,
}

impl PostgresStore {
    /// Returns what is known of `key`, or of every key.
    pub(super) fn list_keys(&mut self, key: Option<&Key>) -> Result<Listing<KeyStatus>, StoreError> {
        let (now_ms, stored) = match self.stored(key) {
            Ok(stored) => stored,
            // Nobody has ever used a lock there.
            Err(Failure::Refused(refusal)) if refusal.lacks_tables() => (0, BTreeMap::new()),
            Err(failure) => return Err(self.explain(&failure)),
        };
        let mut listing = Listing { found: Vec::new(), unreadable: Vec::new() };
        for (name, stored) in stored {
            let Ok(name) = Key::new(name.as_ref()) else { continue };
            match status(&name, &stored, now_ms) {
                Ok(status) => listing.found.push(status),
                Err(failure) if key.is_some() => return Err(self.explain(&failure)),
                Err(failure) => {
                    let what = format!("cannot read the lock \"{}\"", escaped(name.as_str()));
                    listing.unreadable.push(self.explain(&failure).context(what));
                }
            }
        }
        if let Some(key) = key.filter(|_| listing.found.is_empty()) {
            listing.found.push(KeyStatus::never_used(key.clone()));
        }
        Ok(listing)
    }

    /// Reads what is stored of `key`, or of every key, and when that was, as of one moment.
    fn stored(&mut self, key: Option<&Key>) -> Result<(u64, BTreeMap<String, Stored>), Failure> {
        let deadline = Moment::now() + self.timeout;
        let Tables { locks, waiters, .. } = self.tables.clone();
        let key = key.map(Key::as_str);
        let mut batch = Batch::transaction(SNAPSHOT, deadline);
        batch.add(&format!("SELECT key, state FROM {locks} WHERE $1::text IS NULL OR key = $1"), &[key]);
        batch.add(
            &format!(
                "SELECT key, place, waiter, session, looked_at_ms, looks_at_ms, \
                 session IS NOT NULL AND pg_try_advisory_xact_lock_shared(session) \
                 FROM {waiters} WHERE $1::text IS NULL OR key = $1 ORDER BY key, place"
            ),
            &[key],
        );
        batch.add("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint", &[]);
        batch.add("COMMIT", &[]);
        let mut answers = self.connected(deadline)?.run(&batch, deadline)?;
        answers.pop();
        let strange = || Failure::Strange("an answer that lacks columns");
        let clock = answers.pop().and_then(|mut clock| clock.rows.pop()).ok_or_else(strange)?;
        let now_ms = clock.first().and_then(|now| now.as_deref()?.parse().ok()).ok_or_else(strange)?;
        let queue = answers.pop().ok_or_else(strange)?.rows;
        let mut found = BTreeMap::new();
        for mut row in answers.pop().ok_or_else(strange)?.rows {
            let (Some(record), Some(key)) = (row.pop().flatten(), row.pop().flatten()) else { return Err(strange()) };
            found.insert(key, Stored { record, queue: Vec::new() });
        }
        for mut row in queue {
            let key = row.remove(0).ok_or_else(strange)?;
            if let Some(stored) = found.get_mut(&key) {
                stored.queue.push(row);
            }
        }
        Ok((now_ms, found))
    }
}

fn status(key: &Key, stored: &Stored, now_ms: u64) -> Result<KeyStatus, Failure> {
    let mut state = read_record(&stored.record)?;
    let queue: Vec<Queued> = stored.queue.iter().map(Queued::read).collect::<Result<_, _>>()?;
    state.waiters = queue.iter().map(|row| row.waiter.clone()).collect();
    let facts = TableFacts { now_ms, queue: &queue, asking: None, may_be_done: false };
    Ok(from_state::status(key.clone(), &state, &facts))
}

impl Prune for PostgresStore {
    fn prune(&mut self, unused_for: Duration, really: bool) -> Result<Listing<Key>, StoreError> {
        let all = self.list_keys(None)?;
        let mut listing = Listing { found: Vec::new(), unreadable: all.unreadable };
        for status in all.found {
            let subject = Subject { needs_all_waiters: true, ..on(&status.key) };
            // Decided anew, with the row locked.
            let pruned = self.once(subject, |state, facts| {
                let is_prunable = state.is_prunable(unused_for, facts);
                if is_prunable && really {
                    *state = LockState::default();
                }
                Ok(Applied { answer: is_prunable, granted: Vec::new(), look_at_ms: None })
            });
            match pruned {
                Ok(committed) if committed.answer => listing.found.push(status.key),
                Ok(_) => {}
                Err(failure @ Failure::Broken(_)) => listing.unreadable.push(self.explain(&failure)),
                Err(failure) => return Err(self.explain(&failure)),
            }
        }
        Ok(listing)
    }
}
