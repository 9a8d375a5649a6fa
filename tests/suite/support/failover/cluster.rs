//! A cluster of primaries and replicas.

use std::collections::BTreeMap;

use super::replication::{Replicated, follows, has_role, is_up_to_date};
use crate::support::deadline::{LONG, eventually};
use crate::support::lease_server::LeaseServer;
use crate::support::ports::free_port;
use crate::support::redis::Redis;
use crate::support::redis_keys;
use crate::support::resp::Reply;
use crate::support::tls::Certificates;

/// How long a node must be silent before the others consider it failed, in ms.
const NODE_TIMEOUT: &str = "1500";

/// The last hash slot.
const LAST: u32 = 16383;

/// Starts a node on free ports; with certificates it speaks only TLS.
fn node(options: &[&str], certificates: Option<&Certificates>) -> Redis {
    let bus = free_port().to_string();
    let mut all = vec!["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-node-timeout", NODE_TIMEOUT];
    all.extend(options);
    match certificates {
        None => Redis::with_options(&all),
        Some(certificates) => {
            all.extend(["--tls-cluster", "yes"]);
            Redis::with_certificates(certificates, &all)
        }
    }
}

/// Returns a field of a node's `CLUSTER INFO`.
fn info(node: &Redis, name: &str) -> String {
    let said = node.ask(&["CLUSTER", "INFO"]);
    let found = said.text().lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::to_owned));
    found.expect("it says that")
}

/// Returns the port on which a node talks to the others.
fn bus(node: &Redis) -> String {
    node.ask(&["CONFIG", "GET", "cluster-port"]).words()[1].clone()
}

fn id(node: &Redis) -> String {
    node.ask(&["CLUSTER", "MYID"]).text().to_owned()
}

/// A primary that has all slots and keeps its data.
pub(crate) struct SingleNode(Redis);

impl SingleNode {
    pub(crate) fn start() -> Self {
        let node = node(&["--appendonly", "yes", "--appendfsync", "always"], None);
        node.ask(&["CLUSTER", "ADDSLOTSRANGE", "0", &LAST.to_string()]);
        eventually(LONG, "the cluster works", || info(&node, "cluster_state") == "ok");
        Self(node)
    }

    pub(crate) fn server(&self) -> &Redis {
        &self.0
    }
}

impl LeaseServer for SingleNode {
    fn port(&self) -> u16 {
        self.0.port()
    }

    fn url_at(&self, port: u16) -> String {
        format!("redis+cluster://127.0.0.1:{port}")
    }

    /// Replaces the node's address in `CLUSTER NODES`.
    fn rewritten(&self, port: u16) -> Option<(String, String)> {
        let place = |port| format!(":{port}@");
        Some((place(self.port()), place(port)))
    }

    fn pause(&self) {
        self.0.pause();
    }

    fn resume(&self) {
        self.0.resume();
    }

    fn kill(&self) {
        self.0.kill();
    }

    fn start_again(&self) {
        self.0.start_again();
        eventually(LONG, "the cluster works again", || info(&self.0, "cluster_state") == "ok");
    }

    fn hang_up(&self) {
        self.0.hang_up();
    }

    fn forget_everything(&self) {
        self.0.forget_everything();
    }

    fn forget_holders(&self, key: &str) {
        self.0.forget_holders(key);
    }

    fn word(&self) -> &'static str {
        self.0.word()
    }

    fn requests(&self) -> u64 {
        self.0.requests()
    }

    /// One round trip asks the node for the primary, and each request but the first one also for a confirmation.
    fn round_trips(&self, requests: u64) -> u64 {
        1 + self.0.round_trips(requests) + requests - 1
    }

    /// The witness connection, and the one for requests.
    fn connections_of_a_client(&self) -> u64 {
        2
    }

    fn waiting(&self, key: &str) -> Vec<String> {
        self.0.waiting(key)
    }

    fn asleep(&self) -> usize {
        self.0.asleep()
    }

    fn left(&self, key: &str, counts_what_goes: bool) -> Vec<String> {
        let mut left = self.0.left(key, counts_what_goes);
        left.retain(|name| *name != redis_keys::part(key, "failover"));
        left
    }
}

/// Three primaries, each with an up-to-date replica. A node that is killed keeps its data.
pub(crate) struct Cluster {
    /// The primaries, then the replicas in the same order.
    nodes: Vec<Redis>,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        Self::of(None, NODE_TIMEOUT)
    }

    /// The same which replaces a primary soon.
    pub(crate) fn in_a_hurry() -> Self {
        Self::of(None, "600")
    }

    /// Starts a cluster that speaks only TLS.
    pub(crate) fn with_certificates(certificates: &Certificates) -> Self {
        Self::of(Some(certificates), NODE_TIMEOUT)
    }

    fn of(certificates: Option<&Certificates>, timeout: &str) -> Self {
        let options = ["--appendonly", "yes", "--appendfsync", "always", "--repl-diskless-sync-delay", "0"];
        // The last one counts.
        let options = [&options[..], &["--cluster-node-timeout", timeout]].concat();
        let nodes: Vec<Redis> = (0..6).map(|_| node(&options, certificates)).collect();
        let third = LAST / 3;
        for (at, node) in (0..3).zip(&nodes) {
            let (first, last) = (at * (third + 1), if at == 2 { LAST } else { at * (third + 1) + third });
            node.ask(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
            node.ask(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
        }
        for node in &nodes[1..] {
            nodes[0].ask(&["CLUSTER", "MEET", "127.0.0.1", &node.port().to_string(), &bus(node)]);
        }
        let cluster = Self { nodes };
        let all_know = |what: &str, count: &str| cluster.nodes.iter().all(|node| info(node, what) == count);
        eventually(LONG, "the nodes know each other", || all_know("cluster_known_nodes", "6"));
        for (primary, replica) in cluster.nodes[..3].iter().zip(&cluster.nodes[3..]) {
            replica.ask(&["CLUSTER", "REPLICATE", &id(primary)]);
        }
        eventually(LONG, "the replicas have the data", || cluster.nodes[3..].iter().all(is_up_to_date));
        eventually(LONG, "the cluster works", || all_know("cluster_state", "ok") && all_know("cluster_size", "3"));
        eventually(LONG, "all know who is whose replica", || {
            cluster.nodes.iter().all(|node| {
                node.ask(&["CLUSTER", "NODES"]).text().matches(" slave ").count()
                    + node.ask(&["CLUSTER", "NODES"]).text().matches("myself,slave ").count()
                    == 3
            })
        });
        cluster
    }

    pub(crate) fn url(&self) -> String {
        let hosts: Vec<String> = self.nodes[..3].iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    pub(crate) fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// Returns the hash slot of a lock.
    pub(crate) fn slot(&self, key: &str) -> u32 {
        let slot = self.nodes[0].ask(&["CLUSTER", "KEYSLOT", &redis_keys::fence(key)]).number();
        u32::try_from(slot).expect("a slot")
    }

    /// Returns the number of the initial primary that has the lock.
    pub(crate) fn shard(&self, key: &str) -> usize {
        usize::try_from(self.slot(key) / (LAST / 3 + 1)).expect("one of three")
    }

    /// Returns a key of each shard.
    pub(crate) fn keys(&self) -> Vec<String> {
        let mut keys = BTreeMap::new();
        for key in (0..100).map(|number| format!("key-{number}")) {
            keys.entry(self.shard(&key)).or_insert(key);
        }
        keys.into_values().collect()
    }

    /// Waits until the `living` nodes know the replica of this shard as its primary.
    pub(crate) fn is_replaced(&self, shard: usize, living: &[usize]) {
        let id = id(&self.nodes[3 + shard]);
        eventually(LONG, "the replica is the primary", || {
            living.iter().all(|at| {
                let nodes = self.nodes[*at].ask(&["CLUSTER", "NODES"]);
                nodes
                    .text()
                    .lines()
                    .any(|line| line.starts_with(&id) && line.contains("master") && line.contains("connected "))
            })
        });
    }

    /// The primary that has this slot, as it says itself.
    fn owner(&self, slot: u32) -> Option<usize> {
        let has_it = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            first.parse().is_ok_and(|first: u32| first <= slot) && last.parse().is_ok_and(|last: u32| slot <= last)
        };
        let is_owner = |node: &Redis| {
            let Ok(Reply::Text(nodes)) = node.try_ask(&["CLUSTER", "NODES"]) else { return false };
            let own = nodes.lines().find(|line| line.contains("myself,master"));
            own.is_some_and(|own| own.split(' ').skip(8).any(has_it))
        };
        self.nodes.iter().position(is_owner)
    }

    /// Begins to move the slot of a lock to another primary: returns that one and the present one. No key is moved yet.
    pub(crate) fn begin_to_move_slot(&self, key: &str, to: usize) -> (&Redis, &Redis) {
        let slot = self.slot(key);
        let (from, target) = (&self.nodes[self.owner(slot).expect("a primary has it")], &self.nodes[to]);
        let slot = slot.to_string();
        target.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
        from.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(target)]);
        (target, from)
    }

    /// Moves the slot of a lock to another primary, as `redis-cli --cluster reshard` does.
    pub(crate) fn move_slot(&self, key: &str, to: usize) {
        let (target, from) = self.begin_to_move_slot(key, to);
        let slot = self.slot(key).to_string();
        loop {
            let keys = from.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]).words();
            if keys.is_empty() {
                break;
            }
            let mut words = vec!["MIGRATE", "127.0.0.1"];
            let port = target.port().to_string();
            words.extend([port.as_str(), "", "0", "5000", "KEYS"]);
            words.extend(keys.iter().map(String::as_str));
            from.ask(&words);
        }
        let is_third = |node: &&Redis| ![from.port(), target.port()].contains(&node.port()) && has_role(node, "master");
        for node in [target, from].into_iter().chain(self.nodes.iter().filter(is_third)) {
            node.ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &id(target)]);
        }
    }
}

impl Replicated for Cluster {
    fn servers(&self) -> &[Redis] {
        &self.nodes
    }

    fn primaries(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|at| has_role(&self.nodes[*at], "master")).collect()
    }

    fn is_whole(&self) -> bool {
        let primaries = self.primaries();
        let has_replica = |at: &usize| self.nodes.iter().any(|node| follows(node, &self.nodes[*at]));
        let is_fine = |node: &Redis| {
            let said = node.try_ask(&["CLUSTER", "INFO"]).ok();
            let Some(Reply::Text(said)) = said else { return false };
            said.contains("cluster_state:ok") && said.contains("cluster_size:3")
        };
        primaries.len() == 3 && primaries.iter().all(has_replica) && self.nodes.iter().all(is_fine)
    }

    fn fail_over(&self, primary: usize, _random: &mut fastrand::Rng) -> bool {
        let replica = self.nodes.iter().find(|node| follows(node, &self.nodes[primary]));
        let reply = replica.and_then(|replica| replica.try_ask(&["CLUSTER", "FAILOVER"]).ok());
        reply.is_some_and(|reply| !matches!(reply, Reply::Error(_)))
    }

    fn move_slot_of(&self, key: &str, random: &mut fastrand::Rng) -> bool {
        let Some(from) = self.owner(self.slot(key)) else { return false };
        let others: Vec<usize> = self.primaries().into_iter().filter(|at| *at != from).collect();
        self.move_slot(key, others[random.usize(0..others.len())]);
        true
    }

    fn left(&self, key: &str) -> Vec<String> {
        let Some(owner) = self.owner(self.slot(key)) else { return vec![format!("no primary for {key}")] };
        let mut left = self.nodes[owner].left(key, false);
        left.retain(|name| *name != redis_keys::part(key, "failover"));
        left
    }
}
