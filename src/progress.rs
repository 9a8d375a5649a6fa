//! How a wait looks: a line on a terminal that is refreshed in place, and gone when the wait is over; elsewhere nothing, or
//! one message with `--verbose`.

use std::io::Write as _;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::clock::Moment;
use crate::duration;
use crate::event::Event;
use crate::report::Verbosity;
use crate::start::Start;
use crate::store::{Grant, Held, Watcher};
use crate::supervise::guardian::Guardian;
use crate::supervise::interrupt::Ticking;
use crate::supervise::terminal;
use crate::teller::Teller;

/// The line changes with the seconds.
const REFRESH: Duration = Duration::from_secs(1);

/// What is shown of one wait.
pub struct Progress<'a, 'b> {
    teller: &'a Teller,
    /// Whether it is of no use to wait for a holder.
    is_hopeless: &'a dyn Fn(&Held) -> bool,
    start: Option<&'a mut Start<'b>>,
    on_terminal: bool,
    began: Moment,
    told: bool,
    /// What the store told last, and when.
    latest: Option<(Held, Moment)>,
}

impl<'a, 'b> Progress<'a, 'b> {
    /// A wait that begins now, of which `teller` tells, and that ends when the lock has a holder for whom it `is_hopeless` to wait.
    /// It ends in the `start` of a command, if there is to be one.
    pub fn new(teller: &'a Teller, is_hopeless: &'a dyn Fn(&Held) -> bool, start: Option<&'a mut Start<'b>>) -> Self {
        let on_terminal = teller.verbosity > Verbosity::Quiet && terminal::stderr_width().is_some();
        Progress { teller, is_hopeless, start, on_terminal, began: Moment::now(), told: false, latest: None }
    }

    /// The start of a command that may begin before anything is told of its lock, since nothing is: otherwise that comes first.
    fn silent_start(&mut self) -> Option<&mut Start<'b>> {
        let is_silent = !self.on_terminal && self.teller.is_silent_when_all_is_well();
        self.start.as_deref_mut().filter(|_| is_silent)
    }

    /// Writes the line anew.
    fn draw(&self) {
        let (true, Some((held, told_at))) = (self.on_terminal && terminal::is_ours(), &self.latest) else { return };
        let Some(width) = terminal::stderr_width() else { return };
        let now = Moment::now();
        let held = Held { since: held.since.map(|since| since + now.since(*told_at)), ..held.clone() };
        let place = held.place.map_or_else(String::new, |place| format!(", number {} in the queue", place + 1));
        let waited = duration::say(now.since(self.began));
        let line = format!("lockrun: waiting {waited}{place}: held by {held}");
        // A line that wraps could not be taken back.
        let line: String = line.chars().take(width.saturating_sub(1)).collect();
        let _ = write!(std::io::stderr(), "\r{line}\x1b[K");
    }

    /// Takes the line back.
    fn clear(&self) {
        if self.on_terminal && terminal::is_ours() && self.latest.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

impl Watcher for Progress<'_, '_> {
    fn waiting(&mut self, held: &Held) -> ControlFlow<()> {
        if (self.is_hopeless)(held) {
            return ControlFlow::Break(());
        }
        if !self.told {
            self.teller.tell(Event::Waiting(held));
            self.told = true;
            if let Some(start) = self.silent_start() {
                start.wait_begins();
            }
        }
        self.latest = Some((held.clone(), Moment::now()));
        self.draw();
        ControlFlow::Continue(())
    }

    fn is_stopped(&self) -> bool {
        self.start.as_ref().and_then(|start| start.guardian()).is_some_and(Guardian::is_stopped)
    }

    fn asking(&mut self, sent_at: Moment, answer: &mut dyn FnMut(Moment) -> Option<Grant>) {
        if let Some(start) = self.silent_start() {
            start.while_asking(sent_at, answer);
        }
    }
}

impl Ticking for Progress<'_, '_> {
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
        self.start.as_ref().and_then(|start| start.guardian()).map(AsFd::as_fd)
    }
}

impl Drop for Progress<'_, '_> {
    fn drop(&mut self) {
        self.clear();
    }
}
