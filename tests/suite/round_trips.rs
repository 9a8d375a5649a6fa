//! What a run costs a Redis server and the network.

use crate::support::proxy::Proxy;
use crate::support::store::Store;
use crate::support::{LONG, Lockrun, Redis, eventually};

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
    let mut run = Lockrun::at(&url).key("trips").sh("echo ready; read end; sleep 0.1").spawn();
    run.wait_for_line("ready");
    let before = proxy.connections() - connections + proxy.flights() - flights;
    assert!(before <= 2, "{before} round trips before the command starts");
    run.wait().exited(0).silent();
    let in_all = proxy.connections() - connections + proxy.flights() - flights;
    assert!(in_all <= 3, "{in_all} round trips in all");
}

// "A wake-up hands over": a waiter asks the server no more than it must, and not in a busy loop.
#[test]
fn an_idle_waiter_is_quiet() {
    let store = Store::redis();
    let redis = store.as_redis().expect("a server");
    let holder = crate::support::Holder::new(&store, "idle");
    let call = Lockrun::new(&store).key("idle").args(["--wait", "-v"]);
    let mut waiter = call.command(["true"]).spawn();
    waiter.wait_for_stderr("waiting");
    let commands = || -> i64 {
        let stats = redis.ask(&["INFO", "stats"]);
        let line = stats.text().lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
        line.expect("the server counts").trim().parse().expect("a number")
    };
    let before = commands();
    std::thread::sleep(std::time::Duration::from_secs(3));
    let cost = commands() - before;
    assert!(cost < 100, "{cost} commands in three seconds");
    holder.end();
    eventually(LONG, "the waiter has run", || waiter.has_ended());
    waiter.wait().exited(0);
}
