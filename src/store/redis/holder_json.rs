//! Reads the JSON that the scripts keep, field by field. Another program may have written it: a field that cannot be
//! read counts as missing.

use serde_json::Value as Json;

use crate::lock::ending::Ending;
use crate::lock::holder::Holder;
use crate::lock::state::LastRun;
use crate::lock::state::{Purpose, Success};

/// The particulars of a holder or a waiter.
#[derive(Default)]
pub(super) struct Info {
    /// `None` if it is lost.
    pub(super) who: Option<Holder>,
    pub(super) fence: u64,
    pub(super) slot: u32,
    pub(super) purpose: Purpose,
    /// How many it lets hold the lock; 0: all that share it.
    pub(super) slots: u64,
    pub(super) value: Option<String>,
    pub(super) joined: Option<u64>,
    pub(super) is_revoked: bool,
}

impl Info {
    /// Reads the particulars.
    pub(super) fn read(text: &[u8]) -> Self {
        let info: Json = serde_json::from_slice(text).unwrap_or_default();
        Info {
            who: holder(&info["who"]),
            fence: number(&info["fence"]).unwrap_or_default(),
            slot: number(&info["slot"]).and_then(|slot| u32::try_from(slot).ok()).unwrap_or_default(),
            purpose: purpose(&info),
            slots: number(&info["slots"]).unwrap_or(1),
            value: info["value"].as_str().map(str::to_owned),
            joined: number(&info["joined"]),
            is_revoked: !info["revoked"].is_null(),
        }
    }
}

/// Reads what a holder holds the lock for.
pub(super) fn purpose(info: &Json) -> Purpose {
    match (info["hand"] == true, info["kept"] == true) {
        (true, true) => Purpose::Kept,
        (true, false) => Purpose::Hand,
        _ => Purpose::Run,
    }
}

/// Reads the last run; `None` if its holder is not known.
pub(super) fn past(text: &[u8]) -> Option<LastRun> {
    let last: Json = serde_json::from_slice(text).ok()?;
    let status = number(&last["status"]).and_then(|status| u8::try_from(status).ok());
    let signal = number(&last["signal"]).and_then(|signal| i32::try_from(signal).ok());
    Some(LastRun {
        who: holder(&last["who"])?,
        started_unix_ms: number(&last["started"]).unwrap_or_default(),
        ended_unix_ms: number(&last["ended"])?,
        ending: status.map(Ending::Exited).or(signal.map(Ending::Signaled)),
    })
}

/// Reads when the last successful run began, and until when no other run is wanted.
pub(super) fn success(text: &[u8]) -> Option<Success> {
    let last: Json = serde_json::from_slice(text).ok()?;
    Some(Success {
        began_unix_ms: number(&last["done"])?,
        once_began_unix_ms: number(&last["once"]),
        until_unix_ms: number(&last["till"]),
    })
}

fn holder(who: &Json) -> Option<Holder> {
    who.is_object().then(|| serde_json::from_value(who.clone()).ok()).flatten()
}

/// Reads a number that is not negative, or a string of its digits. Lua writes large numbers as 1e+15, which is not
/// exact.
fn number(value: &Json) -> Option<u64> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it saturates, and nothing is exact here"
    )]
    let rounded = || value.as_f64().filter(|number| *number >= 0.0).map(|number| number as u64);
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).or_else(rounded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_understood_is_left_out() {
        let info =
            Info::read(br#"{"who":{"host":"web-1","pid":7},"fence":"9007199254740993","joined":1e+15,"slot":-1}"#);
        assert_eq!(info.who.map(|who| (who.host, who.pid)), Some(("web-1".into(), 7)));
        assert_eq!((info.fence, info.joined, info.slot), (9_007_199_254_740_993, Some(1_000_000_000_000_000), 0));
        for garbage in ["", "{", "[]", "7", r#"{"who":7}"#, r#"{"who":{"pid":-1}}"#] {
            assert_eq!(Info::read(garbage.as_bytes()).who, None, "{garbage}");
            assert_eq!(past(garbage.as_bytes()), None, "{garbage}");
        }
        let last = past(br#"{"who":{},"started":[],"ended":1e300,"status":256}"#).expect("somebody's");
        assert_eq!((last.started_unix_ms, last.ended_unix_ms, last.ending), (0, u64::MAX, None));
    }
}
