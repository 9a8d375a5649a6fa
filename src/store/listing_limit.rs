//! How long a listing of all locks may be.
//!
//! A server, or an impostor, that always has another page of keys must not fill the memory.

/// The most that a store reads for one `status` or `prune`, in bytes: enough for a hundred thousand locks with some
/// waiters each.
pub const BYTES: usize = 128 << 20;
