//! A run that holds a lock while the test inspects the lock from outside.

use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::lockrun::{Lockrun, Running};
use super::output::Output;
use super::store::Store;

/// The command of a holder: one process that says `ready` and then does nothing.
const HOLD: &str = "#!/bin/sh\necho ready\nexec sleep 600\n";

/// A run that holds a lock until [`Holder::end`]. It and its command are killed when this is dropped.
pub(crate) struct Holder {
    run: Running,
    scripts: TempDir,
}

impl Holder {
    /// Acquires the lock. Returns when the command runs under it.
    #[track_caller]
    pub(crate) fn new(store: &Store, key: &str) -> Self {
        Self::with(&Lockrun::new(store).key(key), &[])
    }

    /// Acquires the lock by this call, with these arguments for the command.
    #[track_caller]
    pub(crate) fn with(call: &Lockrun, arguments: &[&str]) -> Self {
        let scripts = TempDir::new().expect("a temporary directory");
        let script = write_script(scripts.path(), "hold.sh", HOLD);
        let mut words = vec![script];
        words.extend(arguments.iter().map(|&one| one.to_owned()));
        let mut run = call.clone().command(words).spawn();
        run.wait_for_line("ready");
        Self { run, scripts }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.run.pid()
    }

    /// Returns the path of the command that runs under the lock.
    pub(crate) fn command(&self) -> String {
        let path = self.scripts.path().join("hold.sh");
        path.to_str().expect("a plain path").to_owned()
    }

    pub(crate) fn run(&mut self) -> &mut Running {
        &mut self.run
    }

    /// Waits for the end of the run, which something else causes.
    #[track_caller]
    pub(crate) fn wait(self) -> Output {
        self.run.wait()
    }

    /// Ends the command, and with it the run.
    #[track_caller]
    pub(crate) fn end(self) -> Output {
        self.run.signal(Signal::SIGTERM);
        self.run.wait().died_of(Signal::SIGTERM)
    }
}

/// Writes an executable file and returns its path. A child process writes it: if this process did, a program that
/// another test starts meanwhile would briefly inherit the open descriptor, and the kernel executes no file that is
/// open for writing.
pub(crate) fn write_script(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    let write = "printf %s \"$2\" >\"$1\" && chmod 755 \"$1\"";
    let status = Command::new("sh").args(["-c", write, "sh"]).arg(&path).arg(text).status().expect("sh starts");
    assert!(status.success(), "the script is written");
    path.to_str().expect("a plain path").to_owned()
}

/// Returns whether a run could acquire the lock at this moment. Fails if that run has left it, as it says then.
#[track_caller]
pub(crate) fn is_free(store: &Store, key: &str) -> bool {
    let output = Lockrun::new(store).key(key).arg("--fail").sh(":").run();
    match output.status {
        Some(0) => {
            output.silent();
            true
        }
        Some(75) => false,
        _ => output.fail("neither free nor held"),
    }
}
