//! Text that people read: made safe to show, and durations as they are typed and written.

pub mod duration;
pub mod escape;
