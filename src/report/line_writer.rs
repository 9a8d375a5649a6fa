//! Writing lines into a file that may make its writer wait, as one on a server that is away does: a thread of its own writes,
//! and nobody waits for it.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

/// How long the end of a run may take longer, so that its last lines are written.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// Writing is all that the thread does.
const STACK: usize = 64 * 1024;

/// Writes lines into a file, one after the other.
#[derive(Debug)]
pub struct LineWriter {
    /// None after the end.
    lines: Option<Sender<String>>,
    /// Closed when all is written.
    end: Mutex<Receiver<()>>,
    failure: Arc<OnceLock<io::Error>>,
}

impl LineWriter {
    /// One who appends to the file at `path`, and makes it if it is not there. Fails if there cannot be a thread.
    ///
    /// Must be called when the signals are blocked, since the thread is not to be interrupted by them. It takes no lock that the
    /// child of a fork(2) could want, but those of the allocator, which the C library sees to.
    pub fn new(path: PathBuf) -> io::Result<Self> {
        let (lines, to_write) = channel::<String>();
        let (ends, end) = channel();
        let failure = Arc::new(OnceLock::new());
        let failed = Arc::clone(&failure);
        let write = move || {
            // Its end is told by this going.
            let _ends: Sender<()> = ends;
            let fail = |error| drop(failed.set(error));
            match open(path) {
                Ok(file) => to_write.iter().for_each(|line| write_line(&file, &line).unwrap_or_else(fail)),
                Err(error) => fail(error),
            }
        };
        thread::Builder::new().name("events".into()).stack_size(STACK).spawn(write)?;
        Ok(LineWriter { lines: Some(lines), end: Mutex::new(end), failure })
    }

    /// Has a line written, at once as a rule. Never waits.
    pub fn write(&self, line: String) {
        // It is gone if it could not open the file, which `failure` tells.
        let _ = self.lines.as_ref().map(|lines| lines.send(line));
    }

    /// What went wrong first, so far.
    pub fn failure(&self) -> Option<&io::Error> {
        self.failure.get()
    }

    /// Waits until all lines are written, but not for long. Gives whether they are, or never will be.
    pub fn finish(&mut self) -> bool {
        self.lines = None;
        let end = self.end.get_mut().unwrap_or_else(PoisonError::into_inner);
        end.recv_timeout(LAST_WAIT) != Err(RecvTimeoutError::Timeout)
    }
}

/// Opens the file. Neither a FIFO that nobody reads nor a terminal makes us wait, and COMMAND does not inherit it.
fn open(path: PathBuf) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(path)
}

/// Writes a line at once, so that no other run's line comes in between.
fn write_line(mut file: &File, line: &str) -> io::Result<()> {
    loop {
        return match file.write(line.as_bytes()) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Ok(length) if length < line.len() => Err(io::Error::other("a line was cut short")),
            written => written.map(drop),
        };
    }
}
