//! A server that takes no more connections is a busy one: what is asked of it is tried again, each kind of request for
//! as long as it is worth it.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::calm::{held_in_time, judge};
use crate::support::resp::Client;
use crate::support::{LONG, Lockrun, Redis, Store, eventually, hand, stays_true_for};

/// Uses up all connections that a server may have.
struct Full {
    _clients: Vec<UnixStream>,
    control: Client,
}

impl Full {
    fn of(redis: &Redis) -> Self {
        let mut control = Client::connect(&redis.socket()).expect("it listens");
        let clients = (0..4).map(|_| UnixStream::connect(redis.socket()).expect("it listens")).collect();
        control.ask(&["CONFIG", "SET", "maxclients", "4"]).expect("it answers");
        Self { _clients: clients, control }
    }

    /// Returns how many clients the server has rejected.
    fn rejected(&mut self) -> u64 {
        let said = self.control.ask(&["INFO", "stats"]).expect("it answers");
        let count = said.text().lines().find_map(|line| line.strip_prefix("rejected_connections:")).expect("a count");
        count.trim().parse().expect("a number")
    }
}

// "Redis' maxclients is worth trying again within the time-out": the owner of a lock by hand can renew and release it.
#[test]
fn a_server_that_is_full_for_a_moment() {
    let store = Store::Redis(Redis::start());
    let Store::Redis(redis) = &store else { panic!("it is a Redis") };
    let token = hand::token(&store, "hand", &["--ttl", "none"]);
    for words in [&["renew"][..], &["release"]] {
        let mut full = Full::of(redis);
        let before = full.rejected();
        let call = Lockrun::other(words[0], &store).key("hand").args(["--token", &token, "--store-timeout", "1m"]);
        let asked = call.spawn();
        eventually(LONG, "it was rejected", || full.rejected() >= before + 2);
        full.control.ask(&["CONFIG", "SET", "maxclients", "100"]).expect("it answers");
        asked.wait().exited(0).silent();
    }
    assert!(!hand::is_held(&store, "hand"));
    // A run does the same.
    let mut full = Full::of(redis);
    let before = full.rejected();
    let run =
        Lockrun::new(&store).key("k").args(["--ttl", "10m", "--store-timeout", "1m"]).command(["echo", "ran"]).spawn();
    eventually(LONG, "it was rejected", || full.rejected() >= before + 2);
    full.control.ask(&["CONFIG", "SET", "maxclients", "100"]).expect("it answers");
    run.wait().exited(0).printed("ran\n").silent();
}

// "What failed": a reservation that waits for a full server says for how long it was tried, and TERM terminates it.
#[test]
fn a_reservation_gives_up_on_a_full_server() {
    judge(|| {
        let store = Store::Redis(Redis::start());
        let Store::Redis(redis) = &store else { panic!("it is a Redis") };
        let mut full = Full::of(redis);
        let before = full.rejected();
        let call = Lockrun::other("reserve", &store).key("s").args(["--from=1", "--ttl", "10m"]);
        let call = call.command(["echo", "ran"]);
        let (patient, terminated) = (call.spawn(), call.spawn());
        eventually(LONG, "both have tried twice", || full.rejected() >= before + 4);
        terminated.signal(Signal::SIGTERM);
        terminated.wait().died_of(Signal::SIGTERM).printed("").silent();
        // For 30 s, and for as long as the last pause and try took.
        let gave_up = patient.wait().exited(69).printed("");
        held_in_time(!gave_up.stderr().contains("did not answer in time"), "the server rejects it in time");
        gave_up.said("max number of clients reached").said("; tried for 3");
    });
}

// "TERM while it waits terminates it, and nothing is left behind": also while the server is full.
#[test]
fn a_waiter_hears_a_signal_while_the_server_is_full() {
    let redis = Redis::start();
    let mut full = Full::of(&redis);
    let before = full.rejected();
    // Longer than this test waits.
    let call = Lockrun::at(&redis.url()).key("k").args(["--wait", "--ttl", "1h", "--store-timeout", "10m"]);
    let waiter = call.command(["echo", "ran"]).spawn();
    eventually(LONG, "it was rejected", || full.rejected() >= before + 2);
    waiter.signal(Signal::SIGTERM);
    waiter.wait().died_of(Signal::SIGTERM).printed("").silent();
}

// "A full server is a busy one": a waiter, and a reservation, go on for longer than a request may take.
#[test]
fn a_full_server_is_waited_for() {
    let store = Store::Redis(Redis::start());
    let Store::Redis(redis) = &store else { panic!("it is a Redis") };
    for call in
        [Lockrun::new(&store).key("k").arg("--wait"), Lockrun::other("reserve", &store).key("s").arg("--from=1")]
    {
        let mut full = Full::of(redis);
        let before = full.rejected();
        let call = call.args(["--ttl", "10m", "--store-timeout", "500ms"]);
        let mut run = call.command(["echo", "ran"]).spawn();
        eventually(LONG, "it was rejected", || full.rejected() > before);
        stays_true_for(Duration::from_secs(2), "it waits", || !run.has_ended());
        full.control.ask(&["CONFIG", "SET", "maxclients", "100"]).expect("it answers");
        run.wait().exited(0).printed("ran\n").silent();
    }
}
