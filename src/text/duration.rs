//! Durations as users type and read them: plain seconds, or with units.

use std::time::Duration;

/// The longest accepted duration: ten years. A longer one is a typing error, and would overflow the clock.
const LONGEST: Duration = Duration::from_hours(10 * 365 * 24);

/// The units, each with one spelling. There are no months and years: their lengths vary, and an `M` meant as minutes
/// would be a month. Nor are there microseconds: no lock can be that precise.
const UNITS: [&str; 6] = ["ms", "s", "m", "h", "d", "w"];

const EXAMPLES: &str = "durations look like 5, 0.5, 500ms, 30s, 5m or '2h 30m'";

/// Parses plain seconds (`5`, `0.5`) or a duration with units (`500ms`, `2h 30m`). The error says what is wrong.
pub fn parse(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.') && text.bytes().any(|b| b.is_ascii_digit());
    let span = if plain {
        text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    } else if foreign_unit(text).is_none() {
        parse_terms(text)
    } else {
        None
    };
    match span {
        Some(span) if span > LONGEST => Err(format!("{text:?} is longer than ten years")),
        Some(span) => Ok(span),
        // Do not repeat what looks like part of a URL: it could contain a password.
        None if text.contains('@') => Err(format!("has a value that is not a duration; {EXAMPLES}")),
        None => Err(match foreign_unit(text).filter(|_| text.starts_with(|first: char| first.is_ascii_digit())) {
            Some(unit) => format!(
                "{text:?} is not a duration: there is no unit {unit:?}; the units are ms, s, m (minutes), h, d and w"
            ),
            None => format!("{text:?} is not a duration; {EXAMPLES}"),
        }),
    }
}

/// Parses a duration with units, one term at a time: humantime 2.4.0 panics at some sums that are out of its range.
fn parse_terms(text: &str) -> Option<Duration> {
    let mut sum = Duration::ZERO;
    let mut rest = text;
    loop {
        let unit = rest.find(char::is_alphabetic)?;
        let length = rest[unit..].find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len() - unit);
        let (term, others) = rest.split_at(unit + length);
        sum = sum.saturating_add(humantime::parse_duration(term.trim_start()).ok()?);
        if others.is_empty() {
            return Some(sum);
        }
        rest = others;
    }
}

/// Returns the first word of `text` that is not a unit.
fn foreign_unit(text: &str) -> Option<&str> {
    let mut words = text.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty());
    words.find(|word| !UNITS.contains(word))
}

/// Formats a duration in whole seconds, as in `3m 12s`.
pub fn say(span: Duration) -> String {
    say_finely(Duration::from_secs(span.as_secs()))
}

/// Formats a duration in whole milliseconds, as in `1s 333ms`, in units that [`parse`] accepts.
pub fn say_finely(span: Duration) -> String {
    const LENGTHS: [(&str, u128); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
    let mut left = span.as_millis();
    let mut said = Vec::new();
    for (unit, length) in LENGTHS {
        if left >= length {
            said.push(format!("{}{unit}", left / length));
            left %= length;
        }
    }
    if said.is_empty() { "0s".into() } else { said.join(" ") }
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
            ("2h30m", 9_000_000),
            ("1d", 86_400_000),
            ("2w", 1_209_600_000),
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
    fn a_sum_out_of_range_is_too_long() {
        for text in ["0.5s 18446744073709551615.5s", "18446744073709551615s 18446744073709551615s", "520w 11d"] {
            assert_eq!(parse(text), Err(format!("{text:?} is longer than ten years")));
        }
    }

    #[test]
    fn each_unit_has_one_spelling() {
        for unit in [
            "M", "month", "months", "y", "yr", "year", "years", "us", "usec", "µs", "ns", "nsec", "min", "minutes",
            "S", "H", "D",
        ] {
            let wrong = parse(&format!("1{unit}")).expect_err(unit);
            assert!(
                wrong.contains(&format!("there is no unit {unit:?}; the units are ms, s, m (minutes), h, d and w")),
                "{wrong}"
            );
        }
        assert!(parse("1h 5M").is_err_and(|wrong| wrong.contains("unit \"M\"")));
    }

    #[test]
    fn spans_are_said_in_whole_seconds() {
        assert_eq!(say(Duration::from_millis(192_900)), "3m 12s");
        assert_eq!(say(Duration::from_millis(900)), "0s");
    }

    // A user can type the durations in messages.
    #[test]
    fn what_is_said_can_be_given() {
        for (text, said) in [("500d", "500d"), ("25h", "1d 1h"), ("2w", "14d"), ("90061.001", "1d 1h 1m 1s 1ms")] {
            let span = parse(text).expect(text);
            assert_eq!((say_finely(span).as_str(), parse(said)), (said, Ok(span)));
        }
    }

    #[test]
    fn or_in_whole_milliseconds() {
        assert_eq!(say_finely(Duration::from_secs(4) / 3), "1s 333ms");
        assert_eq!(say_finely(Duration::from_millis(500)), "500ms");
    }
}
