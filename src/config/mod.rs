//! The user's settings from all places, and the one checked plan that they become.

pub mod files;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod plan;
pub mod settings;
pub mod variables;

mod layer;
mod shared;
