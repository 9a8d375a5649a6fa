//! Whether a program printed what a page shows, but for what differs from one machine and one moment to another.

/// Returns `text` without what differs: hosts, users, numbers, spans, tokens and the width of columns.
pub(super) fn canonical(text: &str) -> String {
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn line(line: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        let word = word_without_particulars(word);
        let is_span = word.starts_with("TIME");
        // A span of two units is as good as one of one unit.
        if is_span && words.last().is_some_and(|last| last.trim_start_matches('(') == "TIME") {
            let before = words.pop().unwrap_or_default();
            words.push(before.replace("TIME", &word));
            continue;
        }
        if word == "pid" {
            // The word before it is a host's name.
            words.pop();
            words.push("HOST".into());
        }
        let is_user =
            words.len() >= 2 && words[words.len() - 2] == "pid" && word.starts_with('(') && word.ends_with(':');
        words.push(if is_user { "(USER:".into() } else { word });
    }
    let line = words.join(" ");
    if line.starts_with("store ") {
        return "store ANY".into();
    }
    for name in ["host", "user", "store"] {
        let field = format!("\"{name}\": \"");
        if let Some((before, after)) = line.split_once(&field) {
            let rest = after.split_once('"').map_or("", |(_, rest)| rest);
            return format!("{before}{field}ANY\"{rest}");
        }
    }
    line
}

/// Replaces spans by `TIME`, other numbers by 0 and tokens by `TOKEN`.
fn word_without_particulars(word: &str) -> String {
    const UNITS: [&str; 8] = ["ns", "µs", "us", "ms", "s", "m", "h", "d"];
    let is_of_token = |c: char| c.is_ascii_hexdigit() || c == '-';
    let mut rest = word;
    let mut plain = String::new();
    while let Some(first) = rest.chars().next() {
        let token = rest.find(|c| !is_of_token(c)).unwrap_or(rest.len());
        if token == 36 && rest[..token].matches('-').count() == 4 {
            plain.push_str("TOKEN");
            rest = &rest[token..];
            continue;
        }
        if !first.is_ascii_digit() {
            plain.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let is_number = |c: char| c.is_ascii_digit() || c == '.';
        let number = rest[..rest.find(|c| !is_number(c)).unwrap_or(rest.len())].trim_end_matches('.');
        rest = &rest[number.len()..];
        let unit = rest.find(|c: char| !c.is_alphabetic()).map_or(rest, |end| &rest[..end]);
        if UNITS.contains(&unit) {
            plain.push_str("TIME");
            rest = &rest[unit.len()..];
        } else {
            plain.push('0');
        }
    }
    plain
}

// What differs is left out, and nothing else.
#[test]
fn what_differs_is_left_out() {
    for (one, other) in [
        ("held by web-1 pid 4242 (deploy: sleep 5) for 3m 12s", "held by vm pid 7 (root: sleep 5) for 20ms"),
        ("backup  free   -    ok, 23h 57m ago", "backup free - ok, 0s ago"),
        ("since 2026-11-21 04:30:00Z (3m 12s)", "since 2027-01-01 23:59:59Z (1s)"),
        ("  \"host\": \"web-1\",", "\"host\": \"vm\","),
        (
            "{\"token\":\"5f0c7b0e-8a51-4c59-9d5e-0c8f3a1f7a11\"}",
            "{\"token\":\"dafe337e-19d9-43fd-a367-805fa7fa2c28\"}",
        ),
        ("an answer takes 195.8µs, at worst 5.1ms;", "an answer takes 2ms, at worst 1s;"),
    ] {
        assert_eq!(canonical(one), canonical(other));
    }
    for (one, other) in [
        ("is held by a pid 1 (b: c) for 1s", "is held by a pid 1 (b: d) for 1s"),
        ("free", "held"),
        ("ok, 0s ago", "ok"),
    ] {
        assert_ne!(canonical(one), canonical(other));
    }
}
