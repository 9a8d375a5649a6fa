//! What the scripts answer, read.

use std::time::Duration;

use redis::Value;
use serde::Deserialize;

use crate::clock::Moment;
use crate::holder::Holder;
use crate::store::{Custody, Grant, Held, Renewed};

/// An answer that none of our scripts gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Strange;

/// The answer to a request for the lock.
#[derive(Debug)]
pub(super) enum Asked {
    /// It is ours.
    Mine(Grant),
    /// It is not.
    NotMine {
        /// Whose it is.
        held: Held,
        /// The length of its lease, where there is one that ends.
        ttl: Option<Duration>,
        /// When to ask again if nothing happens.
        look_in: Duration,
        /// The waiters to whom the lock was handed by this request, if it was.
        handed: Option<Handed>,
    },
}

/// Waiters to whom a script has written.
#[derive(Debug)]
pub(super) struct Handed {
    /// The token of the one that was granted the lock.
    pub(super) granted: String,
    /// The tokens of those that were told to watch it.
    pub(super) told: String,
}

/// What the scripts keep about a holder.
#[derive(Deserialize)]
struct Info {
    who: Holder,
    #[serde(default)]
    ttl: u64,
}

impl Asked {
    /// Reads the acquire script's reply to a request that left at `sent_at`.
    pub(super) fn read(reply: &Value, sent_at: Moment) -> Result<Self, Strange> {
        match fields(reply) {
            [Value::Int(1), Value::Int(fence)] => {
                let fence = u64::try_from(*fence).map_err(|_| Strange)?;
                Ok(Asked::Mine(Grant { fence, custody: Custody::Lease(sent_at) }))
            }
            [Value::Int(0), holder, Value::Int(place), Value::Int(look_in), granted, told] => Ok(Asked::NotMine {
                held: Held { place: u64::try_from(*place).ok(), ..read_holder(holder).unwrap_or_default() },
                ttl: read_ttl(holder),
                look_in: Duration::from_millis(u64::try_from(*look_in).unwrap_or_default()),
                handed: handed(granted, told),
            }),
            _ => Err(Strange),
        }
    }
}

impl Handed {
    /// Reads the release script's reply.
    pub(super) fn read(reply: &Value) -> Option<Self> {
        match fields(reply) {
            [granted, told] => handed(granted, told),
            _ => None,
        }
    }
}

/// Reads the renew script's reply.
pub(super) fn read_renewal(reply: &Value) -> Result<Renewed, Strange> {
    match fields(reply) {
        [Value::Int(1)] => Ok(Renewed::Mine),
        [Value::Int(0), holder] => Ok(Renewed::NotMine(read_holder(holder))),
        _ => Err(Strange),
    }
}

/// Reads `{held for, expires in or -1, info}`, in ms, or `{}` where there is no holder.
fn read_holder(holder: &Value) -> Option<Held> {
    let [Value::Int(since), Value::Int(expires_in), Value::BulkString(info)] = fields(holder) else { return None };
    let span = |millis: i64| u64::try_from(millis).ok().map(Duration::from_millis);
    let info = serde_json::from_slice::<Info>(info).ok();
    Some(Held { holder: info.map(|info| info.who), since: span(*since), expires_in: span(*expires_in), place: None })
}

/// The length of the lease of a holder as above.
fn read_ttl(holder: &Value) -> Option<Duration> {
    let [_, _, Value::BulkString(info)] = fields(holder) else { return None };
    let ttl = serde_json::from_slice::<Info>(info).ok()?.ttl;
    (ttl > 0).then(|| Duration::from_millis(ttl))
}

fn handed(granted: &Value, told: &Value) -> Option<Handed> {
    let granted = text(granted).filter(|token| !token.is_empty())?;
    Some(Handed { granted, told: text(told)? })
}

/// The text of a reply that is one.
pub(super) fn text(reply: &Value) -> Option<String> {
    match reply {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    }
}

/// Reads the answer to BLPOP: the mail "WRITTEN WAIT" as the wait, `None` if none came in time.
pub(super) fn read_mail(reply: &Value) -> Option<Duration> {
    let [_, mail] = fields(reply) else { return None };
    let mail = text(mail)?;
    let (_, wait) = mail.split_once(' ')?;
    wait.parse().ok().map(Duration::from_millis)
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
        let asked = Asked::read(&array([Value::Int(1), Value::Int(7)]), sent_at).expect("is understood");
        let Asked::Mine(grant) = asked else { panic!("{asked:?}") };
        assert_eq!(grant, Grant { fence: 7, custody: Custody::Lease(sent_at) });
    }

    #[test]
    fn a_held_lock_is_read() {
        let holder =
            array([Value::Int(5), Value::Int(-1), bulk(r#"{"who":{"host":"web-1","pid":7},"fence":3,"ttl":30000}"#)]);
        let reply = array([Value::Int(0), holder, Value::Int(2), Value::Int(8000), bulk("a"), bulk("b c")]);
        let asked = Asked::read(&reply, Moment::from_boot(Duration::ZERO)).expect("is understood");
        let Asked::NotMine { held, ttl, look_in, handed: Some(handed) } = asked else { panic!("{asked:?}") };
        assert_eq!(held.holder.map(|who| (who.host, who.pid)), Some(("web-1".into(), 7)));
        assert_eq!((held.since, held.expires_in, held.place), (Some(Duration::from_millis(5)), None, Some(2)));
        assert_eq!((ttl, look_in), (Some(Duration::from_secs(30)), Duration::from_secs(8)));
        assert_eq!((handed.granted.as_str(), handed.told.as_str()), ("a", "b c"));
    }

    #[test]
    fn what_no_script_answers_is_an_error() {
        let sent_at = Moment::from_boot(Duration::ZERO);
        for reply in [Value::Okay, array([]), array([Value::Int(1)]), array([Value::Int(2), Value::Nil])] {
            assert!(Asked::read(&reply, sent_at).is_err());
        }
        assert!(read_renewal(&array([Value::Int(3)])).is_err());
        assert_eq!(read_renewal(&array([Value::Int(1)])).expect("is understood"), Renewed::Mine);
        assert_eq!(read_renewal(&array([Value::Int(0), array([])])).expect("is understood"), Renewed::NotMine(None));
    }

    #[test]
    fn mail_tells_when_to_look() {
        assert_eq!(read_mail(&array([bulk("box"), bulk("1700000000000 0")])), Some(Duration::ZERO));
        assert_eq!(read_mail(&array([bulk("box"), bulk("1700000000000 500")])), Some(Duration::from_millis(500)));
        assert_eq!(read_mail(&Value::Nil), None);
    }
}
