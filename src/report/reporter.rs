//! Reports the events of a run: as messages on standard error, depending on the verbosity, and to the event log.

use super::event::Event;
use super::event_log::{EventFile, EventLog};
use crate::lock::holder::Holder;
use crate::lock::key::Key;
use crate::lock::milestones::Milestones;
use crate::report::{self, Verbosity};
use crate::store::Address;
use crate::sys::stderr;

/// Reports the events of one lock.
#[derive(Debug)]
pub struct Reporter {
    key: Key,
    store: Address,
    /// How much is printed.
    pub verbosity: Verbosity,
    event_log: Option<EventLog>,
}

impl Reporter {
    /// Returns a reporter of the lock `key` in the store at this address that only prints messages.
    pub fn new(key: Key, store: &Address, verbosity: Verbosity) -> Self {
        Reporter { key, store: store.clone(), verbosity, event_log: None }
    }

    /// Adds the event log of `run`, in this file if one is given, as [`EventLog::open`] does.
    pub fn with_event_log(self, file: Option<&EventFile>, run: &Holder) -> Self {
        Reporter { event_log: file.map(|file| EventLog::open(file, run.clone())), ..self }
    }

    /// Fails as [`EventLog::check`] does.
    pub fn check_event_log(&self) -> Result<(), String> {
        self.event_log.as_ref().map_or(Ok(()), EventLog::check)
    }

    /// Continues the report of a run that another process has reported until now, and that has come this far.
    pub fn resume(&self, milestones: Milestones) {
        if let Some(event_log) = &self.event_log {
            event_log.resume(milestones);
        }
    }

    /// Reports an event.
    pub fn report(&self, event: Event<'_>) {
        self.log(&event);
        self.print(&event);
    }

    /// Writes an event to the event log only. It may wait to print a warning, once, that the log has failed.
    pub fn log(&self, event: &Event<'_>) {
        if let Some(event_log) = &self.event_log {
            event_log.write(self.key.as_str(), event);
        }
    }

    /// Prints the message of an event only, which may block.
    pub fn print(&self, event: &Event<'_>) {
        if self.verbosity >= event.least_verbosity() {
            self.say(event);
        }
    }

    /// As [`Reporter::print`], but never waits: without room for the message, it is lost.
    pub fn print_if_there_is_room(&self, event: &Event<'_>) {
        if self.verbosity >= event.least_verbosity() {
            stderr::write_if_there_is_room(&report::lines(&event.message(&self.key, &self.store.shown())));
        }
    }

    /// Prints the message of an event, whatever the verbosity is.
    pub fn say(&self, event: &Event<'_>) {
        report::say(&event.message(&self.key, &self.store.shown()));
    }

    /// Returns whether it reports every event, to the user or to the event log.
    pub fn reports_everything(&self) -> bool {
        self.verbosity == Verbosity::Verbose || self.event_log.is_some()
    }

    /// Reports an error with its causes: what failed, then why.
    pub fn fail(&self, error: &anyhow::Error) {
        self.report(Event::Failed { why: &format!("{error:#}") });
    }
}
