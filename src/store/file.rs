//! Locks on this machine: flock(2) on one file a key, in a directory that is ours alone.
//!
//! Held means that the kernel's lock on the file is taken. COMMAND inherits the descriptor, so the lock stays taken for as
//! long as any of lockrun, COMMAND and what it started has it open, whatever happens to lockrun; a clean end unlocks
//! explicitly, and then nobody holds it, open or not. The record in the file only tells who it is, and carries the fence.

mod directory;
mod examine;
mod record;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context, anyhow, bail};
use nix::errno::Errno;
use nix::fcntl::{FlockArg, OFlag, openat};
use nix::sys::stat::{Mode, fchmod, fstat};

use super::{Acquired, Claim, Custody, Grant, Held, LastRun, Renewed, Store, StoreError, Wait};
use crate::clock::Moment;
use crate::finding::Finding;
use crate::key::Key;
use crate::supervise::{self, interrupt::wait_in_call};
use directory::Directory;
use record::{HolderRecord, Record};

/// How often a lock file may vanish between our opening and locking it before we give up.
const VANISHED_MAX: u32 = 100;

/// The embedded store.
#[derive(Debug)]
pub struct FileStore {
    directory: Option<PathBuf>,
    locked: Option<Locked>,
}

/// A lock file whose kernel lock we hold.
#[derive(Debug)]
struct Locked {
    file: OwnedFd,
    record: Record,
}

impl FileStore {
    /// The store in `directory`, or in the default one.
    pub fn new(directory: Option<PathBuf>) -> Self {
        FileStore { directory, locked: None }
    }
}

impl Store for FileStore {
    fn acquire(&mut self, claim: &Claim, mut wait: Option<Wait<'_>>) -> Result<Acquired, StoreError> {
        let directory = Directory::open(self.directory.as_deref())?;
        for _ in 0..VANISHED_MAX {
            let file = open_lock_file(&directory, &claim.key)?;
            if !lock(&file, wait.as_mut()).with_context(|| format!("cannot lock {}", directory.show(&claim.key)))? {
                return Ok(Acquired::Held(held(&Record::read(&file))));
            }
            // Somebody may have removed the file before we locked it; then it is not the one that others would lock.
            let stat = fstat(&file).with_context(|| format!("cannot look at {}", directory.show(&claim.key)))?;
            if stat.st_nlink > 0 {
                if stat.st_mode & 0o777 != 0o600 {
                    // The umask has had its say; the next run must be able to open it.
                    let _ = fchmod(&file, Mode::S_IRUSR | Mode::S_IWUSR);
                }
                let mut record = Record::read(&file);
                record.take(claim, SystemTime::now(), Moment::now());
                record.write(&file).with_context(|| format!("cannot write {}", directory.show(&claim.key)))?;
                let fence = record.fence;
                self.locked = Some(Locked { file, record });
                return Ok(Acquired::Mine(Grant { fence, custody: Custody::Kernel }));
            }
        }
        bail!("the lock file {} is removed over and over; find out by what", directory.show(&claim.key))
    }

    fn renew(&mut self, _claim: &Claim) -> Result<Renewed, StoreError> {
        // The kernel keeps it.
        Ok(if self.locked.is_some() { Renewed::Mine } else { Renewed::NotMine(None) })
    }

    fn release(&mut self, _claim: &Claim, last: LastRun) -> Result<(), StoreError> {
        let Some(Locked { file, mut record }) = self.locked.take() else { return Ok(()) };
        record.leave(last, SystemTime::now());
        let written = record.write(&file);
        // Whatever became of the record, the lock must go; a process that inherited the descriptor holds nothing then.
        flock(&file, FlockArg::Unlock).context("cannot unlock the lock file")?;
        written.context("cannot write down the run in the lock file")
    }

    fn examine(&mut self) -> Vec<Finding> {
        examine::examine(self.directory.as_deref())
    }
}

/// Opens the lock file of `key`, creating it if need be, at a descriptor that COMMAND inherits.
fn open_lock_file(directory: &Directory, key: &Key) -> Result<OwnedFd, StoreError> {
    let name = directory::file_name(key);
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
    let opened = openat(directory.as_fd(), name.as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR);
    let file =
        opened.map_err(|errno| anyhow!("cannot open the lock file {}: {}", directory.show(key), errno.desc()))?;
    supervise::pass_on(&file).context("no descriptor is left for the lock file (see ulimit -n)")
}

/// Takes the kernel's lock. Gives whether we have it.
fn lock(file: &OwnedFd, wait: Option<&mut Wait<'_>>) -> nix::Result<bool> {
    match flock(file, FlockArg::LockExclusiveNonblock) {
        Ok(()) => return Ok(true),
        Err(Errno::EWOULDBLOCK) => {}
        Err(errno) => return Err(errno),
    }
    let Some(wait) = wait else { return Ok(false) };
    wait.watcher.waiting(&held(&Record::read(file)));
    // The kernel queues us. A signal ends us there as it would anybody; nothing is left behind.
    wait_in_call(wait.until, wait.signals, wait.watcher, || flock(file, FlockArg::LockExclusive))
        .map(|locked| locked.is_some())
}

/// flock(2). Unlike nix's guard for it, this leaves open when the lock ends: COMMAND has the descriptor too.
#[allow(deprecated)]
fn flock(file: &OwnedFd, operation: FlockArg) -> nix::Result<()> {
    nix::fcntl::flock(file.as_raw_fd(), operation)
}

/// Who holds the lock whose record this is.
fn held(record: &Record) -> Held {
    let Some(HolderRecord { who, since_boot_ms, .. }) = &record.holder else { return Held::default() };
    let since = Duration::from_millis(*since_boot_ms);
    Held { holder: Some(who.clone()), since: Some(Moment::now().since(Moment::from_boot(since))), ..Held::default() }
}
