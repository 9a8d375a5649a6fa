//! A command and the processes that it starts, as the kernel sees them.

use std::time::Duration;

use super::actors::{Port, nanos};
use super::world::{Event, MILLISECOND, Nanos, RunId, Side, World};
use crate::lock::ending::Ending;
use crate::supervise::Processes;
use crate::sys::clock::Moment;

/// The cause of death of a process that ends on its own.
const BY_ITSELF: i32 = 0;

/// A command's processes; the first is the command itself.
#[derive(Debug, Default)]
pub struct Command {
    processes: Vec<Process>,
    /// How many more processes it may start while it is being killed.
    evasions: u32,
    /// Whether its processes no longer count: the command has ended, and what it left behind may live on.
    pub is_dismissed: bool,
}

#[derive(Debug)]
struct Process {
    is_alive: bool,
    is_stopped: bool,
    ignores_term: bool,
    how: Option<i32>,
    /// The process that reaps it; `None`: neither of the run's processes.
    parent: Option<Side>,
}

impl Command {
    /// Returns whether a process is alive that depends on the lock.
    pub fn is_under_lock(&self) -> bool {
        !self.is_dismissed && self.processes.iter().any(|process| process.is_alive)
    }

    /// Returns whether the command's own process is alive.
    pub fn runs(&self) -> bool {
        self.processes.first().is_some_and(|process| process.is_alive)
    }

    fn ending(&self) -> Option<Ending> {
        let how = self.processes.first()?.how?;
        Some(if how == BY_ITSELF { Ending::Exited(0) } else { Ending::Signaled(how) })
    }
}

impl World {
    /// Starts the command of a run as a child of the guardian.
    pub fn start_command(&mut self, run: RunId) {
        let plan = &self.runs[run].plan;
        let (ignores_term, forks, lasts) = (plan.ignores_term, plan.forks, plan.lasts);
        let how = Process { is_alive: true, is_stopped: false, ignores_term, how: None, parent: Some(Side::Guardian) };
        self.runs[run].command.processes.push(how);
        self.runs[run].command.evasions = forks.min(1);
        self.say(run, "starts its command");
        self.schedule(self.now + lasts, Event::Death { run, process: 0, how: BY_ITSELF });
        for _ in 0..forks {
            let at = self.now + self.rng.u64(..=lasts);
            self.schedule(at, Event::Fork { run });
        }
        self.command_has_started(run);
    }

    /// Makes the command start another process, if it can.
    pub fn forks(&mut self, run: RunId) {
        let command = &mut self.runs[run].command;
        let Some(first) = command.processes.first().filter(|first| first.is_alive && !first.is_stopped) else { return };
        let process = Process { is_alive: true, is_stopped: false, how: None, ..*first };
        command.processes.push(process);
        let process = self.runs[run].command.processes.len() - 1;
        let lasts = self.rng.u64(..2 * self.runs[run].plan.lasts);
        self.schedule(self.now + lasts, Event::Death { run, process, how: BY_ITSELF });
        self.say(run, &format!("its command starts process {process}"));
    }

    /// Sends TERM to the command's processes, and CONT to the stopped ones.
    pub fn terminate_command(&mut self, run: RunId) {
        self.say(run, "its command gets TERM");
        for process in 0..self.runs[run].command.processes.len() {
            let it = &mut self.runs[run].command.processes[process];
            it.is_stopped = false;
            if it.is_alive && !it.ignores_term {
                let at = self.now + self.rng.u64(..50 * MILLISECOND);
                self.schedule(at, Event::Death { run, process, how: libc::SIGTERM });
            }
        }
    }

    /// Sends KILL to the command's processes that this `side` reaps. A process that is just being started is missed.
    fn kill_command(&mut self, run: RunId, side: Side) {
        self.say(run, &format!("its command gets KILL from {side:?}"));
        let known = self.runs[run].command.processes.len();
        if self.runs[run].command.runs() && self.runs[run].command.evasions > 0 && self.rng.bool() {
            self.runs[run].command.evasions -= 1;
            self.forks(run);
        }
        for process in 0..known {
            let it = &self.runs[run].command.processes[process];
            if it.is_alive && it.parent == Some(side) {
                self.kill_one(run, process);
            }
        }
    }

    fn kill_one(&mut self, run: RunId, process: usize) {
        self.runs[run].command.processes[process].is_stopped = false;
        let at = self.now + self.time_to_die(run);
        self.schedule(at, Event::Death { run, process, how: libc::SIGKILL });
    }

    /// Returns how long a process takes to die of KILL: less than lockrun allows for.
    fn time_to_die(&mut self, run: RunId) -> Nanos {
        let reckoned = (self.runs[run].plan.terms.ttl / 8).min(Duration::from_secs(1));
        if self.rng.u32(..8) == 0 { self.rng.u64(..nanos(reckoned) / 5) } else { self.rng.u64(..3 * MILLISECOND) }
    }

    /// Ends a process, unless it is already dead. A stopped one that would end on its own ends later.
    pub fn process_dies(&mut self, run: RunId, process: usize, how: i32) {
        let it = &mut self.runs[run].command.processes[process];
        if !it.is_alive {
            return;
        }
        if it.is_stopped && how == BY_ITSELF {
            self.schedule(self.now + 100 * MILLISECOND, Event::Death { run, process, how });
            return;
        }
        (it.is_alive, it.how) = (false, Some(how));
        let parent = it.parent;
        self.say(run, &format!("process {process} of its command is dead ({how})"));
        if let Some(side) = parent {
            self.notify_process(run, side);
        }
    }

    /// Ends all of the command's processes at once, in a power cut.
    pub fn vanish(&mut self, run: RunId) {
        for process in &mut self.runs[run].command.processes {
            process.is_alive = false;
        }
    }

    /// Stops or continues the command's own process.
    pub fn stop_command(&mut self, run: RunId, is_stopped: bool) {
        if let Some(first) = self.runs[run].command.processes.first_mut() {
            first.is_stopped = is_stopped;
        }
    }

    /// Does what the kernel does when the guardian is gone: kills the command, and makes lockrun, if it is alive, the
    /// parent of the other processes.
    pub fn parent_of_command_died(&mut self, run: RunId) {
        let parent = self.runs[run].lockrun.is_alive.then_some(Side::Lockrun);
        let command = &mut self.runs[run].command;
        for process in &mut command.processes {
            process.parent = parent;
        }
        if command.runs() {
            self.kill_one(run, 0);
        }
    }
}

/// A command's processes, as their parent sees them.
pub struct SimulatedTree {
    pub run: RunId,
    pub side: Side,
}

impl Processes for SimulatedTree {
    fn ended(&self) -> Option<Ending> {
        Port::current().world().runs[self.run].command.ending()
    }

    fn is_gone(&self) -> bool {
        let port = Port::current();
        let world = port.world();
        let mut its = world.runs[self.run].command.processes.iter();
        !its.any(|process| process.is_alive && process.parent == Some(self.side))
    }

    fn terminate(&self, _until: Moment) {
        Port::current().world().terminate_command(self.run);
    }

    fn kill(&mut self) -> bool {
        Port::current().world().kill_command(self.run, self.side);
        true
    }
}
