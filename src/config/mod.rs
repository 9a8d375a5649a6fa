//! The user's settings from all layers, and the one checked plan made from them.

pub mod files;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod plan;
pub mod settings;
pub mod variables;

mod common;
mod layer;
