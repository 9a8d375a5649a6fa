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
    use crate::lock::claim::Mode;
    use crate::lock::holder::Holder;
    use crate::lock::state::Purpose;
    use crate::store::engine::Queue;

    const NOW_MS: u64 = 1_800_000_000_000;

    fn row(place: i64, ends_ms: u64) -> Row {
        let waiter = WaiterState {
            token: Token::parse(&format!("t{place}")).expect("is a token"),
            who: Holder::default(),
            mode: Mode::EXCLUSIVE,
            once_per_ms: None,
            purpose: Purpose::Run,
            joined_ms: NOW_MS - 1000,
            place_ms: 30_000,
            ends_ms,
            request: None,
        };
        Row { place, waiter }
    }

    /// Returns what was found, and the state that was read.
    fn found(ends: [u64; 2]) -> (Found, LockState) {
        let rows = vec![row(1, ends[0]), row(2, ends[1])];
        let state = LockState { key: "k".into(), ..LockState::default() };
        let found = Found { record: json(&state), state, now_ms: NOW_MS, queue: Queue::new(rows, None, usize::MAX, 0) };
        let state = found.state();
        (found, state)
    }

    #[test]
    fn what_stays_as_it_is_is_not_written() {
        let (found, state) = found([NOW_MS + 1, NOW_MS + 2]);
        let changes = Changes::of(&found, &state, None);
        assert!(changes.record.is_none() && changes.gone.is_empty() && !changes.has_ended);
        assert!(changes.changed.is_empty() && changes.joined.is_none() && changes.ahead.is_none());
        assert!(!changes.is_lasting());
    }

    #[test]
    fn each_change_is_written() {
        let (found, mut state) = found([NOW_MS + 1, NOW_MS + 2]);
        state.waiters[1].ends_ms += 1;
        let changes = Changes::of(&found, &state, None);
        assert_eq!(changes.changed.iter().map(|(row, _)| row.place).collect::<Vec<_>>(), [2]);
        assert!(!changes.is_lasting());
        // The one that asks is written in any case.
        let asking = state.waiters[0].token.clone();
        let changes = Changes::of(&found, &state, Some(&asking));
        assert_eq!(changes.changed.iter().map(|(row, _)| row.place).collect::<Vec<_>>(), [1, 2]);
        assert!(changes.ahead == Some(0) && changes.is_lasting());
        state.waiters.remove(0);
        let changes = Changes::of(&found, &state, None);
        assert!(changes.gone.iter().map(|row| row.place).eq([1]) && changes.is_lasting());
        let with_fence = LockState { fence: 7, ..found.state() };
        let changes = Changes::of(&found, &with_fence, None);
        assert!(matches!(changes.record, Some(RecordChange::Written(_))) && changes.is_lasting());
        assert!(changes.gone.is_empty());
        let never_used = LockState::default();
        let changes = Changes::of(&found, &never_used, None);
        assert!(matches!(changes.record, Some(RecordChange::Deleted)));
    }

    #[test]
    fn a_place_that_has_ended_is_deleted() {
        let (found, mut state) = found([NOW_MS, NOW_MS + 2]);
        state.waiters.remove(0);
        let changes = Changes::of(&found, &state, None);
        assert!(changes.has_ended && changes.gone.is_empty() && !changes.is_lasting());
    }

    #[test]
    fn a_waiter_that_joins_has_no_row_yet() {
        let (found, mut state) = found([NOW_MS + 1, NOW_MS + 2]);
        state.waiters.push(row(3, NOW_MS + 3).waiter);
        let asking = state.waiters[2].token.clone();
        let changes = Changes::of(&found, &state, Some(&asking));
        assert_eq!(changes.joined.map(|waiter| &waiter.token), Some(&asking));
        assert!(changes.ahead == Some(2) && changes.changed.is_empty() && changes.is_lasting());
    }

    #[test]
    fn what_is_stored_is_ascii() {
        for text in ["plain \"quoted\" \\ \n", "é", "ł €", "日本", "a😀b\u{10ffff}"] {
            let stored = json(&text);
            assert!(stored.is_ascii(), "{stored}");
            assert_eq!(serde_json::from_str::<String>(&stored).expect("is JSON"), text);
        }
    }
}
