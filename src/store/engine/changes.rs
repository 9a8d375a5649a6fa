//! What an operation changes in the rows of a lock.

use std::io;

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

use super::rows::{Found, Row};
use crate::lock::state::{LockState, WaiterState};
use crate::lock::token::Token;
use crate::store::record_limit::{self, RecordTooLong};

/// What to write after an operation. A store turns it into statements.
pub(in crate::store) struct Changes<'a> {
    /// What becomes of the record, if it changes.
    pub(in crate::store) record: Option<RecordChange>,
    /// The rows to delete: those of waiters that hold the lock now, or do not need it.
    pub(in crate::store) gone: Vec<&'a Row>,
    /// Whether some of the places that were read have ended. Their rows are to be deleted, too.
    pub(in crate::store) has_ended: bool,
    /// The rows to write, each with the waiter as it is now.
    pub(in crate::store) changed: Vec<(&'a Row, &'a WaiterState)>,
    /// The waiter that asks, if it joins the queue: a row to add.
    pub(in crate::store) joined: Option<&'a WaiterState>,
    /// How many of the waiters that were read are ahead of the one that asks, if it waits.
    pub(in crate::store) ahead: Option<u64>,
    /// Why none of this must be carried out.
    pub(in crate::store) refused: Option<RecordTooLong>,
}

/// What becomes of a record.
pub(in crate::store) enum RecordChange {
    /// This is to be stored.
    Written(String),
    /// Its row is to be deleted: the lock is as if it had never been used.
    Deleted,
}

impl<'a> Changes<'a> {
    /// Returns what to write if an operation has made the state `after` of what was `found`. `asking`: the token that
    /// asks for the lock. Only such a request writes the row of its waiter: a renewal or a release under a token that
    /// waits must leave it as it is.
    pub(in crate::store) fn of(found: &'a Found, after: &'a LockState, asking: Option<&Token>) -> Self {
        let mut rows: Vec<&Row> = found.rows_in_force().collect();
        let has_ended = rows.len() < found.queue.rows.len();
        let gone: Vec<_> = rows.extract_if(.., |row| row.waiter_in(after).is_none()).collect();
        let at = asking.and_then(|asking| after.waiters.iter().position(|waiter| waiter.token == *asking));
        let is_new = |waiter: &&WaiterState| rows.iter().all(|row| row.waiter.token != waiter.token);
        let joined = at.map(|at| &after.waiters[at]).filter(is_new);
        let kept = rows.iter().filter_map(|row| Some((*row, row.waiter_in(after)?)));
        let changed = kept.filter(|(row, waiter)| asking == Some(&waiter.token) || row.waiter != **waiter).collect();
        let state = LockState { waiters: Vec::new(), ..after.clone() };
        let record = json(&state);
        let is_written = record != found.record;
        let before = (&found.state, found.record.len());
        let refused = record_limit::check(before, (&state, record.len())).err().filter(|_| is_written);
        let record = if state == LockState::default() { RecordChange::Deleted } else { RecordChange::Written(record) };
        Changes {
            record: Some(record).filter(|_| is_written),
            gone,
            has_ended,
            changed,
            joined,
            ahead: at.map(|at| at as u64),
            refused,
        }
    }

    /// Returns whether anything changes that a crash of the server must not undo. That a place has ended is seen again.
    pub(in crate::store) fn is_lasting(&self) -> bool {
        self.record.is_some() || !self.gone.is_empty() || self.ahead.is_some()
    }
}

/// Returns the JSON that is stored for a lock or a waiter, neither of which can fail to be written as JSON. It has only
/// ASCII characters, which every database can store whatever its encoding.
pub(in crate::store) fn json(value: &impl Serialize) -> String {
    let mut text = Vec::new();
    match value.serialize(&mut Serializer::with_formatter(&mut text, Ascii)) {
        Ok(()) => String::from_utf8(text).unwrap_or_default(),
        Err(_) => String::new(),
    }
}

/// Writes JSON with all non-ASCII characters escaped.
struct Ascii;

impl Formatter for Ascii {
    fn write_string_fragment<W: io::Write + ?Sized>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        for character in fragment.chars() {
            if character.is_ascii() {
                write!(writer, "{character}")?;
                continue;
            }
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_ascii() {
        for text in ["plain \"quoted\" \\ \n", "é", "ł €", "日本", "a😀b\u{10ffff}"] {
            let stored = json(&text);
            assert!(stored.is_ascii(), "{stored}");
            assert_eq!(serde_json::from_str::<String>(&stored).expect("is JSON"), text);
        }
    }
}
