//! Text that people read: escaping, and durations.

pub mod duration;
pub mod escape;
