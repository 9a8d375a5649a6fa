//! What goes wrong, and when.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::hosts::Host;
use super::kinds::{Fault, TO_NETWORKS, TO_RUNS};
use super::subject::Subject;
use super::workers::{LOCKS, Who, Workers, now};
use crate::support::Lockrun;
use crate::support::deadline::{LONG, eventually};
use crate::support::failover::{cut_off_replicas, cut_off_sentinels, join_again};
use crate::support::processes::send;
use crate::support::proxy::Mode;

/// How often another fault is drawn if one could not be injected: there was no such process, or the server is already
/// down.
const DRAWS: usize = 20;

/// How far behind its schedule fault injection may be and still catch up.
const CATCH_UP: Duration = Duration::from_secs(1);

/// How often servers are looked at that are to get over something.
const LOOK: Duration = Duration::from_millis(100);

/// What a fault was injected into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Run(usize),
    Host(usize),
    /// The server, or a primary and what follows it.
    Server(usize),
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

/// How a fault is ended once its time has come.
enum Cure {
    Continue(Vec<i32>),
    Network(usize),
    Resume(usize),
    /// It is killed, and so is not over yet.
    Kill(usize),
    StartAgain(usize),
    JoinAgain(usize),
    FreeDisk,
    /// There is room again; the server's file may have to be replaced.
    Rewrite,
    /// The servers have got over it.
    Whole,
}

impl Cure {
    fn is_of_servers(&self) -> bool {
        !matches!(self, Cure::Continue(_) | Cure::Network(_))
    }
}

/// The faults of one store, in the order that a seed fixes.
pub(super) struct Faults<'a> {
    subject: &'a Subject<'a>,
    hosts: &'a [Host],
    random: fastrand::Rng,
    next_at: Instant,
    /// When and how each of the injected faults is ended, with its number.
    cures: Vec<(Instant, usize, Cure)>,
    injected: Vec<Injected>,
}

impl<'a> Faults<'a> {
    pub(super) fn new(subject: &'a Subject<'a>, hosts: &'a [Host], seed: u64) -> Self {
        Self {
            subject,
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
        // Catches up on time that was lost, such as for a server's start.
        let due = self.next_at + Duration::from_millis(pause);
        self.next_at = if due + CATCH_UP < now { now } else { due };
    }

    /// Injects a fault; returns false if it cannot be injected.
    fn draw(&mut self, workers: &Mutex<Workers>) -> bool {
        let strikes_servers = !matches!(self.subject, Subject::Plain(_));
        // What strikes all at once is rare, or there would be little left to strike; unless the store is here for just
        // that.
        let to_servers = self.subject.faults();
        let kinds: &[Fault] = match self.random.u8(0..20) {
            _ if self.injected.is_empty() && strikes_servers => &to_servers[..1],
            0..15 => &TO_RUNS,
            15..17 => &TO_NETWORKS,
            17..19 if !strikes_servers => &TO_NETWORKS,
            _ => to_servers,
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
        let lasts = if matches!(fault, Fault::HangUp | Fault::ForgetScripts) { Duration::ZERO } else { lasts };
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

    /// Injects this fault, if possible; returns its target, and what will end it.
    fn inject(&mut self, fault: Fault, workers: &Mutex<Workers>) -> Option<(Target, Option<Cure>)> {
        let host = self.random.usize(0..self.hosts.len());
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
                let is_it = |cure: &Cure| matches!(cure, Cure::Network(other) if *other == host);
                if !self.hosts[host].has_network() || self.cures.iter().any(|(.., cure)| is_it(cure)) {
                    return None;
                }
                self.hosts[host].disturb(mode);
                Some((Target::Host(host), Some(Cure::Network(host))))
            }
            // One after the other: without two of its servers a store grants nothing, and one that is killed while its
            // disk is full forgets.
            _ if self.cures.iter().any(|(.., cure)| cure.is_of_servers()) => None,
            _ => {
                let primaries = self.subject.primaries();
                let number = *primaries.get(self.random.usize(0..primaries.len().max(1)))?;
                Some((Target::Server(number), Some(self.strike(fault, number)?)))
            }
        }
    }

    /// Lets this happen to a server, if it can; says what will end it.
    fn strike(&mut self, fault: Fault, number: usize) -> Option<Cure> {
        let (subject, random) = (self.subject, &mut self.random);
        let server = || subject.server(number);
        match fault {
            Fault::Pause => {
                server()?.pause();
                Some(Cure::Resume(number))
            }
            Fault::Kill => {
                server()?.kill();
                Some(Cure::StartAgain(number))
            }
            Fault::HangUp => {
                server()?.hang_up();
                Some(Cure::Whole)
            }
            Fault::ForgetScripts => {
                subject.redis(number)?.ask(&["SCRIPT", "FLUSH"]);
                Some(Cure::Whole)
            }
            Fault::FailOver => subject.replicated()?.fail_over(number, random).then_some(Cure::Whole),
            Fault::MoveSlot => {
                let lock = LOCKS[random.usize(0..LOCKS.len())];
                subject.replicated()?.move_slot_of(lock, random).then_some(Cure::Whole)
            }
            Fault::LoseWrites => {
                cut_off_replicas(subject.redis(number)?);
                Some(Cure::Kill(number))
            }
            Fault::CutOff => {
                let primary = subject.redis(number)?;
                cut_off_replicas(primary);
                cut_off_sentinels(primary);
                Some(Cure::JoinAgain(number))
            }
            Fault::FillDisk => {
                for lock in LOCKS {
                    // Refused where it is held.
                    Lockrun::bare().args(["prune", "--store", &subject.url(), lock]).run();
                }
                subject.disk()?.fill();
                Some(Cure::FreeDisk)
            }
            Fault::Signal(..) | Fault::Stop(_) | Fault::Network(_) => unreachable!("not to a server"),
        }
    }

    fn signal(&mut self, workers: &Mutex<Workers>, who: &[Who], signal: Signal) -> Option<(usize, Vec<i32>)> {
        let workers = workers.lock().expect("no worker has panicked");
        // Half of the signals go to a run that holds a lock, the others to any.
        workers.signal(self.random.usize(0..workers.count()), self.random.bool(), who, signal)
    }

    fn cure(&mut self, number: usize, cure: &Cure) {
        let server = |at: usize| self.subject.server(at).expect("it was struck");
        match cure {
            Cure::Continue(pids) => pids.iter().for_each(|pid| send(*pid, Signal::SIGCONT)),
            Cure::Network(host) => self.hosts[*host].disturb(Mode::Pass),
            Cure::Resume(at) => server(*at).resume(),
            Cure::Kill(at) => {
                server(*at).kill();
                let back_at = Instant::now() + Duration::from_millis(self.random.u64(50..5000));
                self.cures.push((back_at, number, Cure::StartAgain(*at)));
                return;
            }
            Cure::StartAgain(at) => server(*at).start_again(),
            Cure::JoinAgain(at) => join_again(self.subject.redis(*at).expect("it was struck")),
            Cure::FreeDisk => {
                self.subject.disk().expect("it is full").free();
                return self.cure(number, &Cure::Rewrite);
            }
            Cure::Rewrite if !self.subject.rewrite() => return self.later(number, Cure::Rewrite),
            Cure::Rewrite | Cure::Whole => {}
        }
        if cure.is_of_servers() && !self.subject.is_whole() {
            return self.later(number, Cure::Whole);
        }
        self.injected[number].to = now();
    }

    /// Tries this a little later.
    fn later(&mut self, number: usize, next: Cure) {
        self.cures.push((Instant::now() + LOOK, number, next));
    }

    /// All is well again. Returns what was not.
    #[track_caller]
    pub(super) fn end(mut self) -> Vec<Injected> {
        eventually(LONG * 2, "the servers get over all that was done to them", || {
            for (_, number, cure) in std::mem::take(&mut self.cures) {
                self.cure(number, &cure);
            }
            self.cures.is_empty()
        });
        self.injected
    }
}

/// Returns how many faults of each kind there were.
pub(super) fn by_kind(faults: &[Injected]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for fault in faults {
        *counts.entry(fault.what.as_str()).or_default() += 1;
    }
    counts
}

/// Returns every fault, with when it began, counted from `since`, and how long it lasted.
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
