//! Tries locks on a scratch file.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, Flock, FlockArg, OFlag, fcntl, openat};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{UnlinkatFlags, unlinkat, write};
use uuid::Uuid;

use crate::store::diagnostic::Diagnostic;
use crate::store::file::lock_file::{EDIT, byte_of, bytes};

/// A scratch file in the lock directory. Its name begins with a dot, as no lock file's does. Dropping this removes the
/// file.
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

/// Tries locks in the open `directory`, which is at `path`.
pub(super) fn diagnose(directory: BorrowedFd<'_>, path: &Path) -> Vec<Diagnostic> {
    let scratch = Scratch::new(directory);
    let tried = (|| {
        let (first, second) = (scratch.create()?, scratch.open()?);
        write(&first, b"{}")?;
        Ok(vec![
            judge_conflict("fcntl(2)", record_locks_conflict(&first, &second)),
            judge_conflict("flock(2)", locks_conflict(first, second)),
        ])
    })();
    tried.unwrap_or_else(|errno: Errno| {
        let text = format!("cannot write a file in {}: {}", path.display(), errno.desc());
        vec![Diagnostic::unusable(text, "no lock can be acquired without it")]
    })
}

/// Returns whether a flock(2) lock through one descriptor keeps the other out. Fails if the other cannot lock
/// afterwards.
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

/// Does the same for the two kinds of fcntl(2) locks that a lock file needs: those of an open file, and those of a
/// process, which conflict with them even within one process.
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
        Err(errno) => {
            Diagnostic::unusable(format!("{call} locks cannot be acquired there: {}", errno.desc()), elsewhere)
        }
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
}
