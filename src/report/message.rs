//! The messages for people: the wording of each event of a run on standard error.

use std::fmt::Display;
use std::time::Duration;

use super::event::{Event, Reason};
use crate::lock::ending::Ending;
use crate::lock::key::Key;
use crate::text::duration;
use crate::text::escape::escaped;

impl Event<'_> {
    /// Returns the message for people; `lock` is the lock's name.
    pub fn message(&self, lock: &Key) -> String {
        let key = escaped(lock.as_str());
        match self {
            Event::Waiting(held) => format!("waiting: {}", held_by(lock, held)),
            Event::Acquired { fence, value: Some(value), .. } => {
                format!("value \"{}\" of \"{key}\" reserved, fence {fence}", escaped(value))
            }
            Event::Acquired { fence, .. } => format!("lock \"{key}\" acquired, fence {fence}"),
            Event::Done { began } => format!("skipped: {}", why_done(*began)),
            Event::QueueFull { held, max } => format!("{}; {}", held_by(lock, held), why_full(*max)),
            Event::Skipped(held) => format!("skipped: {}", held_by(lock, held)),
            Event::Held { held, patience: None } => held_by(lock, held),
            Event::Held { held, patience: Some(patience) } => {
                format!("{}; {}", held_by(lock, held), why_gave_up(*patience))
            }
            Event::HeldByToken { held, shares, waits } => {
                format!("{}; {}", held_by(lock, held), why_held_by_token(*shares, *waits))
            }
            Event::SelfDeadlock { held, slots } => {
                let last = if slots.is_some() { "the last by " } else { "" };
                format!("refusing to wait for the lock \"{key}\": {}, {last}{held}", why_self_deadlock(*slots))
            }
            Event::Started { program } => format!("{program} started"),
            Event::Lost { why, stops: true } => format!("lock \"{key}\" is lost, and the command is stopped: {why}"),
            Event::Lost { why, stops: false } => {
                format!("lock \"{key}\" is lost, and the command runs on without it: {why}")
            }
            Event::Killed(reason) => reason.message(),
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
            Reason::TimedOut(span) => {
                format!("the command was stopped: --max-runtime {} has passed", duration::say_finely(span))
            }
            Reason::Unguarded => "lockrun's guardian process was killed, and the command's processes with it".into(),
            Reason::Orphaned => "lockrun was killed; its guardian process has killed the command".into(),
        }
    }
}

/// Returns the message for a held lock, which names the holder.
pub fn held_by(key: &Key, held: &impl Display) -> String {
    format!("lock \"{}\" is held by {held}", escaped(key.as_str()))
}

/// Returns why a run stopped waiting.
pub(super) fn why_gave_up(patience: Duration) -> String {
    format!("gave up after {}", duration::say_finely(patience))
}

/// Returns why a run does not wait.
pub(super) fn why_full(max: u32) -> String {
    match max {
        1 => "1 run waits for it already (--max-waiting 1)".into(),
        max => format!("{max} runs wait for it already (--max-waiting {max})"),
    }
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
