//! Leases: kept, lost, and what happens when a process, the network or the server fails.

mod connections;
mod faults;
mod fence;
mod full_server;
mod keep;
mod lost;
mod misuse;
mod unanswered;
