//! The messages for people: the wording of each event of a run on standard error.

use std::time::Duration;

use super::event::{Event, Limit, Reason};
use crate::lock::ending::Ending;
use crate::lock::key::Key;
use crate::store::Held;
use crate::text::duration;
use crate::text::escape::escaped;

impl Event<'_> {
    /// Returns the message for people; `lock` is the lock's name, and `store` that of the store.
    pub fn message(&self, lock: &Key, store: &str) -> String {
        let key = escaped(lock.as_str());
        match self {
            Event::Waiting(held) => format!("waiting in {}: {}", escaped(store), held_by(lock, held)),
            Event::Acquired { fence, value: Some(value), .. } => {
                format!("value \"{}\" of \"{key}\" reserved in {}, fence {fence}", escaped(value), escaped(store))
            }
            Event::Acquired { fence, .. } => format!("lock \"{key}\" acquired in {}, fence {fence}", escaped(store)),
            Event::Done { began, by: None } => format!("skipped: {}", why_done(*began)),
            Event::Done { began, by: Some(who) } => {
                format!("skipped: {who} began {} ago and succeeded (--once-per)", duration::say(*began))
            }
            Event::Skipped(held) => format!("skipped: {}", held_by(lock, held)),
            Event::Held { held, limit: None } => held_by(lock, held),
            Event::Held { held, limit: Some(limit) } => format!("{}; {}", held_by(lock, held), limit.why()),
            Event::Outage { why, left } => {
                let say = if left.as_secs() == 0 { duration::say_finely } else { duration::say };
                format!("lock \"{key}\": {why}; trying again for {}", say(*left))
            }
            Event::Recovered => format!("lock \"{key}\": the store answers again"),
            Event::HeldByToken { held, shares, waits } => {
                format!("{}; {}", held_by(lock, held), why_held_by_token(*shares, *waits))
            }
            Event::SelfDeadlock { held, slots } => {
                let last = if slots.is_some() { "the last by " } else { "" };
                format!(
                    "refusing to wait for the lock \"{key}\": {}, {last}{}",
                    why_self_deadlock(*slots),
                    held.named()
                )
            }
            Event::Started { program } => format!("{program} started"),
            Event::Lost { why, stops: true } => format!("lock \"{key}\" is lost, and the command is stopped: {why}"),
            Event::Lost { why, stops: false } => {
                format!("lock \"{key}\" is lost, and the command runs on without it: {why}")
            }
            Event::Killed(reason) => format!("lock \"{key}\": {}", reason.message()),
            Event::Finished(Some(Ending::Exited(status))) => format!("the command finished with status {status}"),
            Event::Finished(Some(Ending::Signaled(signal))) => format!("the command was terminated by signal {signal}"),
            Event::Finished(None) => "it is not known how the command ended".into(),
            Event::Released { min_hold } if !min_hold.is_zero() => {
                format!("lock \"{key}\" stays held: --min-hold {} has not passed", duration::say_finely(*min_hold))
            }
            Event::Released { .. } => format!("lock \"{key}\" released"),
            Event::Kept => format!("lock \"{key}\" kept"),
            Event::Interrupted(signal) => format!("terminated by signal {signal} before the command was started"),
            Event::Failed { why } => (*why).into(),
        }
    }
}

impl Reason {
    /// Returns the message for people.
    pub(super) fn message(self) -> String {
        match self {
            Reason::Lost => "the command was stopped: its lock is lost".into(),
            Reason::TimedOut { limit, was_killed } => {
                let limit = duration::say_finely(limit);
                let how = if was_killed { "; it did not end on TERM, and was killed" } else { "" };
                format!("the command was stopped: --max-runtime {limit} has passed{how}")
            }
            Reason::Unguarded => "lockrun's guardian process was killed, and the command's processes with it".into(),
            Reason::Orphaned => "lockrun was killed; its guardian process has killed the command".into(),
        }
    }
}

impl Limit {
    /// Returns why a run does not wait, or not any more, or is not skipped.
    pub(super) fn why(self) -> String {
        match self {
            Limit::Wait(span) => format!("gave up after {}", duration::say_finely(span)),
            Limit::Waiting(1) => "1 run waits for it already (--max-waiting 1)".into(),
            Limit::Waiting(max) => format!("{max} runs wait for it already (--max-waiting {max})"),
            Limit::Skip(span) => format!("that is longer than --skip={} allows", duration::say_finely(span)),
        }
    }
}

/// Returns the message for a held lock, which names the holder: in the words of [`Held`], how it is held and by whom.
pub fn held_by(key: &Key, held: &Held) -> String {
    format!("lock \"{}\" is {held}", escaped(key.as_str()))
}

/// Returns why no other run is needed.
pub(super) fn why_done(began: Duration) -> String {
    format!("a run that began {} ago has succeeded (--once-per)", duration::say(began))
}

/// Returns why a claim under a token of the user's own got no lock that this token holds.
pub(super) fn why_held_by_token(shares: bool, waits: bool) -> String {
    let (how, ask) =
        if shares { ("shares it already", "with --shared") } else { ("holds it already in another way", "as before") };
    let waits = if waits { ", and did not wait, because it would wait for itself" } else { "" };
    format!("this token {how}{waits}: release it first, or ask {ask}")
}

/// Returns why waiting for a lock with this many slots would never end.
pub(super) fn why_self_deadlock(slots: Option<u32>) -> String {
    match slots {
        None => "it is held by a run that this one is part of".into(),
        Some(slots) => format!("its {slots} slots are held by runs that this one is part of"),
    }
}
