//! Sentinels that do not know each other, or are silent: the living ones are asked at once, and a majority is one of all.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use crate::support::calm::{in_time, judge};
use crate::support::failover::Service;
use crate::support::proxy::{Mode, Proxy};
use crate::support::{LeaseServer, Lockrun, Output, Redis};

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

// The URL names three of five, and one of those hangs: two are no majority of five, but they know the others.
#[test]
fn a_majority_is_one_of_those_that_are_not_named_too() {
    judge(|| {
        let service = Service::watched_by(5);
        let all = ports(&service);
        let [first, second, third, fourth, _] = service.sentinels() else { panic!("five") };
        third.pause();
        let output = run(&all[..3]).exited(0).printed("ran\n").silent();
        in_time(output.took, AT_ONCE, "the one that hangs was waited for");
        fourth.kill();
        run(&all[..3]).exited(0).printed("ran\n").silent();
        third.resume();
        second.kill();
        run(&all[..3]).exited(0).printed("ran\n").silent();
        first.kill();
        run(&all[..3]).exited(69).printed("").said("of its 5 Sentinels 2 answered, and not 3 agree");
    });
}

// A Sentinel in the URL that belongs to another group knows none of ours, however quick it is.
#[test]
fn one_of_another_service_hides_nobody() {
    let (service, other) = (Service::watched_by(3), Redis::start());
    let other_sentinel = Redis::sentinel(&Service::monitoring(&other), None);
    let proxy = Proxy::before(&service.sentinels()[0]);
    proxy.set(Mode::Delay(Duration::from_millis(300)));
    run(&[other_sentinel.port(), proxy.port()]).exited(0).printed("ran\n").silent();
    service.sentinels()[1].kill();
    service.sentinels()[2].kill();
    run(&[other_sentinel.port(), proxy.port()]).exited(69).said("they name Redis at 127.0.0.1:");
}
