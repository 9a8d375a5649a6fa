//! The simulated world: time, hosts with their clocks and networks, processes, and the queue of events.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::actors::{Actor, ActorId};
use super::command::Command;
use super::network::{Answer, Host, Letter, Request, StoreEnd};
use super::promises::Promises;
pub use super::run::{Plan, Process, Run, RunId, Side};
use super::server::Server;
use super::trace::Trace;
use super::{guardian, lockrun};
use crate::lock::lease::Deadline;
use crate::supervise::guardian::{GuardianMessage, fires_at};
use crate::sys::clock::Moment;

/// Nanoseconds of the server's clock, or a span.
pub type Nanos = u64;

pub const MILLISECOND: Nanos = 1_000_000;
pub const SECOND: Nanos = 1000 * MILLISECOND;

/// An event at a moment.
#[derive(Debug)]
pub enum Event {
    /// An actor's wait ends, if it is still this one.
    Wake { actor: ActorId, generation: u64 },
    /// A request reaches the server.
    Arrive(Box<Request>),
    /// A message from the server reaches a process.
    Deliver { store: usize, letter: Box<Letter> },
    /// One of a command's processes dies, after KILL or TERM or on its own.
    Death { run: RunId, process: usize, how: i32 },
    /// One of a command's processes starts another one.
    Fork { run: RunId },
    /// The kernel's timer goes off, if it is still set for this time.
    Watchdog { run: RunId, set_for: Nanos },
    /// A run begins on this lane.
    Start { lane: usize },
    /// Something goes wrong.
    Fault,
    /// A stopped process continues.
    Continue { run: RunId, side: Side },
    /// A host's network is sound again, or is cut off.
    Heal { host: usize },
    /// The server is up again, or continues.
    ServerBack,
    /// From now on nothing goes wrong.
    Calm,
    /// By now the lock of a run that is over must be free.
    Freed { run: RunId },
    /// All runs must have ended.
    End,
}

pub struct World {
    pub now: Nanos,
    pub steps: u64,
    pub rng: fastrand::Rng,
    pub trace: Trace,
    pub actors: Vec<Actor>,
    pub hosts: Vec<Host>,
    pub runs: Vec<Run>,
    /// The runs of which a process is alive.
    pub living: Vec<RunId>,
    pub stores: Vec<StoreEnd>,
    pub server: Server,
    pub promises: Promises,
    pub scenario: super::scenario::Scenario,
    /// Whether nothing goes wrong any more.
    pub is_calm: bool,
    /// Whether a host is losing its power now, so that its kernel does nothing more.
    pub is_power_cut: bool,
    pub failure: Option<String>,
    pub is_over: bool,
    queue: BinaryHeap<Reverse<Scheduled>>,
    scheduled: u64,
}

struct Scheduled {
    at: Nanos,
    number: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl World {
    /// Returns the world of a seed. With `records`, keeps the timeline.
    pub fn new(seed: u64, records: bool) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let scenario = super::scenario::Scenario::new(&mut rng);
        let hosts = (0..scenario.hosts).map(|_| Host::new(&mut rng)).collect();
        let mut world = World {
            now: SECOND,
            steps: 0,
            rng,
            trace: Trace::new(records),
            actors: Vec::new(),
            hosts,
            runs: Vec::new(),
            living: Vec::new(),
            stores: Vec::new(),
            server: Server::new(),
            promises: Promises::default(),
            scenario,
            is_calm: false,
            is_power_cut: false,
            failure: None,
            is_over: false,
            queue: BinaryHeap::new(),
            scheduled: 0,
        };
        for lane in 0..world.scenario.lanes {
            let at = world.now + world.rng.u64(..SECOND);
            world.schedule(at, Event::Start { lane });
        }
        world.schedule_fault();
        world.schedule(world.scenario.calm_at, Event::Calm);
        world.schedule(world.scenario.end_at, Event::End);
        world
    }

    /// Schedules `event` at this time.
    pub fn schedule(&mut self, at: Nanos, event: Event) {
        self.scheduled += 1;
        let scheduled = Scheduled { at: at.max(self.now), number: self.scheduled, event };
        self.queue.push(Reverse(scheduled));
    }

    /// Processes events until an actor must act, and returns it; `None` if nothing more happens.
    pub fn until_a_turn(&mut self) -> Option<ActorId> {
        while self.failure.is_none()
            && let Some(Reverse(Scheduled { at, event, .. })) = self.queue.pop()
        {
            self.now = at;
            if let Event::Wake { actor, generation } = event {
                let known = &self.actors[actor];
                let (run, side) = (known.run, known.side);
                let is_due = known.generation == generation && !known.has_ended;
                let process = self.runs[run].process(side);
                // A stopped process is woken when it is continued.
                if is_due && (known.is_killed || process.is_running()) {
                    self.steps += 1;
                    self.strike(run, side);
                    let is_to_act = self.actors[actor].is_killed || self.runs[run].process(side).is_running();
                    self.check();
                    if is_to_act && self.failure.is_none() {
                        self.actors[actor].generation += 1;
                        return Some(actor);
                    }
                }
            } else {
                self.steps += 1;
                self.happen(event);
                self.check();
            }
        }
        None
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Wake { .. } => unreachable!("is for an actor"),
            Event::Arrive(request) => self.arrive(*request),
            Event::Deliver { store, letter } => self.deliver(store, *letter),
            Event::Death { run, process, how } => self.process_dies(run, process, how),
            Event::Fork { run } => self.forks(run),
            Event::Watchdog { run, set_for } => {
                if self.runs[run].watchdog_at == Some(set_for) {
                    self.say(run, "the timer kills the guardian");
                    self.kill(run, Side::Guardian);
                }
            }
            Event::Start { lane } => self.start(lane),
            Event::Fault => self.fault(),
            Event::Continue { run, side } => self.continue_process(run, side),
            Event::Heal { host } => self.network_changes(host),
            Event::ServerBack => self.server_back(),
            Event::Calm => self.calm(),
            Event::Freed { run } => self.is_free_of(run),
            Event::End => {
                if let Some(run) = self.living.iter().find(|run| self.runs[**run].is_alive()) {
                    self.fail(&format!("run {run} does not come to an end"));
                }
            }
        }
    }

    /// Records that a promise was broken, which ends the simulation.
    pub fn fail(&mut self, why: &str) {
        self.trace.note(self.now, || format!("BROKEN: {why}"));
        self.failure.get_or_insert(why.to_owned());
    }

    /// Records what happens to a run.
    pub fn say(&mut self, run: RunId, what: &str) {
        let host = self.runs[run].host;
        self.trace.note(self.now, || format!("host {host} run {run:<3} {what}"));
    }

    /// Returns the delay until a woken process gets a processor.
    pub fn a_moment(&mut self) -> Nanos {
        let longest = self.scenario.latency;
        match self.rng.u32(..100) {
            0 => self.rng.u64(..longest),
            1..10 => self.rng.u64(..2 * MILLISECOND).min(longest),
            _ => self.rng.u64(..MILLISECOND / 4),
        }
    }

    fn start(&mut self, lane: usize) {
        if self.is_calm {
            return;
        }
        let run = self.runs.len();
        let (host, plan) = self.scenario.plan(&mut self.rng, lane, run);
        self.runs.push(Run {
            host,
            lane,
            lockrun: Process::new(),
            guardian: Process::new(),
            link: VecDeque::new(),
            report: None,
            command: Command::default(),
            fence: None,
            watchdog_at: None,
            takes_over_at: None,
            is_wake_set: false,
            store_user: None,
            undisturbed_since: 0,
            is_waiting: false,
            last_arrival: 0,
            plan,
        });
        self.living.push(run);
        let plan = &self.runs[run].plan;
        let text = format!(
            "begins: {:?}, ttl {:?}, {:?}, {:?}, its command lasts {} ms and starts {}",
            plan.claim.mode,
            plan.terms.ttl,
            plan.on_held,
            plan.descendants,
            plan.lasts / MILLISECOND,
            plan.forks
        );
        self.say(run, &text);
        self.begin(run, Side::Lockrun, lockrun::live);
        self.begin(run, Side::Guardian, guardian::live);
    }

    /// Starts a thread in a process.
    pub fn begin(&mut self, run: RunId, side: Side, body: impl FnOnce(RunId) + 'static) {
        let actor = super::actors::spawn(self, run, side, body);
        self.runs[run].process_mut(side).actors.push(actor);
        self.notify(actor);
    }

    /// Wakes an actor, wherever it waits.
    pub fn notify(&mut self, actor: ActorId) {
        self.wake_at(actor, self.now);
    }

    /// Wakes all threads of a process.
    pub fn notify_process(&mut self, run: RunId, side: Side) {
        for actor in self.runs[run].process(side).actors.clone() {
            self.notify(actor);
        }
    }

    /// Wakes an actor at this time at the latest.
    pub fn wake_at(&mut self, actor: ActorId, at: Nanos) {
        let at = at.max(self.now) + self.a_moment();
        let generation = self.actors[actor].generation;
        self.schedule(at, Event::Wake { actor, generation });
    }

    /// Returns what an actor's local clock shows.
    pub fn local_now(&self, actor: ActorId) -> Moment {
        self.host_of(actor).local(self.now)
    }

    pub fn local_to_global(&self, actor: ActorId, moment: Moment) -> Nanos {
        self.host_of(actor).global(moment)
    }

    fn host_of(&self, actor: ActorId) -> &Host {
        &self.hosts[self.runs[self.actors[actor].run].host]
    }

    /// Returns a signal that ends a wait, if the actor's process has received one. To the guardian, lockrun's death
    /// counts as one.
    pub fn take_signal(&mut self, actor: ActorId) -> Option<i32> {
        let Actor { run, side, .. } = self.actors[actor];
        let run = &mut self.runs[run];
        let is_pointless = side == Side::Guardian && !run.lockrun.is_alive;
        let has_term = std::mem::take(&mut run.process_mut(side).has_term);
        (has_term || is_pointless).then_some(libc::SIGTERM)
    }

    /// Kills a process at once, wherever its threads are.
    pub fn kill(&mut self, run: RunId, side: Side) {
        if !self.runs[run].process(side).is_alive {
            return;
        }
        for actor in self.runs[run].process(side).actors.clone() {
            self.kill_actor(actor);
        }
        self.process_ends(run, side);
    }

    /// Ends a process on its own, with all its threads but the acting one.
    pub fn exit(&mut self, run: RunId, side: Side, me: ActorId) {
        for actor in self.runs[run].process(side).actors.clone().into_iter().filter(|actor| *actor != me) {
            self.kill_actor(actor);
        }
        self.process_ends(run, side);
    }

    fn kill_actor(&mut self, actor: ActorId) {
        if !self.actors[actor].has_ended {
            self.actors[actor].is_killed = true;
            let generation = self.actors[actor].generation;
            self.schedule(self.now, Event::Wake { actor, generation });
        }
    }

    /// Does what the kernel does when one of lockrun's processes is gone, killed or on its own.
    fn process_ends(&mut self, run: RunId, side: Side) {
        let process = self.runs[run].process_mut(side);
        process.is_alive = false;
        process.is_stopped = false;
        let its = &mut self.runs[run];
        match side {
            Side::Guardian => {
                its.watchdog_at = None;
                its.store_user = None;
                if std::mem::take(&mut its.is_wake_set) && its.lockrun.is_alive && its.lockrun.is_stopped {
                    self.say(run, "the kernel continues lockrun");
                    self.continue_process(run, Side::Lockrun);
                }
                self.parent_of_command_died(run);
                self.notify_process(run, Side::Lockrun);
            }
            Side::Lockrun => {
                // By the parent-death signal.
                self.continue_process(run, Side::Guardian);
                self.notify_process(run, Side::Guardian);
                let (lane, at) = (self.runs[run].lane, self.now + self.rng.u64(..self.scenario.pause));
                self.schedule(at, Event::Start { lane });
            }
        }
    }

    /// Stops a process.
    pub fn stop(&mut self, run: RunId, side: Side) {
        self.runs[run].process_mut(side).is_stopped = true;
        self.runs[run].undisturbed_since = Nanos::MAX;
    }

    /// Continues a process, if it is stopped.
    pub fn continue_process(&mut self, run: RunId, side: Side) {
        let process = self.runs[run].process_mut(side);
        if process.is_alive && std::mem::take(&mut process.is_stopped) {
            self.say(run, &format!("{side:?} is continued"));
            self.notify_process(run, side);
            if self.runs[run].lockrun.is_running() && self.runs[run].guardian.is_running() {
                self.runs[run].undisturbed_since = self.now;
            }
        }
    }

    /// Sends lockrun a message from its guardian.
    pub fn send_to_lockrun(&mut self, run: RunId, message: GuardianMessage) {
        self.runs[run].link.push_back(message);
        self.notify_process(run, Side::Lockrun);
    }

    /// Sets the kernel's timer that kills the guardian, and lockrun's alarm.
    pub fn set_watchdog(&mut self, run: RunId, deadline: Deadline) {
        let at = self.hosts[self.runs[run].host].global(fires_at(deadline));
        self.runs[run].watchdog_at = Some(at);
        self.runs[run].takes_over_at = Some(fires_at(deadline));
        self.schedule(at, Event::Watchdog { run, set_for: at });
        // It waits for the alarm, whenever that rings.
        self.notify_process(run, Side::Lockrun);
    }

    /// Disarms both, and what continues lockrun when the guardian dies.
    pub fn unset_watchdog(&mut self, run: RunId) {
        let its = &mut self.runs[run];
        (its.watchdog_at, its.takes_over_at, its.is_wake_set) = (None, None, false);
    }

    /// Returns the next message in a store's mailbox.
    pub fn take_letter(&mut self, store: usize) -> Option<Letter> {
        self.stores[store].mailbox.pop_front()
    }

    /// Returns the answer to the request with this number, if it has arrived. Other messages stay.
    pub fn take_answer(&mut self, store: usize, number: u64) -> Option<Answer> {
        let mailbox = &mut self.stores[store].mailbox;
        let is_it = |letter: &Letter| matches!(letter, Letter::Answer { to, .. } if *to == number);
        let at = mailbox.iter().position(is_it)?;
        match mailbox.remove(at) {
            Some(Letter::Answer { answer, .. }) => Some(answer),
            _ => None,
        }
    }
}
