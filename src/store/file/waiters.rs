//! The processes that wait for lock files, and those that have inherited a lock, as the kernel shows them in /proc.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd};

use anyhow::Context;
use nix::sys::stat::{fstat, major, minor};

use super::lock_file::LockFile;
use crate::lock::holder::Holder;
use crate::store::{StoreError, WaiterStatus};

/// The kernel's list of locks and of the processes that wait for them, as read once or several times.
pub(super) struct Waiters(Vec<String>);

/// How much of the list the kernel returns at once, at least: the smallest page.
const PART: usize = 4096;

/// How often a list of several parts is read.
const READINGS: usize = 3;

/// Reads the list from /proc/locks.
///
/// While locks come and go between two parts of the list, a lock with all that wait for it can be in both or in
/// neither. So a list of several parts is read several times.
pub(super) fn all() -> Result<Waiters, StoreError> {
    let read = || {
        // With room from the first: the kernel returns no more at once than it is asked for.
        let mut list = String::with_capacity(16 * PART);
        File::open("/proc/locks")?.read_to_string(&mut list)?;
        io::Result::Ok(list)
    };
    let read_all = || {
        let mut readings = vec![read()?];
        while readings[0].len() >= PART && readings.len() < READINGS {
            readings.push(read()?);
        }
        io::Result::Ok(Waiters(readings))
    };
    read_all().context(
        "cannot read /proc/locks, which says who waits for a lock; mount /proc (mount -t proc proc /proc), all of it",
    )
}

impl Waiters {
    /// Returns the processes that wait for this file, whose record must be locked: first the one at the turnstile, then
    /// the others in no particular order.
    pub(super) fn of(&self, file: &LockFile) -> Result<Vec<WaiterStatus>, StoreError> {
        let pids = self.pids(file)?;
        Ok(pids.into_iter().map(|pid| WaiterStatus { who: Holder::of_process(pid), since_ms: None }).collect())
    }

    fn pids(&self, file: &LockFile) -> Result<Vec<u32>, StoreError> {
        let at_turnstile = file.is_waited_for().with_context(|| format!("cannot look at {}", file.path()))?;
        let locks = self.turnstile_locks(file)?.into_iter();
        Ok(locks.filter(|lock| lock.waits || at_turnstile).map(|lock| lock.pid).collect())
    }

    /// Returns the process that has the turnstile, if there is one.
    fn at_turnstile(&self, file: &LockFile) -> Result<Option<u32>, StoreError> {
        Ok(self.turnstile_locks(file)?.into_iter().find(|lock| !lock.waits).map(|lock| lock.pid))
    }

    /// Returns the lines of the processes that have the turnstile or wait for it, from the last reading that has any.
    fn turnstile_locks(&self, file: &LockFile) -> Result<Vec<Lock<'_>>, StoreError> {
        let file = listed_as(file)?;
        let mut readings = self.0.iter().rev().map(|list| turnstile_locks(list, &file));
        Ok(readings.find(|locks| !locks.is_empty()).unwrap_or_default())
    }
}

/// Returns the lines of one reading for the turnstile of this file: each lock on it, followed by the processes that
/// wait for it. A lock is returned once, even if the reading repeats it.
fn turnstile_locks<'a>(list: &'a str, file: &str) -> Vec<Lock<'a>> {
    let mut locks: Vec<Lock<'_>> = Vec::new();
    for lock in list.lines().filter_map(Lock::read).filter(|lock| lock.kind == "FLOCK" && lock.file == file) {
        if !lock.waits && locks.iter().any(|seen| !seen.waits && seen.pid == lock.pid) {
            break;
        }
        locks.push(lock);
    }
    locks
}

/// A line of /proc/locks, see proc_locks(5): `1: -> FLOCK ADVISORY WRITE 4242 00:19:5678 0 EOF`. The arrow marks a
/// process that waits for the lock.
struct Lock<'a> {
    waits: bool,
    kind: &'a str,
    pid: u32,
    file: &'a str,
}

impl<'a> Lock<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace().skip(1).peekable();
        let waits = words.next_if_eq(&"->").is_some();
        let kind = words.next()?;
        let pid = words.nth(2)?.parse().ok()?;
        Some(Lock { waits, kind, pid, file: words.next()? })
    }
}

/// Returns what the kernel's list calls the file, as in `00:19:5678`. This process's own lock on the record, which must
/// be locked, shows it: on btrfs and overlayfs the device is not the one that fstat(2) returns.
fn listed_as(file: &LockFile) -> Result<String, StoreError> {
    if let Some(own) = own_lock(file) {
        return Ok(own);
    }
    let stat = fstat(file).with_context(|| format!("cannot look at {}", file.path()))?;
    Ok(format!("{:02x}:{:02x}:{}", major(stat.st_dev), minor(stat.st_dev), stat.st_ino))
}

/// Returns what the kernel calls the file, if this process has a lock on it.
fn own_lock(file: &LockFile) -> Option<String> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_fd().as_raw_fd())).unwrap_or_default();
    info.lines().find_map(file_of).map(str::to_owned)
}

/// Returns the processes that have the lock on this byte of the file, as far as this user may inspect them.
pub(super) fn with_lock(file: &LockFile, byte: i64) -> Vec<u32> {
    having(file, |lock| is_lock_on(lock, byte))
}

/// Returns the process that has the turnstile, if it can be seen. That of another user, whose descriptors this user may
/// not inspect, is the one that the kernel lists, which entered the turnstile.
pub(super) fn at_turnstile(file: &LockFile) -> Option<u32> {
    let inspected = having(file, |lock| lock.split_ascii_whitespace().nth(2) == Some("FLOCK")).first().copied();
    inspected.or_else(|| file.with_record_locked(|| all()?.at_turnstile(file)).ok()?)
}

/// Returns whether a signal has stopped the process.
pub(super) fn is_stopped(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:\tT"))
}

/// Returns the processes with a lock on the file that `is_it`, given a line of /proc/PID/fdinfo/FD.
///
/// The kernel names a lock's file in that line. No descriptor is looked at by stat(2): a foreign one may be of a file
/// on a server that does not answer, for which stat(2) would wait for ever.
fn having(file: &LockFile, is_it: impl Fn(&str) -> bool) -> Vec<u32> {
    // The name is that of an own lock. If there is none, the record is not locked, so it can be for a moment.
    let Ok(name) = own_lock(file).map_or_else(|| file.with_record_locked(|| listed_as(file)), Ok) else {
        return Vec::new();
    };
    let shows_it = |info: &str| info.lines().any(|line| file_of(line) == Some(&name) && is_it(line));
    let has_lock = |pid: u32| -> io::Result<bool> {
        let mut descriptors = fs::read_dir(format!("/proc/{pid}/fdinfo"))?.flatten();
        Ok(descriptors.any(|descriptor| fs::read_to_string(descriptor.path()).is_ok_and(|info| shows_it(&info))))
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| has_lock(*pid).unwrap_or(false))
        .collect()
}

/// Returns the file that a line of /proc/PID/fdinfo/FD about a lock names.
fn file_of(line: &str) -> Option<&str> {
    line.strip_prefix("lock:")?.split_ascii_whitespace().nth(5)
}

/// Returns whether a line of /proc/PID/fdinfo/FD shows the open file's own lock on this byte, as in
/// `lock: 1: OFDLCK ADVISORY WRITE -1 00:19:5678 2199023255552 2199023255552`.
fn is_lock_on(line: &str, byte: i64) -> bool {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    matches!(words[..], ["lock:", _, "OFDLCK", .., first, last] if first == last && first.parse() == Ok(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lines_are_read() {
        let lock = Lock::read("1: FLOCK  ADVISORY  WRITE 4242 00:19:5678 0 EOF").expect("is a lock");
        assert_eq!((lock.waits, lock.kind, lock.pid, lock.file), (false, "FLOCK", 4242, "00:19:5678"));
        let lock = Lock::read("\t2: POSIX  ADVISORY  READ 7 00:28:9 1099511627776 1099511627776").expect("is our own");
        assert_eq!((lock.kind, lock.file), ("POSIX", "00:28:9"));
        let lock = Lock::read("12: -> FLOCK  ADVISORY  WRITE 7 fd:01:9 0 EOF").expect("is a waiter");
        assert_eq!((lock.waits, lock.kind, lock.pid, lock.file), (true, "FLOCK", 7, "fd:01:9"));
        assert!(Lock::read("3: OFDLCK ADVISORY  WRITE -1 00:19:5678 1 1").is_none());
        assert!(is_lock_on("lock:\t1: OFDLCK  ADVISORY  WRITE -1 00:19:5678 7 7", 7));
        assert_eq!(file_of("lock:\t1: OFDLCK  ADVISORY  WRITE -1 00:19:5678 7 7"), Some("00:19:5678"));
        assert_eq!((file_of("pos:\t0"), file_of("lock:\t1: FLOCK")), (None, None));
        assert!(!is_lock_on("lock:\t1: OFDLCK  ADVISORY  WRITE -1 00:19:5678 8 8", 7));
        assert!(!is_lock_on("lock:\t1: FLOCK  ADVISORY  WRITE 4242 00:19:5678 0 EOF", 0));
    }

    #[test]
    fn waiters_are_listed_once_though_the_kernel_repeats_them() {
        let once = "1: FLOCK  ADVISORY  WRITE 7 00:19:5 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 0 00:19:5 0 EOF\n\
            1: -> FLOCK  ADVISORY  WRITE 0 00:19:5 0 EOF\n2: FLOCK  ADVISORY  WRITE 8 00:19:6 0 EOF\n";
        let pids = |list: &str| turnstile_locks(list, "00:19:5").iter().map(|lock| lock.pid).collect::<Vec<_>>();
        // Processes in another PID namespace have the number 0.
        assert_eq!(pids(once), [7, 0, 0]);
        assert_eq!(pids(&once.repeat(2)), [7, 0, 0]);
    }
}
