//! The operating system: time, signals, waiting, descriptors, users, files that the user names.

pub mod accounts;
pub mod acl;
pub mod ancestors;
pub mod append;
pub mod backoff;
pub mod blocked_signals;
pub mod children;
pub mod clock;
#[cfg(all(test, target_env = "gnu"))]
pub mod coroutine;
pub mod counter;
pub mod descriptor;
pub mod environment;
pub mod input;
pub mod namespace;
pub mod priority;
pub mod signals;
#[cfg(test)]
pub mod simulated;
pub mod stderr;
pub mod stdio;
pub mod terminal;
pub mod trust;
pub mod wait;
