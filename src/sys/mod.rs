//! The operating system: time, signals, waiting, descriptors, users, files that a user has named.

pub mod accounts;
pub mod acl;
pub mod ancestors;
pub mod backoff;
pub mod clock;
pub mod counter;
pub mod descriptor;
pub mod environment;
pub mod input;
pub mod priority;
pub mod signals;
pub mod terminal;
pub mod trust;
pub mod wait;
