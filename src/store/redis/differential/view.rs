//! All that is kept of a lock, in one form for both sides.

use std::collections::BTreeMap;

use redis::Value;
use serde_json::Value as Json;

use crate::lock::holder::Holder;
use crate::lock::state::{HolderState, LockState, Purpose, StoreView, Success, WaiterState};
use crate::store::redis::holder_json::purpose;
use crate::store::redis::slots;

/// All that is kept of a lock and is in force.
#[derive(Debug, Default, PartialEq)]
pub(super) struct View {
    fence: String,
    /// By their tokens.
    holders: BTreeMap<String, HolderView>,
    /// In order.
    waiters: Vec<WaiterView>,
    last: Option<LastView>,
    success: Option<Success>,
    sequence: Option<(String, u64, String)>,
}

#[derive(Debug, PartialEq)]
struct HolderView {
    who: String,
    since: u64,
    ends: Option<u64>,
    ttl: Option<u64>,
    fence: String,
    slot: u64,
    slots: u64,
    once_per: Option<u64>,
    value: Option<(String, u64)>,
    purpose: Purpose,
    is_released: bool,
    revoked_by: Option<Holder>,
    request: Option<String>,
}

#[derive(Debug, PartialEq)]
struct WaiterView {
    token: String,
    who: String,
    slots: u64,
    once_per: Option<u64>,
    purpose: Purpose,
    joined: u64,
    length: u64,
    ends: u64,
    request: Option<String>,
}

#[derive(Debug, PartialEq)]
struct LastView {
    who: String,
    started: u64,
    ended: u64,
    ending: Json,
}

impl View {
    pub(super) fn of_state(state: &LockState, view: &impl StoreView) -> Self {
        let holders = state.holders_in_force(view).into_iter();
        View {
            fence: state.fence.to_string(),
            holders: holders.map(|it| (it.token.as_str().to_owned(), holder_of_state(it))).collect(),
            waiters: state.waiters_in_force(view).into_iter().map(waiter_of_state).collect(),
            last: state.last.as_ref().map(|last| LastView {
                who: last.who.command.clone(),
                started: last.started_unix_ms,
                ended: last.ended_unix_ms,
                ending: serde_json::to_value(last.ending).expect("is JSON"),
            }),
            success: state.success,
            sequence: state.sequence.as_ref().map(|it| (it.last.clone(), it.place, it.fence.to_string())),
        }
    }

    /// Returns it in parts, to be printed.
    pub(super) fn parts(&self) -> Vec<String> {
        let holders = self.holders.iter().map(|(token, holder)| format!("{token} holds it: {holder:?}"));
        let waiters = self.waiters.iter().enumerate().map(|(place, waiter)| format!("waiter {place}: {waiter:?}"));
        let View { fence, last, success, sequence, .. } = self;
        let rest = [
            format!("fence {fence}"),
            format!("last run: {last:?}"),
            format!("success: {success:?}"),
            format!("sequence: {sequence:?}"),
        ];
        holders.chain(waiters).chain(rest).collect()
    }

    /// Reads what follows a script's reply: holders, info, fence, last, places, sequence.
    pub(super) fn of_redis(kept: &[Value], now: u64) -> Self {
        let [holders, info, fence, last, places, sequence] = kept else { panic!("six fields: {kept:?}") };
        let info: BTreeMap<String, Json> = pairs(info).into_iter().map(|(token, info)| (token, json(&info))).collect();
        let info_of = |token: &str| info.get(token).unwrap_or(&Json::Null);
        let last: Json = Some(text(last)).filter(|last| !last.is_empty()).map_or(Json::Null, |last| json(&last));
        let sequence = pairs(sequence);
        let holders = pairs(holders).into_iter().map(|(token, ends)| {
            let holder = holder_of_redis(&ends, info_of(&token));
            (token, holder)
        });
        let waiters = fields(places).iter().map(|place| {
            let token = text(&fields(place)[0]);
            waiter_of_redis(text(&fields(place)[1]).parse().expect("is a time"), info_of(&token), token)
        });
        View {
            fence: text(fence),
            holders: holders.filter(|(_, holder)| holder.ends.is_none_or(|ends| ends > now)).collect(),
            waiters: waiters.filter(|waiter| waiter.ends > now).collect(),
            success: last["done"].is_number().then(|| Success {
                began_unix_ms: number(&last["done"]),
                once_began_unix_ms: last["once"].is_number().then(|| number(&last["once"])),
                until_unix_ms: last["till"].is_number().then(|| number(&last["till"])),
            }),
            last: last["who"].is_object().then(|| LastView {
                who: command(&last["who"]),
                started: number(&last["started"]),
                ended: number(&last["ended"]),
                ending: match (&last["status"], &last["signal"]) {
                    (Json::Null, Json::Null) => Json::Null,
                    (status, Json::Null) => serde_json::json!({ "exited": status }),
                    (_, signal) => serde_json::json!({ "signaled": signal }),
                },
            }),
            sequence: sequence.get("last").map(|last| {
                let place = sequence["place"].parse().expect("is a number");
                (last.clone(), place, sequence["fence"].clone())
            }),
        }
    }
}

fn holder_of_state(holder: &HolderState) -> HolderView {
    let lease = holder.lease.expect("a lease store's holders have leases");
    HolderView {
        who: holder.who.command.clone(),
        since: holder.since_ms,
        ends: lease.ends_ms,
        ttl: lease.ttl_ms,
        fence: holder.fence.to_string(),
        slot: holder.slot.into(),
        slots: slots(holder.mode).into(),
        once_per: holder.once_per_ms,
        value: holder.value.as_ref().map(|value| (value.value.clone(), value.place)),
        purpose: holder.purpose,
        is_released: holder.is_released,
        revoked_by: holder.revoked_by.clone(),
        request: holder.request.as_ref().map(|request| request.as_str().to_owned()),
    }
}

fn holder_of_redis(ends: &str, info: &Json) -> HolderView {
    let string = |name: &str| info[name].as_str().map(str::to_owned);
    HolderView {
        who: command(&info["who"]),
        since: number(&info["since"]),
        ends: ends.parse().ok(),
        ttl: Some(number(&info["ttl"])).filter(|ttl| *ttl > 0),
        fence: string("fence").unwrap_or_default(),
        slot: info["slot"].as_u64().unwrap_or(u64::MAX),
        slots: info["slots"].as_u64().unwrap_or(1),
        once_per: info["once"].is_number().then(|| number(&info["once"])),
        value: string("value").map(|value| (value, number(&info["place"]))),
        purpose: purpose(info),
        is_released: info["released"].as_bool().unwrap_or_default(),
        revoked_by: serde_json::from_value(info["revoked"].clone()).ok(),
        request: string("request"),
    }
}

fn waiter_of_state(waiter: &WaiterState) -> WaiterView {
    WaiterView {
        token: waiter.token.as_str().to_owned(),
        who: waiter.who.command.clone(),
        slots: slots(waiter.mode).into(),
        once_per: waiter.once_per_ms,
        purpose: waiter.purpose,
        joined: waiter.joined_ms,
        length: waiter.place_ms,
        ends: waiter.ends_ms,
        request: waiter.request.as_ref().map(|request| request.as_str().to_owned()),
    }
}

fn waiter_of_redis(ends: u64, info: &Json, token: String) -> WaiterView {
    WaiterView {
        token,
        who: command(&info["who"]),
        slots: number(&info["slots"]),
        once_per: info["once"].is_number().then(|| number(&info["once"])),
        purpose: purpose(info),
        joined: number(&info["joined"]),
        length: number(&info["ttl"]),
        ends,
        request: info["request"].as_str().map(str::to_owned),
    }
}

pub(super) fn fields(value: &Value) -> &[Value] {
    match value {
        Value::Array(fields) => fields,
        _ => &[],
    }
}

pub(super) fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).expect("is text"),
        Value::Int(number) => number.to_string(),
        other => panic!("no text: {other:?}"),
    }
}

fn pairs(value: &Value) -> BTreeMap<String, String> {
    fields(value).chunks(2).map(|pair| (text(&pair[0]), text(&pair[1]))).collect()
}

fn json(text: &str) -> Json {
    serde_json::from_str(text).expect("is JSON")
}

fn command(who: &Json) -> String {
    who["command"].as_str().unwrap_or_default().to_owned()
}

/// Reads a number, which Lua may have written as 1.8e+12.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "times, which are exact in a double")]
fn number(value: &Json) -> u64 {
    let text = || value.as_str()?.parse().ok();
    value.as_f64().or_else(text).unwrap_or_default() as u64
}
