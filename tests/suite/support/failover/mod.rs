//! Groups of Redis servers in which a replica can become the primary.

mod cluster;
mod replication;
mod sentinel;

pub(crate) use cluster::{Cluster, SingleNode};
pub(crate) use replication::{FAILED_OVER, Replicated, cut_off_replicas, cut_off_sentinels, is_replicated, join_again};
pub(crate) use sentinel::Service;
