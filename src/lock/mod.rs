//! What a lock is: its name, its token, its holder, its lease, and its rules. Pure: no store is asked here.

pub mod claim;
pub mod ending;
pub mod holder;
pub mod key;
pub mod lease;
pub mod state;
pub mod token;
