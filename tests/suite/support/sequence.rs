//! Runs that reserve a value of a sequence, and the state that they leave.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use super::lockrun::{Lockrun, Running};
use super::output::Output;
use super::store::Store;

/// Prints its value, waits for a file, and exits with the status in it.
const SCRIPT: &str = "echo \"value $LOCKRUN_VALUE\"; until [ -e \"$0\" ]; do sleep 0.02; done; exit \"$(cat \"$0\")\"";

/// Returns a call that reserves a value of the sequence `seq`, whose first value is `from`.
pub(crate) fn reserve(store: &Store, from: &str) -> Lockrun {
    at(&store.url(), from)
}

/// Returns the same call for the store at this URL.
pub(crate) fn at(url: &str, from: &str) -> Lockrun {
    // Joined by `=`, so that a value that looks like an option is still a value.
    Lockrun::bare().args(["reserve", "--store", url]).key("seq").arg(format!("--from={from}"))
}

/// Uses up a value, and returns it.
#[track_caller]
pub(crate) fn next(call: &Lockrun) -> String {
    value_of(&call.clone().command(["printenv", "LOCKRUN_VALUE"]).run().exited(0).silent())
}

/// Returns the value that would be next. Changes nothing: the command fails, and its value is free again.
#[track_caller]
pub(crate) fn peek(call: &Lockrun) -> String {
    let call = call.clone().args(["--on-failure", "free"]);
    value_of(&call.sh("echo \"$LOCKRUN_VALUE\"; exit 9").run().exited(9).silent())
}

/// Reserves a value for a command that fails, and returns the value.
#[track_caller]
pub(crate) fn fail(call: &Lockrun) -> String {
    value_of(&call.clone().sh("echo \"$LOCKRUN_VALUE\"; exit 8").run().exited(8).silent())
}

fn value_of(output: &Output) -> String {
    output.stdout().strip_suffix('\n').expect("a line").to_owned()
}

/// A run that continues until [`Reserver::end`].
pub(crate) struct Reserver {
    run: Running,
    directory: TempDir,
    pub(crate) value: String,
}

impl Reserver {
    /// Reserves a value. Returns when the command runs with it.
    #[track_caller]
    pub(crate) fn begin(call: &Lockrun) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let end = directory.path().join("end");
        let mut run = call.clone().command(["sh", "-c", SCRIPT, end.to_str().expect("a plain path")]).spawn();
        run.wait_for_stdout("\n");
        let value = run.stdout().trim_end().strip_prefix("value ").expect("a value").to_owned();
        Self { run, directory, value }
    }

    /// Ends the command with this status. Its run has nothing to say.
    #[track_caller]
    pub(crate) fn end(self, status: i32) -> Output {
        self.end_with_message(status).silent()
    }

    /// Ends the command with this status.
    #[track_caller]
    pub(crate) fn end_with_message(self, status: i32) -> Output {
        let new = self.directory.path().join("new");
        fs::write(&new, status.to_string()).expect("a file");
        fs::rename(new, self.directory.path().join("end")).expect("a new name");
        self.run.wait().exited(status)
    }

    pub(crate) fn run(&mut self) -> &mut Running {
        &mut self.run
    }
}

/// Returns the sequence's object in `status --json`.
#[track_caller]
pub(crate) fn status(store: &Store) -> Value {
    let output = Lockrun::bare().args(["status", "--json", "--store", &store.url()]).run().exited(0).silent();
    let all: Value = serde_json::from_str(&output.stdout()).expect("JSON");
    let all = all.as_array().expect("an array").clone();
    all.into_iter().find(|one| one["key"] == "seq").unwrap_or_default()
}

/// Returns the reserved values, according to `status --json`.
#[track_caller]
pub(crate) fn reserved(store: &Store) -> Vec<String> {
    let status = status(store);
    let holders = status["holders"].as_array().cloned().unwrap_or_default();
    holders.iter().map(|one| one["value"].as_str().expect("a value").to_owned()).collect()
}
