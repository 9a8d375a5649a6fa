//! The events of a run, and the fields of their JSON objects. [`super::message`] words them for people.

use std::borrow::Cow;
use std::time::Duration;

use serde::Serialize;

use super::Verbosity;
use super::message::{why_done, why_held_by_token, why_self_deadlock};
use crate::lock::ending::Ending;
use crate::lock::holder::Holder;
use crate::store::Held;

/// An event of a run.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// Another run holds the lock, and this one waits for it.
    Waiting(&'a Held),
    /// The lock was acquired.
    Acquired {
        /// The fencing token of this acquisition.
        fence: u64,
        /// The slot, if there are several.
        slot: Option<u32>,
        /// The reserved value of a sequence.
        value: Option<&'a str>,
        /// How long the acquisition took.
        waited: Duration,
    },
    /// Another run holds the lock, and `--skip` was given.
    Skipped(&'a Held),
    /// A run has succeeded within the `--once-per` period, so COMMAND is not run.
    Done {
        /// How long ago that run began.
        began: Duration,
        /// Who it was, if that is known.
        by: Option<&'a Holder>,
    },
    /// Another run holds the lock, and this one does not wait or has given up waiting.
    Held {
        /// The holder.
        held: &'a Held,
        /// The limit that was reached, if there is one.
        limit: Option<Limit>,
    },
    /// The token of this claim, which the user chose, holds the lock already, in another way than the one asked for.
    HeldByToken {
        /// The holder under that token.
        held: &'a Held,
        /// Whether it shares the lock.
        shares: bool,
        /// Whether this claim was to wait.
        waits: bool,
    },
    /// The lock is held by enclosing runs.
    SelfDeadlock {
        /// The last of them to acquire it.
        held: &'a Held,
        /// The number of slots, if there are several.
        slots: Option<u32>,
    },
    /// A request for the lock, or a renewal, has failed because the store is away, and is tried again.
    Outage {
        /// What failed, and why.
        why: &'a str,
        /// For how long it is tried again.
        left: Duration,
    },
    /// The store, which was away, answers again.
    Recovered,
    /// COMMAND runs.
    Started {
        /// The executed program, escaped.
        program: &'a str,
    },
    /// The lease is lost.
    Lost {
        /// The reason.
        why: &'a str,
        /// Whether COMMAND is stopped because of it.
        stops: bool,
    },
    /// COMMAND was stopped.
    Killed(Reason),
    /// COMMAND has ended; `None` if it could not be killed or another process reaped it.
    Finished(Option<Ending>),
    /// The lock was released.
    Released {
        /// How long it is held at least, from its acquisition.
        min_hold: Duration,
    },
    /// The lock stays held (`--keep`).
    Kept,
    /// A signal terminated lockrun before COMMAND was started.
    Interrupted(i32),
    /// An error.
    Failed {
        /// What failed, and why.
        why: &'a str,
    },
}

/// A limit that the user has set for a lock that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The run has waited for this long.
    Wait(Duration),
    /// This many runs wait already.
    Waiting(u32),
    /// The lock has been held for at least this long, so the run is not skipped.
    Skip(Duration),
}

/// Why COMMAND was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The lease was lost.
    Lost,
    /// Its `--max-runtime` has passed.
    TimedOut {
        /// The limit.
        limit: Duration,
        /// Whether it did not end on TERM, so that it was killed.
        was_killed: bool,
    },
    /// Its guardian was killed.
    Unguarded,
    /// lockrun itself was killed.
    Orphaned,
}

/// The fields of an event's object, except those that all events have.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub struct Fields<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<Other<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waited_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_hold_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stops_command: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<Cow<'a, str>>,
}

/// The holder of the lock, another run.
#[derive(Debug, Serialize)]
struct Other<'a> {
    #[serde(flatten)]
    who: Option<&'a Holder>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held_ms: Option<u64>,
}

impl Event<'_> {
    /// Returns the lowest verbosity at which the event is printed.
    pub fn least_verbosity(&self) -> Verbosity {
        match self {
            Event::Lost { .. }
            | Event::Killed(Reason::TimedOut { .. } | Reason::Unguarded | Reason::Orphaned)
            | Event::SelfDeadlock { .. }
            | Event::Failed { .. } => Verbosity::Quiet,
            Event::Held { .. } | Event::HeldByToken { .. } => Verbosity::Normal,
            _ => Verbosity::Verbose,
        }
    }

    /// Returns its name in the JSON object.
    pub fn name(&self) -> &'static str {
        match self {
            Event::Waiting(_) => "waiting",
            Event::Acquired { .. } => "acquired",
            Event::Skipped(_) | Event::Done { .. } => "skipped",
            Event::Held { .. } | Event::HeldByToken { .. } | Event::SelfDeadlock { .. } => "held",
            Event::Outage { .. } => "outage",
            Event::Recovered => "recovered",
            Event::Started { .. } => "started",
            Event::Lost { .. } => "lost",
            Event::Killed(_) => "killed",
            Event::Finished(_) => "finished",
            Event::Released { .. } => "released",
            Event::Kept => "kept",
            Event::Interrupted(_) => "interrupted",
            Event::Failed { .. } => "failed",
        }
    }

    /// Returns its own fields in the JSON object.
    pub fn fields(&self) -> Fields<'_> {
        let none = Fields::default();
        let other = |held: &Held| Fields { place: held.place, ..Fields::default() };
        match self {
            Event::Waiting(held) | Event::Skipped(held) => Fields { holder: Some(Other::of(held)), ..other(held) },
            Event::Held { held, limit } => {
                let why = limit.map(|limit| limit.why().into());
                Fields { holder: Some(Other::of(held)), why, ..other(held) }
            }
            Event::Done { began, by } => {
                let holder = by.map(|who| Other { who: Some(who), held_ms: None });
                Fields { holder, why: Some(why_done(*began).into()), ..none }
            }
            Event::HeldByToken { held, shares, waits } => {
                Fields { holder: Some(Other::of(held)), why: Some(why_held_by_token(*shares, *waits).into()), ..none }
            }
            Event::SelfDeadlock { held, slots } => {
                Fields { holder: Some(Other::of(held)), why: Some(why_self_deadlock(*slots).into()), ..none }
            }
            Event::Acquired { value, waited, .. } => Fields { value: *value, waited_ms: Some(millis(*waited)), ..none },
            Event::Started { .. } | Event::Finished(None) | Event::Kept | Event::Recovered => none,
            Event::Outage { why, left } => Fields { why: Some((*why).into()), left_ms: Some(millis(*left)), ..none },
            Event::Lost { why, stops } => Fields { stops_command: Some(*stops), why: Some((*why).into()), ..none },
            Event::Killed(reason) => Fields { why: Some(reason.message().into()), ..none },
            Event::Finished(Some(Ending::Exited(status))) => Fields { status: Some(*status), ..none },
            Event::Finished(Some(Ending::Signaled(signal))) | Event::Interrupted(signal) => {
                Fields { signal: Some(*signal), ..none }
            }
            Event::Released { min_hold } => {
                Fields { min_hold_ms: (!min_hold.is_zero()).then(|| millis(*min_hold)), ..none }
            }
            Event::Failed { why } => Fields { why: Some((*why).into()), ..none },
        }
    }
}

impl<'a> Other<'a> {
    fn of(held: &'a Held) -> Self {
        Other { who: held.holder.as_ref(), held_ms: held.since.map(millis) }
    }
}

/// Returns a span in whole milliseconds.
pub fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::text;

    #[test]
    fn every_event_is_documented() {
        let held = Held::default();
        let events = [
            Event::Waiting(&held),
            Event::Acquired { fence: 1, slot: None, value: None, waited: Duration::ZERO },
            Event::Started { program: "x" },
            Event::Held { held: &held, limit: None },
            Event::Skipped(&held),
            Event::Outage { why: "x", left: Duration::ZERO },
            Event::Recovered,
            Event::Lost { why: "x", stops: true },
            Event::Killed(Reason::Lost),
            Event::Finished(None),
            Event::Released { min_hold: Duration::ZERO },
            Event::Kept,
            Event::Interrupted(15),
            Event::Failed { why: "x" },
        ];
        assert_eq!(events.map(|event| event.name()), text::EVENTS.map(|(name, _)| name));
    }
}
