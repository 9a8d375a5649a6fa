//! A primary and its replicas, under Sentinel or in a cluster.

use std::time::Duration;

use crate::support::deadline::eventually;
use crate::support::lease_server::LeaseServer as _;
use crate::support::redis::Redis;
use crate::support::resp::Reply;

/// Longer than a failover takes. A Sentinel that the machine has kept from running for two seconds does nothing for
/// another 30 ("TILT").
pub(crate) const FAILED_OVER: Duration = Duration::from_secs(90);

/// Servers that take each other's place.
pub(crate) trait Replicated {
    /// All of them, whatever their role is.
    fn servers(&self) -> &[Redis];

    /// Which of them are primaries, as all say that live. None may be paused.
    fn primaries(&self) -> Vec<usize>;

    /// Whether each primary is known and has a replica with its data, so that it could be replaced at once. None may be
    /// paused.
    fn is_whole(&self) -> bool;

    /// Has a replica take this primary's place, as an operator does; returns false if that is refused.
    fn fail_over(&self, primary: usize, random: &mut fastrand::Rng) -> bool;

    /// Moves the hash slot of this lock to another primary; returns false where there are no slots, or it cannot be
    /// moved now.
    fn move_slot_of(&self, _key: &str, _random: &mut fastrand::Rng) -> bool {
        false
    }

    /// What is kept of this lock besides what stays for ever, and what goes by itself.
    fn left(&self, key: &str) -> Vec<String>;
}

/// What a server says of its replication; nothing if it does not answer.
fn replication(server: &Redis) -> String {
    match server.try_ask(&["INFO", "replication"]) {
        Ok(Reply::Text(said)) => said,
        _ => String::new(),
    }
}

/// Whether a server is a `master` or a `slave`, as it says itself.
pub(super) fn has_role(server: &Redis, role: &str) -> bool {
    replication(server).contains(&format!("role:{role}"))
}

/// Whether a replica is connected to its primary, and has all the data.
pub(super) fn is_up_to_date(replica: &Redis) -> bool {
    replication(replica).contains("master_link_status:up")
}

/// Whether it is connected to this primary, and has its data.
pub(super) fn follows(replica: &Redis, primary: &Redis) -> bool {
    let said = replication(replica);
    said.contains("master_link_status:up") && said.contains(&format!("master_port:{}\r\n", primary.port()))
}

/// Keeps what is written from the replicas of this primary, from now on.
pub(crate) fn cut_off_replicas(primary: &Redis) {
    primary.ask(&["ACL", "SETUSER", "default", "-psync", "-sync", "-replconf"]);
    primary.ask(&["CLIENT", "KILL", "TYPE", "replica"]);
}

/// Keeps the Sentinels from this primary, and nobody else.
pub(crate) fn cut_off_sentinels(primary: &Redis) {
    let words = ["-ping", "-info", "-publish", "-subscribe", "-replicaof", "-slaveof", "-config", "-role", "-multi"];
    let mut request = vec!["ACL", "SETUSER", "default"];
    request.extend(words);
    primary.ask(&request);
}

/// Lets replicas and Sentinels reach this primary again.
pub(crate) fn join_again(primary: &Redis) {
    primary.ask(&["ACL", "SETUSER", "default", "+@all"]);
}

/// What was written until now has reached this many replicas. Not by WAIT, which waits only for what its own connection
/// has written.
#[track_caller]
pub(crate) fn is_replicated(primary: &Redis, replicas: usize) {
    let written = replication_offsets(primary, "master_repl_offset:")[0];
    eventually(FAILED_OVER, "the replicas have what was written", || {
        let reached = replication_offsets(primary, "offset=");
        reached.iter().filter(|offset| **offset >= written).count() >= replicas
    });
}

/// What follows this word in each line of what a primary says of its replication.
fn replication_offsets(primary: &Redis, word: &str) -> Vec<u64> {
    let said = primary.ask(&["INFO", "replication"]);
    let numbers = said.text().lines().filter_map(|line| line.split_once(word)?.1.split(',').next());
    numbers.map(|number| number.trim().parse().expect("an offset")).collect()
}
