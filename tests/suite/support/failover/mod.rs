//! Groups of Redis servers in which a replica can become the primary.

mod cluster;
mod sentinel;

pub(crate) use cluster::{Cluster, SingleNode};
pub(crate) use sentinel::Service;
