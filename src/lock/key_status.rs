//! The status of a key, as `lockrun status` shows it.

use std::time::Duration;

use crate::lock::holder::Holder;
use crate::lock::key::Key;
use crate::lock::state::{LastRun, Purpose, Success};
use crate::lock::token::Token;

/// The status of one key. Times are milliseconds of Unix time on the store's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyStatus {
    /// The key.
    pub key: Key,
    /// The time of the answer.
    pub now_ms: u64,
    /// The last fencing token issued.
    pub fence: u64,
    /// The holders, the longest first.
    pub holders: Vec<HolderStatus>,
    /// The waiters, the next one first, as far as the store knows the order.
    pub waiters: Vec<WaiterStatus>,
    /// The last run that has ended, or lock acquired by hand that was released or revoked.
    pub last: Option<LastRun>,
    /// What is known of successful runs.
    pub success: Option<Success>,
    /// The last used value of its sequence, if it has one.
    pub value: Option<String>,
    /// How long the lock is withheld, see [`Held::withheld`](crate::lock::held::Held::withheld).
    pub withheld: Option<Duration>,
}

impl KeyStatus {
    /// Returns the status of a key that was never used.
    pub fn never_used(key: Key) -> Self {
        let (holders, waiters) = (Vec::new(), Vec::new());
        KeyStatus { key, now_ms: 0, fence: 0, holders, waiters, last: None, success: None, value: None, withheld: None }
    }

    /// Returns whether the store knows nothing of the key.
    pub fn is_unused(&self) -> bool {
        self.fence == 0 && self.holders.is_empty() && self.waiters.is_empty() && self.last.is_none()
    }

    /// Returns the holder under this token, if there is one.
    pub fn holder_under(&self, token: &Token) -> Option<&HolderStatus> {
        self.holders.iter().find(|holder| holder.token.as_ref() == Some(token))
    }
}

/// A holder of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HolderStatus {
    /// Who it is.
    pub who: Holder,
    /// When it acquired the lock.
    pub since_ms: u64,
    /// Whether it has a lease. Otherwise it holds the lock for as long as its processes live.
    pub has_lease: bool,
    /// How long the lease still lasts, if it ends.
    pub expires_in: Option<Duration>,
    /// Its fencing token.
    pub fence: u64,
    /// Its slot, from 0, if there are several.
    pub slot: Option<u32>,
    /// What it holds the lock for.
    pub purpose: Purpose,
    /// Whether it shares the lock.
    pub is_shared: bool,
    /// The sequence value that it has reserved, if any.
    pub value: Option<String>,
    /// Whether the lock was revoked, and stays held only until the command has ended.
    pub revoked: bool,
    /// Its token, only to be compared: any client that knows it can release the lock.
    pub token: Option<Token>,
}

/// A waiter for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaiterStatus {
    /// Who it is.
    pub who: Holder,
    /// When it joined the queue, if that is known.
    pub since_ms: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_found_by_its_token() {
        let [one, other] = [(); 2].map(|()| HolderStatus { token: Some(Token::random()), ..HolderStatus::default() });
        let key = Key::new("k".as_ref()).expect("is a key");
        let status = KeyStatus { holders: vec![one, other.clone()], ..KeyStatus::never_used(key) };
        assert_eq!(status.holder_under(other.token.as_ref().expect("it has one")), Some(&other));
        assert_eq!(status.holder_under(&Token::random()), None);
    }
}
