//! What the user sees of a wait: on a terminal, a line that is refreshed in place and erased when the wait is over;
//! elsewhere nothing, or one message with `--verbose`.

use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::wait::Watcher;
use crate::report::Verbosity;
use crate::report::event::Event;
use crate::report::reporter::Reporter;
use crate::store::Held;
use crate::supervise::guardian::Guardian;
use crate::sys::clock::Moment;
use crate::sys::stderr;
use crate::sys::terminal;
use crate::sys::wait::WaitObserver;
use crate::text::duration;
use crate::text::wrap::cut;

/// How often the line is refreshed: it shows seconds.
const REFRESH: Duration = Duration::from_secs(1);

/// The display of one wait.
pub struct Progress<'a> {
    reporter: &'a Reporter,
    /// Returns whether waiting for this holder is hopeless.
    is_hopeless: &'a (dyn Fn(&Held) -> bool + Sync),
    guardian: Option<&'a Guardian>,
    on_terminal: bool,
    began: Moment,
    has_reported: bool,
    /// The store's last answer, and when it came.
    latest: Option<(Held, Moment)>,
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
        Progress {
            reporter,
            is_hopeless,
            guardian,
            on_terminal,
            began: Moment::now(),
            has_reported: false,
            latest: None,
        }
    }

    /// Refreshes the line.
    fn draw(&self) {
        let (true, Some((held, answered_at))) = (self.on_terminal && terminal::is_ours(), &self.latest) else { return };
        let Some(width) = terminal::stderr_width() else { return };
        let now = Moment::now();
        let held = Held { since: held.since.map(|since| since + now.since(*answered_at)), ..held.clone() };
        let place = held.place.map_or_else(String::new, |place| format!(", number {} in the queue", place + 1));
        let waited = duration::say(now.since(self.began));
        let line = format!("lockrun: waiting {waited}{place}: held by {held}");
        // A line that wraps could not be erased.
        stderr::write(&format!("\r{}\x1b[K", cut(&line, width.saturating_sub(1))));
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
        if !self.has_reported {
            self.reporter.report(Event::Waiting(held));
            self.has_reported = true;
        }
        self.latest = Some((held.clone(), Moment::now()));
        self.draw();
        ControlFlow::Continue(())
    }

    fn left_behind(&mut self, what: &str) {
        self.clear();
        self.reporter.report(Event::Failed { why: what });
    }
}

impl WaitObserver for Progress<'_> {
    fn tick_every(&self) -> Option<Duration> {
        self.on_terminal.then_some(REFRESH)
    }

    fn tick(&mut self) {
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
