//! A lock: its name, token, holder, lease and rules. Pure: nothing here talks to a store.

pub mod answer;
pub mod claim;
pub mod ending;
pub mod held;
pub mod holder;
pub mod key;
pub mod key_status;
pub mod lease;
pub mod milestones;
pub mod state;
pub mod token;
