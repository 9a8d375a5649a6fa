//! Telling what happens in a run: in words on standard error as far as they are wanted, and to the file of `--events`.

use std::path::Path;

use super::event::Event;
use super::event_log::EventLog;
use crate::lock::holder::Holder;
use crate::lock::key::Key;
use crate::report::{self, Verbosity};

/// Who tells what happens with a lock.
#[derive(Debug)]
pub struct Reporter {
    key: Key,
    /// How much is said in words.
    pub verbosity: Verbosity,
    event_log: Option<EventLog>,
}

impl Reporter {
    /// One that tells of the lock `key` in words alone.
    pub fn new(key: Key, verbosity: Verbosity) -> Self {
        Reporter { key, verbosity, event_log: None }
    }

    /// The same that also writes the events of `run` to the file at `path`, if one is given.
    pub fn with_event_log(self, path: Option<&Path>, run: &Holder) -> Self {
        Reporter { event_log: path.map(|path| EventLog::open(path, run.clone())), ..self }
    }

    /// Tells an event.
    pub fn tell(&self, event: Event<'_>) {
        if self.verbosity >= event.is_said_from() {
            report::say(&event.words(&self.key));
        }
        if let Some(event_log) = &self.event_log {
            event_log.tell(self.key.as_str(), &event);
        }
    }

    /// Tells an error with its causes: what failed, then why.
    pub fn fail(&self, error: &anyhow::Error) {
        self.tell(Event::Failed { why: &format!("{error:#}") });
    }
}
