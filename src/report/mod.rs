//! lockrun's messages on standard error: one line at a time, each beginning with `lockrun: `.
//!
//! Standard output belongs to COMMAND.

pub mod event;
pub mod event_log;
pub mod message;
pub mod reporter;

mod line_writer;

use std::fmt::Write as _;

use crate::sys::stderr;
use crate::text::escape::escaped;

/// How much is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// Errors, a lost lock, and why lockrun stopped COMMAND.
    Quiet,
    /// Also the holder of a lock that could not be acquired.
    Normal,
    /// Also every other event.
    Verbose,
}

/// Prints `text` in one write unless it is very long, each line with the prefix, and escapes characters that could
/// control a terminal. During a run, the message is lost if standard error is not read for a short time, see
/// [`stderr::limit_blocking`].
pub fn say(text: &str) {
    stderr::write(&lines(text));
}

/// Returns the lines that [`say`] prints.
fn lines(text: &str) -> String {
    let mut lines = String::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let _ = writeln!(lines, "lockrun: {}", escaped(line));
    }
    lines
}

/// Prints an error with its causes: what failed, then why.
pub fn error(error: &anyhow::Error) {
    say(&format!("{error:#}"));
}

/// Prints each of these errors. Returns whether there are any.
pub fn errors(errors: &[anyhow::Error]) -> bool {
    errors.iter().for_each(error);
    !errors.is_empty()
}
