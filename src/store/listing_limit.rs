//! How long a listing of all locks may be.
//!
//! A server, or an impostor, that always has another page of keys must not fill the memory.

use std::fmt::Display;

use anyhow::anyhow;

use super::StoreError;

/// The most that a store reads for one `status` or `prune`, in bytes: enough for a hundred thousand locks with some waiters each.
pub const BYTES: usize = 128 << 20;

/// Returns the error of a listing that is longer, from this `server`.
pub fn exceeded(server: &impl Display) -> StoreError {
    let limit = BYTES >> 20;
    anyhow!(
        "{server} lists more than {limit} MiB of locks, the most that lockrun reads; ask for one lock with lockrun status KEY, \
         or spread the locks over several stores"
    )
}
