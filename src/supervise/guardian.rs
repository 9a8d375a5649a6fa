//! The guardian: a small process between lockrun and COMMAND, for locks that are leases.
//!
//! It is COMMAND's parent and a child subreaper, so everything that COMMAND starts stays below it. It knows until when
//! the lease holds, and ends COMMAND in time if no news of a renewal comes: because the store does not answer, because
//! lockrun is stopped or starved. When lockrun dies, it kills COMMAND at once.
//!
//! ```text
//! lockrun (signals, keeper's thread) ── link ── guardian ── COMMAND ── …
//! ```
//!
//! If the guardian itself is killed, the kernel kills COMMAND (its parent-death signal), and what COMMAND started comes to
//! lockrun, which is a subreaper too and kills it.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use libc::pid_t;
use nix::errno::Errno;
use nix::poll::{PollTimeout, poll};
use nix::sys::prctl;

use super::cgroup::{Cgroup, Place};
use super::direct::{JobControl, readable, watch};
use super::link::{Link, News, Order};
use super::memory::poll_at_rest;
use super::process::Process;
use super::signals::{self, Signals};
use super::spawn::{Failure, Ready, Setup};
use super::supervisor::{Finished, Supervisor, Why};
use super::tree::{Child, Tree, children_before};
use super::{Granted, Launch, terminal};
use crate::clock::{Alarm, Moment};
use crate::lease::Deadline;
use crate::report;

/// COMMAND, with the guardian as its parent, as lockrun sees it.
pub struct Guardian {
    link: Link,
    child: Child,
    command: pid_t,
    launch: Launch,
    has_terminal: bool,
    deadline: Arc<Mutex<Option<Deadline>>>,
    alarm: Alarm,
    strangers: Vec<Process>,
}

/// What the keeper of a lease tells the guardian through.
#[derive(Clone)]
pub struct Control {
    link: Link,
    deadline: Arc<Mutex<Option<Deadline>>>,
}

impl Control {
    /// The lease was renewed: what it allows now.
    pub fn renewed(&self, deadline: Deadline) {
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner) = Some(deadline);
        self.link.order(Order::Renewed(deadline));
    }

    /// The lease is lost: COMMAND must be ended.
    pub fn lost(&self) {
        self.link.order(Order::Lost);
    }
}

/// A guardian that waits for the order to start COMMAND. Dropped, it is gone, and nothing has happened.
pub struct Prepared(Guardian);

impl Prepared {
    /// Forks the guardian.
    ///
    /// Must be called while the process has one thread, the journal's scribe aside.
    pub fn new(launch: &Launch, signals: &Signals) -> Result<Self, Failure> {
        let (ours, theirs) = Link::pair().map_err(Failure::Preparing)?;
        let alarm = Alarm::new().map_err(Failure::Preparing)?;
        let has_terminal = terminal::is_controlling();
        let place = Place::find();
        let strangers = children_before();
        // SAFETY: the process has one thread, so the child may do whatever its parent could. If there is the scribe's, too, it
        // holds no lock that the child could want, but those of the allocator, and these the C library gives to the child free.
        let forked = Errno::result(unsafe { libc::fork() }).map_err(Failure::Preparing)?;
        if forked == 0 {
            drop(ours);
            guard(&theirs, launch, place.as_ref(), signals, has_terminal);
            // SAFETY: ends the guardian without running what lockrun registered for its own end.
            unsafe { libc::_exit(0) }
        }
        Ok(Prepared(Guardian {
            link: ours,
            child: Child(forked),
            command: 0,
            launch: launch.clone(),
            has_terminal,
            deadline: Arc::new(Mutex::new(None)),
            alarm,
            strangers,
        }))
    }

    /// Whether it is still there.
    pub fn is_there(&self) -> bool {
        self.0.link.next_news().is_ok()
    }

    /// Lets it start COMMAND, if there is time for it before the `deadline`.
    pub(super) fn start(
        self,
        granted: Granted,
        signals: &Signals,
        deadline: Option<Deadline>,
        ends_command: bool,
    ) -> Result<Guardian, Failure> {
        let Prepared(mut guardian) = self;
        prctl::set_child_subreaper(true).map_err(Failure::Preparing)?;
        guardian.deadline = Arc::new(Mutex::new(deadline.filter(|_| ends_command)));
        guardian.link.order(Order::Start { granted, deadline, ends_command });
        let horizon = deadline.map(|deadline| deadline.horizon);
        let failure = match guardian.news_until(horizon) {
            Ok(Some(News::Started(command))) => return Ok(Guardian { command, ..guardian }),
            Ok(Some(News::NotStarted(failure))) => return Err(failure),
            // It stands still, and the lease is over.
            Ok(None) => Failure::TooLate,
            // It died on the way.
            _ => Failure::Preparing(Errno::ECHILD),
        };
        // What it has started, if anything, comes to us, and must go.
        let _ = guardian.take_over(Why::Unguarded, signals);
        Err(failure)
    }
}

impl Guardian {
    /// Waits for the guardian's first news; `None` if none have come by `end`.
    fn news_until(&mut self, end: Option<Moment>) -> nix::Result<Option<News>> {
        loop {
            if let Some(news) = self.link.next_news()? {
                return Ok(Some(news));
            }
            if end.is_some_and(|end| Moment::now() >= end) {
                return Ok(None);
            }
            self.alarm.set(end)?;
            match poll(&mut [readable(&self.link), readable(&self.alarm)], PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Ends COMMAND at once: lockrun cannot do its part.
    pub(super) fn abandon(self, signals: &Signals) {
        let _ = self.take_over(Why::Unguarded, signals);
    }

    /// Where renewals are told.
    pub(super) fn control(&self) -> Control {
        Control { link: self.link.clone(), deadline: Arc::clone(&self.deadline) }
    }

    /// Passes signals on and waits until all is over. Takes over if the guardian dies or does not do its work. Otherwise
    /// gives back the guardian, too, which is ending: there is no need to wait for that.
    pub(super) fn until_the_end(mut self, signals: &Signals) -> nix::Result<(Finished, Option<Child>)> {
        let mut stops = JobControl::new(self.has_terminal);
        loop {
            for signal in stops.take_in(signals) {
                self.link.order(Order::Forward(signal));
            }
            let mut stopped = false;
            loop {
                match self.link.next_news() {
                    Ok(None) => break,
                    Ok(Some(News::Stopped)) => stopped = true,
                    Ok(Some(News::Finished(finished))) => return Ok((finished, Some(self.child))),
                    Ok(Some(_)) => {}
                    Err(_) => return Ok((self.take_over(Why::Unguarded, signals)?, None)),
                }
            }
            if stopped && stops.follows() {
                signals::stop_self();
                continue;
            }
            // Half-way between KILL and H: by then the guardian has done its work, or will not do it.
            let backstop = self
                .deadline
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .map(|deadline| deadline.kill_at + deadline.horizon.since(deadline.kill_at) / 2);
            if backstop.is_some_and(|at| Moment::now() >= at) {
                return Ok((self.take_over(Why::Lost, signals)?, None));
            }
            self.alarm.set(backstop)?;
            match poll_at_rest(&mut [readable(signals), readable(&self.link), readable(&self.alarm)]) {
                Ok(()) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Makes sure that the guardian is dead, which brings its descendants here, and kills them. `why` is told as the reason.
    fn take_over(self, why: Why, signals: &Signals) -> nix::Result<Finished> {
        drop(self.child);
        let now = Moment::now();
        let tree = Tree::adopt(self.command, !self.has_terminal, self.strangers);
        let mut supervisor = Supervisor::new(tree, &self.launch, None, now);
        supervisor.end(Why::Unguarded, now);
        let finished = watch(&mut supervisor, false, signals)?;
        Ok(Finished { why: Some(why), ..finished })
    }
}

/// The guardian's life.
fn guard(link: &Link, launch: &Launch, place: Option<&Place>, signals: &Signals, has_terminal: bool) {
    // A name of its own: `killall -9 lockrun` must not take both.
    let _ = prctl::set_name(c"guardian");
    let Ok(mut alarm) = Alarm::new() else { return };
    let ready = Ready::new(launch, signals);
    // Up to here nothing has been done that would have to be undone: lockrun may die, or kill us.
    let Ok(Some(Order::Start { granted, deadline, ends_command })) = link.await_order() else { return };
    // What reached our process group while lockrun waited was not meant for COMMAND.
    while signals.next().is_some() {}
    let cgroup = place.and_then(Place::make);
    let entrance = cgroup.as_ref().and_then(Cgroup::entrance);
    let setup = Setup {
        own_group: !has_terminal,
        dies_with_parent: true,
        not_after: deadline.map(|deadline| deadline.term_at),
        cgroup: entrance,
    };
    let tree = match Tree::start(ready, granted, setup, cgroup) {
        Ok(tree) => tree,
        Err(failure) => return link.tell(News::NotStarted(failure)),
    };
    // Out of reach of a terminal's signals, and of `kill %1`, once COMMAND has inherited the group.
    // SAFETY: plain system call on ourselves.
    unsafe { libc::setpgid(0, 0) };
    // COMMAND may be about to begin on this processor. It goes first.
    // SAFETY: cannot fail.
    unsafe { libc::sched_yield() };
    link.tell(News::Started(tree.command()));
    let needed = [link.as_fd(), signals.as_fd(), alarm.as_fd()].map(|fd| fd.as_raw_fd());
    close_all_but([libc::STDERR_FILENO].into_iter().chain(needed).collect());
    let mut supervisor = Supervisor::new(tree, launch, deadline.filter(|_| ends_command), Moment::now());
    let mut orphaned = false;
    let finished = loop {
        // COMMAND knows this process as its parent: what it sends here is meant for lockrun.
        while let Some(caught) = signals.next() {
            if caught.sent {
                supervisor.forward(caught.signal);
            }
        }
        while !orphaned {
            match link.next_order() {
                Ok(None) => break,
                Ok(Some(Order::Start { .. })) => {}
                Ok(Some(Order::Renewed(deadline))) => supervisor.renewed(deadline),
                Ok(Some(Order::Lost)) => supervisor.end(Why::Lost, Moment::now()),
                Ok(Some(Order::Forward(signal))) => supervisor.forward(signal),
                Err(_) => {
                    orphaned = true;
                    supervisor.end(Why::Orphaned, Moment::now());
                }
            }
        }
        if supervisor.reap() {
            link.tell(News::Stopped);
        }
        if let Some(finished) = supervisor.proceed(Moment::now()) {
            break finished;
        }
        let _ = alarm.set(supervisor.wakes_at());
        // A link that has closed would be readable for ever.
        let _ = if orphaned {
            poll_at_rest(&mut [readable(signals), readable(&alarm)])
        } else {
            poll_at_rest(&mut [readable(signals), readable(&alarm), readable(link)])
        };
    };
    if orphaned {
        report::orphaned(finished.stuck);
    }
    supervisor.dismiss();
    link.tell(News::Finished(finished));
    // lockrun has something to do now that others wait for, and our end would only take up a processor: it ends us when it
    // has the time, or with itself.
    while link.await_order().is_ok() {}
}

/// Closes every descriptor but `keep`: what lockrun inherited is for COMMAND, and a reader of its output must see the end
/// of it when COMMAND has ended.
fn close_all_but(mut keep: Vec<RawFd>) {
    keep.sort_unstable();
    let mut first: libc::c_uint = 0;
    let ends = keep.iter().map(|fd| fd.cast_unsigned()).chain([libc::c_uint::MAX]);
    for end in ends {
        if first < end {
            let last = if end == libc::c_uint::MAX { end } else { end - 1 };
            // SAFETY: nothing in this process uses the descriptors that are closed; values that own some of them (the
            // store's connection) are lockrun's, and are never dropped here, because the guardian ends by _exit.
            if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } != 0 {
                close_one_by_one(first, last);
            }
        }
        first = end.saturating_add(1);
    }
}

/// For kernels before 5.9, which have no close_range(2).
fn close_one_by_one(first: libc::c_uint, last: libc::c_uint) {
    let open: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|fd: &RawFd| (first..=last).contains(&fd.cast_unsigned()))
        .collect();
    for fd in open {
        // SAFETY: as in `close_all_but`.
        unsafe { libc::close(fd) };
    }
}
