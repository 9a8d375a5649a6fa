//! What `lockrun doctor` finds: one line each.

use std::fmt;

use crate::text::escape::escaped;

/// How grave a diagnostic is, from the least to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    Ok,
    /// Could not be looked at; nothing is known to be wrong.
    Note,
    /// Locks hold, but not under all that may happen; or they are slow.
    Warn,
    /// Locks are granted that cannot be relied on.
    Fail,
    /// No lock can be had at all.
    Unusable,
}

/// One thing that a store has found out about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// How grave it is.
    pub level: Level,
    /// What was found.
    pub text: String,
    /// What it means, and what to do about it. Empty where there is nothing to do, or `text` says it.
    pub advice: String,
}

impl Diagnostic {
    /// All is well with what `text` says.
    pub fn ok(text: impl Into<String>) -> Self {
        Diagnostic { level: Level::Ok, text: text.into(), advice: String::new() }
    }

    /// What `text` says could not be looked at; `advice` is how to look by hand.
    pub fn note(text: impl Into<String>, advice: impl Into<String>) -> Self {
        Diagnostic { level: Level::Note, text: text.into(), advice: advice.into() }
    }

    /// What `text` says makes locks weaker or slower.
    pub fn warn(text: impl Into<String>, advice: impl Into<String>) -> Self {
        Diagnostic { level: Level::Warn, text: text.into(), advice: advice.into() }
    }

    /// What `text` says makes locks unsafe.
    pub fn fail(text: impl Into<String>, advice: impl Into<String>) -> Self {
        Diagnostic { level: Level::Fail, text: text.into(), advice: advice.into() }
    }

    /// For what `text` says, no lock can be had.
    pub fn unusable(text: impl Into<String>, advice: impl Into<String>) -> Self {
        Diagnostic { level: Level::Unusable, text: text.into(), advice: advice.into() }
    }
}

/// One line: the level's word, what was found, what it means and what to do. Part of it may come from a server.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.level {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Warn => "warn",
            Level::Fail | Level::Unusable => "fail",
        };
        let separator = if self.advice.is_empty() { "" } else { ": " };
        write!(f, "{word:<6}{}{separator}{}", escaped(&self.text), escaped(&self.advice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_harmless_line() {
        let hostile = Diagnostic::fail("evicts\n\x1b[31mkeys", "set noeviction");
        assert_eq!(hostile.to_string(), "fail  evicts\\n\\u{1b}[31mkeys: set noeviction");
        assert_eq!(Diagnostic::ok("fine").to_string(), "ok    fine");
    }
}
