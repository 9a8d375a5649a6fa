//! Redis servers of which another one can become the primary.

mod cluster;
mod sentinel;

pub(crate) use cluster::{Cluster, SingleNode};
pub(crate) use sentinel::Service;
