//! The findings of `lockrun doctor`, one per line.

pub(super) mod encryption;
pub(super) mod latency;
pub(super) mod trial;

use std::fmt;

use crate::text::escape::escaped;

/// The severity of a diagnostic, from the least to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    Ok,
    /// Could not be checked; nothing is known to be wrong.
    Note,
    /// Locks hold, but not in every situation; or they are slow.
    Warn,
    /// Locks are granted that cannot be relied on.
    Fail,
    /// No lock can be acquired at all.
    Unusable,
}

impl Level {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Warn => "warn",
            Level::Fail => "fail",
            Level::Unusable => "unusable",
        }
    }
}

/// What it means that a server has forgotten a lock, after what it has forgotten.
pub(super) const FORGOTTEN: &str = "and another run gets one while its first command runs";

/// What it means that a server has copies that lag behind.
pub(super) const LOST_BY_FAILOVER: &str = "a failover may lose what was written last: a lock that was just granted is \
                                           free on the new primary, and another run gets it while the first command \
                                           runs; let the fence guard what matters";

/// A finding about a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Its severity.
    pub level: Level,
    /// What was found.
    pub text: String,
    /// What it means, and what to do about it. Empty if there is nothing to do, or `text` says it.
    pub advice: String,
}

impl Diagnostic {
    /// Returns a finding that is as it should be.
    pub fn ok(text: impl Into<String>) -> Self {
        Diagnostic { level: Level::Ok, text: text.into(), advice: String::new() }
    }

    /// Returns a note on what could not be checked; `advice` is how to check it by hand.
    pub fn note(text: impl Into<String>, advice: impl Into<String>) -> Self {
        Diagnostic { level: Level::Note, text: text.into(), advice: advice.into() }
    }

    /// Returns a finding that makes locks weaker or slower.
    pub fn warn(text: impl Into<String>, advice: impl Into<String>) -> Self {
        Diagnostic { level: Level::Warn, text: text.into(), advice: advice.into() }
    }

    /// Returns a finding that makes locks unsafe.
    pub fn fail(text: impl Into<String>, advice: impl Into<String>) -> Self {
        Diagnostic { level: Level::Fail, text: text.into(), advice: advice.into() }
    }

    /// Returns a finding that prevents any lock from being acquired.
    pub fn unusable(text: impl Into<String>, advice: impl Into<String>) -> Self {
        Diagnostic { level: Level::Unusable, text: text.into(), advice: advice.into() }
    }
}

/// Formats one line: level, finding, meaning and advice. Parts may come from a server, so they are escaped.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.level.min(Level::Fail).name();
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
