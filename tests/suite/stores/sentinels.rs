//! Sentinels that do not know each other, or are silent: the living ones are asked at once, and a majority is one of all.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use crate::support::calm::{in_time, judge};
use crate::support::failover::Service;
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
        let why =
            "is one of 3, so 2 must agree, and the store's URL names only 1; name all Sentinels of the service there";
        let output = run(&all[..1]).exited(69).printed("").said(why);
        in_time(output.took, AT_ONCE, "others were waited for");
        run(&all[..2]).exited(0).printed("ran\n").silent();
    });
}
