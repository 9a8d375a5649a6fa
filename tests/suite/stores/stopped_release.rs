//! A run that is stopped while it releases its lock, until long after the time for that: answers that have come by then
//! count.

use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::failover::{Cluster, Service};
use crate::support::processes::{is_alive, send};
use crate::support::{LONG, LeaseServer, Lockrun, Redis, eventually, redis_keys};

/// The time for the release. Its first attempt takes half of that, within which the run is stopped.
const TIMEOUT: Duration = Duration::from_secs(8);

/// Has a run release its lock at the `primary` while the `witnesses`, which must confirm its answer, are paused. Then
/// stops the run, continues the witnesses, and continues the run when the time is over. Asserts that it has nothing to
/// report.
#[track_caller]
fn releases_silently(url: &str, primary: &Redis, witnesses: &[&Redis]) {
    let timeout = format!("{}s", TIMEOUT.as_secs());
    let call = Lockrun::at(url).key("k").args(["--ttl", "10m", "--store-timeout", &timeout]);
    let mut run = call.sh("echo ready; read line || :").with_open_input();
    run.run.wait_for_line("ready");
    let is_held = || primary.keys().contains(&redis_keys::holders("k"));
    assert!(is_held());
    let lockruns: Vec<i32> = run.run.guardians().into_iter().chain([run.run.pid()]).collect();
    for witness in witnesses {
        witness.pause();
    }
    let run = run.close();
    eventually(LONG, "it has released the lock, and waits for the confirmation", || !is_held());
    assert!(lockruns.iter().all(|pid| is_alive(*pid)), "{lockruns:?}");
    for pid in &lockruns {
        send(*pid, Signal::SIGSTOP);
    }
    for witness in witnesses {
        witness.resume();
    }
    thread::sleep(TIMEOUT + Duration::from_millis(500));
    for pid in &lockruns {
        send(*pid, Signal::SIGCONT);
    }
    run.wait().exited(0).printed("ready\n").silent();
}

#[test]
fn under_sentinel() {
    let service = Service::watched_by(3);
    let sentinels: Vec<&Redis> = service.sentinels().iter().collect();
    releases_silently(&service.url(), service.first(), &sentinels);
}

#[test]
fn in_a_cluster() {
    let cluster = Cluster::start();
    let shard = cluster.shard("k");
    let others: Vec<&Redis> = (0..3).filter(|at| *at != shard).map(|at| &cluster.nodes()[at]).collect();
    releases_silently(&cluster.url(), &cluster.nodes()[shard], &others);
}
