//! What the tables and the server know about one lock, for the rules in [`crate::lock::state`].

use std::fmt::Display;

use super::failure::Failure;
use crate::lock::state::{LOOKERS, LockState, WaiterState};

/// To how many waiters one operation hands the lock.
pub(super) const HAND_OFFS_MAX: usize = 100;

/// How many waiters an operation reads at first, and how many if those were not enough: so few that the connection
/// takes them in even if lockrun is stopped just then. A server that waits until it can send the rest keeps the row
/// locked.
pub(super) const FIRST_WAITERS: usize = 2 * LOOKERS;
pub(super) const MORE_WAITERS: usize = HAND_OFFS_MAX + LOOKERS;

/// A row of the queue.
#[derive(Clone, Debug)]
pub(super) struct Queued {
    /// Its place: the smaller, the earlier it came.
    pub(super) place: i64,
    /// What the rules know about it.
    pub(super) waiter: WaiterState,
    /// The channel on which it listens, if it does.
    pub(super) channel: Option<String>,
}

/// The columns of a waiter in the order of [`Queued::read`].
pub(super) const WAITER_COLUMNS: &str = "place, waiter, ends_ms, channel";

impl Queued {
    /// Reads a row of the table of waiters.
    pub(super) fn read(row: &[Option<String>]) -> Result<Self, Failure> {
        let [Some(place), Some(waiter), Some(ends_ms), channel] = row else {
            return Err(Failure::Broken("a row in the table waiters lacks a column".to_owned()));
        };
        let broken = |column: &str, what: &dyn Display| {
            Failure::Broken(format!("column {column} of its row with place {place} in the table waiters: {what}"))
        };
        let waiter: WaiterState = serde_json::from_str(waiter).map_err(|error| broken("waiter", &error))?;
        let ends_ms = ends_ms.parse().map_err(|error| broken("ends_ms", &error))?;
        Ok(Queued {
            place: place.parse().map_err(|error| broken("place", &error))?,
            // The column is newer: a waiter prolongs its place there alone (`waiting.rs`).
            waiter: WaiterState { ends_ms, ..waiter },
            channel: channel.clone().filter(|channel| is_channel(channel)),
        })
    }

    /// Returns the waiter as it is in the `state` after an operation, if it has kept its place. One that wants another
    /// mode has joined anew.
    pub(super) fn waiter_in<'s>(&self, state: &'s LockState) -> Option<&'s WaiterState> {
        let is_it = |waiter: &&WaiterState| waiter.token == self.waiter.token && waiter.mode == self.waiter.mode;
        state.waiters.iter().find(is_it)
    }
}

/// Returns whether a session of lockrun may listen on the channel of this name.
fn is_channel(name: &str) -> bool {
    name.starts_with("lockrun_")
        && name.len() < 64
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
