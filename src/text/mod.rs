//! Text that people read: escaping, durations, colours, patterns, wrapping, and shell quoting.

pub mod colour;
pub mod duration;
pub mod escape;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod nearest;
pub mod pattern;
pub mod shell;
pub mod wrap;
