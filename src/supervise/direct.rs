//! COMMAND as lockrun's own child: no thread, no further process.

use nix::errno::Errno;
use nix::poll::{PollTimeout, poll};

use super::job::JobControl;
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
        if let Some(motion) = supervisor.reap() {
            stops.moved(motion);
        }
        if let Some(finished) = supervisor.proceed(Moment::now()) {
            return Ok(finished);
        }
        // What was just reaped is how it is.
        if stops.follows(Moment::now(), || true) {
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
