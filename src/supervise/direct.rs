//! COMMAND as lockrun's own child: no thread, no further process.

use libc::c_int;
use nix::errno::Errno;
use nix::poll::{PollTimeout, poll};

use super::spawn::{Failure, Ready, Setup};
use super::supervisor::{Finished, Supervisor};
use super::tree::Tree;
use super::{Granted, Launch, terminal};
use crate::sys::clock::{Alarm, Moment};
use crate::sys::signals::{self, Signals};
use crate::sys::wait::readable;

/// COMMAND, with lockrun as its parent.
#[derive(Debug)]
pub struct Direct {
    supervisor: Supervisor,
    has_terminal: bool,
}

impl Direct {
    /// Starts COMMAND.
    pub(super) fn start(mut ready: Ready, launch: &Launch, granted: Granted) -> Result<Self, Failure> {
        let has_terminal = terminal::is_controlling();
        let setup = Setup { own_group: !has_terminal, dies_with_parent: false, not_after: None, cgroup: None };
        let tree = Tree::start(&mut ready, setup, None, granted)?;
        Ok(Direct { supervisor: Supervisor::new(tree, launch, None, Moment::now()), has_terminal })
    }

    /// Waits for COMMAND and for signals, until all is over.
    pub(super) fn until_the_end(&mut self, signals: &Signals) -> nix::Result<Finished> {
        watch(&mut self.supervisor, self.has_terminal, signals)
    }
}

/// The loop of a process that is COMMAND's parent and lockrun itself at once.
pub(super) fn watch(supervisor: &mut Supervisor, has_terminal: bool, signals: &Signals) -> nix::Result<Finished> {
    let mut stops = JobControl::new(has_terminal);
    // Most runs have no time limit and need no timer.
    let mut alarm: Option<Alarm> = None;
    loop {
        for signal in stops.take_in(signals) {
            supervisor.forward(signal);
        }
        let stopped = supervisor.reap();
        if let Some(finished) = supervisor.proceed(Moment::now()) {
            return Ok(finished);
        }
        if stopped && stops.follows() {
            signals::stop_self();
            continue;
        }
        let wakes_at = supervisor.wakes_at();
        if alarm.is_none() && wakes_at.is_some() {
            alarm = Some(Alarm::new()?);
        }
        let waited = match &mut alarm {
            Some(alarm) => {
                alarm.set(wakes_at)?;
                poll(&mut [readable(signals), readable(alarm)], PollTimeout::NONE)
            }
            None => poll(&mut [readable(signals)], PollTimeout::NONE),
        };
        match waited {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Which signals go on to COMMAND, and when lockrun stops because COMMAND stopped.
#[derive(Debug)]
pub(super) struct JobControl {
    has_terminal: bool,
    stop_wanted: bool,
}

impl JobControl {
    pub(super) fn new(has_terminal: bool) -> Self {
        JobControl { has_terminal, stop_wanted: false }
    }

    /// Takes in the signals that have come, and gives those that are passed on to COMMAND. What the terminal sent has
    /// reached COMMAND without us, because it shares our group.
    pub(super) fn take_in(&mut self, signals: &Signals) -> Vec<c_int> {
        let mut passed_on = Vec::new();
        while let Some(caught) = signals.next() {
            if caught.signal == libc::SIGCONT {
                self.stop_wanted = false;
            }
            if signals::is_stop(caught.signal) {
                self.stop_wanted = true;
            }
            if caught.sent || !(self.has_terminal && signals::is_terminals(caught.signal)) {
                passed_on.push(caught.signal);
            }
        }
        passed_on
    }

    /// Whether lockrun stops too, now that COMMAND has. On a terminal always: the shell that started us waits for us
    /// alone, and only our stop returns its prompt. Without one, if we were told to.
    pub(super) fn follows(&mut self) -> bool {
        self.is_told() || self.has_terminal
    }

    /// Whether lockrun was told to stop.
    pub(super) fn is_told(&mut self) -> bool {
        std::mem::take(&mut self.stop_wanted)
    }
}
