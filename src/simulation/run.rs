//! A run of lockrun: its plan, and its processes.

use std::collections::VecDeque;
use std::time::Duration;

use super::actors::ActorId;
use super::command::Command;
use super::world::Nanos;
use crate::config::plan::OnHeld;
use crate::lock::claim::Claim;
use crate::lock::lease::Terms;
use crate::supervise::Descendants;
use crate::supervise::guardian::{GuardianMessage, Report};
use crate::sys::clock::Moment;

/// The number of a run.
pub type RunId = usize;

/// One of the two processes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Lockrun,
    Guardian,
}

/// One of lockrun's processes.
#[derive(Debug)]
pub struct Process {
    pub is_alive: bool,
    pub is_stopped: bool,
    pub actors: Vec<ActorId>,
    /// Whether TERM has arrived.
    pub has_term: bool,
}

impl Process {
    pub fn new() -> Self {
        Process { is_alive: true, is_stopped: false, actors: Vec::new(), has_term: false }
    }

    pub fn is_running(&self) -> bool {
        self.is_alive && !self.is_stopped
    }
}

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub claim: Claim,
    pub terms: Terms,
    pub on_held: OnHeld,
    pub store_retry: Duration,
    pub descendants: Descendants,
    pub max_runtime: Option<Duration>,
    pub min_hold: Duration,
    /// How long its command runs if nothing ends it.
    pub lasts: Nanos,
    /// How many other processes its command starts.
    pub forks: u32,
    pub ignores_term: bool,
}

/// A run of lockrun.
#[derive(Debug)]
pub struct Run {
    pub host: usize,
    pub lane: usize,
    pub plan: Plan,
    pub lockrun: Process,
    pub guardian: Process,
    /// Messages from the guardian to lockrun.
    pub link: VecDeque<GuardianMessage>,
    /// The renewer's latest report to the guardian, until that reads it.
    pub report: Option<Report>,
    pub command: Command,
    /// The fence of its grant, once it has one.
    pub fence: Option<u64>,
    /// When the kernel's timer kills the guardian, if it is set.
    pub watchdog_at: Option<Nanos>,
    /// When lockrun's alarm rings, if it is set. It outlives the guardian.
    pub takes_over_at: Option<Moment>,
    /// Whether the kernel continues lockrun when the guardian dies.
    pub is_wake_set: bool,
    /// The actor that uses the shared store at the moment.
    pub store_user: Option<ActorId>,
    /// Since when neither of its processes has been stopped.
    pub undisturbed_since: Nanos,
    pub is_waiting: bool,
    /// When one of its requests last reached the server.
    pub last_arrival: Nanos,
}

impl Run {
    pub fn process(&self, side: Side) -> &Process {
        match side {
            Side::Lockrun => &self.lockrun,
            Side::Guardian => &self.guardian,
        }
    }

    pub fn process_mut(&mut self, side: Side) -> &mut Process {
        match side {
            Side::Lockrun => &mut self.lockrun,
            Side::Guardian => &mut self.guardian,
        }
    }

    /// Returns whether one of lockrun's processes, or one that depends on the lock, is alive.
    pub fn is_alive(&self) -> bool {
        self.lockrun.is_alive || self.guardian.is_alive || self.command.is_under_lock()
    }
}
