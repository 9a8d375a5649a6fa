//! What goes wrong, and when.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::workers::{Who, Workers, now};
use crate::support::processes::send;
use crate::support::proxy::{Mode, Proxy};
use crate::support::{LeaseServer, Redis, Store};

/// The hosts of the workers: each has a network of its own before the server.
pub(super) struct Hosts {
    proxies: Vec<Proxy>,
    url: String,
}

const HOSTS: usize = 3;

/// How often another fault is drawn where one could not be: there was no such process, or the server is down already.
const DRAWS: usize = 20;

/// For how long faults that could not be injected in time are made up for.
const CATCH_UP: Duration = Duration::from_secs(1);

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
    /// Processes of a run get a signal, all at once.
    Signal(&'static [Who], Signal),
    /// They are stopped for a while.
    Stop(&'static [Who]),
    /// The network of a host behaves so for a while.
    Network(Mode),
    /// The server answers nothing for a while.
    Pause,
    /// The server is killed, and started again after a while.
    Kill,
    /// The server closes all connections.
    HangUp,
    /// Redis forgets the scripts that it knows.
    ForgetScripts,
}

/// What can happen to every run.
const TO_RUNS: [Fault; 9] = [
    Fault::Signal(&[Who::Lockrun], Signal::SIGKILL),
    Fault::Signal(&[Who::Guardian], Signal::SIGKILL),
    Fault::Signal(&[Who::Command], Signal::SIGKILL),
    Fault::Signal(&[Who::Lockrun, Who::Guardian], Signal::SIGKILL),
    Fault::Signal(&[Who::Lockrun], Signal::SIGTERM),
    Fault::Stop(&[Who::Lockrun]),
    Fault::Stop(&[Who::Guardian]),
    Fault::Stop(&[Who::Command]),
    Fault::Stop(&[Who::Lockrun, Who::Guardian]),
];

/// What can happen to the network of a host.
const TO_HOSTS: [Fault; 6] = [
    Fault::Network(Mode::Swallow),
    Fault::Network(Mode::SwallowReplies),
    Fault::Network(Mode::SwallowAnswers),
    Fault::Network(Mode::Reset),
    Fault::Network(Mode::Refuse),
    Fault::Network(Mode::Delay(Duration::from_millis(200))),
];

/// What can happen to a server.
const TO_SERVERS: [Fault; 4] = [Fault::Pause, Fault::Kill, Fault::HangUp, Fault::ForgetScripts];

/// To whom something was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Run(usize),
    Host(usize),
    Server,
}

/// A fault that was injected, from when to when by the boot clock, in nanoseconds.
#[derive(Clone, Debug)]
pub(super) struct Injected {
    pub(super) what: String,
    /// It killed lockrun or the guardian.
    pub(super) has_killed: bool,
    pub(super) target: Target,
    pub(super) from: i64,
    pub(super) to: i64,
}

/// What is over, once its time has come.
enum Cure {
    Continue(Vec<i32>),
    Network(usize),
    Resume,
    StartAgain,
}

/// The faults of one store, in the order that a seed fixes.
pub(super) struct Faults<'a> {
    server: Option<&'a dyn LeaseServer>,
    redis: Option<&'a Redis>,
    hosts: &'a Hosts,
    random: fastrand::Rng,
    next_at: Instant,
    /// When something is over, and which of the injected faults that ends.
    cures: Vec<(Instant, usize, Cure)>,
    injected: Vec<Injected>,
}

impl<'a> Faults<'a> {
    pub(super) fn new(store: &'a Store, hosts: &'a Hosts, seed: u64) -> Self {
        Self {
            server: store.lease_server(),
            redis: store.as_redis(),
            hosts,
            random: fastrand::Rng::with_seed(seed),
            next_at: Instant::now() + Duration::from_millis(300),
            cures: Vec::new(),
            injected: Vec::new(),
        }
    }

    /// Does what is due.
    pub(super) fn proceed(&mut self, workers: &Mutex<Workers>) {
        let now = Instant::now();
        let (due, later): (Vec<_>, _) = std::mem::take(&mut self.cures).into_iter().partition(|(at, ..)| *at <= now);
        self.cures = later;
        for (_, number, cure) in due {
            self.cure(number, &cure);
        }
        if now < self.next_at {
            return;
        }
        let drawn = (0..DRAWS).any(|_| self.draw(workers));
        let pause = if drawn { self.random.u64(20..300) } else { 20 };
        // What took its time, such as a server's start, is made up for.
        let due = self.next_at + Duration::from_millis(pause);
        self.next_at = if due + CATCH_UP < now { now } else { due };
    }

    /// Injects a fault; false where it cannot be.
    fn draw(&mut self, workers: &Mutex<Workers>) -> bool {
        // What strikes all at once is rare, or there would be little left to strike.
        let kinds: &[Fault] = match self.random.u8(0..20) {
            0..15 => &TO_RUNS,
            _ if self.server.is_none() => &TO_RUNS,
            15..19 => &TO_HOSTS,
            _ => &TO_SERVERS,
        };
        let fault = kinds[self.random.usize(0..kinds.len())];
        // Some are longer than a lease.
        let lasts = Duration::from_millis(match self.random.u8(0..10) {
            0..5 => self.random.u64(50..500),
            5..8 => self.random.u64(500..1500),
            _ => self.random.u64(1500..5000),
        });
        let from = now();
        let Some((target, cure)) = self.inject(fault, workers) else { return false };
        let (number, until) = (self.injected.len(), Instant::now() + lasts);
        let is_over_at_once = cure.is_none();
        self.cures.extend(cure.map(|cure| (until, number, cure)));
        let to = if is_over_at_once { now() } else { i64::MAX };
        let mut what = format!("{fault:?}");
        what.retain(|letter| !"[]".contains(letter));
        let has_killed = matches!(fault, Fault::Signal(who, Signal::SIGKILL) if *who != [Who::Command]);
        self.injected.push(Injected { what, has_killed, target, from, to });
        true
    }

    /// Lets this happen, if it can; says to whom, and what will end it.
    fn inject(&mut self, fault: Fault, workers: &Mutex<Workers>) -> Option<(Target, Option<Cure>)> {
        let is_down = self.cures.iter().any(|(.., cure)| matches!(cure, Cure::Resume | Cure::StartAgain));
        match fault {
            Fault::Signal(who, signal) => {
                let (run, _) = self.signal(workers, who, signal)?;
                Some((Target::Run(run), None))
            }
            Fault::Stop(who) => {
                let (run, pids) = self.signal(workers, who, Signal::SIGSTOP)?;
                Some((Target::Run(run), Some(Cure::Continue(pids))))
            }
            Fault::Network(mode) => {
                let host = self.random.usize(0..HOSTS);
                if self.cures.iter().any(|(.., cure)| matches!(cure, Cure::Network(other) if *other == host)) {
                    return None;
                }
                self.hosts.proxies[host].set(mode);
                Some((Target::Host(host), Some(Cure::Network(host))))
            }
            _ if is_down => None,
            Fault::Pause => {
                self.server?.pause();
                Some((Target::Server, Some(Cure::Resume)))
            }
            Fault::Kill => {
                self.server?.kill();
                Some((Target::Server, Some(Cure::StartAgain)))
            }
            Fault::HangUp => {
                self.server?.hang_up();
                Some((Target::Server, None))
            }
            Fault::ForgetScripts => {
                self.redis?.ask(&["SCRIPT", "FLUSH"]);
                Some((Target::Server, None))
            }
        }
    }

    fn signal(&mut self, workers: &Mutex<Workers>, who: &[Who], signal: Signal) -> Option<(usize, Vec<i32>)> {
        let workers = workers.lock().expect("no worker has panicked");
        // As often to one that holds a lock as to any.
        workers.signal(self.random.usize(0..workers.count()), self.random.bool(), who, signal)
    }

    fn cure(&mut self, number: usize, cure: &Cure) {
        match cure {
            Cure::Continue(pids) => pids.iter().for_each(|pid| send(*pid, Signal::SIGCONT)),
            Cure::Network(host) => self.hosts.proxies[*host].set(Mode::Pass),
            Cure::Resume => self.server.expect("it was stopped").resume(),
            Cure::StartAgain => self.server.expect("it was killed").start_again(),
        }
        self.injected[number].to = now();
    }

    /// All is well again. Returns what was not.
    pub(super) fn end(mut self) -> Vec<Injected> {
        for (_, number, cure) in std::mem::take(&mut self.cures) {
            self.cure(number, &cure);
        }
        self.injected
    }
}

/// How many faults of each kind there were.
pub(super) fn by_kind(faults: &[Injected]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for fault in faults {
        *counts.entry(fault.what.as_str()).or_default() += 1;
    }
    counts
}

/// Every fault, with the time since a moment at which it began, and for how long.
pub(super) fn log(faults: &[Injected], since: i64) -> String {
    let line = |fault: &Injected| {
        let ms = |nanos: i64| nanos / 1_000_000;
        format!(
            "{:8} ms  {} to {:?} for {} ms",
            ms(fault.from - since),
            fault.what,
            fault.target,
            ms(fault.to - fault.from)
        )
    };
    faults.iter().map(line).collect::<Vec<_>>().join("\n")
}
