//! The names of the keys in etcd.
//!
//! | key | content | attached to the lease of |
//! |---|---|---|
//! | `PREFIX/state/KEY` | the state of a lock, without its waiters | nobody |
//! | `PREFIX/lease/KEY/TOKEN` | a holder's lease key: it holds the lock for as long as this exists | the holder |
//! | `PREFIX/lease/KEY/TOKEN/look` | written to wake a waiter to which the lock is not handed | the waiter |
//! | `PREFIX/queue/KEY/PLACE-TOKEN` | a waiter's row: it waits for as long as this exists | the waiter |
//! | `PREFIX/fence` | the greatest fence of the locks whose state was pruned | nobody |
//!
//! KEY is percent-encoded, so that a slash in it is harmless. PLACE is the cluster's revision when the waiter joined,
//! so the names sort in the order of the queue. A waiter watches its own lease key, and what lies below that.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::lock::key::Key;
use crate::lock::token::Token;

/// The characters that are encoded in a lock's name.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// What follows the name of a waiter's lease key in the name of the key that wakes it. No token contains a slash.
const LOOK: &str = "/look";

/// The names of the keys of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names {
    /// The state.
    pub(super) state: String,
    /// The prefix of its holders' lease keys.
    pub(super) lease_keys: String,
    /// The prefix of its waiters' rows.
    pub(super) queue: String,
    /// The greatest fence that was pruned, of any lock.
    pub(super) pruned_fence: String,
}

impl Names {
    /// Returns the names for the lock `key` under this `prefix`.
    pub(super) fn new(prefix: &str, key: &Key) -> Self {
        let encoded = utf8_percent_encode(key.as_str(), ENCODED);
        Names {
            state: format!("{}{encoded}", all_states(prefix)),
            lease_keys: format!("{}{encoded}/", all_lease_keys(prefix)),
            queue: format!("{}{encoded}/", all_queues(prefix)),
            pruned_fence: format!("{prefix}/fence"),
        }
    }

    /// Returns the name of a holder's lease key.
    pub(super) fn lease_key(&self, token: &Token) -> String {
        format!("{}{}", self.lease_keys, token.as_str())
    }

    /// Returns the name of the key that wakes a waiter.
    pub(super) fn look(&self, token: &Token) -> String {
        format!("{}{LOOK}", self.lease_key(token))
    }

    /// Returns whether this is the name of a waiter's row. Keys that others have put among lockrun's are left alone.
    pub(super) fn is_row(&self, name: &str) -> bool {
        let parts = name.strip_prefix(&self.queue).and_then(|rest| rest.split_once('-'));
        parts.is_some_and(|(place, token)| {
            place.len() == 16 && place.bytes().all(|byte| byte.is_ascii_hexdigit()) && Token::parse(token).is_ok()
        })
    }

    /// Returns the name of the row of a waiter that joins at this revision.
    pub(super) fn row(&self, revision: i64, token: &Token) -> String {
        format!("{}{revision:016x}-{}", self.queue, token.as_str())
    }
}

/// Returns the prefix of all states.
pub(super) fn all_states(prefix: &str) -> String {
    format!("{prefix}/state/")
}

/// Returns the prefix of all lease keys.
pub(super) fn all_lease_keys(prefix: &str) -> String {
    format!("{prefix}/lease/")
}

/// Returns the prefix of all rows.
pub(super) fn all_queues(prefix: &str) -> String {
    format!("{prefix}/queue/")
}

/// Returns the end of the range of all names that begin with `prefix`, whose last character must be below DEL.
pub(super) fn range_end(prefix: &str) -> String {
    let mut end = prefix.to_owned();
    let last = end.pop().unwrap_or('/');
    end.push(char::from_u32(u32::from(last) + 1).unwrap_or('0'));
    end
}

/// Returns the lock of a percent-encoded name. `None`: it is not as lockrun writes it.
pub(super) fn decoded(name: &str) -> Option<Key> {
    let key = Key::new(percent_decode_str(name).decode_utf8().ok()?.as_ref().as_ref()).ok()?;
    (utf8_percent_encode(key.as_str(), ENCODED).to_string() == name).then_some(key)
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
        assert_eq!(["a/b", "a%2fb", "%61", ""].map(decoded), [const { None }; 4], "not as lockrun writes them");
        let token = Token::parse("t").expect("is a token");
        assert!(names.row(9, &token) < names.row(10, &token));
        assert_eq!(range_end("a/"), "a0");
        assert!(names.is_row(&names.row(9, &token)));
        for name in ["", "x", "state/x", "000000000000000g-t", "0000000000000001-", "0000000000000001-t/x", "1-t"] {
            assert!(!names.is_row(&format!("{}{name}", names.queue)), "{name}");
        }
    }
}
