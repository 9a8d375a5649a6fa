//! What lockrun says, on standard error: one line at a time, each beginning with `lockrun: `.
//!
//! Standard output is COMMAND's.

pub mod diagnostic;
pub mod event;
pub mod reporter;

mod event_log;
mod line_writer;

use std::fmt::{Display, Write as _};
use std::io::Write as _;

use crate::lock::key::Key;
use crate::text::escape::escaped;

/// How much is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// Errors alone.
    Quiet,
    /// Also who holds a lock that we did not get.
    Normal,
    /// Also what happens when all is well.
    Verbose,
}

/// Says `text`; every line of it gets the prefix, and all are written at once. What could steer a terminal is escaped.
pub fn say(text: &str) {
    let mut lines = String::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let _ = writeln!(lines, "lockrun: {}", escaped(line));
    }
    // There is nobody to tell if standard error is gone.
    let _ = std::io::stderr().write_all(lines.as_bytes());
}

/// Says an error with its causes: what failed, then why.
pub fn error(error: &anyhow::Error) {
    say(&format!("{error:#}"));
}

/// Says each of these errors. Tells whether there are any.
pub fn errors(errors: &[anyhow::Error]) -> bool {
    errors.iter().for_each(error);
    !errors.is_empty()
}

/// The held message: who has the lock.
pub fn held(key: &Key, held: &impl Display) -> String {
    format!("lock \"{}\" is held by {held}", escaped(key.as_str()))
}
