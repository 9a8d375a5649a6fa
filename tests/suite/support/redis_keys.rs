//! The names of a lock's keys in Redis.

/// Returns the prefix of all keys of this lock.
pub(crate) fn prefix(lock: &str) -> String {
    format!("lockrun:{{{lock}}}:")
}

/// Returns the key of this part of a lock, such as `fence` or `holders`.
pub(crate) fn part(lock: &str, name: &str) -> String {
    prefix(lock) + name
}

/// Returns the key of the holders: a sorted set of tokens by the ends of their leases.
pub(crate) fn holders(lock: &str) -> String {
    part(lock, "holders")
}

/// Returns the key of the queue: a sorted set of the waiters' tokens, in turn.
pub(crate) fn queue(lock: &str) -> String {
    part(lock, "queue")
}

/// Returns the key of the places: a sorted set of the waiters' tokens by the ends of their places.
pub(crate) fn places(lock: &str) -> String {
    part(lock, "places")
}

/// Returns the key of the details of holders and waiters.
pub(crate) fn info(lock: &str) -> String {
    part(lock, "info")
}

/// Returns the key of the last fence.
pub(crate) fn fence(lock: &str) -> String {
    part(lock, "fence")
}

/// Returns the key of the last run.
pub(crate) fn last(lock: &str) -> String {
    part(lock, "last")
}

/// Returns the key of the last value of a sequence.
pub(crate) fn sequence(lock: &str) -> String {
    part(lock, "sequence")
}

/// Returns the key of a waiter's mailbox.
pub(crate) fn mailbox(lock: &str, token: &str) -> String {
    part(lock, "mailbox:") + token
}

/// Returns whether this is the key of a mailbox.
pub(crate) fn is_mailbox(key: &str) -> bool {
    key.contains(":mailbox:")
}

/// Returns the keys that remain of a free lock.
pub(crate) fn lasting(lock: &str) -> [String; 2] {
    [fence(lock), last(lock)]
}

/// Returns whether this is a key that remains of a free lock.
pub(crate) fn is_lasting(key: &str) -> bool {
    key.ends_with(":fence") || key.ends_with(":last")
}

/// Returns whether this is a key of any lock.
pub(crate) fn is_ours(key: &str) -> bool {
    key.starts_with("lockrun:{")
}
