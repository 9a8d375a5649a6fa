//! The outcome of a run, and assertions about it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::calm::late;

/// Messages of a run that gave up a request, or whose server did, which may happen on a busy machine.
const TIMED_OUT: [&str; 3] =
    ["did not answer in time", "looking up its name takes too long", "idle-in-transaction timeout"];

/// The outcome of a run.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) what: String,
    pub(crate) status: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) core: bool,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) took: Duration,
}

impl Output {
    pub(crate) fn stdout(&self) -> String {
        text(&self.stdout)
    }

    pub(crate) fn stderr(&self) -> String {
        text(&self.stderr)
    }

    /// Asserts that the run exited with this status.
    #[track_caller]
    pub(crate) fn exited(self, status: i32) -> Self {
        self.must(self.status == Some(status), &format!("its status is not {status}"));
        self
    }

    /// Asserts that this signal terminated the run.
    #[track_caller]
    pub(crate) fn died_of(self, signal: Signal) -> Self {
        self.must(self.signal == Some(signal as i32), &format!("it did not die of {signal}"));
        self
    }

    /// Asserts that standard error is empty.
    #[track_caller]
    pub(crate) fn silent(self) -> Self {
        self.must(self.stderr.is_empty(), "it is not silent");
        self
    }

    /// Asserts that standard output is exactly this.
    #[track_caller]
    pub(crate) fn printed(self, wanted: &str) -> Self {
        self.must(self.stdout() == wanted, &format!("it did not print {wanted:?}"));
        self
    }

    /// Asserts that standard error contains these words, and that each of its lines begins with `lockrun: `.
    #[track_caller]
    pub(crate) fn said(self, words: &str) -> Self {
        let stderr = self.stderr();
        self.must(stderr.contains(words), &format!("it did not say {words:?}"));
        for line in stderr.lines() {
            assert!(line.starts_with("lockrun: "), "line {line:?} of: {self}");
        }
        self
    }

    /// Fails the test unless this `holds`.
    #[track_caller]
    fn must(&self, holds: bool, what: &str) {
        if !holds {
            self.fail(what);
        }
    }

    /// Fails the test for this reason, and shows the output.
    #[track_caller]
    pub(crate) fn fail(&self, what: &str) -> ! {
        fail(&self.stderr(), &format!("{what}: {self}"))
    }
}

/// Fails the test because of a run that printed this on standard error: as late, if a request timed out.
#[track_caller]
pub(crate) fn fail(stderr: &str, what: &str) -> ! {
    if TIMED_OUT.iter().any(|words| stderr.contains(words)) {
        late(what);
    }
    panic!("{what}");
}

impl std::fmt::Display for Output {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "{}\nstatus {:?}, signal {:?}, after {:?}\nstdout: {:?}\nstderr: {:?}",
            self.what,
            self.status,
            self.signal,
            self.took,
            self.stdout(),
            self.stderr()
        )
    }
}

/// Returns the present content of a file, without moving its position.
pub(crate) fn read(file: &File) -> Vec<u8> {
    let length = file.metadata().expect("our own file").len();
    let mut bytes = vec![0; usize::try_from(length).expect("a short file")];
    let count = file.read_at(&mut bytes, 0).expect("our own file");
    bytes.truncate(count);
    bytes
}

/// Returns bytes as text, for people to read.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
