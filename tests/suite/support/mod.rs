//! What the tests stand on: the program itself, stores to run it against, and ways to disturb both.

pub(crate) mod birth;
pub(crate) mod deadline;
pub(crate) mod fake;
pub(crate) mod hand;
pub(crate) mod holder;
pub(crate) mod lock_file;
pub(crate) mod lockrun;
pub(crate) mod memory;
pub(crate) mod monitor;
pub(crate) mod namespace;
pub(crate) mod output;
pub(crate) mod postgres;
pub(crate) mod processes;
pub(crate) mod proxy;
pub(crate) mod pty;
pub(crate) mod queue;
pub(crate) mod redis;
pub(crate) mod resp;
pub(crate) mod sequence;
pub(crate) mod slots;
pub(crate) mod steps;
pub(crate) mod store;
pub(crate) mod tls;
pub(crate) mod witness;

pub(crate) use deadline::{LONG, eventually};
pub(crate) use holder::Holder;
pub(crate) use lockrun::{Lockrun, Running};
pub(crate) use output::Output;
pub(crate) use queue::Queue;
pub(crate) use redis::Redis;
pub(crate) use store::Store;
