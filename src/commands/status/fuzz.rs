//! Fuzzing of how the status is printed.

use std::time::Duration;

use super::{json, metrics, page, table};
use crate::fuzz::check_harmless;
use crate::lock::ending::Ending;
use crate::lock::holder::Holder;
use crate::lock::key::Key;
use crate::lock::state::LastRun;
use crate::lock::state::{Purpose, Success};
use crate::store::{HolderStatus, KeyStatus, WaiterStatus};

/// Fuzzes a status with any texts and numbers. The input consists of texts separated by `|`; the first provides the
/// numbers.
pub fn status(data: &[u8]) {
    let mut parts = data.split(|byte| *byte == b'|');
    let numbers = parts.next().unwrap_or_default();
    let texts: Vec<String> = parts.map(|part| String::from_utf8_lossy(part).into_owned()).collect();
    let text = |at: usize| texts.get(at).cloned().unwrap_or_default();
    let number = |at: usize| {
        let mut bytes = [0; 8];
        let there = numbers.get(at..).unwrap_or_default();
        let count = there.len().min(8);
        bytes[..count].copy_from_slice(&there[..count]);
        u64::from_le_bytes(bytes)
    };
    let half = |at| u32::try_from(number(at) >> 32).unwrap_or_default();
    let who = |at| Holder { host: text(at), pid: half(at), user: text(at + 1), command: text(at + 2), label: None };
    let holding = |at: usize| HolderStatus {
        who: who(at),
        since_ms: number(at),
        has_lease: number(at) % 7 != 0,
        expires_in: Some(Duration::from_millis(number(at + 1))).filter(|_| number(at) % 2 == 0),
        fence: number(at + 2),
        slot: Some(half(at)).filter(|slot| slot % 2 == 0),
        purpose: [Purpose::Run, Purpose::Hand, Purpose::Kept, Purpose::Unrecorded][at % 4],
        is_shared: number(at) % 3 == 0,
        value: texts.get(at).cloned().filter(|value| value.len() % 2 == 0),
        revoked: number(at) % 5 == 0,
        token: None,
    };
    let key = |at| Key::new(text(at).as_ref()).unwrap_or_else(|_| Key::new("k".as_ref()).expect("is a key"));
    let ending = match number(2) % 3 {
        0 => None,
        1 => Some(Ending::Exited(numbers.first().copied().unwrap_or_default())),
        _ => Some(Ending::Signaled(half(3).cast_signed())),
    };
    let held = KeyStatus {
        now_ms: number(1),
        fence: number(2),
        holders: (1..texts.len().min(4)).map(holding).collect(),
        waiters: (4..texts.len().min(7)).map(|at| WaiterStatus { who: who(at), since_ms: Some(number(at)) }).collect(),
        last: Some(LastRun { who: who(5), started_unix_ms: number(3), ended_unix_ms: number(4), ending }),
        success: Some(Success {
            began_unix_ms: number(5),
            once_began_unix_ms: Some(number(5)),
            until_unix_ms: Some(number(6)),
        }),
        value: texts.get(6).cloned(),
        withheld: Some(Duration::from_millis(number(7))),
        ..KeyStatus::never_used(key(0))
    };
    let free = KeyStatus { withheld: held.withheld, last: held.last.clone(), ..KeyStatus::never_used(key(1)) };
    check(&[held, free]);
}

/// Checks that in no form of a status foreign text reaches the terminal unescaped, and that programs can read the forms
/// meant for them.
pub fn check(keys: &[KeyStatus]) {
    for colours in [false, true] {
        for width in [None, Some(20), Some(80)] {
            let shown = table::text(keys, width, colours);
            assert_eq!(shown.lines().count(), keys.iter().map(|key| key.holders.len().max(1)).sum::<usize>() + 1);
            check_harmless(&without_colours(&shown, colours));
        }
        for key in keys {
            check_harmless(&without_colours(&page::text(key, "file:", colours), colours));
        }
    }
    let text = json::text(keys, "file:");
    check_harmless(&text);
    let read: serde_json::Value = serde_json::from_str(&text).expect("is JSON");
    let names: Vec<_> = read.as_array().expect("is a list").iter().map(|key| key["key"].as_str()).collect();
    assert_eq!(names, keys.iter().map(|key| Some(key.key.as_str())).collect::<Vec<_>>());
    check_metrics(&metrics::text(keys), keys);
}

/// Returns the text without lockrun's own colour sequences.
fn without_colours(text: &str, colours: bool) -> String {
    let mut text = text.to_owned();
    if colours {
        for code in ["32", "33", "31", "2", "0"] {
            text = text.replace(&format!("\x1b[{code}m"), "");
        }
    }
    text
}

/// Checks that the text is OpenMetrics, and that each line with a value is labelled with one of the keys.
fn check_metrics(text: &str, keys: &[KeyStatus]) {
    let Some(lines) = text.strip_suffix("# EOF\n") else { panic!("it does not end") };
    for line in lines.split_terminator('\n').filter(|line| !line.starts_with("# ")) {
        let (name, rest) = line.split_once("{key=\"").expect("has a label");
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{line}");
        let (label, value) = rest.rsplit_once("\"} ").expect("has a value");
        assert!(value.parse::<f64>().is_ok(), "{line}");
        let mut key = String::new();
        let mut chars = label.chars();
        while let Some(c) = chars.next() {
            assert!(c != '"', "{line}");
            key.push(if c == '\\' { chars.next().expect("is followed") } else { c });
        }
        assert!(keys.iter().any(|status| status.key.as_str() == key), "{line}");
    }
}
