//! The file of one lock, and the kernel's locks on it.
//!
//! ```text
//! flock                  the turnstile: the run that has it is the next to get the lock; the others queue for it in the kernel
//! byte EDIT              taken while the record is read or changed
//! byte AT_TURNSTILE      taken by the run that waits at the turnstile, as opposed to just passing
//! byte SLOTS + n         slot n: taken for as long as a run holds it
//! byte SLOTS             shared by all runs that share the lock; each has a slot of its own as well, from 1
//! bytes of places.rs     taken by the runs that wait
//! ```
//!
//! The bytes lie far behind the record and are never written. Their locks are those of the open file, not of a process (open file
//! description locks): they last until the last process that has inherited the descriptor has closed it, and a crash
//! of lockrun hands them to COMMAND. An explicit unlock ends them for all. Only the lock on EDIT is the process's own:
//! if lockrun is killed while it changes the record, the record must not stay in use for as long as COMMAND lives.

use std::ffi::c_int;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, FcntlArg, FlockArg, OFlag, fcntl, openat};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::stat::{Mode, fstat, fstatat};
use nix::unistd::geteuid;

use super::access::{Access, PLANTED};
use super::copies;
use super::directory::{self, Directory};
use crate::lock::key::Key;
use crate::store::StoreError;
use crate::sys::clock::Moment;
use crate::sys::descriptor;
use crate::text::escape::escaped_path;

const EDIT: i64 = 1 << 40;
const AT_TURNSTILE: i64 = EDIT + 1;
const SLOTS: i64 = 1 << 41;

/// To read or change a record takes microseconds; a process that is stopped in the middle must not hold up the others
/// without a word.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// How a lock file is opened. Another user may have put something else there: none of these follows it, or waits for it.
const SAFELY: OFlag = OFlag::O_NOFOLLOW.union(OFlag::O_NONBLOCK).union(OFlag::O_NOCTTY).union(OFlag::O_CLOEXEC);

/// The file of one lock, open.
#[derive(Debug)]
pub(super) struct LockFile {
    pub(super) file: File,
    name: String,
    pub(super) path: String,
    /// Who may use the directory that it lies in.
    pub(super) access: Access,
    /// The kind of lock to take on bytes: a file that is open for reading takes no exclusive ones.
    kind: c_int,
}

impl LockFile {
    /// Opens the lock file of `key`, creating it if need be, at a descriptor that COMMAND inherits.
    pub(super) fn open_or_create(directory: &Directory, key: &Key) -> Result<Self, StoreError> {
        let path = directory.show(key);
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | SAFELY;
        let name = directory::file_name(key);
        check_limit(&path)?;
        let access = directory.access().clone();
        let opened = access.open_or_create(|mode| openat(directory.as_fd(), name.as_str(), flags, mode));
        let file = opened.map_err(|errno| cannot_open(directory, &name, &path, errno))?;
        check(&access, &file, &path)?;
        let file = descriptor::pass_on(&file).context("no descriptor is left for the lock file (see ulimit -n)")?;
        Ok(LockFile { file: file.into(), name, path, access, kind: libc::F_WRLCK })
    }

    /// Opens the lock file of this `name`, if there is one, to change it. COMMAND does not inherit it.
    pub(super) fn open(directory: &Directory, name: &str) -> Result<Option<Self>, StoreError> {
        Self::open_for(directory, name, OFlag::O_RDWR, libc::F_WRLCK)
    }

    /// Opens the lock file of this `name`, if there is one, only to look at it: nobody is woken when it is closed.
    pub(super) fn open_to_look(directory: &Directory, name: &str) -> Result<Option<Self>, StoreError> {
        Self::open_for(directory, name, OFlag::O_RDONLY, libc::F_RDLCK)
    }

    fn open_for(directory: &Directory, name: &str, flags: OFlag, kind: c_int) -> Result<Option<Self>, StoreError> {
        let path = escaped_path(&directory.path().join(name));
        match openat(directory.as_fd(), name, flags | SAFELY, Mode::empty()) {
            Ok(file) => {
                let access = directory.access().clone();
                check(&access, &file, &path)?;
                Ok(Some(LockFile { file: file.into(), name: name.to_owned(), path, access, kind }))
            }
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(cannot_open(directory, name, &path, errno)),
        }
    }

    /// The path, for messages.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Returns whether the file still has its name in `directory`. A file that was removed or replaced before we locked it is not
    /// the one that others would lock, even if it has further names. Gives a file of our own its mode, if that is another.
    pub(super) fn has_its_name(&self, directory: &Directory) -> Result<bool, StoreError> {
        let cannot_look = || format!("cannot look at {}", self.path);
        let ours = fstat(&self.file).with_context(cannot_look)?;
        self.access.restore_mode(&self.file, &ours);
        match fstatat(directory.as_fd(), self.name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(named) => Ok((named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino)),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(errno).with_context(cannot_look),
        }
    }

    /// Passes the turnstile if nobody is at it. Gives whether we did. Waits for one that is only passing.
    pub(super) fn enter_now(&self) -> nix::Result<bool> {
        self.enter_within(PATIENCE)
    }

    /// The same, but waits for one that is only passing no longer than `patience`.
    pub(super) fn enter_within(&self, patience: Duration) -> nix::Result<bool> {
        let give_up_at = Moment::now() + patience;
        loop {
            match self.flock(FlockArg::LockExclusiveNonblock) {
                Ok(()) => return Ok(true),
                Err(Errno::EWOULDBLOCK) if self.is_waited_for()? || Moment::now() >= give_up_at => {
                    return Ok(false);
                }
                Err(Errno::EWOULDBLOCK) => thread::sleep(Duration::from_micros(200)),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Passes the turnstile, or fails with `EINTR` when a signal comes first. The kernel queues us.
    pub(super) fn enter(&self) -> nix::Result<()> {
        self.flock(FlockArg::LockExclusive)
    }

    /// Shows that we stay at the turnstile, until the lock is free.
    pub(super) fn stay(&self) -> nix::Result<()> {
        self.take(AT_TURNSTILE).map(drop)
    }

    /// Whether another process stays at the turnstile.
    pub(super) fn is_waited_for(&self) -> nix::Result<bool> {
        self.is_taken(AT_TURNSTILE, self.kind)
    }

    /// Lets the next one come to the turnstile.
    pub(super) fn leave(&self) -> nix::Result<()> {
        self.free(AT_TURNSTILE)?;
        self.flock(FlockArg::Unlock)
    }

    /// Takes a slot. Gives whether it was free.
    pub(super) fn take_slot(&self, slot: u32) -> nix::Result<bool> {
        self.take(byte_of(slot))
    }

    /// Frees a slot, for every process that has inherited it, and our share of slot 0, if we have one.
    pub(super) fn free_slot(&self, slot: u32) -> nix::Result<()> {
        fcntl(&self.file, FcntlArg::F_OFD_SETLK(&bytes(SLOTS..byte_of(slot) + 1, libc::F_UNLCK))).map(drop)
    }

    /// Takes a share of slot 0. Gives whether that was possible: nobody has it alone.
    pub(super) fn share(&self) -> nix::Result<bool> {
        self.take_as(byte_of(0), libc::F_RDLCK)
    }

    /// Whether another process has the slot, or a share of it.
    pub(super) fn slot_is_taken(&self, slot: u32) -> nix::Result<bool> {
        self.is_taken(byte_of(slot), self.kind)
    }

    /// Whether another process has slot 0 alone.
    pub(super) fn is_held_alone(&self) -> nix::Result<bool> {
        self.is_taken(byte_of(0), libc::F_RDLCK)
    }

    /// Takes the record, to read or change it. Returns whether it was free.
    ///
    /// Until it is freed, this process must not close another descriptor of the file: that would free it, too.
    pub(super) fn take_record(&self) -> nix::Result<bool> {
        was_free(fcntl(&self.file, FcntlArg::F_SETLK(&bytes(EDIT..EDIT + 1, self.kind))))
    }

    /// Frees the record.
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
        let mut lock = bytes(byte..byte + 1, kind);
        fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut lock))?;
        Ok(i32::from(lock.l_type) != libc::F_UNLCK)
    }

    /// flock(2). Unlike nix's guard for it, this leaves open when the lock ends: COMMAND has the descriptor too.
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

/// Returns whether the kernel `gave` a lock, or another process has it.
fn was_free(gave: nix::Result<c_int>) -> nix::Result<bool> {
    match gave {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Returns the error that the lock file of this `name`, at `path`, cannot be opened.
fn cannot_open(directory: &Directory, name: &str, path: &str, errno: Errno) -> StoreError {
    let access = directory.access();
    let planted = |what: &str| format!("{what}{PLANTED}");
    let why = match errno {
        Errno::ELOOP => planted("it is a symbolic link"),
        Errno::EISDIR => planted("it is a directory"),
        Errno::ENXIO => planted("it is a socket, or a FIFO that nobody reads"),
        Errno::EAGAIN => planted("another process holds a lease on it (fcntl(2), F_SETLEASE)"),
        Errno::EACCES if access.group().is_some() => {
            let stat = || fstatat(directory.as_fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW);
            // What is wrong with the file, or else with us.
            access.check_file(stat).err().filter(|_| stat().is_ok()).unwrap_or_else(no_right_to_open)
        }
        _ => format!("{}{}", errno.desc(), directory::advice(&errno.into(), directory.path())),
    };
    anyhow!("cannot open the lock file {path}: {why}")
}

/// Returns that a file which the group may open is closed to this user, and what to do.
fn no_right_to_open() -> String {
    let us = geteuid();
    let why = format!("this user (uid {us}) may not open it, though the members of the group may");
    if us.is_root() {
        return format!("{why}; root without all of its capabilities (CAP_DAC_OVERRIDE) must be in the group");
    }
    why
}

/// Fails if the open file at `path` may be none of a lock.
fn check(access: &Access, file: &OwnedFd, path: &str) -> Result<(), StoreError> {
    access.check_file(|| fstat(file)).map_err(|why| anyhow!("refuses the lock file {path}: {why}"))
}

/// Fails if this process may not make files long enough for a record: written once, it could not be written again when the run
/// ends.
fn check_limit(path: &str) -> Result<(), StoreError> {
    let (limit, _) = getrlimit(Resource::RLIMIT_FSIZE).context("cannot find out how long a file may be")?;
    if limit < copies::LEAST_SIZE {
        bail!(
            "cannot write the lock file {path}: files may have no more than {limit} bytes (ulimit -f), and it needs {}; raise \
             the limit",
            copies::LEAST_SIZE
        );
    }
    Ok(())
}

/// Where a slot's lock lies.
pub(super) fn byte_of(slot: u32) -> i64 {
    SLOTS + i64::from(slot)
}

/// The description of a lock on these bytes.
pub(super) fn bytes(range: Range<i64>, kind: c_int) -> libc::flock {
    libc::flock {
        l_type: libc::c_short::try_from(kind).unwrap_or_default(),
        l_whence: libc::c_short::try_from(libc::SEEK_SET).unwrap_or_default(),
        l_start: range.start,
        l_len: range.end - range.start,
        // Must be 0 for a lock of the open file.
        l_pid: 0,
    }
}
