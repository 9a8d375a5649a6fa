//! The file of one lock, and the kernel's locks on it.
//!
//! ```text
//! flock                  the turnstile: the run that has it is the next to get the lock; the others queue for it in the kernel
//! byte EDIT              locked while the record is read or changed
//! byte AT_TURNSTILE      locked by a run that waits at the turnstile, rather than just passing
//! byte SLOTS + n         slot n: locked for as long as a run holds it
//! byte SLOTS             locked shared by all runs that share the lock; each also has its own slot, from 1
//! see waiter_bytes.rs    bytes that are locked by the runs that wait
//! ```
//!
//! The bytes are far behind the record and are never written. Their locks belong to the open file, not to a process
//! (open file description locks): they last until every process that has inherited the descriptor has closed it, so
//! COMMAND keeps them when lockrun crashes. An explicit unlock ends them for all processes. Only the lock on EDIT
//! belongs to the process: if lockrun is killed while it changes the record, the record must not stay locked for as
//! long as COMMAND lives.

use std::ffi::c_int;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use libc::{dev_t, ino_t};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, FcntlArg, FlockArg, OFlag, fcntl, openat};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};
use nix::unistd::geteuid;

use super::access::{Access, PLANTED};
use super::directory::{self, Directory};
use super::record_file;
use crate::lock::key::Key;
use crate::store::StoreError;
use crate::sys::clock::Moment;
use crate::sys::descriptor;
use crate::text::escape::escaped_path;

pub(super) const EDIT: i64 = 1 << 40;
const AT_TURNSTILE: i64 = EDIT + 1;
const SLOTS: i64 = 1 << 41;

/// How long to wait for the record. Reading or changing it takes microseconds; a process that is stopped meanwhile must
/// not block the others without an error.
pub(super) const RECORD_TIMEOUT: Duration = Duration::from_secs(5);

/// The flags for opening a lock file. Another user may have put something else there: with these, open(2) neither
/// follows a link nor waits.
const SAFELY: OFlag = OFlag::O_NOFOLLOW.union(OFlag::O_NONBLOCK).union(OFlag::O_NOCTTY).union(OFlag::O_CLOEXEC);

/// The file of one lock, open.
#[derive(Debug)]
pub(super) struct LockFile {
    pub(super) file: File,
    name: String,
    pub(super) path: String,
    /// Its device and inode.
    id: (dev_t, ino_t),
    /// Who may use its directory.
    pub(super) access: Access,
    /// The kind of lock to take on bytes: on a file that is open for reading only, exclusive locks are impossible.
    kind: c_int,
}

/// The result of trying to enter the turnstile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turnstile {
    /// This run has it.
    Entered,
    /// Another run stays at it until the lock is free.
    Occupied,
    /// Another process has it, but does not show that it stays: a run that was only passing, one that is stopped, or
    /// another program.
    Blocked,
}

impl LockFile {
    /// Opens the lock file of `key`, creating it if it is missing, on a descriptor that COMMAND inherits. Also restores
    /// the file's mode, see [`Access::restore_mode`].
    pub(super) fn open_or_create(directory: &Directory, key: &Key) -> Result<Self, StoreError> {
        let path = directory.show(key);
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | SAFELY;
        let name = directory::file_name(key);
        check_limit(&path)?;
        let access = directory.access().clone();
        let opened = access.open_or_create(|mode| openat(directory.as_fd(), name.as_str(), flags, mode));
        let file = opened.map_err(|errno| cannot_open(directory, &name, &path, errno))?;
        let stat = check(&access, &file, &path)?;
        access.restore_mode(&file, &stat);
        let file = descriptor::pass_on(&file).context("no descriptor is left for the lock file (see ulimit -n)")?;
        Ok(LockFile { file: file.into(), name, path, id: id_of(&stat), access, kind: libc::F_WRLCK })
    }

    /// Opens the lock file of this `name` for changes, if it exists. COMMAND does not inherit it.
    pub(super) fn open(directory: &Directory, name: &str) -> Result<Option<Self>, StoreError> {
        Self::open_for(directory, name, OFlag::O_RDWR, libc::F_WRLCK)
    }

    /// Opens the lock file of this `name` for reading, if it exists: closing it does not wake waiters.
    pub(super) fn open_to_look(directory: &Directory, name: &str) -> Result<Option<Self>, StoreError> {
        Self::open_for(directory, name, OFlag::O_RDONLY, libc::F_RDLCK)
    }

    fn open_for(directory: &Directory, name: &str, flags: OFlag, kind: c_int) -> Result<Option<Self>, StoreError> {
        let path = escaped_path(&directory.path().join(name));
        match openat(directory.as_fd(), name, flags | SAFELY, Mode::empty()) {
            Ok(file) => {
                let access = directory.access().clone();
                let id = id_of(&check(&access, &file, &path)?);
                Ok(Some(LockFile { file: file.into(), name: name.to_owned(), path, id, access, kind }))
            }
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(cannot_open(directory, name, &path, errno)),
        }
    }

    /// Returns the path, for messages.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Returns whether the file still has its name in `directory`. A file that was removed or replaced before it was
    /// locked is not the one that others would lock, even if it has further names.
    pub(super) fn has_its_name(&self, directory: &Directory) -> Result<bool, StoreError> {
        match fstatat(directory.as_fd(), self.name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(named) => Ok((named.st_dev, named.st_ino) == self.id),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(errno).with_context(|| format!("cannot look at {}", self.path)),
        }
    }

    /// Enters the turnstile unless another run stays at it. Waits for a run that is only passing, but no longer than
    /// `patience`.
    pub(super) fn enter_within(&self, patience: Duration) -> nix::Result<Turnstile> {
        let give_up_at = Moment::now() + patience;
        loop {
            match self.flock(FlockArg::LockExclusiveNonblock) {
                Ok(()) => return Ok(Turnstile::Entered),
                Err(Errno::EWOULDBLOCK) if self.is_waited_for()? => return Ok(Turnstile::Occupied),
                Err(Errno::EWOULDBLOCK) if Moment::now() >= give_up_at => return Ok(Turnstile::Blocked),
                Err(Errno::EWOULDBLOCK) => thread::sleep(Duration::from_micros(200)),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Enters the turnstile, waiting in the kernel's queue; fails with `EINTR` if a signal comes first.
    pub(super) fn enter(&self) -> nix::Result<()> {
        self.flock(FlockArg::LockExclusive)
    }

    /// Shows other runs that this one stays at the turnstile until the lock is free.
    pub(super) fn stay(&self) -> nix::Result<()> {
        self.take(AT_TURNSTILE).map(drop)
    }

    /// Returns whether another run stays at the turnstile.
    pub(super) fn is_waited_for(&self) -> nix::Result<bool> {
        self.is_taken(AT_TURNSTILE, self.kind)
    }

    /// Leaves the turnstile to the next run.
    pub(super) fn leave(&self) -> nix::Result<()> {
        self.free(AT_TURNSTILE)?;
        self.flock(FlockArg::Unlock)
    }

    /// Takes a slot. Returns whether it was free.
    pub(super) fn take_slot(&self, slot: u32) -> nix::Result<bool> {
        self.take(byte_of(slot))
    }

    /// Frees a slot, for every process that has inherited its lock, and this run's share of slot 0, if it has one.
    pub(super) fn free_slot(&self, slot: u32) -> nix::Result<()> {
        fcntl(&self.file, FcntlArg::F_OFD_SETLK(&bytes(SLOTS..byte_of(slot) + 1, libc::F_UNLCK))).map(drop)
    }

    /// Takes a share of slot 0. Returns `false` if another run holds slot 0 exclusively.
    pub(super) fn share(&self) -> nix::Result<bool> {
        self.take_as(byte_of(0), libc::F_RDLCK)
    }

    /// Returns whether another run holds the slot, or (unless this file is open for reading only) a share of it.
    pub(super) fn slot_is_taken(&self, slot: u32) -> nix::Result<bool> {
        self.is_taken(byte_of(slot), self.kind)
    }

    /// Returns whether another run holds slot 0 exclusively.
    pub(super) fn is_held_exclusively(&self) -> nix::Result<bool> {
        self.is_taken(byte_of(0), libc::F_RDLCK)
    }

    /// Returns a slot that another run holds or shares, whatever the record says, if there is one.
    pub(super) fn taken_slot(&self) -> nix::Result<Option<u32>> {
        let slots = SLOTS..SLOTS + (1 << u32::BITS);
        // Exclusive, to find shares, too: only taking such a lock needs a file that is open for writing.
        let taken = self.conflict(slots, libc::F_WRLCK)?;
        Ok(taken.and_then(|lock| u32::try_from(lock.l_start - SLOTS).ok()))
    }

    /// Locks the record, to read or change it. Returns whether it was free.
    ///
    /// Until it is unlocked, this process must not close another descriptor of the file: that would unlock it, too.
    pub(super) fn take_record(&self) -> nix::Result<bool> {
        was_free(fcntl(&self.file, FcntlArg::F_SETLK(&bytes(EDIT..EDIT + 1, self.kind))))
    }

    /// Unlocks the record.
    pub(super) fn free_record(&self) -> nix::Result<()> {
        fcntl(&self.file, FcntlArg::F_SETLK(&bytes(EDIT..EDIT + 1, libc::F_UNLCK))).map(drop)
    }

    pub(super) fn take(&self, byte: i64) -> nix::Result<bool> {
        self.take_as(byte, self.kind)
    }

    fn take_as(&self, byte: i64, kind: c_int) -> nix::Result<bool> {
        was_free(fcntl(&self.file, FcntlArg::F_OFD_SETLK(&bytes(byte..byte + 1, kind))))
    }

    pub(super) fn free(&self, byte: i64) -> nix::Result<()> {
        fcntl(&self.file, FcntlArg::F_OFD_SETLK(&bytes(byte..byte + 1, libc::F_UNLCK))).map(drop)
    }

    fn is_taken(&self, byte: i64, kind: c_int) -> nix::Result<bool> {
        Ok(self.conflict(byte..byte + 1, kind)?.is_some())
    }

    /// Returns a lock of another open file that conflicts with one of this kind on these bytes, if there is one.
    pub(super) fn conflict(&self, range: Range<i64>, kind: c_int) -> nix::Result<Option<libc::flock>> {
        let mut lock = bytes(range, kind);
        fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut lock))?;
        Ok(Some(lock).filter(|lock| i32::from(lock.l_type) != libc::F_UNLCK))
    }

    /// Calls flock(2). Unlike nix's guard, this does not bind the lock to a value's lifetime, because COMMAND inherits
    /// the lock.
    #[allow(deprecated)]
    fn flock(&self, operation: FlockArg) -> nix::Result<()> {
        nix::fcntl::flock(self.file.as_raw_fd(), operation)
    }
}

impl AsFd for LockFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Returns whether the kernel granted a lock; `false` if another process has it.
fn was_free(granted: nix::Result<c_int>) -> nix::Result<bool> {
    match granted {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Returns the error that the lock file of this `name`, at `path`, cannot be opened.
fn cannot_open(directory: &Directory, name: &str, path: &str, errno: Errno) -> StoreError {
    let access = directory.access();
    let planted = |what: &str| format!("{what}{PLANTED}");
    let in_words = || format!("{}{}", errno.desc(), directory::advice(&errno.into(), directory.path()));
    let why = match errno {
        Errno::ELOOP => planted("it is a symbolic link"),
        Errno::EISDIR => planted("it is a directory"),
        Errno::ENXIO => planted("it is a socket, or a FIFO that nobody reads"),
        Errno::EAGAIN => planted("another process holds a lease on it (fcntl(2), F_SETLEASE)"),
        Errno::EACCES => {
            let stat = fstatat(directory.as_fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW);
            // What is wrong with the file; or if nothing is, with this user's rights.
            let is_no_lock_file = access.check_file(stat).err().filter(|_| stat.is_ok());
            is_no_lock_file.unwrap_or_else(|| if access.group().is_some() { no_right_to_open() } else { in_words() })
        }
        _ => in_words(),
    };
    anyhow!("cannot open the lock file {path}: {why}")
}

/// Returns the message that this user may not open a file that the group may open, and for root what to do.
fn no_right_to_open() -> String {
    let us = geteuid();
    let why = format!("this user (uid {us}) may not open it, though the members of the group may");
    if us.is_root() {
        return format!("{why}; root without all of its capabilities (CAP_DAC_OVERRIDE) must be in the group");
    }
    why
}

/// Returns what the open file at `path` is; fails if it may not be a lock file.
fn check(access: &Access, file: &OwnedFd, path: &str) -> Result<FileStat, StoreError> {
    access.check_file(fstat(file)).map_err(|why| anyhow!("refuses the lock file {path}: {why}"))
}

/// Returns the device and the inode.
fn id_of(stat: &FileStat) -> (dev_t, ino_t) {
    (stat.st_dev, stat.st_ino)
}

/// Fails if this process may not write files that are long enough for the record at `path`: it could perhaps be written
/// once, but not again at the end of the run; and writing it would terminate a process that leaves SIGXFSZ at its
/// default.
pub(super) fn check_limit(path: &str) -> Result<(), StoreError> {
    let (limit, _) = getrlimit(Resource::RLIMIT_FSIZE).context("cannot find out how long a file may be")?;
    if limit < record_file::LEAST_SIZE {
        bail!(
            "cannot write the lock file {path}: files may have no more than {limit} bytes (ulimit -f), and it needs {}; raise \
             the limit",
            record_file::LEAST_SIZE
        );
    }
    Ok(())
}

/// Returns the byte whose lock is the slot.
pub(super) fn byte_of(slot: u32) -> i64 {
    SLOTS + i64::from(slot)
}

/// Returns the description of a lock on these bytes.
pub(super) fn bytes(range: Range<i64>, kind: c_int) -> libc::flock {
    libc::flock {
        l_type: libc::c_short::try_from(kind).unwrap_or_default(),
        l_whence: libc::c_short::try_from(libc::SEEK_SET).unwrap_or_default(),
        l_start: range.start,
        l_len: range.end - range.start,
        // Must be 0 for an open file description lock.
        l_pid: 0,
    }
}
