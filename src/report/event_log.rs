//! The event log: a file to which events are appended, one JSON object per line.
//!
//! It never makes a run fail or wait: lines that cannot be written are lost, with one warning.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use serde::Serialize;

use super::event::{Event, Fields, millis};
use super::line_writer::LineWriter;
use crate::lock::holder::Holder;
use crate::report;
use crate::sys::clock::Moment;
use crate::text::escape::{escaped, json_for_terminals};

/// A file to which the events of a run are appended.
#[derive(Debug)]
pub struct EventLog {
    path: PathBuf,
    /// `None` after the end, or if it could not be opened.
    line_writer: Option<LineWriter>,
    run: Holder,
    acquired: OnceLock<(Moment, u64, Option<u32>)>,
    started: OnceLock<Moment>,
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
    /// Opens the event log of `run` in the file at `path`, which is created if it does not exist. The signals must be blocked.
    pub fn open(path: &Path, run: Holder) -> Self {
        let (line_writer, error) = match LineWriter::new(path.to_owned()) {
            Ok(line_writer) => (Some(line_writer), None),
            Err(error) => (None, Some(error)),
        };
        let event_log = EventLog {
            path: path.to_owned(),
            line_writer,
            run,
            acquired: OnceLock::new(),
            started: OnceLock::new(),
            has_warned: AtomicBool::new(false),
        };
        if let Some(error) = error {
            event_log.warn(&error);
        }
        event_log
    }

    /// Writes an event of the lock `key`. Does not wait for it.
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
                let _ = self.acquired.set((Moment::now(), *fence, *slot));
            }
            Event::Started { .. } => {
                let _ = self.started.set(Moment::now());
            }
            _ => {}
        }
    }

    fn line(&self, key: &str, event: &Event<'_>) -> String {
        let now = Moment::now();
        let since = |from: &Moment| millis(now.since(*from));
        let acquired = self.acquired.get();
        let line = Line {
            time: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            event: event.name(),
            key,
            run: &self.run,
            fence: acquired.map(|(_, fence, _)| *fence),
            slot: acquired.and_then(|(.., slot)| *slot),
            fields: event.fields(),
            ran_ms: self.started.get().filter(|_| matches!(event, Event::Finished(_))).map(since),
            held_ms: acquired
                .filter(|_| matches!(event, Event::Released { .. } | Event::Kept | Event::Lost { .. }))
                .map(|(at, ..)| since(at)),
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
            escaped(&self.path.to_string_lossy())
        ));
    }
}

/// Waits a short time for the last lines.
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
