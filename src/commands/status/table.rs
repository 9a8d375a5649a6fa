//! The status of many keys, for people: a line for each holder, and for each key without one.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::format::{between, ending, span};
use crate::lock::state::Purpose;
use crate::store::{HolderStatus, KeyStatus};
use crate::text::colour::Colour;
use crate::text::escape::escaped;

const COLUMNS: usize = 7;
const HEADINGS: [&str; COLUMNS] = ["KEY", "STATE", "FOR", "LEASE", "HOLDER", "WAITING", "LAST RUN"];

/// The columns that shrink on a narrow terminal: the command goes first, then the end of the key.
const KEY: usize = 0;
const HOLDER: usize = 4;
const KEY_MIN: usize = 12;

/// The columns with colours.
const STATE: usize = 1;
const LAST_RUN: usize = 6;

const GAP: usize = 2;

type Row = [String; COLUMNS];

/// Returns the table, which ends with a newline, with or without `colours`. No line is wider than `width`, if it is
/// given.
pub(super) fn text(keys: &[KeyStatus], width: Option<usize>, colours: bool) -> String {
    let headings = HEADINGS.map(str::to_owned);
    let rows: Vec<Row> = std::iter::once(headings).chain(keys.iter().flat_map(rows)).collect();
    let mut widths = [0; COLUMNS];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.width());
        }
    }
    if let Some(width) = width {
        let needed = widths.iter().sum::<usize>() + GAP * (COLUMNS - 1);
        let mut surplus = needed.saturating_sub(width);
        // Host and process id stay.
        let holder_min = rows.iter().map(|row| row[HOLDER].split(" (").next().unwrap_or_default().width() + 1).max();
        for (column, least) in [(HOLDER, holder_min.unwrap_or(0)), (KEY, KEY_MIN)] {
            let cut = widths[column].saturating_sub(least).min(surplus);
            widths[column] -= cut;
            surplus -= cut;
        }
    }
    rows.iter().map(|row| line(row, &widths, width, colours)).collect()
}

/// Returns the line above the table, which names the store, for a terminal of this width.
pub(super) fn store(store: &str, width: usize) -> String {
    cut(&format!("store {}", escaped(store)), width) + "\n"
}

fn rows(status: &KeyStatus) -> Vec<Row> {
    let key = escaped(status.key.as_str());
    let waiting = if status.waiters.is_empty() { "-".into() } else { status.waiters.len().to_string() };
    let last = status.last.as_ref().map_or_else(
        || "-".into(),
        |last| format!("{}, {} ago", ending(last.ending), span(between(last.ended_unix_ms, status.now_ms))),
    );
    let last = match &status.value {
        Some(value) => format!("{last}, last value {}", escaped(value)),
        None => last,
    };
    if let (true, Some(withheld)) = (status.holders.is_empty(), status.withheld) {
        return vec![[key, "withheld".into(), "-".into(), span(withheld), "-".into(), waiting, last]];
    }
    if status.holders.is_empty() {
        return vec![[key, "free".into(), "-".into(), "-".into(), "-".into(), waiting, last]];
    }
    let holders = status.holders.iter().map(|holding| {
        [
            key.clone(),
            state(holding).into(),
            span(between(holding.since_ms, status.now_ms)),
            holding.expires_in.map_or_else(|| "-".into(), span),
            match (&holding.value, holding.slot) {
                (Some(value), _) => format!("value {}: {}", escaped(value), holding.who),
                (None, Some(slot)) => format!("slot {slot}: {}", holding.who),
                (None, None) => holding.who.to_string(),
            },
            waiting.clone(),
            last.clone(),
        ]
    });
    holders.collect()
}

/// Returns how a holder holds the lock, in a word or two.
fn state(holding: &HolderStatus) -> &'static str {
    match (holding.revoked, holding.purpose, holding.is_shared) {
        (true, _, _) => "revoked",
        (false, Purpose::Hand, _) => "by hand",
        (false, Purpose::Kept, _) => "kept",
        (false, Purpose::Unrecorded, _) => "unrecorded",
        (false, Purpose::Run, true) => "shared",
        (false, Purpose::Run, false) => "held",
    }
}

/// Returns the colour of a cell, if it has one.
fn colour(column: usize, cell: &str) -> Option<Colour> {
    match (column, cell) {
        (STATE, "free") => Some(Colour::Faint),
        (STATE, "held" | "shared") => Some(Colour::Green),
        (STATE, "by hand" | "kept" | "withheld") => Some(Colour::Yellow),
        (STATE, "revoked" | "unrecorded") => Some(Colour::Red),
        (LAST_RUN, failed) if failed.starts_with("status") || failed.starts_with("signal") => Some(Colour::Red),
        _ => None,
    }
}

fn line(row: &Row, widths: &[usize; COLUMNS], width: Option<usize>, colours: bool) -> String {
    let mut line = String::new();
    let mut painted = Vec::new();
    for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
        let whole = cell;
        let cell = cut(cell, *width);
        if let Some(colour) = colour(column, whole).filter(|_| colours) {
            painted.push((colour, line.len(), line.len() + cell.len()));
        }
        line.push_str(&cell);
        if column + 1 < COLUMNS {
            line.extend(std::iter::repeat_n(' ', width.saturating_sub(cell.width()) + GAP));
        }
    }
    let kept = width.map_or_else(|| line.clone(), |width| cut(&line, width));
    let mut kept = kept.trim_end().to_owned();
    // From the end, so that earlier positions stay valid. A cell that was cut gets no colour.
    for (colour, start, end) in painted.into_iter().rev() {
        if kept.get(start..end).is_some_and(|cell| cell == &line[start..end]) {
            let cell = colour.paint(&line[start..end]);
            kept.replace_range(start..end, &cell);
        }
    }
    kept + "\n"
}

/// Cuts the text to fit `width` columns.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut cut = String::new();
    let mut left = width.saturating_sub(1);
    for c in text.chars() {
        let wide = c.width().unwrap_or(0);
        if wide > left {
            break;
        }
        left -= wide;
        cut.push(c);
    }
    cut + "…"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::holder::Holder;
    use crate::lock::key::Key;
    use std::time::Duration;

    fn held(key: &str, command: &str) -> KeyStatus {
        let who = Holder { host: "web-1".into(), pid: 7, user: "deploy".into(), command: command.into(), label: None };
        let holding = HolderStatus {
            who,
            since_ms: 1_000,
            has_lease: true,
            expires_in: Some(Duration::from_secs(24)),
            fence: 9,
            ..HolderStatus::default()
        };
        let key = Key::new(key.as_ref()).expect("is a key");
        KeyStatus { now_ms: 193_000, holders: vec![holding], ..KeyStatus::never_used(key) }
    }

    #[test]
    fn columns_stand_below_each_other() {
        let free = KeyStatus::never_used(Key::new("b".as_ref()).expect("is a key"));
        assert_eq!(
            text(&[held("nightly", "./report.sh"), free], None, false),
            "KEY      STATE  FOR     LEASE  HOLDER                             WAITING  LAST RUN\n\
             nightly  held   3m 12s  24s    web-1 pid 7 (deploy: ./report.sh)  -        -\n\
             b        free   -       -      -                                  -        -\n"
        );
    }

    #[test]
    fn a_narrow_terminal_shows_host_and_process_id() {
        let text = text(&[held("nightly-report-of-all", &"x".repeat(300))], Some(60), false);
        assert!(text.contains("web-1 pid 7") && text.contains("WAITING"), "{text}");
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let keys = [held(&"key".repeat(50), &"x".repeat(300)), held("漢字漢字漢字漢字漢字漢字", "a\nb\u{202e}\x1b[2J")];
        for width in [20, 40, 80, 132] {
            let text = text(&keys, Some(width), false);
            assert_eq!(text.lines().count(), 3, "{text}");
            assert!(text.lines().all(|line| line.width() <= width), "{width}: {text}");
            assert!(!text.contains(['\x1b', '\u{202e}']));
        }
    }
}
