//! Answers of a Redis, a Sentinel or a node that are longer than any that lockrun asks for: bounded in time and memory.

use std::fmt::Write as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::resource::Resource;
use nix::sys::signal::Signal;

use crate::support::birth::Birth;
use crate::support::fake::{Fake, Manner};
use crate::support::resp::Client;
use crate::support::{LONG, Lockrun, Output, Redis, Store, eventually, hand, stays_true_for};

/// The most memory that a call may take; most of that is its code and its threads' stacks.
const MEMORY: u64 = 128 << 20;

/// Runs a call within that memory.
fn within_memory(call: Lockrun) -> Output {
    call.birth(Birth { limits: vec![(Resource::RLIMIT_AS, MEMORY, MEMORY)], ..Birth::default() }).run()
}

/// Returns bytes that live as long as the test.
fn kept(bytes: Vec<u8>) -> &'static [u8] {
    Box::leak(bytes.into_boxed_slice())
}

/// Returns a bulk string of the protocol.
fn bulk(text: &str) -> Vec<u8> {
    format!("${}\r\n{text}\r\n", text.len()).into_bytes()
}

// "A hostile cluster node": each of many announces a list of nodes that does not end, and sends it.
#[test]
fn a_list_of_nodes_that_does_not_end() {
    let head = "$2000000000\r\naaa 127.0.0.1:1@2 myself,master - 0 0 1 connected 0-16383";
    let nodes: Vec<Fake> = (0..20).map(|_| Fake::start(Manner::Endless(head.as_bytes(), b" 9"))).collect();
    let hosts: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    let call = Lockrun::at(&format!("redis+cluster://{}", hosts.join(","))).key("k").command(["echo", "ran"]);
    let output = within_memory(call).exited(69).printed("");
    output.said("no node of the cluster answers").said("longer than anything that lockrun asks for");
}

/// Runs a call on a cluster of many nodes, each of which answers with this list.
fn on_nodes_that_list(list: &str) {
    let answer = kept(bulk(list));
    let nodes: Vec<Fake> = (0..20).map(|_| Fake::start(Manner::Answer(answer))).collect();
    let hosts: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    let call = Lockrun::at(&format!("redis+cluster://{}", hosts.join(","))).key("k").command(["echo", "ran"]);
    within_memory(call).exited(69).printed("");
}

// The same of lists that end: of one node with very many slots, and of as many nodes as there is room for.
#[test]
fn a_list_that_is_long() {
    let slots = " 9".repeat(20_000_000);
    on_nodes_that_list(&format!("aaa 127.0.0.1:1@2 myself,master - 0 0 1 connected{slots}\n"));
    let mut list = "aaa 127.0.0.1:1@2 myself,master - 0 0 1 connected 0-16383\n".to_owned();
    for number in 0..12_000 {
        writeln!(list, "{number:040} 127.0.0.1:1@2 master - 0 0 1 connected 1").expect("there is memory");
    }
    on_nodes_that_list(&list);
}

// "An ordinary answer needs at most about 1 MB": those of a Redis and of Sentinels, too.
#[test]
fn an_ordinary_answer_that_does_not_end() {
    for head in [&b"$2000000\r\n"[..], b"*1000000000\r\n"] {
        let fake = Fake::start(Manner::Flood(head));
        let sentinels = format!("redis+sentinel://127.0.0.1:{}/locks", fake.port());
        for url in [&fake.url(), &sentinels] {
            let call = Lockrun::at(url).key("k").command(["echo", "ran"]);
            within_memory(call).exited(69).printed("").said("longer than anything that lockrun asks for");
        }
    }
}

// "A listing has a limit in bytes, named when it is reached": also where there is always another page of keys.
#[test]
fn a_server_that_always_has_another_page_of_keys() {
    let names: Vec<Vec<u8>> = (0..2000).map(|number| bulk(&format!("lockrun:{{key-{number}}}:fence"))).collect();
    let page = [&b"*2\r\n$1\r\n7\r\n*2000\r\n"[..], &names.concat()].concat();
    let fake = Fake::start(Manner::Answer(kept(page)));
    for words in [&["status"][..], &["status", "--json"], &["prune", "--older-than", "1d"]] {
        let call = Lockrun::bare().args(words).args(["--store", &fake.url()]);
        within_memory(call).exited(69).printed("").said("lists more than 128 MiB of locks");
    }
}

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
    let store = Store::Redis(Redis::start());
    let Store::Redis(redis) = &store else { panic!("it is a Redis") };
    let mut full = Full::of(redis);
    let before = full.rejected();
    let call =
        Lockrun::other("reserve", &store).key("s").args(["--from=1", "--ttl", "10m", "--store-timeout", "500ms"]);
    let call = call.command(["echo", "ran"]);
    let (patient, terminated) = (call.spawn(), call.spawn());
    eventually(LONG, "both have tried twice", || full.rejected() >= before + 4);
    terminated.signal(Signal::SIGTERM);
    terminated.wait().died_of(Signal::SIGTERM).printed("").silent();
    // For 30 s, and for as long as the last pause and try took.
    patient.wait().exited(69).printed("").said("max number of clients reached").said("; tried for 3");
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

// "What failed, and what to do": an answer of something that is no Redis, and one of a Redis that is longer than any.
#[test]
fn an_answer_that_is_of_no_redis_or_too_long() {
    let html = Fake::start(Manner::Answer(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"));
    let run = |fake: &Fake| Lockrun::at(&fake.url()).key("k").command(["echo", "ran"]).run().exited(69).printed("");
    run(&html).said("is not in Redis's protocol; check the host and the port in the store's URL");
    let long = Fake::start(Manner::Answer(kept(bulk(&"x".repeat(2 << 20)))));
    run(&long).said("answered EVAL").said("longer than anything that lockrun asks for");
}
