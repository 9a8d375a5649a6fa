//! Learning that a lock file has changed.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::store::file::lock_file::LockFile;

/// An inotify watch on a lock file; `None` if it cannot be created, for example because this user has too many.
///
/// It is never closed: closing takes some milliseconds, in which the kernel waits for all processors, and must not
/// delay COMMAND. The end of the process closes it.
#[derive(Debug)]
pub(super) struct Changes(Option<ManuallyDrop<Inotify>>);

impl Changes {
    /// Watches the file.
    pub(super) fn of(file: &LockFile) -> Self {
        let watch = || {
            let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
            // Through the descriptor, because the file may have lost its name by now.
            let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
            inotify.add_watch(path.as_str(), AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CLOSE_WRITE)?;
            nix::Result::Ok(ManuallyDrop::new(inotify))
        };
        Changes(watch().ok())
    }

    /// Returns the descriptor that becomes readable when the file has changed, if the file is watched.
    pub(super) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(|inotify| inotify.as_fd())
    }

    /// Reads and discards the pending events: they only show that something has changed.
    pub(super) fn drain(&self) {
        if let Some(inotify) = &self.0 {
            while inotify.read_events().is_ok_and(|events| !events.is_empty()) {}
        }
    }
}
