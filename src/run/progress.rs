//! What the user sees of a wait: on a terminal, a line that is refreshed in place and erased when the wait is over;
//! elsewhere nothing, or with `--verbose` and in a CI a message at its beginning and one a minute.

use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::wait::Watcher;
use crate::report::event::Event;
use crate::report::reporter::Reporter;
use crate::report::{self, Verbosity};
use crate::store::{Held, StoreError};
use crate::supervise::guardian::Guardian;
use crate::sys::clock::Moment;
use crate::sys::stderr;
use crate::sys::terminal;
use crate::sys::wait::WaitObserver;
use crate::text::duration;
use crate::text::wrap::cut;

/// How often the line is refreshed: it shows seconds.
const REFRESH: Duration = Duration::from_secs(1);

/// How often a message says that the wait goes on: a CI ends jobs that print nothing for some minutes.
const SAY_AGAIN: Duration = Duration::from_mins(1);

/// The variable that CIs set. A job that prints nothing looks hung there.
const CI: &str = "CI";

/// The display of one wait.
pub struct Progress<'a> {
    reporter: &'a Reporter,
    /// Returns whether waiting for this holder is hopeless.
    is_hopeless: &'a (dyn Fn(&Held) -> bool + Sync),
    guardian: Option<&'a Guardian>,
    on_terminal: bool,
    /// Whether it prints messages: not on a terminal.
    says: bool,
    began: Moment,
    has_reported: bool,
    /// When it last printed a message.
    said_at: Moment,
    latest: Option<Latest>,
}

/// What was last heard of the lock.
enum Latest {
    /// The store's answer, and when it came.
    Held(Box<Held>, Moment),
    /// Why the store cannot be asked.
    Away(String),
}

impl<'a> Progress<'a> {
    /// Returns the display of a wait that begins now. The wait ends when `is_hopeless` returns `true` for a holder of
    /// the lock. `guardian` is set if this process is one.
    pub fn new(
        reporter: &'a Reporter,
        is_hopeless: &'a (dyn Fn(&Held) -> bool + Sync),
        guardian: Option<&'a Guardian>,
    ) -> Self {
        let on_terminal = reporter.verbosity > Verbosity::Quiet && terminal::stderr_width().is_some();
        let is_in_ci =
            || std::env::var_os(CI).is_some_and(|value| !value.is_empty() && value != "false" && value != "0");
        let says = match reporter.verbosity {
            Verbosity::Quiet => false,
            Verbosity::Normal => !on_terminal && is_in_ci(),
            Verbosity::Verbose => !on_terminal,
        };
        Progress {
            reporter,
            is_hopeless,
            guardian,
            on_terminal,
            says,
            began: Moment::now(),
            has_reported: false,
            said_at: Moment::now(),
            latest: None,
        }
    }

    /// Describes the wait, if there is one, as in `waiting 3m 12s, number 2 in the queue: held by …`.
    fn line(&self) -> Option<String> {
        let now = Moment::now();
        let waited = duration::say(now.since(self.began));
        Some(match self.latest.as_ref()? {
            Latest::Away(why) => format!("waiting {waited}: {why}"),
            Latest::Held(held, answered_at) => {
                let passed = now.since(*answered_at);
                let since = held.since.map(|since| since + passed);
                let expires_in = held.expires_in.map(|left| left.saturating_sub(passed));
                let withheld = held.withheld.map(|left| left.saturating_sub(passed));
                let held = Held { since, expires_in, withheld, ..Held::clone(held) };
                let place = held.place.map_or_else(String::new, |place| format!(", number {} in the queue", place + 1));
                format!("waiting {waited}{place}: {held}")
            }
        })
    }

    /// Refreshes the line.
    fn draw(&self) {
        if !self.on_terminal || !terminal::is_ours() {
            return;
        }
        let (Some(line), Some(width)) = (self.line(), terminal::stderr_width()) else { return };
        // A line that wraps could not be erased.
        stderr::write(&format!("\r{}\x1b[K", cut(&format!("lockrun: {line}"), width.saturating_sub(1))));
    }

    /// Says that the wait goes on, if that is due.
    fn say_again(&mut self) {
        if self.says
            && Moment::now().since(self.said_at) >= SAY_AGAIN
            && let Some(line) = self.line()
        {
            self.said_at = Moment::now();
            report::say(&line);
        }
    }

    /// Reports the event, also in a CI.
    fn report(&mut self, event: &Event<'_>) {
        self.clear();
        self.reporter.log(event);
        if self.says {
            self.said_at = Moment::now();
            self.reporter.say(event);
        } else {
            self.reporter.print(event);
        }
    }

    /// Erases the line.
    fn clear(&self) {
        if self.on_terminal && terminal::is_ours() && self.latest.is_some() {
            stderr::write("\r\x1b[K");
        }
    }
}

impl Watcher for Progress<'_> {
    fn is_stopped(&self) -> bool {
        self.guardian.is_some_and(Guardian::is_stopped)
    }

    fn waiting(&mut self, held: &Held) -> ControlFlow<()> {
        if (self.is_hopeless)(held) {
            return ControlFlow::Break(());
        }
        if !std::mem::replace(&mut self.has_reported, true) {
            self.report(&Event::Waiting(held));
        }
        self.latest = Some(Latest::Held(Box::new(held.clone()), Moment::now()));
        self.say_again();
        self.draw();
        ControlFlow::Continue(())
    }

    fn store_away(&mut self, why: &StoreError, left: Duration) {
        let why = format!("{why:#}");
        self.report(&Event::Outage { why: &why, left });
        self.latest = Some(Latest::Away(why));
        self.draw();
    }

    fn store_back(&mut self) {
        self.report(&Event::Recovered);
        self.latest = None;
    }

    fn left_behind(&mut self, what: &str) {
        self.clear();
        self.reporter.report(Event::Failed { why: what });
    }
}

impl WaitObserver for Progress<'_> {
    fn tick_every(&self) -> Option<Duration> {
        if self.on_terminal { Some(REFRESH) } else { self.says.then_some(SAY_AGAIN) }
    }

    fn tick(&mut self) {
        self.say_again();
        self.draw();
    }

    fn pause(&mut self) {
        self.clear();
    }

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        self.guardian.map(AsFd::as_fd)
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}
