//! A run of lockrun: how it is to go, and its processes.

use std::collections::VecDeque;
use std::time::Duration;

use super::actors::ActorId;
use super::command::Command;
use super::world::Nanos;
use crate::config::plan::OnHeld;
use crate::lock::claim::Claim;
use crate::lock::lease::{Deadline, Terms};
use crate::supervise::Descendants;
use crate::supervise::guardian::GuardianMessage;

/// The number of a run.
pub type RunId = usize;

/// Which of the two processes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Lockrun,
    Guardian,
}

/// A process of lockrun's.
#[derive(Debug)]
pub struct Process {
    pub is_alive: bool,
    pub is_stopped: bool,
    pub actors: Vec<ActorId>,
    /// TERM has come.
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

/// How a run is to go.
#[derive(Clone, Debug)]
pub struct Plan {
    pub claim: Claim,
    pub terms: Terms,
    pub on_held: OnHeld,
    pub descendants: Descendants,
    pub max_runtime: Option<Duration>,
    pub min_hold: Duration,
    /// How long its command lasts if nothing ends it.
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
    /// From the guardian to lockrun.
    pub link: VecDeque<GuardianMessage>,
    /// From the renewer to the guardian: a new deadline, or that the lease is lost.
    pub renewals: VecDeque<Option<Deadline>>,
    pub command: Command,
    /// The fence of its grant, once it has one.
    pub fence: Option<u64>,
    /// When the timer is set for, if it is.
    pub last_line: Option<Nanos>,
    /// Whether the kernel continues lockrun when the guardian dies.
    pub is_wake_set: bool,
    /// Which actor uses the shared store at the moment.
    pub store_user: Option<ActorId>,
    /// Since when it waits in the queue undisturbed.
    pub undisturbed_since: Nanos,
    pub is_waiting: bool,
    /// When a request of its was last heard by the server.
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

    /// Returns whether a process of lockrun's or one that the lock is held for is alive.
    pub fn is_alive(&self) -> bool {
        self.lockrun.is_alive || self.guardian.is_alive || self.command.is_under_lock()
    }
}
