//! Progress of long work: on a terminal, a line that is refreshed in place and erased when the work is done; elsewhere
//! nothing.

use std::time::Duration;

use super::clock::Moment;
use super::{stderr, terminal};
use crate::text::wrap::cut;

/// Work that takes less time than this shows nothing.
const QUIET: Duration = Duration::from_millis(500);

/// The least time between two updates of the line.
const REFRESH: Duration = Duration::from_millis(200);

/// Counts the work done, and shows it.
#[derive(Debug)]
pub struct Counter {
    /// What the work is, such as `reading locks`.
    doing: &'static str,
    done: usize,
    total: Option<usize>,
    on_terminal: bool,
    draw_at: Moment,
    drawn: bool,
}

impl Counter {
    /// Begins to count. `total` is the amount of work, if it is known.
    pub fn new(doing: &'static str, total: Option<usize>) -> Self {
        let on_terminal = terminal::stderr_width().is_some();
        Counter { doing, done: 0, total, on_terminal, draw_at: Moment::now() + QUIET, drawn: false }
    }

    /// Adds `more` to the work done.
    pub fn add(&mut self, more: usize) {
        self.done += more;
        if !self.on_terminal || Moment::now() < self.draw_at || !terminal::is_ours() {
            return;
        }
        self.draw_at = Moment::now() + REFRESH;
        self.drawn = true;
        let of = self.total.map_or_else(String::new, |total| format!(" of {total}"));
        let line = format!("lockrun: {}: {}{of}", self.doing, self.done);
        // A line that wraps could not be erased.
        let width = terminal::stderr_width().unwrap_or_default();
        stderr::write(&format!("\r{}\x1b[K", cut(&line, width.saturating_sub(1))));
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        if self.drawn && terminal::is_ours() {
            stderr::write("\r\x1b[K");
        }
    }
}
