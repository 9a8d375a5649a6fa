//! Short forms of times, spans and endings.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::lock::ending::Ending;

/// The last moment that a date can express: the end of the year 9999.
const LAST_MS: u64 = 253_402_300_799_999;

/// Returns the moment `unix_ms` milliseconds after the Unix epoch, or [`LAST_MS`] if that is earlier.
pub(super) fn moment(unix_ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(unix_ms.min(LAST_MS))
}

/// Returns the span between two moments in milliseconds; zero if they are in the wrong order.
pub(super) fn between(earlier_ms: u64, later_ms: u64) -> Duration {
    Duration::from_millis(later_ms.saturating_sub(earlier_ms))
}

/// Formats a span in its two greatest units, such as `3m 12s` or `2d 5h`.
pub(super) fn span(span: Duration) -> String {
    const UNITS: [(&str, u64); 4] = [("d", 24 * 60 * 60), ("h", 60 * 60), ("m", 60), ("s", 1)];
    let mut left = span.as_secs();
    let greatest = UNITS.iter().position(|(_, seconds)| left >= *seconds).unwrap_or(UNITS.len() - 1);
    let mut said = Vec::new();
    for (unit, seconds) in &UNITS[greatest..(greatest + 2).min(UNITS.len())] {
        let count = left / seconds;
        left %= seconds;
        if count > 0 || (*unit == "s" && said.is_empty()) {
            said.push(format!("{count}{unit}"));
        }
    }
    said.join(" ")
}

/// Describes how a command ended.
pub(super) fn ending(ending: Option<Ending>) -> String {
    match ending {
        Some(Ending::Exited(0)) => "ok".into(),
        Some(Ending::Exited(status)) => format!("status {status}"),
        Some(Ending::Signaled(signal)) => format!("signal {signal}"),
        None => "no command".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_short() {
        for (seconds, said) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (192, "3m 12s"),
            (7200, "2h"),
            (7201, "2h"),
            (190_800, "2d 5h"),
            (86_400 * 400, "400d"),
        ] {
            assert_eq!(span(Duration::from_secs(seconds)), said);
        }
        assert_eq!(between(5, 3), Duration::ZERO);
    }
}
