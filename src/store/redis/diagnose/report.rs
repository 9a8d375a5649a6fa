//! The answer to INFO.

/// The server's report on itself: lines of `NAME:VALUE`.
pub(super) struct Report(String);

impl Report {
    /// Takes the answer to INFO.
    pub(super) fn new(text: String) -> Self {
        Report(text)
    }

    /// Returns the value of a line.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    /// Returns the value of a line, if it is a number.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_by_their_whole_name() {
        let report = Report::new("# Memory\r\nmaxmemory_human:0B\r\nmaxmemory:17\r\nempty:\r\n".into());
        assert_eq!((report.number("maxmemory"), report.text("maxmemory_human")), (Some(17), Some("0B")));
        assert_eq!((report.text("empty"), report.text("max")), (Some(""), None));
    }
}
