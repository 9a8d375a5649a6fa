//! Reads the replies of the scripts.

use std::time::Duration;

use redis::Value;

use super::failure::{Failure, UNEXPECTED};
use super::holder_json::{Info, past, success};
use crate::lock::key::Key;
use crate::lock::token::Token;
use crate::store::{
    Acquired, Grant, Held, HolderStatus, KeyStatus, RecentSuccess, Released, Renewed, Reserved, Revoked, WaiterStatus,
    Wakeup,
};
use crate::sys::clock::Moment;

/// Reads the acquire script's reply to a request that left at `sent_at`.
pub(super) fn read_acquisition(reply: &Value, sent_at: Moment) -> Result<Acquired, Failure> {
    match fields(reply) {
        [Value::Int(1), fence, Value::Int(slot)] => Ok(Acquired::Mine(grant(fence, *slot, sent_at)?)),
        [Value::Int(0), holder, Value::Int(place), Value::Int(look_in), last_fence, Value::Int(withheld)] => {
            Ok(Acquired::Held(Held {
                withheld: millis(*withheld).filter(|span| !span.is_zero()),
                place: u64::try_from(*place).ok(),
                look_in: millis(*look_in),
                last_fence: text(last_fence).and_then(|fence| fence.parse().ok()).ok_or(UNEXPECTED)?,
                ..read_holder(holder).unwrap_or_default()
            }))
        }
        [Value::Int(2), Value::Int(began), Value::Int(now)] => {
            let unix_ms = |time: &i64| u64::try_from(*time).map_err(|_| UNEXPECTED);
            Ok(Acquired::NotNeeded(RecentSuccess { began_ms: unix_ms(began)?, now_ms: unix_ms(now)? }))
        }
        _ => Err(UNEXPECTED),
    }
}

/// Reads the release script's reply.
pub(super) fn read_release(reply: &Value) -> Result<Released, Failure> {
    match fields(reply) {
        [Value::Int(0), holder] => Ok(Released::NotMine(read_holder(holder))),
        [Value::Int(1), Value::Int(1)] => Ok(Released::Retained),
        [Value::Int(1), Value::Int(0)] => Ok(Released::Free),
        [Value::Int(1), Value::Int(_)] => Ok(Released::NotMine(None)),
        [Value::Int(2)] => Ok(Released::WhenItEnds),
        _ => Err(UNEXPECTED),
    }
}

/// The holders that a revocation is to hit.
#[derive(Debug)]
pub(super) struct RevocationTargets {
    /// Their names, as `revoke.lua` gives and takes them.
    pub(super) names: Vec<u8>,
    from: Vec<Held>,
    may_run_unaware: bool,
}

impl RevocationTargets {
    /// Returns the outcome of a revocation that was sent twice, from the reply to the second request: the first one may
    /// have taken the lock from these holders.
    pub(super) fn merged_with(self, revoked: Revoked) -> Revoked {
        let RevocationTargets { from, may_run_unaware, .. } = self;
        match revoked {
            Revoked::Free | Revoked::Others(_) if from.is_empty() => revoked,
            Revoked::Free | Revoked::Others(_) => {
                Revoked::From { from, living: Vec::new(), free_in: Duration::ZERO, may_run_unaware }
            }
            Revoked::From { living, free_in, .. } => Revoked::From { from, living, free_in, may_run_unaware },
        }
    }
}

/// Reads the reply of `revoke.lua` without names. Fails if it is none.
pub(super) fn read_targets(reply: &Value) -> Result<RevocationTargets, Failure> {
    let [Value::BulkString(names), from, Value::Int(untold)] = fields(reply) else { return Err(UNEXPECTED) };
    Ok(RevocationTargets { names: names.clone(), from: read_holders(from), may_run_unaware: *untold > 0 })
}

/// Reads the reply of `revoke.lua` with names. Fails if it is none.
pub(super) fn read_revocation(reply: &Value) -> Result<Revoked, Failure> {
    match fields(reply) {
        [Value::Int(0)] => Ok(Revoked::Free),
        [Value::Int(1), others] => Ok(Revoked::Others(read_holders(others))),
        [Value::Int(2), taken, Value::Int(free_in), Value::Int(untold)] => {
            let (from, free_in) = (read_holders(taken), millis(*free_in).unwrap_or_default());
            Ok(Revoked::From { from, living: Vec::new(), free_in, may_run_unaware: *untold > 0 })
        }
        _ => Err(UNEXPECTED),
    }
}

/// Reads the reserve script's reply to a request that left at `sent_at`.
pub(super) fn read_reservation(reply: &Value, sent_at: Moment) -> Result<Reserved, Failure> {
    match fields(reply) {
        [Value::Int(1), fence, value] => Ok(Reserved::Mine(grant(fence, 0, sent_at)?, text(value).ok_or(UNEXPECTED)?)),
        [Value::Int(0)] => Ok(Reserved::Taken),
        [Value::Int(2), last] => Ok(Reserved::NoNext(text(last).ok_or(UNEXPECTED)?)),
        [Value::Int(4), Value::Int(span)] => Ok(Reserved::Withheld(millis(*span).unwrap_or_default())),
        [Value::Int(3), last] => Ok(Reserved::LastChanged(text(last).filter(|last| !last.is_empty()))),
        _ => Err(UNEXPECTED),
    }
}

/// Reads the reply of `list.lua` about `key`.
pub(super) fn read_status(key: Key, reply: &Value) -> Result<KeyStatus, Failure> {
    let [Value::Int(now), fence, holders, waiters, last, value, Value::Int(withheld)] = fields(reply) else {
        return Err(UNEXPECTED);
    };
    let now_ms = u64::try_from(*now).map_err(|_| UNEXPECTED)?;
    let holder = |holder: &Value| {
        let [Value::Int(held_for), Value::Int(expires_in), Value::BulkString(info), token] = fields(holder) else {
            return None;
        };
        let info = Info::read(info);
        Some(HolderStatus {
            who: info.who.unwrap_or_default(),
            since_ms: now_ms.saturating_sub(u64::try_from(*held_for).unwrap_or_default()),
            has_lease: true,
            expires_in: millis(*expires_in),
            fence: info.fence,
            slot: (info.slots > 1).then_some(info.slot),
            purpose: info.purpose,
            is_shared: info.slots == 0,
            value: info.value,
            revoked: info.is_revoked,
            token: read_token(token),
        })
    };
    let waiter = |waiter: &Value| {
        let Value::BulkString(info) = waiter else { return None };
        let info = Info::read(info);
        Some(WaiterStatus { who: info.who.unwrap_or_default(), since_ms: info.joined })
    };
    let last = text(last).unwrap_or_default();
    // The script lists them in the order in which their leases end.
    let mut holders: Vec<_> = fields(holders).iter().filter_map(holder).collect();
    holders.sort_by_key(|holder| (holder.since_ms, holder.fence));
    Ok(KeyStatus {
        key,
        now_ms,
        fence: text(fence).and_then(|fence| fence.parse().ok()).ok_or(UNEXPECTED)?,
        holders,
        waiters: fields(waiters).iter().filter_map(waiter).collect(),
        last: past(last.as_bytes()),
        success: success(last.as_bytes()),
        value: text(value).filter(|value| !value.is_empty()),
        withheld: millis(*withheld).filter(|span| !span.is_zero()),
    })
}

/// Reads the answer to SCAN: the next cursor, and the names that were found.
pub(super) fn read_scan(reply: &Value) -> Result<(String, Vec<String>), Failure> {
    let [cursor, names] = fields(reply) else { return Err(UNEXPECTED) };
    Ok((text(cursor).ok_or(UNEXPECTED)?, fields(names).iter().filter_map(text).collect()))
}

/// Reads the renew script's reply.
pub(super) fn read_renewal(reply: &Value) -> Result<Renewed, Failure> {
    match fields(reply) {
        [Value::Int(1)] => Ok(Renewed::Mine),
        [Value::Int(0), holder] => Ok(Renewed::NotMine(read_holder(holder))),
        [Value::Int(2), Value::BulkString(by)] => Ok(Renewed::Revoked(serde_json::from_slice(by).unwrap_or_default())),
        _ => Err(UNEXPECTED),
    }
}

/// Reads `{held for, expires in or -1, info, token}`, in ms, or `{}` where there is no holder.
fn read_holder(holder: &Value) -> Option<Held> {
    let [Value::Int(since), Value::Int(expires_in), Value::BulkString(info), token] = fields(holder) else {
        return None;
    };
    let info = Info::read(info);
    Some(Held {
        holder: info.who,
        since: millis(*since),
        expires_in: millis(*expires_in),
        token: read_token(token),
        purpose: info.purpose,
        is_revoked: info.is_revoked,
        ..Held::default()
    })
}

/// Reads a list of such holders.
fn read_holders(holders: &Value) -> Vec<Held> {
    fields(holders).iter().filter_map(read_holder).collect()
}

fn read_token(token: &Value) -> Option<Token> {
    text(token).and_then(|token| Token::parse(&token).ok())
}

/// Returns a span from a script; a negative one is none.
fn millis(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

/// Returns the text of a reply, if it is a string.
pub(super) fn text(reply: &Value) -> Option<String> {
    match reply {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    }
}

/// Reads the answer to BLPOP: what woke a waiter, or that its time is over.
pub(super) fn read_mail(reply: &Value) -> Wakeup {
    let handed_over = || {
        let [_, mail] = fields(reply) else { return None };
        let mail = text(mail)?;
        let (fence, slot) = mail.split_once(' ')?;
        Some(Wakeup::HandedOver { fence: fence.parse().ok()?, slot: slot.parse().ok()? })
    };
    handed_over().unwrap_or(Wakeup::AskAgain)
}

/// Returns the grant that a request sent at `sent_at` has acquired.
fn grant(fence: &Value, slot: i64, sent_at: Moment) -> Result<Grant, Failure> {
    let fence = text(fence).and_then(|fence| fence.parse().ok()).ok_or(UNEXPECTED)?;
    let slot = u32::try_from(slot).map_err(|_| UNEXPECTED)?;
    Ok(Grant { fence, slot, lease_from: Some(sent_at), by_hand_off: false })
}

fn fields(reply: &Value) -> &[Value] {
    match reply {
        Value::Array(fields) => fields,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(fields: impl IntoIterator<Item = Value>) -> Value {
        Value::Array(fields.into_iter().collect())
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn a_grant_is_read() {
        let sent_at = Moment::from_boot(Duration::from_secs(1));
        let reply = array([Value::Int(1), bulk("7"), Value::Int(2)]);
        let grant = Grant { fence: 7, slot: 2, lease_from: Some(sent_at), by_hand_off: false };
        assert_eq!(read_acquisition(&reply, sent_at).expect("is read"), Acquired::Mine(grant));
    }

    #[test]
    fn a_held_lock_is_read() {
        let info = bulk(r#"{"who":{"host":"web-1","pid":7},"fence":"3","ttl":30000}"#);
        let holder = array([Value::Int(5), Value::Int(-1), info, bulk("t")]);
        let reply =
            array([Value::Int(0), holder, Value::Int(2), Value::Int(8000), bulk("9007199254740993"), Value::Int(0)]);
        let tried = read_acquisition(&reply, Moment::from_boot(Duration::ZERO));
        let Ok(Acquired::Held(held)) = tried else { panic!("{tried:?}") };
        assert_eq!(held.holder.map(|who| (who.host, who.pid)), Some(("web-1".into(), 7)));
        assert_eq!((held.since, held.expires_in, held.withheld), (Some(Duration::from_millis(5)), None, None));
        assert_eq!((held.place, held.look_in), (Some(2), Some(Duration::from_secs(8))));
        assert_eq!(held.last_fence, 9_007_199_254_740_993);
    }

    #[test]
    fn what_no_script_answers_is_an_error() {
        let sent_at = Moment::from_boot(Duration::ZERO);
        for reply in [Value::Okay, array([]), array([Value::Int(1)]), array([Value::Int(2), Value::Nil])] {
            assert!(read_acquisition(&reply, sent_at).is_err());
        }
        assert!(read_renewal(&array([Value::Int(3)])).is_err());
        assert_eq!(read_renewal(&array([Value::Int(1)])).expect("is understood"), Renewed::Mine);
        assert_eq!(read_renewal(&array([Value::Int(0), array([])])).expect("is understood"), Renewed::NotMine(None));
    }

    #[test]
    fn mail_says_that_the_lock_is_handed_over() {
        let mail = |text| read_mail(&array([bulk("box"), bulk(text)]));
        assert_eq!(mail("9007199254740993 2"), Wakeup::HandedOver { fence: 9_007_199_254_740_993, slot: 2 });
        for text in ["", "7", "7 ", "x 1", "cancelled"] {
            assert_eq!(mail(text), Wakeup::AskAgain, "{text}");
        }
        assert_eq!(read_mail(&Value::Nil), Wakeup::AskAgain);
    }
}
