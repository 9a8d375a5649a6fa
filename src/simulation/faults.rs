//! The faults: at random times, and at the very steps of a process.

use super::actors::nanos;
use super::world::{Event, MILLISECOND, Nanos, Run, RunId, SECOND, Side, World};

impl World {
    /// Schedules the next fault.
    pub fn schedule_fault(&mut self) {
        if let Some(every) = self.scenario.fault_every {
            let at = self.now + self.rng.u64(..2 * every);
            self.schedule(at, Event::Fault);
        }
    }

    /// Makes something go wrong.
    pub fn fault(&mut self) {
        if self.is_calm {
            return;
        }
        self.schedule_fault();
        match self.rng.u32(..10) {
            0..4 if self.scenario.processes_fail => self.process_fault(),
            4 if self.scenario.processes_fail => self.command_fault(),
            5..8 if self.scenario.network_fails => self.network_fault(),
            8 if self.scenario.server_fails => self.server_fault(),
            9 if self.rng.u32(..10) == 0 => {
                self.trace.note(self.now, || "an administrator revokes the lock".to_owned());
                self.promises.disturbed_at = self.now;
                self.revoke();
            }
            _ => {}
        }
    }

    /// Kills or stops a process, now and then, at the very step that it is about to take.
    pub fn strike(&mut self, run: RunId, side: Side) {
        if !self.is_calm && self.scenario.processes_fail && self.rng.u32(..10_000) < self.scenario.strikes {
            if self.rng.bool() { self.try_to_kill(run, side) } else { self.try_to_stop(run, side) }
        }
    }

    fn process_fault(&mut self) {
        let Some(run) = self.some_run() else { return };
        match self.rng.u32(..12) {
            0..3 => self.try_to_kill(run, Side::Lockrun),
            3..6 => self.try_to_kill(run, Side::Guardian),
            6..8 => self.try_to_stop(run, Side::Lockrun),
            8..10 => self.try_to_stop(run, Side::Guardian),
            10 => {
                if self.runs[run].lockrun.is_alive {
                    self.say(run, "lockrun gets TERM");
                    self.runs[run].lockrun.has_term = true;
                    self.notify_process(run, Side::Lockrun);
                }
            }
            _ => self.power_cut(),
        }
    }

    /// Ends everything on a host at once.
    fn power_cut(&mut self) {
        let host = self.rng.usize(..self.hosts.len());
        self.trace.note(self.now, || format!("host {host} loses its power"));
        self.promises.disturbed_at = self.now;
        self.is_power_cut = true;
        for run in self.living.clone() {
            if self.runs[run].host == host {
                self.vanish(run);
                self.kill(run, Side::Guardian);
                self.kill(run, Side::Lockrun);
            }
        }
        self.is_power_cut = false;
    }

    fn some_run(&mut self) -> Option<RunId> {
        let alive = |run: &&RunId| self.runs[**run].lockrun.is_alive || self.runs[**run].guardian.is_alive;
        let alive: Vec<RunId> = self.living.iter().filter(alive).copied().collect();
        if alive.is_empty() { None } else { Some(alive[self.rng.usize(..alive.len())]) }
    }

    fn try_to_kill(&mut self, run: RunId, side: Side) {
        if self.runs[run].may_be_killed(side) {
            self.say(run, &format!("{side:?} is killed"));
            self.promises.disturbed_at = self.now;
            self.kill(run, side);
        }
    }

    fn try_to_stop(&mut self, run: RunId, side: Side) {
        if self.runs[run].may_be_stopped(side) {
            self.say(run, &format!("{side:?} is stopped"));
            self.promises.disturbed_at = self.now;
            self.stop(run, side);
            let longest = if self.rng.bool() { SECOND } else { 3 * nanos(self.runs[run].plan.terms.ttl) };
            let at = self.now + self.rng.u64(..longest);
            self.schedule(at, Event::Continue { run, side });
        }
    }

    fn command_fault(&mut self) {
        let Some(run) = self.some_run().filter(|run| self.runs[*run].command.runs()) else { return };
        if self.rng.bool() {
            self.say(run, "its command is killed");
            self.process_dies(run, 0, libc::SIGKILL);
        } else {
            let is_stopped = self.rng.bool();
            self.say(run, if is_stopped { "its command is stopped" } else { "its command is continued" });
            self.stop_command(run, is_stopped);
        }
    }

    fn network_fault(&mut self) {
        let host = self.rng.usize(..self.hosts.len());
        let (loses, late): ((u32, u32), Nanos) = match self.rng.u32(..6) {
            0 => ((100, 100), 0),
            1 => ((100, 0), 0),
            2 => ((0, 100), 0),
            3 => ((self.rng.u32(..60), self.rng.u32(..60)), 0),
            4 => ((0, 0), self.rng.u64(self.scenario.ttl() / 8..self.scenario.ttl() / 2)),
            _ => ((self.rng.u32(..30), self.rng.u32(..30)), self.rng.u64(MILLISECOND..20 * SECOND)),
        };
        self.trace
            .note(self.now, || format!("host {host} loses {loses:?} of 100 messages, {} ms late", late / MILLISECOND));
        (self.hosts[host].loses, self.hosts[host].late) = (loses, late);
        let lasts = if self.rng.bool() { SECOND } else { 20 * SECOND };
        let at = self.now + self.rng.u64(..lasts);
        self.schedule(at, Event::Heal { host });
    }

    /// Ends a fault of the network, or cuts a slow network off: the last messages were late, and none follow.
    pub fn network_changes(&mut self, host: usize) {
        if self.is_calm || self.hosts[host].late == 0 || self.rng.bool() {
            return self.heal(host);
        }
        self.trace.note(self.now, || format!("host {host} is cut off"));
        (self.hosts[host].loses, self.hosts[host].late) = ((100, 100), 0);
        let at = self.now + self.rng.u64(..2 * self.scenario.ttl());
        self.schedule(at, Event::Heal { host });
    }

    fn server_fault(&mut self) {
        if !self.server.is_up || self.server.is_paused {
            return;
        }
        if self.rng.bool() {
            self.trace.note(self.now, || "the server is stopped".to_owned());
            self.server.is_paused = true;
        } else {
            self.trace.note(self.now, || "the server is killed".to_owned());
            self.server_down();
        }
        let at = self.now + self.rng.u64(..5 * SECOND);
        self.schedule(at, Event::ServerBack);
    }

    /// Ends all faults for good.
    pub fn calm(&mut self) {
        self.trace.note(self.now, || "nothing goes wrong any more".to_owned());
        self.is_calm = true;
        for host in 0..self.hosts.len() {
            self.heal(host);
        }
        self.server_back();
        for run in self.living.clone() {
            self.continue_process(run, Side::Lockrun);
            self.continue_process(run, Side::Guardian);
            self.stop_command(run, false);
        }
    }
}

/// For a command that has started other processes, lockrun's promises hold if one of its two processes is killed, or if
/// either or both are stopped. If both are killed, the kernel ends the command alone.
impl Run {
    fn may_be_killed(&self, side: Side) -> bool {
        let other_helps = match side {
            Side::Lockrun => self.guardian.is_running(),
            Side::Guardian => self.lockrun.is_alive,
        };
        self.process(side).is_alive && (self.plan.forks == 0 || other_helps)
    }

    fn may_be_stopped(&self, side: Side) -> bool {
        let other = match side {
            Side::Lockrun => &self.guardian,
            Side::Guardian => &self.lockrun,
        };
        self.process(side).is_running() && (self.plan.forks == 0 || other.is_alive)
    }
}
