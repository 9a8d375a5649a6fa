//! The status of keys as OpenMetrics text, for example for the textfile directory of a node exporter.

use std::fmt::Write as _;
use std::time::Duration;

use super::format::between;
use crate::lock::ending::Ending;
use crate::store::KeyStatus;

/// A family of gauges, with a value for each key that has one.
struct Family {
    name: &'static str,
    unit: Option<&'static str>,
    help: &'static str,
    value: fn(&KeyStatus) -> Option<String>,
}

const FAMILIES: [Family; 7] = [
    Family {
        name: "lockrun_held",
        unit: None,
        help: "How many hold the lock; 0: it is free.",
        value: |status| Some(status.holders.len().to_string()),
    },
    Family {
        name: "lockrun_held_seconds",
        unit: Some("seconds"),
        help: "How long the holder that has held the lock the longest has held it; 0: it is free.",
        value: |status| {
            let since = status.holders.iter().map(|holding| between(holding.since_ms, status.now_ms)).max();
            Some(seconds(since.unwrap_or_default()))
        },
    },
    Family {
        name: "lockrun_waiters",
        unit: None,
        help: "How many wait for the lock.",
        value: |status| Some(status.waiters.len().to_string()),
    },
    Family {
        name: "lockrun_last_end_timestamp_seconds",
        unit: Some("seconds"),
        help: "When the last run ended, in Unix time of the store.",
        value: |status| Some(seconds(Duration::from_millis(status.last.as_ref()?.ended_unix_ms))),
    },
    Family {
        name: "lockrun_last_status",
        unit: None,
        help: "The exit status of the last run; 128 + N: signal N terminated it.",
        value: |status| match status.last.as_ref()?.ending? {
            Ending::Exited(status) => Some(status.to_string()),
            Ending::Signaled(signal) => Some((128 + i64::from(signal)).to_string()),
        },
    },
    Family {
        name: "lockrun_last_duration_seconds",
        unit: Some("seconds"),
        help: "How long the last run held the lock.",
        value: |status| {
            let last = status.last.as_ref()?;
            Some(seconds(between(last.started_unix_ms, last.ended_unix_ms)))
        },
    },
    Family {
        name: "lockrun_last_success_start_timestamp_seconds",
        unit: Some("seconds"),
        help: "When the latest of the runs began that have ended with 0, in Unix time of the store.",
        value: |status| Some(seconds(Duration::from_millis(status.success?.began_unix_ms))),
    },
];

/// Returns the text, which ends with `# EOF`.
pub(super) fn text(keys: &[KeyStatus]) -> String {
    let mut text = String::new();
    for Family { name, unit, help, value } in FAMILIES {
        let _ = writeln!(text, "# TYPE {name} gauge");
        if let Some(unit) = unit {
            let _ = writeln!(text, "# UNIT {name} {unit}");
        }
        let _ = writeln!(text, "# HELP {name} {help}");
        for status in keys {
            if let Some(value) = value(status) {
                let _ = writeln!(text, "{name}{{key=\"{}\"}} {value}", label(status.key.as_str()));
            }
        }
    }
    text + "# EOF\n"
}

/// Escapes the value of a label.
fn label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn seconds(span: Duration) -> String {
    format!("{}.{:03}", span.as_secs(), span.subsec_millis())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::holder::Holder;
    use crate::lock::key::Key;
    use crate::lock::state::LastRun;

    #[test]
    fn each_key_has_a_line_in_each_family_that_applies() {
        let key = Key::new("a\"b\\c".as_ref()).expect("is a key");
        let ending = Some(Ending::Signaled(9));
        let last = Some(LastRun { who: Holder::default(), started_unix_ms: 1_000, ended_unix_ms: 3_500, ending });
        let text = text(&[KeyStatus { now_ms: 5_000, last, ..KeyStatus::never_used(key) }]);
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            lines,
            [
                r#"lockrun_held{key="a\"b\\c"} 0"#,
                r#"lockrun_held_seconds{key="a\"b\\c"} 0.000"#,
                r#"lockrun_waiters{key="a\"b\\c"} 0"#,
                r#"lockrun_last_end_timestamp_seconds{key="a\"b\\c"} 3.500"#,
                r#"lockrun_last_status{key="a\"b\\c"} 137"#,
                r#"lockrun_last_duration_seconds{key="a\"b\\c"} 2.500"#,
            ]
        );
        assert!(text.ends_with("\n# EOF\n"));
    }
}
