//! A Sentinel, or a node, of another deployment among those of a URL: it can cost a run, never exclusion.
//!
//! The witness is a directory that COMMAND makes and removes: while there is one, another COMMAND runs.

use std::path::Path;

use crate::support::failover::{Cluster, Service, SingleNode};
use crate::support::{LeaseServer, Lockrun, Output, Redis, Running, memory};

/// How often several runs start at once.
const ROUNDS: usize = 10;

/// What COMMAND does: says if another one runs, and runs for a moment.
const WORK: &str = "mkdir \"$BUSY\" || echo \"beside $$\" >>\"$BUSY.overlaps\"; echo ran; sleep 0.2; rmdir \"$BUSY\"";

/// Starts runs at once on these URLs, again and again. Asserts that never two of them ran at the same time, and that
/// each ran or failed with a documented status. Returns how many ran.
#[track_caller]
fn never_two_at_once(urls: &[String]) -> usize {
    let directory = memory::directory();
    let busy = directory.path().join("busy");
    let call = |url: &String| Lockrun::at(url).key("k").env("BUSY", &busy).sh(WORK);
    let mut ran = 0;
    for _ in 0..ROUNDS {
        let runs: Vec<Running> = urls.iter().map(|url| call(url).spawn()).collect();
        let outputs: Vec<Output> = runs.into_iter().map(Running::wait).collect();
        let overlaps = Path::new(&busy).with_extension("overlaps");
        assert!(!overlaps.exists(), "two commands at once");
        for output in outputs {
            assert!(matches!(output.status, Some(0 | 69 | 75)), "{output}");
            ran += usize::from(output.stdout() == "ran\n");
        }
    }
    ran
}

/// Returns the URLs that name these ports, with each of them first.
fn in_each_order(ports: &[u16], url: impl Fn(&[u16]) -> String) -> Vec<String> {
    let mut ports = ports.to_vec();
    (0..ports.len())
        .map(|_| {
            ports.rotate_left(1);
            url(&ports)
        })
        .collect()
}

fn doctor(url: &str) -> Output {
    Lockrun::bare().args(["doctor", "--store", url]).run()
}

fn sentinel_ports(service: &Service) -> Vec<u16> {
    service.sentinels().iter().map(LeaseServer::port).collect()
}

fn node_ports(cluster: &Cluster) -> Vec<u16> {
    cluster.nodes()[..3].iter().map(LeaseServer::port).collect()
}

fn url_of_nodes(ports: &[u16]) -> String {
    let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("redis+cluster://{}", hosts.join(","))
}

// "Only the Sentinels that the URL names vote": those that a stranger knows have no vote, however many they are.
#[test]
fn a_sentinel_of_another_service() {
    let (service, other) = (Service::watched_by(3), Service::watched_by(5));
    let (ours, theirs) = (sentinel_ports(&service), sentinel_ports(&other));
    let mut urls = in_each_order(&[ours[0], ours[1], theirs[0]], Service::url_naming);
    // One host has the right URL.
    urls.push(service.url());
    let ran = never_two_at_once(&urls);
    assert!(ran >= ROUNDS / 2, "{ran} runs");
    assert!(other.first().keys().is_empty(), "a lock was acquired there");
    // A stranger that is all that answers does not decide either.
    service.sentinels().iter().for_each(LeaseServer::kill);
    let url = &urls[0];
    Lockrun::at(url)
        .key("k")
        .command(["echo", "ran"])
        .run()
        .exited(69)
        .printed("")
        .said("of its 5 Sentinels 1 answered");
}

// The same of one that knows as few others as ours do, and of one that does not know the service: they cost nothing.
#[test]
fn a_sentinel_that_cannot_be_of_the_majority() {
    let (service, other) = (Service::watched_by(3), Redis::start());
    let lines = Service::monitoring(&other);
    let [same, unrelated] =
        [lines.clone(), lines.replace("locks", "others")].map(|lines| Redis::sentinel(&lines, None));
    let ours = sentinel_ports(&service);
    for stranger in [&same, &unrelated] {
        let urls = in_each_order(&[ours[0], ours[1], stranger.port()], Service::url_naming);
        assert_eq!(never_two_at_once(&urls[..1]), ROUNDS);
        assert!(never_two_at_once(&urls) >= ROUNDS);
    }
    let found = doctor(&Service::url_naming(&[ours[0], ours[1], same.port()])).exited(1).stdout();
    let stranger =
        format!("warn  Sentinel at 127.0.0.1:{} (one of 1) says that the primary is Redis at 127.0.0.1:", same.port());
    assert!(found.contains(&stranger) && found.contains("out of the store's URL"), "{found}");
    let found = doctor(&Service::url_naming(&[ours[0], ours[1], unrelated.port()])).exited(1).stdout();
    assert!(found.contains("it does not know the service"), "{found}");
}

// `doctor` names the stranger also where it costs every run.
#[test]
fn doctor_names_a_sentinel_of_another_service() {
    let (service, other) = (Service::watched_by(3), Service::watched_by(5));
    let (ours, theirs) = (sentinel_ports(&service), sentinel_ports(&other));
    let found = doctor(&Service::url_naming(&[ours[0], theirs[0], ours[1]])).exited(69).stdout();
    let stranger = format!("warn  Sentinel at 127.0.0.1:{} (one of 5) says that the primary is Redis", theirs[0]);
    assert!(found.contains(&stranger) && found.contains("not 3 agree"), "{found}");
}

// "A cluster's named nodes must agree on whose they are, else 69."
#[test]
fn a_node_of_another_cluster() {
    let (cluster, other) = (Cluster::start(), Cluster::start());
    let (ours, theirs) = (node_ports(&cluster), node_ports(&other));
    let mut urls = in_each_order(&[ours[0], ours[1], theirs[0]], url_of_nodes);
    urls.push(cluster.url());
    let ran = never_two_at_once(&urls);
    assert!(ran >= ROUNDS / 2, "{ran} runs");
    assert!(other.nodes().iter().all(|node| node.keys().is_empty()), "a lock was acquired there");
    // Of two nodes of different clusters, neither is believed, and neither is if it alone answers.
    let two = url_of_nodes(&[ours[0], theirs[0]]);
    let run = || Lockrun::at(&two).key("k").command(["echo", "ran"]).run().exited(69).printed("");
    run().said("are not nodes of one cluster");
    doctor(&two).exited(69);
    let found = doctor(&urls[0]).stdout();
    let stranger = format!("warn  Redis at 127.0.0.1:{} is not of the same cluster", theirs[0]);
    assert!(found.contains(&stranger), "{found}");
    cluster.nodes()[0].kill();
    run().said("of the 2 nodes that the store's URL names 1 answered as members of a cluster");
}

// "A node that has been reset … must only cost a run": it knows no cluster, and the others are enough.
#[test]
fn a_node_that_was_reset() {
    let cluster = Cluster::start();
    let replica = &cluster.nodes()[3];
    replica.ask(&["CLUSTER", "RESET", "HARD"]);
    let mut ports = node_ports(&cluster);
    ports.push(replica.port());
    let urls = in_each_order(&ports, url_of_nodes);
    assert!(never_two_at_once(&urls) >= ROUNDS);
    assert!(doctor(&urls[0]).stdout().contains("knows no cluster"));
    // It alone is no cluster, nor is it with one other.
    Lockrun::at(&url_of_nodes(&ports[2..])).key("k").command(["echo", "ran"]).run().exited(69).printed("");
    // With slots of its own it is another cluster.
    replica.ask(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    never_two_at_once(&urls);
    let found = doctor(&urls[0]).stdout();
    assert!(found.contains("is not of the same cluster"), "{found}");
    let alone = SingleNode::start();
    Lockrun::at(&alone.url_at(alone.port())).key("k").command(["echo", "ran"]).run().exited(0).printed("ran\n");
}
