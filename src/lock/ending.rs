//! How a process ended.

use serde::{Deserialize, Serialize};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ending {
    /// It exited with this status.
    Exited(u8),
    /// This signal killed it.
    Signaled(i32),
}
