//! lockrun's messages on standard error: one line at a time, each beginning with `lockrun: `.
//!
//! Standard output is COMMAND's.

pub mod event;
pub mod message;
pub mod reporter;

mod event_log;
mod line_writer;

use std::fmt::Write as _;

use crate::sys::stderr;
use crate::text::escape::escaped;

/// How much is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// Errors alone.
    Quiet,
    /// Also who holds a lock that could not be acquired.
    Normal,
    /// Also every event when all is well.
    Verbose,
}

/// Prints `text`, each line with the prefix, all in one write unless it is very long. Characters that could control a terminal are escaped.
/// During a run the message is lost after a short wait if standard error is not read, see [`stderr::hurry`].
pub fn say(text: &str) {
    let mut lines = String::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let _ = writeln!(lines, "lockrun: {}", escaped(line));
    }
    stderr::write(&lines);
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
