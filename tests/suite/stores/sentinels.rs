//! Sentinels that do not know each other, or are silent: the living ones are asked at once, and a majority is one of
//! all.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use crate::support::calm::{in_time, judge};
use crate::support::failover::Service;
use crate::support::fake::{Fake, Manner};
use crate::support::{LeaseServer, Lockrun, Output};

/// The time-out of a request: far longer than it takes.
const TIMEOUT: &str = "20s";

/// The most that a run takes if it does not have to wait: a small part of that time-out.
const AT_ONCE: Duration = Duration::from_secs(2);

fn run(ports: &[u16]) -> Output {
    Lockrun::at(&Service::url_naming(ports))
        .key("k")
        .args(["--ttl", "5m", "--store-timeout", TIMEOUT])
        .command(["echo", "ran"])
        .run()
}

fn ports(service: &Service) -> Vec<u16> {
    service.sentinels().iter().map(LeaseServer::port).collect()
}

/// An address that no one can reach: what is sent to it vanishes.
struct Nowhere {
    listener: TcpListener,
    _queue: Vec<TcpStream>,
}

impl Nowhere {
    /// A listener whose queue is full.
    fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(0).expect("a length")).expect("it listens");
        let place = listener.local_addr().expect("its address");
        let mut queue = Vec::new();
        while let Ok(waiting) = TcpStream::connect_timeout(&place, Duration::from_millis(200)) {
            queue.push(waiting);
        }
        Self { listener, _queue: queue }
    }

    fn port(&self) -> u16 {
        self.listener.local_addr().expect("its address").port()
    }
}

// "The others are enough": silent Sentinels are not waited for, wherever they are in the URL.
#[test]
fn places_that_are_silent_are_not_waited_for() {
    judge(|| {
        let service = Service::watched_by(3);
        let (one, two) = (Nowhere::new(), Nowhere::new());
        let all: Vec<u16> = [one.port(), two.port()].into_iter().chain(ports(&service)).collect();
        let output = run(&all).exited(0).printed("ran\n").silent();
        in_time(output.took, AT_ONCE, "they were waited for");
    });
}

// The URL names three of five: "the majority is one of all", and only those that are named are asked.
#[test]
fn a_majority_is_one_of_those_that_are_not_named_too() {
    judge(|| {
        let service = Service::watched_by(5);
        let all = ports(&service);
        let [_, second, third, fourth, _] = service.sentinels() else { panic!("five") };
        run(&all[..3]).exited(0).printed("ran\n").silent();
        fourth.kill();
        let output = run(&all[..3]).exited(0).printed("ran\n").silent();
        in_time(output.took, AT_ONCE, "one was waited for that is not named");
        third.kill();
        run(&all[..3]).exited(69).printed("").said("of its 5 Sentinels 2 answered, and not 3 agree");
        // Of those that are named, the others are enough.
        let output = run(&all).exited(0).printed("ran\n").silent();
        in_time(output.took, AT_ONCE, "those that are away were waited for");
        second.kill();
        run(&all).exited(69).printed("").said("of its 5 Sentinels 2 answered, and not 3 agree");
    });
}

// "Name all Sentinels": if those that the URL names cannot be a majority, it says so at once.
#[test]
fn too_few_are_named() {
    judge(|| {
        let service = Service::watched_by(3);
        let all = ports(&service);
        let why = "is one of 3, so 2 must agree, and the store's URL names only 1; name all Sentinels of the service there, \
             or run SENTINEL RESET locks on each Sentinel if some no longer exist";
        let output = run(&all[..1]).exited(69).printed("").said(why);
        in_time(output.took, AT_ONCE, "others were waited for");
        run(&all[..2]).exited(0).printed("ran\n").silent();
    });
}

/// Returns what a Sentinel answers to all questions that says this of the primary, and knows so many others.
fn voice(primary: u16, others: usize) -> &'static [u8] {
    let bulk = |word: &str| format!("${}\r\n{word}\r\n", word.len());
    let list =
        |words: &[&str]| format!("*{}\r\n{}", words.len(), words.iter().map(|word| bulk(word)).collect::<String>());
    let (port, others) = (primary.to_string(), others.to_string());
    let master = ["ip", "127.0.0.1", "port", &port, "config-epoch", "0", "num-other-sentinels", &others];
    let all = [bulk("stranger"), list(&["127.0.0.1", &port]), list(&master)].concat();
    Box::leak(all.into_bytes().into_boxed_slice())
}

// "The others are enough" beside one that knows of more Sentinels than the URL could outvote: whichever answers first.
#[test]
fn one_that_knows_of_too_many_others() {
    let service = Service::watched_by(3);
    let ours = ports(&service);
    // Of another service, or of this one, with a number that has not been reset.
    for primary in [1, service.first().port()] {
        let stranger = Fake::start(Manner::Answer(voice(primary, 8)));
        let mut all = [stranger.port(), ours[0], ours[1]];
        for _ in 0..6 {
            all.rotate_left(1);
            run(&all).exited(0).printed("ran\n").silent();
        }
        let found = Lockrun::bare().args(["doctor", "--store", &Service::url_naming(&all)]).run().exited(1).stdout();
        let named = format!("warn  Sentinel at 127.0.0.1:{}", stranger.port());
        assert!(found.contains(&named) && found.contains("a majority of 3 Sentinels"), "{found}");
        // One alone is no majority of the three that are named.
        let other = Nowhere::new();
        let alone = Lockrun::at(&Service::url_naming(&[stranger.port(), ours[0], other.port()])).key("k");
        let output = alone.args(["--store-timeout", "1s"]).command(["echo", "ran"]).run().exited(69).printed("");
        output.said("knows of 8 others").said("SENTINEL RESET locks");
    }
}
