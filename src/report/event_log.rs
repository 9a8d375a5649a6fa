//! The event log: a file to which events are appended, one JSON object per line.
//!
//! It never makes a run fail or wait once the run has begun: lines that cannot be written are lost, with one warning. A
//! file that a second user could have chosen is refused before that.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use serde::Serialize;

use super::event::{Event, Fields, millis};
use super::line_writer::LineWriter;
use crate::lock::holder::Holder;
use crate::lock::milestones::{Acquisition, Milestones};
use crate::report;
use crate::sys::clock::Moment;
use crate::text::escape::{json_for_terminals, typed_path};

/// The file that the user has named for events.
#[derive(Clone, Debug)]
pub struct EventFile {
    /// Its path.
    pub path: PathBuf,
    /// Where the user has named it, for messages: `--events`, a variable, or a line of a configuration file.
    pub source: String,
}

/// A file to which the events of a run are appended.
#[derive(Debug)]
pub struct EventLog {
    file: EventFile,
    /// `None` after the end, or if its thread could not be started.
    line_writer: Option<LineWriter>,
    run: Holder,
    acquisition: OnceLock<Acquisition>,
    started_at: OnceLock<Moment>,
    has_warned: AtomicBool,
}

/// One line.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    event: &'static str,
    key: &'a str,
    #[serde(flatten)]
    run: &'a Holder,
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<u32>,
    #[serde(flatten)]
    fields: Fields<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ran_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held_ms: Option<u64>,
}

impl EventLog {
    /// Starts to open the event log of `run` in this file, which is created if it does not exist. The signals must be
    /// blocked.
    pub fn open(file: &EventFile, run: Holder) -> Self {
        let (line_writer, error) = match LineWriter::new(file.path.clone()) {
            Ok(line_writer) => (Some(line_writer), None),
            Err(error) => (None, Some(error)),
        };
        let event_log = EventLog {
            file: file.clone(),
            line_writer,
            run,
            acquisition: OnceLock::new(),
            started_at: OnceLock::new(),
            has_warned: AtomicBool::new(false),
        };
        if let Some(error) = error {
            event_log.warn(&error);
        }
        event_log
    }

    /// Waits briefly for the file to be opened. Fails, with a message for the user, if a second user could have chosen
    /// it.
    pub fn check(&self) -> Result<(), String> {
        let Some(why) = self.line_writer.as_ref().and_then(LineWriter::refusal) else { return Ok(()) };
        // The error says it.
        self.has_warned.store(true, Ordering::Relaxed);
        Err(format!("{}: cannot append events to {}: {why}", self.file.source, typed_path(&self.file.path)))
    }

    /// Queues an event of the lock `key`. Does not wait until it is written.
    pub fn write(&self, key: &str, event: &Event<'_>) {
        self.remember(event);
        let Some(line_writer) = &self.line_writer else { return };
        line_writer.write(self.line(key, event));
        if let Some(error) = line_writer.failure() {
            self.warn(error);
        }
    }

    /// Records the times that later lines need.
    fn remember(&self, event: &Event<'_>) {
        match event {
            Event::Acquired { fence, slot, .. } => {
                let _ = self.acquisition.set(Acquisition { at: Moment::now(), fence: *fence, slot: *slot });
            }
            Event::Started { .. } => {
                let _ = self.started_at.set(Moment::now());
            }
            _ => {}
        }
    }

    /// Records what another process has reported of the run before.
    pub fn resume(&self, milestones: Milestones) {
        if let Some(acquisition) = milestones.acquisition {
            let _ = self.acquisition.set(acquisition);
        }
        if let Some(at) = milestones.started_at {
            let _ = self.started_at.set(at);
        }
    }

    fn line(&self, key: &str, event: &Event<'_>) -> String {
        let now = Moment::now();
        let since = |from: &Moment| millis(now.since(*from));
        let acquisition = self.acquisition.get();
        let line = Line {
            time: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            event: event.name(),
            key,
            run: &self.run,
            fence: acquisition.map(|acquisition| acquisition.fence),
            slot: acquisition.and_then(|acquisition| acquisition.slot),
            fields: event.fields(),
            ran_ms: self.started_at.get().filter(|_| matches!(event, Event::Finished(_))).map(since),
            held_ms: acquisition
                .filter(|_| matches!(event, Event::Released { .. } | Event::Kept | Event::Lost { .. }))
                .map(|acquisition| since(&acquisition.at)),
        };
        let json = serde_json::to_string(&line).unwrap_or_default();
        json_for_terminals(&(json + "\n"))
    }

    /// Warns once that the file cannot be written.
    fn warn(&self, error: &io::Error) {
        if self.has_warned.swap(true, Ordering::Relaxed) {
            return;
        }
        let why = match error.raw_os_error() {
            Some(libc::ENXIO) => "no process reads it".into(),
            Some(libc::EAGAIN) => "its reader is too slow".into(),
            None if error.kind() == ErrorKind::TimedOut => "a write takes too long".into(),
            _ => error.to_string(),
        };
        report::say(&format!(
            "warning: cannot write events to {}: {why}; the run continues",
            typed_path(&self.file.path)
        ));
    }
}

/// Waits briefly for the last lines.
impl Drop for EventLog {
    fn drop(&mut self) {
        let Some(mut line_writer) = self.line_writer.take() else { return };
        let is_done = line_writer.finish();
        if let Some(error) = line_writer.failure() {
            self.warn(error);
        } else if !is_done {
            self.warn(&ErrorKind::TimedOut.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::Duration;

    use serde_json::Value;

    use super::*;
    use crate::cli::text;
    use crate::docs_tests::{JSON, code, table};
    use crate::lock::ending::Ending;
    use crate::report::event::{Limit, Reason};
    use crate::store::Held;

    /// Returns a log without a file, of a run that has a slot and has started COMMAND.
    fn event_log(run: &Holder) -> EventLog {
        EventLog {
            file: EventFile { path: "/nonexistent".into(), source: "--events".into() },
            line_writer: None,
            run: run.clone(),
            acquisition: OnceLock::from(Acquisition { at: Moment::now(), fence: 1, slot: Some(0) }),
            started_at: OnceLock::from(Moment::now()),
            has_warned: AtomicBool::new(false),
        }
    }

    /// Returns the fields of each event, over all its forms.
    fn fields() -> BTreeMap<String, BTreeSet<String>> {
        let run = Holder { host: "h".into(), pid: 1, user: "u".into(), command: "c".into(), label: Some("l".into()) };
        let span = Duration::from_secs(1);
        let without_place = Held { holder: Some(run.clone()), since: Some(span), ..Held::default() };
        let held = Held { place: Some(1), ..without_place.clone() };
        let forms = [
            Event::Waiting(&held),
            Event::Acquired { fence: 1, slot: Some(0), value: Some("v"), waited: span },
            Event::Started { program: "x" },
            Event::Held { held: &held, limit: Some(Limit::Wait(span)) },
            Event::HeldByToken { held: &without_place, shares: true, waits: true },
            Event::SelfDeadlock { held: &without_place, slots: None },
            Event::Skipped(&without_place),
            Event::Done { began: span, by: Some(&run) },
            Event::Outage { why: "x", left: span },
            Event::Recovered,
            Event::Lost { why: "x", stops: true },
            Event::Killed(Reason::Lost),
            Event::Finished(Some(Ending::Exited(0))),
            Event::Finished(Some(Ending::Signaled(15))),
            Event::Released { min_hold: span },
            Event::Kept,
            Event::Interrupted(15),
            Event::Failed { why: "x" },
        ];
        let event_log = event_log(&run);
        let mut fields: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for event in forms {
            let line: Value = serde_json::from_str(&event_log.line("k", &event)).expect("an object");
            let names = line.as_object().expect("an object").keys().cloned();
            fields.entry(event.name().into()).or_default().extend(names);
        }
        fields
    }

    // The documentation lists every event and all its fields, and no others.
    #[test]
    fn every_field_is_documented() {
        let of_all: BTreeSet<String> = table(JSON, &["field of every event", "type", "meaning"])
            .iter()
            .flat_map(|row| code(&row[0]))
            .map(str::to_owned)
            .collect();
        let rows = table(JSON, &["event", "when", "other fields"]);
        let names: Vec<&str> = rows.iter().flat_map(|row| code(&row[0])).collect();
        assert_eq!(names, text::EVENTS.map(|(name, _)| name));
        let fields = fields();
        assert_eq!(fields.len(), rows.len());
        for row in &rows {
            let name = code(&row[0])[0];
            let own: BTreeSet<String> = code(&row[2]).into_iter().map(str::to_owned).collect();
            assert_eq!(&of_all | &own, fields[name], "{name}");
            // The manual lists them, too.
            let (_, in_manual) = text::EVENTS.iter().find(|(event, _)| *event == name).expect("it is there");
            for field in own {
                assert!(in_manual.contains(&field), "the manual names no {field} of {name}");
            }
        }
        let described: BTreeSet<String> = table(JSON, &["field of some events", "type", "meaning"])
            .iter()
            .flat_map(|row| code(&row[0]))
            .map(str::to_owned)
            .collect();
        let own: BTreeSet<String> = fields.into_values().flatten().filter(|name| !of_all.contains(name)).collect();
        assert_eq!(described, own);
    }
}
