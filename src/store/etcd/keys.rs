//! The names of the keys in etcd.
//!
//! | key | what it is | attached to the lease of |
//! |---|---|---|
//! | `PREFIX/state/KEY` | the state of a lock, without its waiters | nobody |
//! | `PREFIX/life/KEY/TOKEN` | a holder's: it holds the lock for as long as this is there | the holder |
//! | `PREFIX/queue/KEY/PLACE-TOKEN` | a waiter, which watches this key alone | the waiter |
//!
//! KEY is percent-encoded, so that a slash in it is harmless. PLACE is the cluster's revision when the waiter came: their order is that
//! of the names.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::lock::key::Key;
use crate::lock::token::Token;

/// What is encoded in a lock's name.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The names of the keys of one lock.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// Of its state.
    pub(super) state: String,
    /// What its holders' begin with.
    pub(super) lives: String,
    /// What its waiters' begin with.
    pub(super) queue: String,
}

impl Names {
    /// Returns those of the lock `key` under this `prefix`.
    pub(super) fn new(prefix: &str, key: &Key) -> Self {
        let encoded = utf8_percent_encode(key.as_str(), ENCODED);
        Names {
            state: format!("{}{encoded}", all_states(prefix)),
            lives: format!("{}{encoded}/", all_lives(prefix)),
            queue: format!("{}{encoded}/", all_queues(prefix)),
        }
    }

    /// Returns that of a holder.
    pub(super) fn life(&self, token: &Token) -> String {
        format!("{}{}", self.lives, token.as_str())
    }

    /// Returns that of a waiter which came at this revision.
    pub(super) fn row(&self, revision: i64, token: &Token) -> String {
        format!("{}{revision:016x}-{}", self.queue, token.as_str())
    }
}

/// Returns what the names of all states begin with.
pub(super) fn all_states(prefix: &str) -> String {
    format!("{prefix}/state/")
}

/// Returns what the names of all holders begin with.
pub(super) fn all_lives(prefix: &str) -> String {
    format!("{prefix}/life/")
}

/// Returns what the names of all waiters begin with.
pub(super) fn all_queues(prefix: &str) -> String {
    format!("{prefix}/queue/")
}

/// Returns the end of the range of all names that begin with `prefix`, which ends with a character below DEL.
pub(super) fn range_end(prefix: &str) -> String {
    let mut end = prefix.to_owned();
    let last = end.pop().unwrap_or('/');
    end.push(char::from_u32(u32::from(last) + 1).unwrap_or('0'));
    end
}

/// Returns the lock that is named so in a key's name.
pub(super) fn decoded(name: &str) -> Option<Key> {
    let name = percent_decode_str(name).decode_utf8().ok()?;
    Key::new(name.as_ref().as_ref()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_be_read_again_and_stand_in_their_order() {
        let key = Key::new("a/b{}%".as_ref()).expect("is a key");
        let names = Names::new("lockrun", &key);
        assert_eq!(names.state, "lockrun/state/a%2Fb%7B%7D%25");
        assert_eq!(decoded("a%2Fb%7B%7D%25"), Some(key));
        let token = Token::parse("t").expect("is a token");
        assert!(names.row(9, &token) < names.row(10, &token));
        assert_eq!(range_end("a/"), "a0");
    }
}
