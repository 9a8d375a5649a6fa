//! The user's settings from all places, and the one checked plan that they become.

pub mod files;
pub mod plan;
pub mod settings;
pub mod variables;

mod layer;
mod shared;
