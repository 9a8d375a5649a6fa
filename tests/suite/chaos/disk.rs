//! A small disk that can be full, which only one thread sees, with all that it starts.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::thread;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::Uid;

/// A file system in memory, of this size.
const SIZE: &str = "size=16m";

/// A disk that is mounted.
pub(super) struct Disk {
    at: PathBuf,
    filler: PathBuf,
}

impl Disk {
    /// Mounts it on this directory, for the processes of this thread. See `with_mounts`.
    pub(super) fn mount(at: &Path) -> Self {
        mount(Some("tmpfs"), at, Some("tmpfs"), MsFlags::empty(), Some(SIZE)).expect("we may mount");
        Self { at: at.to_owned(), filler: at.join("filler") }
    }

    /// Leaves no room on it.
    pub(super) fn fill(&self) {
        let mut filler = File::create(&self.filler).expect("a file more");
        let full = io::copy(&mut io::repeat(0), &mut filler).and_then(|_| filler.flush());
        assert_eq!(full.expect_err("it has an end").kind(), ErrorKind::StorageFull);
    }

    /// Makes room again.
    pub(super) fn free(&self) {
        fs::remove_file(&self.filler).expect("it is full");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A server may still use it.
        let _ = umount2(&self.at, MntFlags::MNT_DETACH);
    }
}

/// Does this in a thread that may mount what nobody else sees. Says why, where the machine does not let us.
pub(super) fn with_mounts(test: impl FnOnce() + Send) {
    if !Uid::effective().is_root() {
        // Not by a macro, whose output the test runner keeps to itself when the test succeeds.
        let _ = writeln!(io::stderr(), "no disk is filled: only root can mount one");
        return;
    }
    let in_thread = || {
        unshare(CloneFlags::CLONE_NEWNS).expect("root may have mounts of its own");
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
            .expect("they are nobody else's");
        test();
    };
    let ended = thread::scope(|scope| scope.spawn(in_thread).join());
    if let Err(panic) = ended {
        std::panic::resume_unwind(panic);
    }
}
