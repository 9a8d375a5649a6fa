//! Black-box tests: the program itself against real files, real servers and real terminals.
//!
//! Above each test stands the sentence of the contract that it proves. A test that speaks of a lock runs on
//! every store (`on_every_store!`), one that speaks of a lease, a queue or a server on every lease store
//! (`on_every_lease_store!`), so that each keeps the same promises. One that speaks of COMMAND's processes alone runs on
//! files and on Redis (`on_files_and_redis!`). What is one store's own stands in `stores`.
//!
//! They run the binary that `SUITE_LOCKRUN` named when they were built, or else Cargo's.

mod support;

mod chaos;
mod cli;
mod commands;
mod docs;
mod harness;
mod install;
mod lease;
mod queue;
mod reserve;
mod run;
mod shared;
mod slots;
mod stores;
