//! Writes lines to a file whose writes may block, such as one on an unreachable server, in a thread of its own, so that
//! the run does not wait.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use crate::sys::append::open_to_append;
use crate::sys::trust::is_refusal;

/// How long a run waits at its end for the last lines.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// How long a run waits at its beginning to learn whether the file may be used.
const OPEN_WAIT: Duration = Duration::from_secs(2);

/// A small stack: the thread only writes.
const STACK: usize = 64 * 1024;

/// Writes lines to a file, in order.
#[derive(Debug)]
pub struct LineWriter {
    /// `None` after the end.
    lines: Option<Sender<String>>,
    /// Closed when the thread ends.
    end: Mutex<Receiver<()>>,
    failure: Arc<OnceLock<io::Error>>,
    /// Gets one message when the file has been opened or not: why it was refused, if it was.
    check: Mutex<Receiver<Option<String>>>,
}

impl LineWriter {
    /// Starts a thread that appends to the file at `path`, which it creates if it does not exist. Fails if the thread
    /// cannot be started. Does not wait for the file to be opened.
    ///
    /// The signals must be blocked, so that they do not interrupt the thread. The thread takes no lock that the child
    /// of a fork(2) could need, except the allocator's, which the C library handles.
    pub fn new(path: PathBuf) -> io::Result<Self> {
        let (lines, to_write) = channel::<String>();
        let (ends, end) = channel();
        let (tells, check) = channel();
        let failure = Arc::new(OnceLock::new());
        let failed = Arc::clone(&failure);
        let write = move || {
            // Dropped at the end of the thread, which closes `end`.
            let _ends: Sender<()> = ends;
            let fail = |error| drop(failed.set(error));
            let opened = open(&path);
            // Nobody listens any more if it took too long.
            let _ = tells.send(opened.as_ref().err().filter(|error| is_refusal(error)).map(ToString::to_string));
            match opened {
                Ok(file) => to_write.iter().for_each(|line| write_line(&file, &line).unwrap_or_else(fail)),
                Err(error) => fail(error),
            }
        };
        thread::Builder::new().name("events".into()).stack_size(STACK).spawn(write)?;
        Ok(LineWriter { lines: Some(lines), end: Mutex::new(end), failure, check: Mutex::new(check) })
    }

    /// Returns why the file was refused, if a second user could have chosen it. Waits no longer than [`OPEN_WAIT`]: a
    /// file that takes longer to open is refused all the same, which [`LineWriter::failure`] then returns.
    pub fn refusal(&self) -> Option<String> {
        let check = self.check.lock().unwrap_or_else(PoisonError::into_inner);
        check.recv_timeout(OPEN_WAIT).ok().flatten()
    }

    /// Queues a line, which is normally written at once. Never blocks.
    pub fn write(&self, line: String) {
        // If the thread could not open the file, it has ended; `failure` reports that.
        let _ = self.lines.as_ref().map(|lines| lines.send(line));
    }

    /// Returns the first error so far.
    pub fn failure(&self) -> Option<&io::Error> {
        self.failure.get()
    }

    /// Waits briefly until all lines are written. Returns whether they are, or never will be.
    pub fn finish(&mut self) -> bool {
        self.lines = None;
        let end = self.end.get_mut().unwrap_or_else(PoisonError::into_inner);
        end.recv_timeout(LAST_WAIT) != Err(RecvTimeoutError::Timeout)
    }
}

/// Opens the file.
fn open(path: &Path) -> io::Result<File> {
    open_to_append(path).or_else(|error| standard_socket(path).ok_or(error))
}

/// Returns a duplicate of standard error or standard output, if `path` names it, as `/dev/stderr` does, and it is a
/// socket, as under systemd: a socket cannot be opened.
fn standard_socket(path: &Path) -> Option<File> {
    let named = fs::metadata(path).ok().filter(|named| named.file_type().is_socket())?;
    let (stderr, stdout) = (io::stderr(), io::stdout());
    [stderr.as_fd(), stdout.as_fd()].into_iter().find_map(|stream| {
        let file = File::from(stream.try_clone_to_owned().ok()?);
        let own = file.metadata().ok()?;
        ((own.dev(), own.ino()) == (named.dev(), named.ino())).then_some(file)
    })
}

/// Writes a line in one call, so that other runs' lines do not mix with it.
fn write_line(mut file: &File, line: &str) -> io::Result<()> {
    loop {
        return match file.write(line.as_bytes()) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Ok(length) if length < line.len() => Err(io::Error::other("a line was truncated")),
            written => written.map(drop),
        };
    }
}
