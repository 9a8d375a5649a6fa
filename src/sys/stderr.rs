//! Writing to standard error without waiting for long: it may be a pipe whose reader stalls, a terminal stopped by
//! Ctrl-S, or one behind a broken network connection. While lockrun waited in a write, it would neither release the
//! lock nor end.

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

/// How long to pause if the kernel has announced room and then has none.
const PAUSE: Duration = Duration::from_millis(10);

/// The path by which standard error can be opened again.
const PATH: &str = "/proc/self/fd/2";

/// Whether a message must not wait for long, because others may be waiting for a lock that this run claims or holds.
static IS_HURRIED: AtomicBool = AtomicBool::new(false);

/// Whether the last message found no room. Then the next one does not wait at all: a run must not be delayed by each of
/// its messages.
static IS_STALLED: AtomicBool = AtomicBool::new(false);

/// Limits how long messages wait from now on. Until this is called, they wait for as long as it takes.
pub fn limit_blocking() {
    IS_HURRIED.store(true, Ordering::Relaxed);
}

/// Writes `text`. After [`limit_blocking`], waits at most [`WAIT`] for room; then the rest of the text is lost.
pub fn write(text: &str) {
    let mut stderr = io::stderr();
    if !IS_HURRIED.load(Ordering::Relaxed) {
        // If standard error is closed, there is nowhere to report it.
        let _ = stderr.write_all(text.as_bytes());
        return;
    }
    let wait = if IS_STALLED.load(Ordering::Relaxed) { Duration::ZERO } else { WAIT };
    IS_STALLED.store(!write_within(wait, text), Ordering::Relaxed);
}

/// Writes `text` if there is room for it; otherwise what there is no room for is lost.
pub fn write_if_there_is_room(text: &str) {
    write_within(Duration::ZERO, text);
}

/// Writes `text`, waiting for room for so long at most. Returns `false` if there was none for all of it.
fn write_within(wait: Duration, text: &str) -> bool {
    let own = opened_anew();
    let stderr = io::stderr();
    let file = own.as_ref().map_or(stderr.as_fd(), AsFd::as_fd);
    write_until(file, text.as_bytes(), Moment::now() + wait)
}

/// Opens standard error again, so that writes to this open file never wait; `None` if that fails or is not needed. The
/// original is shared with COMMAND, so its mode must not be changed.
///
/// Only for a terminal or a pipe: writing to a regular file does not wait, and a second open file would have its own
/// position.
fn opened_anew() -> Option<File> {
    let is_pipe = || Path::new(PATH).metadata().is_ok_and(|metadata| metadata.file_type().is_fifo());
    if !io::stderr().is_terminal() && !is_pipe() {
        return None;
    }
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    OpenOptions::new().write(true).custom_flags(flags).open(PATH).ok()
}

/// Writes `bytes`. Returns `false` if there was no room for all of them by `until`.
fn write_until(file: BorrowedFd<'_>, mut bytes: &[u8], until: Moment) -> bool {
    while !bytes.is_empty() {
        if !has_room(file, until) {
            return false;
        }
        // A pipe that is ready takes this much at once: so even a write to the original open file does not wait, unless
        // another writer is quicker.
        let piece = &bytes[..bytes.len().min(libc::PIPE_BUF)];
        match unistd::write(file, piece) {
            Ok(0) => return true,
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::EINTR) => {}
            // Another writer was quicker, or the terminal has less room than the next character needs.
            Err(Errno::EAGAIN) if Moment::now() >= until => return false,
            Err(Errno::EAGAIN) => thread::sleep(PAUSE),
            // If it is closed, there is nowhere to report it.
            Err(_) => return true,
        }
    }
    true
}

/// Waits until a write would find room or fail, but at most until `until`. Returns `false` if neither is so by then.
fn has_room(file: BorrowedFd<'_>, until: Moment) -> bool {
    loop {
        let left = until.since(Moment::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        match poll(&mut [PollFd::new(file, PollFlags::POLLOUT)], timeout) {
            Ok(ready) => return ready > 0,
            Err(Errno::EINTR) => {}
            // Without poll(2), the write itself must show it.
            Err(_) => return true,
        }
    }
}
