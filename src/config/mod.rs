//! What the user has set, wherever it was set, and the one checked plan that comes of it.

pub mod files;
pub mod plan;
pub mod settings;

mod layer;
mod shared;
