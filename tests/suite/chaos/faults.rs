//! What goes wrong, and when.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::workers::Workers;
use crate::support::processes::send;
use crate::support::proxy::{Mode, Proxy};
use crate::support::{LeaseServer, Store};

/// The hosts of the workers: each has a network of its own before the server.
pub(super) struct Hosts {
    proxies: Vec<Proxy>,
    url: String,
}

const HOSTS: usize = 3;

impl Hosts {
    pub(super) fn new(store: &Store) -> Self {
        let count = if store.has_leases() { HOSTS } else { 0 };
        Self { proxies: (0..count).map(|_| store.proxy()).collect(), url: store.url() }
    }

    /// The store's URL on each host.
    pub(super) fn urls(&self) -> Vec<String> {
        if self.proxies.is_empty() { vec![self.url.clone()] } else { self.proxies.iter().map(Proxy::url).collect() }
    }
}

/// What can go wrong.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// A process of a run gets a signal.
    Signal(&'static str, Signal),
    /// A process of a run is stopped for a while.
    Stop(&'static str),
    /// The network of a host behaves so for a while.
    Network(Mode),
    /// The server answers nothing for a while.
    Pause,
    /// The server is killed, and started again after a while.
    Kill,
    /// The server closes all connections.
    HangUp,
}

/// What can happen to every run.
const TO_RUNS: [Fault; 6] = [
    Fault::Signal("lockrun", Signal::SIGKILL),
    Fault::Signal("guardian", Signal::SIGKILL),
    Fault::Signal("perl", Signal::SIGKILL),
    Fault::Signal("lockrun", Signal::SIGTERM),
    Fault::Stop("lockrun"),
    Fault::Stop("guardian"),
];

/// What can happen to one whose store is a server.
const TO_SERVERS: [Fault; 9] = [
    Fault::Network(Mode::Swallow),
    Fault::Network(Mode::SwallowReplies),
    Fault::Network(Mode::SwallowAnswers),
    Fault::Network(Mode::Reset),
    Fault::Network(Mode::Refuse),
    Fault::Network(Mode::Delay(Duration::from_millis(200))),
    Fault::Pause,
    Fault::Kill,
    Fault::HangUp,
];

/// What is over, once its time has come.
enum Cure {
    Continue(i32),
    Network(usize),
    Resume,
    StartAgain,
}

/// The faults of one store, in the order that a seed fixes.
pub(super) struct Faults<'a> {
    server: Option<&'a dyn LeaseServer>,
    hosts: &'a Hosts,
    random: fastrand::Rng,
    began: Instant,
    next_at: Instant,
    cures: Vec<(Instant, Cure)>,
    /// Whether the server is stopped or dead.
    is_down: bool,
    log: Vec<(Duration, String)>,
    counts: BTreeMap<String, usize>,
}

impl<'a> Faults<'a> {
    pub(super) fn new(store: &'a Store, hosts: &'a Hosts, seed: u64) -> Self {
        let now = Instant::now();
        Self {
            server: store.lease_server(),
            hosts,
            random: fastrand::Rng::with_seed(seed),
            began: now,
            next_at: now + Duration::from_millis(300),
            cures: Vec::new(),
            is_down: false,
            log: Vec::new(),
            counts: BTreeMap::new(),
        }
    }

    /// Does what is due.
    pub(super) fn proceed(&mut self, workers: &Workers) {
        let now = Instant::now();
        let (due, later): (Vec<_>, _) = std::mem::take(&mut self.cures).into_iter().partition(|(at, _)| *at <= now);
        self.cures = later;
        for (_, cure) in due {
            self.cure(&cure);
        }
        if now < self.next_at {
            return;
        }
        self.next_at = now + Duration::from_millis(self.random.u64(20..400));
        let worker = self.random.usize(0..workers.count());
        let host = self.random.usize(0..HOSTS);
        // As often shorter than a lease as longer.
        let lasts = Duration::from_millis(if self.random.bool() {
            self.random.u64(50..1000)
        } else {
            self.random.u64(1000..5000)
        });
        let of_runs = self.server.is_none() || self.random.bool();
        let kinds: &[Fault] = if of_runs { &TO_RUNS } else { &TO_SERVERS };
        let fault = kinds[self.random.usize(0..kinds.len())];
        self.inject(fault, workers, worker, host, now + lasts);
    }

    fn inject(&mut self, fault: Fault, workers: &Workers, worker: usize, host: usize, until: Instant) {
        let mut on = String::new();
        match (fault, self.server) {
            (Fault::Signal(name, signal), _) => {
                let Some(pid) = workers.signal(worker, name, signal) else { return };
                on = format!("{pid} of worker {worker}");
            }
            (Fault::Stop(name), _) => {
                let Some(pid) = workers.signal(worker, name, Signal::SIGSTOP) else { return };
                on = format!("{pid} of worker {worker}");
                self.cures.push((until, Cure::Continue(pid)));
            }
            (Fault::Network(mode), Some(_)) => {
                self.hosts.proxies[host].set(mode);
                on = format!("host {host}");
                self.cures.push((until, Cure::Network(host)));
            }
            (Fault::Pause | Fault::Kill, Some(_)) if self.is_down => return,
            (Fault::Pause, Some(server)) => {
                server.pause();
                self.is_down = true;
                self.cures.push((until, Cure::Resume));
            }
            (Fault::Kill, Some(server)) => {
                server.kill();
                self.is_down = true;
                self.cures.push((until, Cure::StartAgain));
            }
            (Fault::HangUp, Some(server)) if !self.is_down => server.hang_up(),
            _ => return,
        }
        let lasts = until.saturating_duration_since(Instant::now()).as_millis();
        let what = format!("{fault:?}");
        self.log.push((self.began.elapsed(), format!("{what} {on} for {lasts} ms")));
        *self.counts.entry(what).or_default() += 1;
    }

    fn cure(&mut self, cure: &Cure) {
        match *cure {
            Cure::Continue(pid) => send(pid, Signal::SIGCONT),
            Cure::Network(host) => self.hosts.proxies[host].set(Mode::Pass),
            Cure::Resume => {
                self.server.expect("it was stopped").resume();
                self.is_down = false;
            }
            Cure::StartAgain => {
                self.server.expect("it was killed").start_again();
                self.is_down = false;
            }
        }
    }

    /// All is well again.
    pub(super) fn end(&mut self) {
        for (_, cure) in std::mem::take(&mut self.cures) {
            self.cure(&cure);
        }
    }

    pub(super) fn summary(&self) -> String {
        let all: Vec<String> = self.counts.iter().map(|(what, count)| format!("{what}: {count}")).collect();
        format!("{} faults ({})", self.counts.values().sum::<usize>(), all.join(", "))
    }

    /// Every fault, with its time.
    pub(super) fn log(&self) -> String {
        let line = |(at, what): &(Duration, String)| format!("{:8.3} s  {what}", at.as_secs_f64());
        self.log.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}
