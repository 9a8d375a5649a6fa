//! Where long work is: a line on a terminal that is refreshed in place, and gone when the work is done. Elsewhere nothing.

use std::time::Duration;

use super::clock::Moment;
use super::{stderr, terminal};

/// Work that takes less time than this shows nothing.
const QUIET: Duration = Duration::from_millis(500);

/// How often the line is written anew.
const REFRESH: Duration = Duration::from_millis(200);

/// Counts what is done, and shows it.
#[derive(Debug)]
pub struct Counter {
    /// What is done, such as `reading locks`.
    doing: &'static str,
    done: usize,
    total: Option<usize>,
    on_terminal: bool,
    draw_at: Moment,
    drawn: bool,
}

impl Counter {
    /// Begins to count the work, of which there is so much in all, if that is known.
    pub fn new(doing: &'static str, total: Option<usize>) -> Self {
        let on_terminal = terminal::stderr_width().is_some();
        Counter { doing, done: 0, total, on_terminal, draw_at: Moment::now() + QUIET, drawn: false }
    }

    /// Counts so much more as done.
    pub fn add(&mut self, more: usize) {
        self.done += more;
        if !self.on_terminal || Moment::now() < self.draw_at || !terminal::is_ours() {
            return;
        }
        self.draw_at = Moment::now() + REFRESH;
        self.drawn = true;
        let of = self.total.map_or_else(String::new, |total| format!(" of {total}"));
        let line = format!("lockrun: {}: {}{of}", self.doing, self.done);
        // A line that wraps could not be taken back.
        let width = terminal::stderr_width().unwrap_or_default();
        let line: String = line.chars().take(width.saturating_sub(1)).collect();
        stderr::write(&format!("\r{line}\x1b[K"));
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        if self.drawn && terminal::is_ours() {
            stderr::write("\r\x1b[K");
        }
    }
}
