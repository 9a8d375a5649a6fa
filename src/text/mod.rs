//! Text that people read: escaping, durations, wrapping, and words of a shell.

pub mod duration;
pub mod escape;
pub mod nearest;
pub mod shell;
pub mod wrap;
