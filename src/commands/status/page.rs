//! The full status of one key, for people.

use std::fmt::Write as _;

use super::format::{between, ending, moment, span};
use crate::lock::ending::Ending;
use crate::lock::state::Purpose;
use crate::store::KeyStatus;
use crate::text::colour::Colour;
use crate::text::escape::escaped;

/// Returns the page about a key of this store, which ends with a newline, with or without colours.
pub(super) fn text(status: &KeyStatus, store: &str, colours: bool) -> String {
    let paint = |colour: Colour, text: &str| if colours { colour.paint(text) } else { text.to_owned() };
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<10}{value}");
    };
    line("key", &escaped(status.key.as_str()));
    line("store", &escaped(store));
    let state = match status.withheld {
        _ if !status.holders.is_empty() => paint(Colour::Green, "held"),
        Some(left) => format!("{} after a failover, for another {}", paint(Colour::Yellow, "withheld"), span(left)),
        None if status.is_unused() => paint(Colour::Faint, "never used"),
        None => paint(Colour::Faint, "free"),
    };
    line("state", &state);
    for holding in &status.holders {
        line("holder", &holding.who.to_string());
        let held_for = span(between(holding.since_ms, status.now_ms));
        line("", &format!("since {} ({held_for})", time(holding.since_ms)));
        let lease = match holding.expires_in {
            Some(left) if holding.revoked => {
                format!("revoked; free when its command has been stopped, within {}", span(left))
            }
            Some(left) if holding.purpose == Purpose::Unrecorded => {
                format!("free when its command has been stopped, within {}", span(left))
            }
            Some(left) => format!("lease ends in {}", span(left)),
            None if !holding.has_lease => "held until its processes have ended".into(),
            None => "the lease never expires".into(),
        };
        let mut parts = match (&holding.value, holding.slot) {
            (Some(value), _) => vec![format!("value {}", escaped(value))],
            (None, Some(slot)) => vec![format!("slot {slot}")],
            (None, None) => Vec::new(),
        };
        if holding.is_shared {
            parts.push("shared".into());
        }
        match holding.purpose {
            Purpose::Run => {}
            Purpose::Hand => parts.push("acquired by hand".into()),
            Purpose::Kept => parts.push("kept after its run".into()),
            Purpose::Unrecorded => parts.push("its record was deleted, but a command may still run under it".into()),
        }
        parts.push(format!("fence {}", holding.fence));
        line("", &format!("{lease}; {}", parts.join(", ")));
    }
    for (place, waiting) in status.waiters.iter().enumerate() {
        let waited = waiting
            .since_ms
            .map_or_else(String::new, |since_ms| format!(", for {}", span(between(since_ms, status.now_ms))));
        line(if place == 0 { "waiting" } else { "" }, &format!("{}{waited}", waiting.who));
    }
    if let Some(until) = status.success.and_then(|success| success.until_unix_ms).filter(|until| *until > status.now_ms)
    {
        line("done", &format!("until {}", time(until)));
    }
    if let Some(value) = &status.value {
        line("sequence", &format!("last value {}", escaped(value)));
    }
    match &status.last {
        Some(last) => {
            line("last run", &last.who.to_string());
            let took = span(between(last.started_unix_ms, last.ended_unix_ms));
            let ago = span(between(last.ended_unix_ms, status.now_ms));
            let ended = match last.ending {
                Some(Ending::Exited(0)) | None => ending(last.ending),
                Some(_) => paint(Colour::Red, &ending(last.ending)),
            };
            line("", &format!("{ended}, {} to {}", time(last.started_unix_ms), time(last.ended_unix_ms)));
            line("", &format!("it took {took} and ended {ago} ago"));
        }
        None => line("last run", "none is known"),
    }
    text
}

/// Formats a moment as in `2026-11-21 04:30:00Z`.
fn time(unix_ms: u64) -> String {
    let time = humantime::format_rfc3339_seconds(moment(unix_ms)).to_string();
    time.replace('T', " ")
}
