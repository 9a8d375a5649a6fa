//! Standard error, without waiting for it: it may be a pipe whose reader stalls, a terminal that Ctrl-S has stopped, or one on a network
//! that is cut. A write that waits for it keeps the lock, and the command from its end.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd;

use super::clock::Moment;

/// How long a message waits for room.
const WAIT: Duration = Duration::from_secs(2);

/// How long to pause where the kernel has announced room and then has none.
const PAUSE: Duration = Duration::from_millis(10);

/// Standard error, to be opened once more.
const PATH: &str = "/proc/self/fd/2";

/// Whether a message must not wait for long: a lock is claimed or held, for which others wait.
static IS_HURRIED: AtomicBool = AtomicBool::new(false);

/// Whether the last message found no room. The next one does not wait then: a run must not pay for each of its messages.
static IS_STALLED: AtomicBool = AtomicBool::new(false);

/// Lets messages wait for a short time only from now on. Until then they wait for as long as it takes.
pub fn hurry() {
    IS_HURRIED.store(true, Ordering::Relaxed);
}

/// Writes `text`. In a hurry it waits a short time if there is no room; after that, the rest of it is lost.
pub fn write(text: &str) {
    let mut stderr = io::stderr();
    if !IS_HURRIED.load(Ordering::Relaxed) {
        // If standard error is closed, there is nowhere to report it.
        let _ = stderr.write_all(text.as_bytes());
        return;
    }
    let own = opened_anew();
    let file = own.as_ref().map_or(stderr.as_fd(), AsFd::as_fd);
    let wait = if IS_STALLED.load(Ordering::Relaxed) { Duration::ZERO } else { WAIT };
    let is_written = write_until(file, text.as_bytes(), Moment::now() + wait);
    IS_STALLED.store(!is_written, Ordering::Relaxed);
}

/// Returns a description of standard error that is ours alone, and whose writes never wait; `None` if there is none. The mode of the other
/// one is COMMAND's, too, and must not be changed.
///
/// A regular file needs none, and a second description would have another position.
fn opened_anew() -> Option<File> {
    let is_pipe = || Path::new(PATH).metadata().is_ok_and(|metadata| metadata.file_type().is_fifo());
    if !io::stderr().is_terminal() && !is_pipe() {
        return None;
    }
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    OpenOptions::new().write(true).custom_flags(flags).open(PATH).ok()
}

/// Writes `bytes`. Returns whether there was room for them until `until`.
fn write_until(file: BorrowedFd<'_>, mut bytes: &[u8], until: Moment) -> bool {
    while !bytes.is_empty() {
        if !has_room(file, until) {
            return false;
        }
        // A pipe that has room takes so much at once: where the description is not ours, the write does not wait either, unless another
        // writer is quicker.
        let piece = &bytes[..bytes.len().min(libc::PIPE_BUF)];
        match unistd::write(file, piece) {
            Ok(0) => return true,
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::EINTR) => {}
            // Another writer was quicker, or a terminal has less room than the next character needs.
            Err(Errno::EAGAIN) if Moment::now() >= until => return false,
            Err(Errno::EAGAIN) => thread::sleep(PAUSE),
            // If it is closed, there is nowhere to report it.
            Err(_) => return true,
        }
    }
    true
}

/// Waits until a write has room or fails, or until `until`. Returns whether it has, or does.
fn has_room(file: BorrowedFd<'_>, until: Moment) -> bool {
    loop {
        let left = until.since(Moment::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        match poll(&mut [PollFd::new(file, PollFlags::POLLOUT)], timeout) {
            Ok(ready) => return ready > 0,
            Err(Errno::EINTR) => {}
            // Without poll(2) there is no telling.
            Err(_) => return true,
        }
    }
}
