//! The status of keys for programs: an array with an object for each key.

use std::time::Duration;

use serde_json::{Value, json};

use super::format::{between, moment};
use crate::lock::ending::Ending;
use crate::lock::holder::Holder;
use crate::lock::state::LastRun;
use crate::lock::state::Purpose;
use crate::store::{HolderStatus, KeyStatus, WaiterStatus};
use crate::text::escape::json_for_terminals;

/// Returns the JSON text about the keys of this store, with a newline at the end.
pub(super) fn text(keys: &[KeyStatus], store: &str) -> String {
    let keys: Vec<Value> = keys.iter().map(|status| key(status, store)).collect();
    json_for_terminals(&format!("{:#}\n", Value::from(keys)))
}

fn key(status: &KeyStatus, store: &str) -> Value {
    json!({
        "store": store,
        "key": status.key.as_str(),
        "held": !status.holders.is_empty(),
        "fence": status.fence,
        "holders": status.holders.iter().map(|holding| holder(holding, status.now_ms)).collect::<Vec<_>>(),
        "waiters": status.waiters.iter().map(|waiting| waiter(waiting, status.now_ms)).collect::<Vec<_>>(),
        "last": status.last.as_ref().map(past),
        "done_until": status.success.and_then(|success| success.until_unix_ms).filter(|until| *until > status.now_ms).map(time),
        "last_value": status.value,
        "withheld_ms": status.withheld.map(millis),
    })
}

fn holder(holding: &HolderStatus, now_ms: u64) -> Value {
    with(
        &holding.who,
        json!({
            "since": time(holding.since_ms),
            "held_ms": millis(between(holding.since_ms, now_ms)),
            "expires_in_ms": holding.expires_in.map(millis),
            "fence": holding.fence,
            "slot": holding.slot,
            "held_as": held_as(holding.purpose),
            "shared": holding.is_shared,
            "value": holding.value,
            "revoked": holding.revoked,
        }),
    )
}

fn held_as(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Run => "run",
        Purpose::Hand => "by-hand",
        Purpose::Kept => "kept",
        Purpose::Unrecorded => "unrecorded",
    }
}

fn waiter(waiting: &WaiterStatus, now_ms: u64) -> Value {
    with(
        &waiting.who,
        json!({
            "since": waiting.since_ms.map(time),
            "waited_ms": waiting.since_ms.map(|since_ms| millis(between(since_ms, now_ms))),
        }),
    )
}

fn past(past: &LastRun) -> Value {
    let (status, signal) = match past.ending {
        Some(Ending::Exited(status)) => (Some(status), None),
        Some(Ending::Signaled(signal)) => (None, Some(signal)),
        None => (None, None),
    };
    with(
        &past.who,
        json!({
            "started": time(past.started_unix_ms),
            "ended": time(past.ended_unix_ms),
            "status": status,
            "signal": signal,
        }),
    )
}

/// Prepends the fields of a holder.
fn with(who: &Holder, fields: Value) -> Value {
    let mut all = if who.is_unknown() {
        json!({ "host": null, "pid": null, "user": null, "command": null, "label": null })
    } else {
        json!({ "host": who.host, "pid": who.pid, "user": who.user, "command": who.command, "label": who.label })
    };
    if let (Value::Object(all), Value::Object(fields)) = (&mut all, fields) {
        all.extend(fields);
    }
    all
}

/// Formats a moment as in `2026-11-21T04:30:00.000Z`.
fn time(unix_ms: u64) -> String {
    humantime::format_rfc3339_millis(moment(unix_ms)).to_string()
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::docs_tests::{JSON, code, table};
    use crate::lock::key::Key;

    fn names(object: &Value) -> BTreeSet<&str> {
        object.as_object().expect("an object").keys().map(String::as_str).collect()
    }

    // The documentation lists every field, and no others.
    #[test]
    fn every_field_is_documented() {
        let who = Holder { host: "h".into(), pid: 1, user: "u".into(), command: "c".into(), label: None };
        let holding = HolderStatus { who: who.clone(), ..HolderStatus::default() };
        let waiting = WaiterStatus { who: who.clone(), since_ms: None };
        let past = LastRun { who, started_unix_ms: 1, ended_unix_ms: 2, ending: None };
        let key_status = KeyStatus::never_used(Key::new("k".as_ref()).expect("a key"));
        for (of, object) in [
            ("field of a lock", key(&key_status, "file:")),
            ("field of a holder", holder(&holding, 2)),
            ("field of a waiter", waiter(&waiting, 2)),
            ("field of `last`", super::past(&past)),
        ] {
            let rows = table(JSON, &[of, "type", "meaning"]);
            let documented: BTreeSet<&str> = rows.iter().flat_map(|row| code(&row[0])).collect();
            assert_eq!(documented, names(&object), "{of}");
        }
    }

    #[test]
    fn the_schema_has_every_way_to_hold_a_lock() {
        let schema: Value = serde_json::from_str(include_str!("../../../docs/status.schema.json")).expect("JSON");
        let ways = [Purpose::Run, Purpose::Hand, Purpose::Kept, Purpose::Unrecorded].map(held_as);
        assert_eq!(schema["$defs"]["holder"]["properties"]["held_as"]["enum"], json!(ways));
    }
}
