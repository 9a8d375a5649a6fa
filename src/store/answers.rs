//! What a store answers besides the answers about a lock ([`crate::lock::answer`]).

use super::StoreError;
use crate::lock::key::Key;

/// What ended a waiter's sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wakeup {
    /// Ask again.
    AskAgain,
    /// The lock was handed to the claim, so it holds the lock: the store itself has said so.
    HandedOver {
        /// Its fencing token.
        fence: u64,
        /// Its slot.
        slot: u32,
    },
    /// This signal arrived, which would end lockrun.
    Signal(i32),
}

/// What was found among the keys.
#[derive(Debug)]
pub struct Listing<T> {
    /// The matches, in the order of the keys.
    pub found: Vec<T>,
    /// For each key that could not be read, or not be changed as requested: why, and what to do.
    pub unreadable: Vec<StoreError>,
}

impl Listing<Key> {
    /// Returns what was pruned before this `error` ended it, so that the names of removed keys are not lost. Fails if
    /// that is nothing.
    pub(super) fn ended_by(mut self, error: StoreError) -> Result<Self, StoreError> {
        if self.found.is_empty() && self.unreadable.is_empty() {
            return Err(error);
        }
        self.unreadable.push(error.context("cannot prune the other keys"));
        Ok(self)
    }
}
