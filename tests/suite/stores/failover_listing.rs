//! `status` and `prune` if another server can become the primary.

use std::time::Duration;

use tempfile::TempDir;

use crate::support::failover::{Cluster, Service, SingleNode};
use crate::support::holder::write_script;
use crate::support::processes::PATH;
use crate::support::proxy::{Mode, Proxy};
use crate::support::{LONG, LeaseServer, Lockrun, Output, Redis, Running, eventually, redis_keys};

/// Lists all locks of a store.
fn status(url: &str) -> Lockrun {
    Lockrun::bare().arg("status").args(["--store", url])
}

fn prune(url: &str) -> Lockrun {
    Lockrun::bare().args(["prune", "--store", url, "--older-than", "1s"])
}

fn run(url: &str, key: &str) {
    Lockrun::at(url).key(key).command(["true"]).run().exited(0);
}

/// Waits until something would be pruned.
fn is_unused(url: &str, count: usize) {
    eventually(LONG, "they have been unused for a second", || {
        prune(url).arg("--dry-run").run().stdout().lines().count() == count
    });
}

// "`status` and `prune` over all primaries", also where one is away.
#[test]
fn over_all_primaries() {
    let cluster = Cluster::start();
    let (keys, url) = (cluster.keys(), cluster.url());
    for key in &keys {
        run(&url, key);
    }
    let listed = status(&url).run().exited(0).silent().stdout();
    assert!(keys.iter().all(|key| listed.contains(key.as_str())), "{listed}");
    is_unused(&url, keys.len());
    cluster.nodes()[1].pause();
    // When the others have noticed it, they serve nothing for a moment, either.
    let listed = status(&url).run();
    let has_all = keys.iter().all(|key| listed.stdout().contains(key.as_str()));
    assert!(has_all || !listed.stderr().is_empty(), "{listed}");
    // Until another primary has taken its place, and all know it. The old one is no longer asked.
    cluster.is_replaced(1, &[0, 2]);
    let listed = status(&url).run().exited(0).silent().stdout();
    assert!(keys.iter().all(|key| listed.contains(key.as_str())), "{listed}");
    // Whether the lock of the failed primary is free is not known yet.
    assert!(listed.contains("withheld"), "{listed}");
    let pruned = prune(&url).run().exited(0).silent().stdout();
    assert_eq!(pruned.lines().collect::<Vec<_>>(), [&keys[0], &keys[2]]);
}

// "A lock that cannot be read is named on standard error", and the others are listed and pruned: also if its hash slot
// is moving, and its fence has moved already.
#[test]
fn a_slot_that_is_moving() {
    let cluster = Cluster::start();
    let (mut keys, url) = (cluster.keys(), cluster.url());
    keys.extend((100..200).map(|number| format!("key-{number}")).find(|key| cluster.shard(key) == 0));
    for key in &keys {
        run(&url, key);
    }
    let (moving, others) = keys.split_first().expect("there are four");
    is_unused(&url, keys.len());
    let (target, from) = cluster.begin_to_move_slot(moving, 1);
    let is_named_alone = |listed: Output| {
        let listed = listed
            .exited(69)
            .said(&format!("cannot read the lock \"{moving}\""))
            .said("the cluster is moving the slot");
        let text = listed.stdout();
        let found: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert!(others.iter().all(|key| found.contains(&key.as_str())), "{listed}");
        assert!(!found.contains(&moving.as_str()) && listed.stderr().lines().count() == 1, "{listed}");
    };
    is_named_alone(status(&url).run());
    let port = target.port().to_string();
    from.ask(&["MIGRATE", "127.0.0.1", &port, &redis_keys::fence(moving), "0", "5000"]);
    is_named_alone(status(&url).run());
    is_named_alone(prune(&url).run());
}

// "A cluster's named nodes must agree on whose they are": one that answers first, but knows nothing of the others, is
// not the cluster.
#[test]
fn a_node_of_another_cluster_is_not_listed() {
    let (cluster, other) = (Cluster::start(), SingleNode::start());
    let alone = other.url_at(other.port());
    run(&alone, "stray");
    is_unused(&alone, 1);
    let proxies: Vec<Proxy> = cluster.nodes()[..3].iter().map(|node| Proxy::before(node)).collect();
    let mut url = alone.clone();
    for proxy in &proxies {
        proxy.set(Mode::Delay(Duration::from_millis(300)));
        url = format!("{url},127.0.0.1:{}", proxy.port());
    }
    for call in [status(&url), prune(&url), Lockrun::at(&url).key("stray").command(["echo", "ran"])] {
        call.run().exited(69).printed("").said("are not nodes of one cluster");
    }
    assert!(status(&alone).run().exited(0).stdout().contains("stray"), "it was pruned");
}

/// Looks up each name, the cluster's names slowly.
const GETENT: &str = "#!/bin/sh
[ \"$3\" = other.test ] || sleep 0.3
echo '127.0.0.1       STREAM'
";

// The same if not the nodes are slow, but the look-ups of their names.
#[test]
fn a_node_of_another_cluster_is_not_taken_for_the_cluster() {
    let (cluster, other) = (Cluster::start(), SingleNode::start());
    // Under the name that it announces, it is a node that has not been asked yet.
    other.server().ask(&["CONFIG", "SET", "cluster-announce-ip", "127.0.0.1"]);
    let directory = TempDir::new().expect("a temporary directory");
    write_script(directory.path(), "getent", GETENT);
    let mut url = other.url_at(other.port()).replacen("127.0.0.1", "other.test", 1);
    for (number, node) in cluster.nodes()[..3].iter().enumerate() {
        url = format!("{url},node-{number}.test:{}", node.port());
    }
    for key in cluster.keys() {
        let call = Lockrun::at(&url).key(&key).env("PATH", format!("{}:{PATH}", directory.path().display()));
        let call = call.args(["--store-timeout", "20s", "--ttl", "5m"]).command(["echo", "ran"]);
        call.run().exited(69).printed("").said("are not nodes of one cluster");
        assert!(other.server().keys().is_empty(), "the lock was acquired elsewhere");
    }
}

// "After a failover no lock that could have been held before it is granted": also if the traces of its earlier runs are
// pruned first.
#[test]
fn what_a_failover_may_have_lost_is_not_pruned() {
    let cluster = Cluster::start();
    let (key, url) = (cluster.keys().remove(0), cluster.url());
    let call = Lockrun::at(&url).key(&key).args(["--ttl", "30s"]);
    call.clone().command(["true"]).run().exited(0);
    is_unused(&url, 1);
    let [primary, replica] = [0, 3].map(|at| &cluster.nodes()[at]);
    let knows_of_it = || replica.keys().iter().any(|name| name.contains(&key) && name.ends_with("failover"));
    eventually(LONG, "the replica knows the lock", knows_of_it);
    primary.ask(&["ACL", "SETUSER", "default", "-psync", "-sync", "-replconf"]);
    primary.ask(&["CLIENT", "KILL", "TYPE", "replica"]);
    let mut holder: Running = call.clone().sh("echo ready; sleep 600").spawn();
    holder.wait_for_line("ready");
    primary.kill();
    cluster.is_replaced(0, &[1, 2]);
    prune(&url).run().exited(0).printed("").silent();
    assert!(status(&url).run().exited(0).stdout().contains("withheld"));
    call.clone().command(["true"]).run().exited(75).said("failed over");
    holder.kill_everything();
    // "If you know that nothing runs, end it."
    replica.ask(&["HDEL", &redis_keys::part(&key, "failover"), "withheld"]);
    call.command(["true"]).run().exited(0).silent();
}

// If a server ceases to be the primary meanwhile, its answer is not shown, and its pruning does not count.
#[test]
fn a_primary_that_is_replaced_meanwhile() {
    for call in [status, prune] {
        let (service, other) = (Service::alone(), Redis::start());
        let proxy = Proxy::before(&service);
        run(&proxy.url(), "old");
        is_unused(&proxy.url(), 1);
        proxy.set(Mode::HoldUpTo(u64::MAX));
        let asked = call(&proxy.url()).spawn();
        eventually(LONG, "it is asked for the lock", || proxy.held() > 0);
        service.watch_instead_of(proxy.port(), &other);
        proxy.set(Mode::Pass);
        let said = asked.wait().said("may not be the primary any more").stdout();
        assert!(!said.contains("old"), "{said}");
    }
}
