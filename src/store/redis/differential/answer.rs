//! The answer of an operation, in one form for both sides.

use std::time::Duration;

use redis::Value;

use super::view::{fields, text};
use crate::lock::key::Key;
use crate::store::redis::reply::read_status;
use crate::store::{Held, KeyStatus};

/// An answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Answer {
    /// The answer in words.
    pub(super) words: String,
    /// The holder that it names. The state's answer has all that Redis may name: if several leases are the first to
    /// end, at the same time, each side has its own order.
    pub(super) holder: Vec<HolderSeen>,
}

/// A holder, as an answer names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HolderSeen {
    pub(super) token: String,
    pub(super) since: u64,
    pub(super) ends: Option<u64>,
}

/// The script that has answered.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reader {
    Acquire,
    Renew,
    Release,
    Cancel,
    Reserve,
    Revoke,
    List,
    Prune,
    ForgetSuccess,
    Nothing,
}

impl Answer {
    pub(super) fn new(words: impl Into<String>) -> Self {
        Answer { words: words.into(), ..Answer::default() }
    }

    /// Returns whether Redis may give this answer where the state gives `self`.
    pub(super) fn allows(&self, redis: &Answer) -> bool {
        let is_same_holder = match redis.holder.first() {
            None => self.holder.is_empty(),
            Some(holder) => self.holder.contains(holder),
        };
        self.words == redis.words && is_same_holder
    }

    /// Reads a script's reply at `now`.
    pub(super) fn read(reader: Reader, reply: &Value, now: u64) -> Self {
        let fields = fields(reply);
        match (reader, fields) {
            (Reader::Acquire, [Value::Int(1), fence, slot]) => {
                Answer::new(format!("mine: fence {}, slot {}", text(fence), text(slot)))
            }
            (Reader::Acquire, [Value::Int(0), held, place, look_in, last_fence, _]) => Answer {
                holder: holder(held, now).into_iter().collect(),
                ..Answer::new(not_mine(&text(place), &text(look_in), &text(last_fence)))
            },
            (Reader::Acquire, [Value::Int(2), began, _]) => {
                Answer::new(format!("done by one that began at {}", text(began)))
            }
            (Reader::Renew, [Value::Int(1)]) => Answer::new("mine"),
            (Reader::Renew, [Value::Int(2), by]) => {
                let by: serde_json::Value = serde_json::from_str(&text(by)).expect("is JSON");
                Answer::new(format!("revoked by {}", by["command"]))
            }
            (Reader::Renew | Reader::Release, [Value::Int(0), held]) => Answer::not_mine(held, now),
            (Reader::Release, [Value::Int(2)]) => Answer::new("when it ends"),
            (Reader::Release, [Value::Int(1), Value::Int(stays)]) => {
                Answer::new(["not mine", "free", "retained"][usize::try_from(stays + 1).expect("-1 to 1")])
            }
            (Reader::Cancel, [Value::Int(1), Value::Int(stays)]) => {
                Answer::new(if *stays == 1 { "another request's" } else { "cancelled" })
            }
            (Reader::Reserve, [Value::Int(1), fence, value]) => {
                Answer::new(format!("mine: fence {}, value {}", text(fence), text(value)))
            }
            (Reader::Reserve, [Value::Int(0)]) => Answer::new("taken"),
            (Reader::Reserve, [Value::Int(2), last]) => Answer::new(format!("nothing after {}", text(last))),
            (Reader::Reserve, [Value::Int(3), last]) => Answer::new(format!("moved to {}", text(last))),
            (Reader::Revoke, [Value::Int(0)]) => Answer::new("free"),
            (Reader::Revoke, [Value::Int(1), others]) => Answer::new(format!("others: {:?}", holders(others, now))),
            (Reader::Revoke, [Value::Int(2), from, free_in, untold]) => {
                let (from, untold) = (holders(from, now), *untold != Value::Int(0));
                Answer::new(format!("from: {from:?}, free in {}, untold {untold}", text(free_in)))
            }
            (Reader::List, _) => match read_status(Key::new("k".as_ref()).expect("is a key"), reply) {
                Ok(status) => Answer::status(status),
                Err(_) => Answer::new(format!("not to be read: {reply:?}")),
            },
            (Reader::Prune, _) => Answer::new(format!("to be pruned: {}", *reply == Value::Int(1))),
            (Reader::ForgetSuccess, _) => Answer::new(format!("forgotten: {}", *reply == Value::Int(1))),
            (Reader::Nothing, _) => Answer::default(),
            _ => Answer::new(format!("not to be read: {reply:?}")),
        }
    }

    /// Returns a `status` as an answer.
    pub(super) fn status(mut status: KeyStatus) -> Self {
        status.holders.sort_by(|a, b| a.who.command.cmp(&b.who.command));
        Answer::new(format!("{status:?}"))
    }

    fn not_mine(held: &Value, now: u64) -> Self {
        Answer { holder: holder(held, now).into_iter().collect(), ..Answer::new("not mine") }
    }
}

impl HolderSeen {
    /// Returns a holder as an answer given at `now` names it.
    pub(super) fn of(held: &Held, now: u64) -> Self {
        let ms = |span: Duration| u64::try_from(span.as_millis()).expect("is not that long");
        HolderSeen {
            token: held.token.as_ref().map(|token| token.as_str().to_owned()).unwrap_or_default(),
            since: now.saturating_sub(held.since.map_or(0, ms)),
            ends: held.expires_in.map(|span| now.saturating_add(ms(span))),
        }
    }
}

/// Returns the words of an answer that others hold the lock.
pub(super) fn not_mine(place: &str, look_in: &str, last_fence: &str) -> String {
    format!("not mine, place {place}, look in {look_in}, last fence {last_fence}")
}

/// Reads `{held for, expires in or -1, info, token}`, or `{}`.
fn holder(value: &Value, now: u64) -> Option<HolderSeen> {
    let [Value::Int(held_for), Value::Int(expires_in), _, token] = fields(value) else { return None };
    let ends = (*expires_in >= 0).then(|| now.saturating_add_signed(*expires_in));
    // After the clock was set back it may be negative: an answer says zero then.
    Some(HolderSeen { token: text(token), since: now.saturating_add_signed(-(*held_for).max(0)), ends })
}

fn holders(value: &Value, now: u64) -> Vec<HolderSeen> {
    let mut holders: Vec<_> = fields(value).iter().filter_map(|it| holder(it, now)).collect();
    holders.sort();
    holders
}
