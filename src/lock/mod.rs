//! What a lock is: its name, its token, its holder, its lease. Pure: no store is asked here.

pub mod ending;
pub mod holder;
pub mod key;
pub mod lease;
pub mod token;
