//! Durations as they are typed and printed: plain seconds, or with units.

use std::time::Duration;

/// The longest accepted duration: ten years. More is a typing error, and would overflow the clock.
const LONGEST: Duration = Duration::from_hours(10 * 365 * 24);

const EXAMPLES: &str = "durations look like 5, 0.5, 500ms, 30s, 5m or '2h 30m'";

/// Parses plain seconds (`5`, `0.5`) or a duration with units (`500ms`, `2h 30m`). The error says what is wrong.
pub fn parse(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.') && text.bytes().any(|b| b.is_ascii_digit());
    let span = if plain {
        text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    } else {
        humantime::parse_duration(text).ok()
    };
    match span {
        Some(span) if span > LONGEST => Err(format!("{text:?} is longer than ten years")),
        Some(span) => Ok(span),
        // Text that looks like part of a URL is not repeated: it could contain a password.
        None if text.contains('@') => Err(format!("has a value that is not a duration; {EXAMPLES}")),
        None => Err(format!("{text:?} is not a duration; {EXAMPLES}")),
    }
}

/// Formats a duration in whole seconds, as in `3m 12s`.
pub fn say(span: Duration) -> String {
    humantime::format_duration(Duration::from_secs(span.as_secs())).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_units_are_read() {
        for (text, millis) in [
            ("5", 5_000),
            ("0.5", 500),
            (".5", 500),
            ("5.", 5_000),
            ("0", 0),
            ("500ms", 500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("2h 30m", 9_000_000),
            (" 1s ", 1_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text:?}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", ".", "-1", "1e3", "soon", "5 parsecs", "1.2.3", "nan", "inf", "99999999999", "9999y", "0x10"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn spans_are_said_in_whole_seconds() {
        assert_eq!(say(Duration::from_millis(192_900)), "3m 12s");
        assert_eq!(say(Duration::from_millis(900)), "0s");
    }
}
