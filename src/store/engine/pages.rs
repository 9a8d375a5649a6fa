//! Lists all keys of a table, page by page.

use std::iter;

use super::Page;
use super::rows::{Row, read_state};
use crate::lock::key::Key;
use crate::lock::state::LockState;
use crate::store::engine::View;
use crate::store::failure::Failure;
use crate::store::{KeyStatus, listing_limit};

/// How many keys are read at once: few enough for a slow network, and so many that the round trips cost little time.
pub(in crate::store) const PAGE: usize = 500;

/// What is stored for one key.
pub(in crate::store) struct Stored {
    pub(in crate::store) key: String,
    pub(in crate::store) record: String,
    /// Its rows in the table of waiters, in order: the columns `place`, `waiter` and `ends_ms`.
    pub(in crate::store) queue: Vec<[String; 3]>,
    /// When it was read, in milliseconds of Unix time by the server's clock.
    pub(in crate::store) now_ms: u64,
}

/// Which keys a page has.
pub(in crate::store) enum Keys {
    /// This one.
    Only(String),
    /// The first [`PAGE`] of those that come after this one, in the order of their bytes.
    After(String),
}

/// The pages of a listing that are still to be read.
pub(in crate::store) struct TablePages {
    /// The keys of the next page; `None`: there is none.
    next: Option<Keys>,
    /// How many more bytes the pages may take.
    left: usize,
}

impl TablePages {
    /// Returns the pages of all keys, or of this one.
    pub(in crate::store) fn of(key: Option<&Key>) -> Self {
        // The empty string is less than any key.
        let keys = key.map_or(Keys::After(String::new()), |key| Keys::Only(key.as_str().to_owned()));
        TablePages { next: Some(keys), left: listing_limit::BYTES }
    }

    /// Returns the next page, which `read` reads: the keys, in at most so many bytes. `None`: there is none. Leaves out
    /// what is no key.
    pub(in crate::store) fn next<R>(
        &mut self,
        read: impl FnOnce(&Keys, usize) -> Result<Vec<Stored>, Failure<R>>,
    ) -> Result<Option<Page<Stored>>, Failure<R>> {
        let Some(keys) = self.next.take() else { return Ok(None) };
        let page = read(&keys, self.left)?;
        self.left = self.left.saturating_sub(page.iter().map(Stored::size).sum());
        if let Keys::After(after) = keys {
            if !iter::once(&after).chain(page.iter().map(|it| &it.key)).is_sorted_by(|one, next| ascends(one, next)) {
                // Such a server might never come to an end.
                return Err(Failure::UnexpectedReply("its list of locks is not in order"));
            }
            self.next = page.last().filter(|_| page.len() == PAGE).map(|last| Keys::After(last.key.clone()));
        }
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
    /// Returns about how many bytes it takes.
    fn size(&self) -> usize {
        let queue = self.queue.iter().map(|row| size_of_val(row) + row.iter().map(String::len).sum::<usize>());
        size_of::<KeyStatus>() + self.key.len() + self.record.len() + queue.sum::<usize>()
    }

    /// Returns the state, with its waiters.
    fn state<R>(&self) -> Result<LockState, Failure<R>> {
        let waiters = self.queue.iter().map(|[place, waiter, ends_ms]| Row::read(place, waiter, ends_ms));
        let waiters = waiters.map(|row| row.map(|row| row.waiter)).collect::<Result<_, _>>()?;
        Ok(LockState { waiters, ..read_state(&self.record)? })
    }

    /// Returns the status of this `key`.
    pub(in crate::store) fn status<R>(&self, key: &Key) -> Result<KeyStatus, Failure<R>> {
        Ok(self.state()?.status(key.clone(), &View::at(self.now_ms)))
    }

    /// Returns whether the key has been unused for this long.
    pub(in crate::store) fn is_prunable<R>(&self, unused_for: std::time::Duration) -> Result<bool, Failure<R>> {
        Ok(self.state()?.is_prunable(unused_for, &View::at(self.now_ms)))
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

    #[test]
    fn another_page_is_read_after_a_full_one() {
        let page = |length: usize| -> Vec<Stored> {
            let stored = |at| Stored { key: format!("{at:04}"), record: String::new(), queue: Vec::new(), now_ms: 0 };
            (0..length).map(stored).collect()
        };
        for (length, next) in [(0, None), (PAGE - 1, None), (PAGE, Some(format!("{:04}", PAGE - 1)))] {
            let mut pages = TablePages::of(None);
            let read = pages.next(|_, _| Ok::<_, Failure<()>>(page(length)));
            assert_eq!(read.ok().flatten().map(|page| page.len()), Some(length));
            let mut after = None;
            let read = |keys: &Keys, _: usize| {
                let Keys::After(key) = keys else { panic!("one key") };
                after = Some(key.clone());
                Ok::<_, Failure<()>>(Vec::new())
            };
            assert!(pages.next(read).is_ok());
            assert_eq!(after, next, "after {length}");
        }
    }
}
