//! Tries locks on a scratch file.

use std::fs::read_to_string;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, Flock, FlockArg, OFlag, fcntl, openat};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{UnlinkatFlags, unlinkat, write};
use uuid::Uuid;

use crate::store::diagnostic::Diagnostic;
use crate::store::file::lock_file::{EDIT, byte_of, bytes};
use crate::sys::clock::Moment;

/// How often locking is timed.
const ROUNDS: usize = 9;

/// An uncontended lock that takes longer than this is slow.
const SLOW: Duration = Duration::from_millis(50);

/// A scratch file in the lock directory. Its name begins with a dot, as no lock file's does. Dropping this removes the file.
struct Scratch<'d> {
    directory: BorrowedFd<'d>,
    name: String,
}

impl<'d> Scratch<'d> {
    fn new(directory: BorrowedFd<'d>) -> Self {
        Scratch { directory, name: format!(".doctor-{}", Uuid::new_v4()) }
    }

    /// Creates and opens it.
    fn create(&self) -> nix::Result<OwnedFd> {
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let file = self.open_by(OFlag::O_CREAT | OFlag::O_EXCL, mode)?;
        // The umask may have removed bits that opening it again needs.
        fchmod(&file, mode)?;
        Ok(file)
    }

    /// Opens it again.
    fn open(&self) -> nix::Result<OwnedFd> {
        self.open_by(OFlag::O_NONBLOCK, Mode::empty())
    }

    fn open_by(&self, flags: OFlag, mode: Mode) -> nix::Result<OwnedFd> {
        openat(self.directory, self.name.as_str(), OFlag::O_RDWR | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | flags, mode)
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        let _ = unlinkat(self.directory, self.name.as_str(), UnlinkatFlags::NoRemoveDir);
    }
}

/// Tries locks in the open `directory`, which is at `path`, and tries to watch it for changes.
pub(super) fn diagnose(directory: BorrowedFd<'_>, path: &Path) -> Vec<Diagnostic> {
    let scratch = Scratch::new(directory);
    let diagnostics = (|| {
        let (first, second) = (scratch.create()?, scratch.open()?);
        write(&first, b"{}")?;
        Ok([
            judge_conflict("fcntl(2)", record_locks_conflict(&first, &second)),
            judge_conflict("flock(2)", locks_conflict(first, second)),
        ])
    })();
    let mut diagnostics = match diagnostics {
        Ok(diagnostics) => Vec::from(diagnostics),
        Err(errno) => {
            let text = format!("cannot write a file in {}: {}", path.display(), Errno::desc(errno));
            return vec![Diagnostic::unusable(text, "no lock can be had without")];
        }
    };
    diagnostics.push(judge_latency(measure_latency(directory)));
    diagnostics.push(judge_watch(watch(path)));
    diagnostics
}

/// Returns whether a flock(2) lock through one descriptor keeps the other out. Fails if the other cannot lock afterwards.
fn locks_conflict(first: OwnedFd, second: OwnedFd) -> nix::Result<bool> {
    let lock = |file| Flock::lock(file, FlockArg::LockExclusiveNonblock);
    let held = lock(first).map_err(|(_, errno)| errno)?;
    let second = match lock(second) {
        Ok(_) => return Ok(false),
        Err((second, Errno::EWOULDBLOCK)) => second,
        Err((_, errno)) => return Err(errno),
    };
    drop(held);
    lock(second).map(|_| true).map_err(|(_, errno)| errno)
}

/// Does the same for the two kinds of fcntl(2) locks that a lock file needs: those of an open file, and those of a process, which conflict
/// with them even within one process.
fn record_locks_conflict(first: &OwnedFd, second: &OwnedFd) -> nix::Result<bool> {
    // The same bytes as in a lock file: a file system may not support offsets of more than 32 bits.
    for (byte, of_process) in [(byte_of(0), false), (EDIT, true)] {
        let (take, leave) = (bytes(byte..byte + 1, libc::F_WRLCK), bytes(byte..byte + 1, libc::F_UNLCK));
        let change = |lock| if of_process { FcntlArg::F_SETLK(lock) } else { FcntlArg::F_OFD_SETLK(lock) };
        fcntl(first, change(&take))?;
        match fcntl(second, FcntlArg::F_OFD_SETLK(&take)) {
            Ok(_) => return Ok(false),
            Err(Errno::EAGAIN | Errno::EACCES) => {}
            Err(errno) => return Err(errno),
        }
        fcntl(first, change(&leave))?;
        fcntl(second, FcntlArg::F_OFD_SETLK(&take))?;
        fcntl(second, FcntlArg::F_OFD_SETLK(&leave))?;
    }
    Ok(true)
}

fn judge_conflict(call: &str, conflicts: nix::Result<bool>) -> Diagnostic {
    let elsewhere = "name a directory on another file system with --store file:/DIR";
    match conflicts {
        Ok(true) => Diagnostic::ok(format!("{call} locks exclude each other there")),
        Ok(false) => Diagnostic::fail(
            format!("{call} locks do not exclude each other there"),
            format!("two runs would hold one lock; {elsewhere}"),
        ),
        Err(errno) => Diagnostic::unusable(format!("{call} locks cannot be had there: {}", errno.desc()), elsewhere),
    }
}

/// Measures how long it takes to create a file and lock it. Returns the median and the maximum.
fn measure_latency(directory: BorrowedFd<'_>) -> nix::Result<(Duration, Duration)> {
    let mut spans = Vec::new();
    for _ in 0..ROUNDS {
        let started = Moment::now();
        let scratch = Scratch::new(directory);
        let file = scratch.create()?;
        write(&file, b"{}")?;
        Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno)?;
        spans.push(Moment::now().since(started));
    }
    spans.sort_unstable();
    Ok((spans[ROUNDS / 2], spans[ROUNDS - 1]))
}

fn judge_latency(measured: nix::Result<(Duration, Duration)>) -> Diagnostic {
    match measured {
        Ok((median, worst)) => {
            let text = format!("a lock takes {median:.1?}, at worst {worst:.1?}");
            if median > SLOW {
                Diagnostic::warn(text, "that is slow; a directory on a local disk or in memory is quicker")
            } else {
                Diagnostic::ok(text)
            }
        }
        Err(errno) => Diagnostic::unusable(format!("a lock cannot be had there: {}", errno.desc()), "see above"),
    }
}

/// Tries to watch the directory at `path` with inotify(7).
fn watch(path: &Path) -> nix::Result<()> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
    inotify.add_watch(path, AddWatchFlags::IN_MODIFY).map(drop)
}

fn judge_watch(watched: nix::Result<()>) -> Diagnostic {
    let limit = |name: &str| {
        let value = read_to_string(format!("/proc/sys/fs/inotify/{name}")).unwrap_or_default();
        format!("fs.inotify.{name} is {}, and this user has used it up; raise it with sysctl(8)", value.trim())
    };
    let late = "a run that waits may hear late that a lock is free";
    match watched {
        Ok(()) => Diagnostic::ok("changes in it can be watched (inotify)"),
        Err(Errno::EMFILE) => Diagnostic::warn(late, limit("max_user_instances")),
        Err(Errno::ENOSPC) => Diagnostic::warn(late, limit("max_user_watches")),
        Err(errno) => Diagnostic::warn(late, format!("inotify(7) does not work there: {}", errno.desc())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::diagnostic::Level;

    #[test]
    fn locks_that_do_not_lock_are_found() {
        assert_eq!(judge_conflict("flock(2)", Ok(true)).level, Level::Ok);
        assert_eq!(judge_conflict("flock(2)", Ok(false)).level, Level::Fail);
        assert_eq!(judge_conflict("flock(2)", Err(Errno::ENOLCK)).level, Level::Unusable);
    }

    #[test]
    fn slowness_is_found() {
        let level = |ms| judge_latency(Ok((Duration::from_millis(ms), Duration::from_secs(1)))).level;
        assert_eq!(level(1), Level::Ok);
        assert_eq!(level(60), Level::Warn);
    }

    #[test]
    fn a_limit_that_is_used_up_is_named() {
        assert!(judge_watch(Err(Errno::EMFILE)).advice.contains("max_user_instances"));
        assert_eq!(judge_watch(Err(Errno::ENOSYS)).level, Level::Warn);
        assert_eq!(judge_watch(Ok(())).level, Level::Ok);
    }
}
