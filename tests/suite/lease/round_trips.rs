//! What a run costs a Redis server and the network.

use crate::support::proxy::Proxy;
use crate::support::{Lockrun, Redis};

/// A server with a password, a network that counts, and the URL of a database there.
fn counted() -> (Redis, Proxy, String) {
    let redis = Redis::with_password("pw");
    let proxy = Proxy::to(redis.port());
    let url = format!("redis://:pw@127.0.0.1:{}/3", proxy.port());
    // The server keeps the scripts from the first time on.
    Lockrun::at(&url).key("warm").command(["true"]).run().exited(0);
    (redis, proxy, url)
}

// "Round trips before COMMAND starts, Redis with AUTH and SELECT, TCP handshake counted: 2. Round trips in all: 3."
#[test]
fn a_run_takes_three_round_trips() {
    let (_redis, proxy, url) = counted();
    let (connections, flights) = (proxy.connections(), proxy.flights());
    let mut run = Lockrun::at(&url).key("trips").sh("echo ready; read line || :").with_open_input();
    run.run.wait_for_line("ready");
    let before = proxy.connections() - connections + proxy.flights() - flights;
    assert!(before <= 2, "{before} round trips before the command starts");
    run.finish().exited(0).silent();
    let in_all = proxy.connections() - connections + proxy.flights() - flights;
    assert!(in_all <= 3, "{in_all} round trips in all");
}
