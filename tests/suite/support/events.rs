//! The events of runs, as `--events` writes them.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;

use super::deadline::{LONG, eventually};
use super::lockrun::Lockrun;

/// A file for events.
pub(crate) struct Events(TempDir);

impl Events {
    pub(crate) fn new() -> Self {
        Self(TempDir::new().expect("a temporary directory"))
    }

    /// Returns its path.
    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("events")
    }

    /// Returns this call, with its events in this file.
    pub(crate) fn of(&self, call: Lockrun) -> Lockrun {
        call.arg("--events").arg(self.path())
    }

    /// Returns what is in it; nothing if it does not exist.
    pub(crate) fn text(&self) -> String {
        fs::read_to_string(self.path()).unwrap_or_default()
    }

    /// Returns the objects, each of which is a whole line.
    #[track_caller]
    pub(crate) fn all(&self) -> Vec<Value> {
        let text = self.text();
        assert!(text.is_empty() || text.ends_with('\n'), "{text:?}");
        let read = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        text.lines().map(read).collect()
    }

    /// Returns the events' names.
    #[track_caller]
    pub(crate) fn names(&self) -> Vec<String> {
        self.all().iter().map(|event| event["event"].as_str().expect("a name").to_owned()).collect()
    }

    /// Waits until the file has so many events of this name.
    #[track_caller]
    pub(crate) fn hear(&self, name: &str, count: usize) {
        eventually(LONG, &format!("{count} times {name}"), || self.count(name) >= count);
    }

    /// Returns how many events of this name the file has.
    pub(crate) fn count(&self, name: &str) -> usize {
        self.text().matches(&format!("\"event\":\"{name}\"")).count()
    }

    /// Returns the only event of this name.
    #[track_caller]
    pub(crate) fn one(&self, name: &str) -> Value {
        let all = self.all().into_iter().filter(|event| event["event"] == name);
        let [one] = &all.collect::<Vec<_>>()[..] else { panic!("not one {name} in {}", self.text()) };
        one.clone()
    }
}

/// Returns the number with this name.
#[track_caller]
pub(crate) fn number(event: &Value, name: &str) -> u64 {
    event[name].as_u64().unwrap_or_else(|| panic!("no {name} in {event}"))
}
