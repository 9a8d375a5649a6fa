//! The names under which a lock is kept on Redis.

/// What all keys of this lock begin with.
pub(crate) fn prefix(lock: &str) -> String {
    format!("lockrun:{{{lock}}}:")
}

/// The key of this part of a lock: `fence`, `last`, `holders`, `queue`, `heartbeats`, `info` or `sequence`.
pub(crate) fn part(lock: &str, name: &str) -> String {
    prefix(lock) + name
}

/// Who holds the lock: a sorted set of tokens by the ends of their leases.
pub(crate) fn holders(lock: &str) -> String {
    part(lock, "holders")
}

/// Who waits for it: a sorted set of tokens by their places.
pub(crate) fn queue(lock: &str) -> String {
    part(lock, "queue")
}

/// When the waiters are to look next.
pub(crate) fn heartbeats(lock: &str) -> String {
    part(lock, "heartbeats")
}

/// The particulars of holders and waiters.
pub(crate) fn info(lock: &str) -> String {
    part(lock, "info")
}

/// The last fence.
pub(crate) fn fence(lock: &str) -> String {
    part(lock, "fence")
}

/// The last run.
pub(crate) fn last(lock: &str) -> String {
    part(lock, "last")
}

/// The last value of a sequence.
pub(crate) fn sequence(lock: &str) -> String {
    part(lock, "sequence")
}

/// Where a waiter is woken.
pub(crate) fn mailbox(lock: &str, token: &str) -> String {
    part(lock, "mailbox:") + token
}

/// Whether this is the key of a mailbox.
pub(crate) fn is_mailbox(key: &str) -> bool {
    key.contains(":mailbox:")
}

/// What stays of a lock that is free.
pub(crate) fn lasting(lock: &str) -> [String; 2] {
    [fence(lock), last(lock)]
}

/// Whether this is the key of something that stays of a lock that is free.
pub(crate) fn is_lasting(key: &str) -> bool {
    key.ends_with(":fence") || key.ends_with(":last")
}

/// Whether this is a key of some lock.
pub(crate) fn is_ours(key: &str) -> bool {
    key.starts_with("lockrun:{")
}
