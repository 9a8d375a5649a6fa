//! What the events of a run need of its past.

use serde::{Deserialize, Serialize};

use crate::sys::clock::Moment;

/// How far a run has come, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Milestones {
    /// The acquisition of the lock.
    pub acquisition: Option<Acquisition>,
    /// When COMMAND was started.
    pub started_at: Option<Moment>,
}

/// An acquisition of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquisition {
    /// When the lock was acquired.
    pub at: Moment,
    /// The fencing token.
    pub fence: u64,
    /// The slot, if there are several.
    pub slot: Option<u32>,
}
