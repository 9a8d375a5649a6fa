//! COMMAND as lockrun's own child: without a guardian and without threads.

use libc::pid_t;
use nix::errno::Errno;
use nix::poll::{PollTimeout, poll};

use super::job::JobControl;
use super::proc_access::ProcAccess;
use super::spawn::{Exec, Failure, Setup};
use super::supervisor::{Finished, Supervisor};
use super::tree::Tree;
use super::{Launch, Running, terminal};
use crate::sys::clock::{Alarm, Moment};
use crate::sys::signals::{self, Signals};
use crate::sys::wait::{readable, time_until};

/// Starts COMMAND as `launch` says, as a child of this process.
pub(super) fn start(
    mut exec: Exec,
    launch: &Launch,
    access: ProcAccess,
    alarm: Option<Alarm>,
) -> Result<Running, Failure> {
    let has_terminal = terminal::is_controlling();
    let setup = Setup { own_group: !has_terminal, dies_with_parent: false, not_after: None };
    let tree = Tree::start(&mut exec, setup, access)?;
    let supervisor = Supervisor::new(tree, launch, None, Moment::now());
    Ok(Running { supervisor, has_terminal, alarm, guard: None })
}

/// Waits for COMMAND and for signals until the run is over, in a process that is both lockrun and COMMAND's parent. If
/// it has to wait for processes that cannot be killed, calls `report_stuck` once with their ids. Without an `alarm`,
/// poll(2)'s own time-outs serve.
pub(super) fn watch(
    supervisor: &mut Supervisor,
    has_terminal: bool,
    signals: &Signals,
    report_stuck: &dyn Fn(&[pid_t]),
    mut alarm: Option<Alarm>,
) -> nix::Result<Finished> {
    let mut job = JobControl::new(has_terminal, supervisor.missed());
    loop {
        for signal in job.take_pending(signals) {
            supervisor.forward(signal);
        }
        let awaited_descendants = supervisor.awaits_descendants().is_some();
        if let Some(job_state) = supervisor.reap() {
            job.state_changed(job_state);
        }
        if supervisor.awaits_descendants().is_some() && !awaited_descendants {
            job.awaits_descendants(Moment::now());
        }
        if let Some(finished) = supervisor.proceed(Moment::now()) {
            return Ok(finished);
        }
        if supervisor.is_newly_stuck() {
            report_stuck(&supervisor.living());
        }
        // COMMAND's state is up to date: it was just reaped.
        let must_stop = if supervisor.awaits_descendants().is_some() {
            job.must_stop_without_command(Moment::now())
        } else {
            job.must_stop(Moment::now(), || true)
        };
        if must_stop {
            signals::stop_self();
            continue;
        }
        let wakes_at = supervisor.wakes_at();
        let is_set = alarm.as_mut().is_some_and(|alarm| alarm.set(wakes_at).is_ok());
        let waited = match &alarm {
            Some(alarm) if is_set => poll(&mut [readable(signals), readable(alarm)], PollTimeout::NONE),
            // No timer is needed, or none could be created.
            _ => poll(&mut [readable(signals)], time_until(wakes_at)),
        };
        match waited {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
