//! Colours on a terminal.

use std::ffi::OsStr;

/// A colour of the terminal's own palette.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// All is well.
    Green,
    /// Worth a look.
    Yellow,
    /// Something is wrong.
    Red,
    /// Of little interest.
    Faint,
}

impl Colour {
    /// Returns `text` in this colour.
    pub fn paint(self, text: &str) -> String {
        let code = match self {
            Colour::Green => 32,
            Colour::Yellow => 33,
            Colour::Red => 31,
            Colour::Faint => 2,
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// Returns whether a terminal gets colours: NO_COLOR is unset or empty, and TERM names a terminal that supports them.
pub fn is_wanted(no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    no_color.is_none_or(OsStr::is_empty) && term.is_some_and(|term| !term.is_empty() && term != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_can_be_forbidden() {
        let wanted =
            |no_color: Option<&str>, term: Option<&str>| is_wanted(no_color.map(OsStr::new), term.map(OsStr::new));
        assert!(wanted(None, Some("xterm")) && wanted(Some(""), Some("xterm")));
        assert!(!wanted(Some("1"), Some("xterm")) && !wanted(None, Some("dumb")) && !wanted(None, None));
        assert_eq!(Colour::Red.paint("x"), "\x1b[31mx\x1b[0m");
    }
}
