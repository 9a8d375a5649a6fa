//! The file that is told what happens, one object a line.
//!
//! It is never a reason for a run to fail or to wait: what cannot be written is lost, which is said once.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use serde::Serialize;

use crate::clock::Moment;
use crate::escape::{escaped, json_for_terminals};
use crate::event::{Event, Fields, millis};
use crate::holder::Holder;
use crate::report;

/// A file that is told what happens in a run.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: Option<File>,
    run: Holder,
    acquired: OnceLock<(Moment, u64, Option<u32>)>,
    started: OnceLock<Moment>,
    has_complained: AtomicBool,
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

impl Journal {
    /// Opens the file at `path`, and makes it if it is not there, for the events of `run`.
    pub fn open(path: &Path, run: Holder) -> Self {
        // A FIFO that nobody reads, or a terminal, must not make us wait; COMMAND must not inherit it.
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
        let file = OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(path);
        let (file, error) = match file {
            Ok(file) => (Some(file), None),
            Err(error) => (None, Some(error)),
        };
        let journal = Journal {
            path: path.to_owned(),
            file,
            run,
            acquired: OnceLock::new(),
            started: OnceLock::new(),
            has_complained: AtomicBool::new(false),
        };
        if let Some(error) = error {
            journal.complain(&error);
        }
        journal
    }

    /// Writes an event of the lock `key` down.
    pub fn tell(&self, key: &str, event: &Event<'_>) {
        self.remember(event);
        let Some(file) = &self.file else { return };
        let line = self.line(key, event);
        // One write, so that no other run's line comes in between.
        let mut file: &File = file;
        let written = loop {
            match file.write(line.as_bytes()) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                written => break written,
            }
        };
        match written {
            Ok(length) if length == line.len() => {}
            Ok(_) => self.complain(&io::Error::other("a line was cut short")),
            Err(error) => self.complain(&error),
        }
    }

    /// Remembers when what happened, for the lines to come.
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

    /// Says once what is wrong with the file.
    fn complain(&self, error: &io::Error) {
        if self.has_complained.swap(true, Ordering::Relaxed) {
            return;
        }
        let why = match error.raw_os_error() {
            Some(libc::ENXIO) => "nobody reads it".into(),
            Some(libc::EAGAIN) => "whoever reads it is too slow".into(),
            _ => error.to_string(),
        };
        report::say(&format!(
            "warning: cannot write events to {}: {why}; the run goes on",
            escaped(&self.path.to_string_lossy())
        ));
    }
}
