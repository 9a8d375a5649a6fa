//! The directory of the lock files, and their names in it.
//!
//! Nothing that another user could have planted is trusted: [`super::access`] decides who may use the directory, and
//! the last name of its path must not be a symbolic link.

use std::fmt::Write as _;
use std::fs::{Permissions, symlink_metadata};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use nix::dir::{Dir, Entry, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, fsync, geteuid, unlinkat};
use percent_encoding::percent_decode_str;
use uuid::Uuid;

use super::access::Access;
use crate::lock::key::Key;
use crate::store::StoreError;
use crate::text::escape::escaped_path;

/// The parent and the name of root's default directory: only root can create anything there, so no other user, nor the
/// root of a user namespace, can keep root out.
const OF_ROOT: (&str, &str) = ("/run", "lockrun");

/// The parent of all other users' default directories.
const OF_USERS: &str = "/run/lock";

/// The parent of default directories on a machine where the usual one does not exist.
const LAST_RESORT: &str = "/tmp";

/// The longest file name that spells out its key. Longer keys, whose names a file system may not accept, are cut and
/// end in a hash.
const NAME_MAX: usize = 200;

/// An open directory of lock files.
#[derive(Debug)]
pub(super) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
    access: Access,
}

impl Directory {
    /// Opens `named`, or else the default directory. Returns `None` if it does not exist, but fails if it is a group's,
    /// which must exist. Refuses a directory that others could have planted, or that users whom `access` does not allow
    /// can write to.
    pub(super) fn open(named: Option<&Path>, access: &Access) -> Result<Option<Self>, StoreError> {
        let path = path_of(named)?;
        access.check_path(&path)?;
        Ok(Self::open_at(&path, access, access.group().is_some())?.ok())
    }

    /// Does the same, but creates the directory if it does not exist.
    pub(super) fn open_or_create(named: Option<&Path>, access: &Access) -> Result<Self, StoreError> {
        let path = path_of(named)?;
        access.check_path(&path)?;
        Self::open_at(&path, access, true)?.map_err(|error| cannot_create(&path, &error))
    }

    /// Opens the directory at `path`, or creates it if it `may_create`. The inner error says that it does not exist or
    /// cannot be created, the outer one that it cannot or must not be used, or that it is a group's and does not exist.
    pub(super) fn open_at(path: &Path, access: &Access, may_create: bool) -> Result<io::Result<Self>, StoreError> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut created = false;
        let fd = loop {
            match open(path, flags, Mode::empty()) {
                Ok(fd) => break fd,
                Err(Errno::ENOENT) if may_create && !created => {
                    created = true;
                    match access.create_directory(path)? {
                        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Ok(Err(error)),
                        _ => {}
                    }
                }
                Err(Errno::ENOENT) => return Ok(Err(Errno::ENOENT.into())),
                Err(Errno::ENOTDIR | Errno::ELOOP) => {
                    bail!("refuses the lock directory {}: it is a symbolic link or not a directory", escaped_path(path))
                }
                Err(errno) => {
                    let advice = advice(&errno.into(), path);
                    bail!("cannot open the lock directory {}: {}{advice}", escaped_path(path), errno.desc())
                }
            }
        };
        if created {
            // The umask may have removed bits that the next run needs. Set through the descriptor, not the path, which
            // could be replaced.
            let made = format!("/proc/self/fd/{}", fd.as_raw_fd());
            let _ = std::fs::set_permissions(made, Permissions::from_mode(0o700));
        }
        let stat = fstat(&fd).map_err(|errno| anyhow!("cannot look at {}: {}", escaped_path(path), errno.desc()))?;
        access.check_directory(&fd, path, &stat)?;
        Ok(Ok(Directory { fd, path: path.to_owned(), access: access.clone() }))
    }

    /// Returns its path, for messages.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns who may use it.
    pub(super) fn access(&self) -> &Access {
        &self.access
    }

    /// Returns the names of all regular files in it that may be lock files.
    pub(super) fn names(&self) -> Result<Vec<String>, StoreError> {
        self.names_of(|entry| self.is_file(entry))
    }

    /// Returns the names that a lock file could have of everything in it.
    pub(super) fn all_names(&self) -> Result<Vec<String>, StoreError> {
        self.names_of(|_| true)
    }

    fn names_of(&self, is_wanted: impl Fn(&Entry) -> bool) -> Result<Vec<String>, StoreError> {
        let fails = || format!("cannot list {}", escaped_path(&self.path));
        // Through the open descriptor, which is the directory that was checked.
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut opened = Dir::openat(&self.fd, ".", flags, Mode::empty()).with_context(fails)?;
        let mut names = Vec::new();
        for entry in opened.iter() {
            let entry = entry.with_context(fails)?;
            if is_wanted(&entry) {
                let name = entry.file_name().to_str().ok().filter(|name| is_file_name(name));
                names.extend(name.map(str::to_owned));
            }
        }
        Ok(names)
    }

    /// Returns whether the entry is a regular file, and has not been removed meanwhile. Some file systems do not show
    /// that in the directory.
    fn is_file(&self, entry: &Entry) -> bool {
        let kind = || fstatat(&self.fd, entry.file_name(), AtFlags::AT_SYMLINK_NOFOLLOW).map(|stat| stat.st_mode);
        match entry.file_type() {
            Some(known) => known == Type::File,
            None => kind().is_ok_and(|mode| mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits()),
        }
    }

    /// Writes the names in it to the disk, so that they survive a power failure.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let synced = openat(&self.fd, ".", flags, Mode::empty()).and_then(fsync);
        match synced {
            // Some file systems do not support this.
            Ok(()) | Err(Errno::EINVAL) => Ok(()),
            Err(errno) => Err(errno).with_context(|| format!("cannot bring {} to the disk", escaped_path(&self.path))),
        }
    }

    /// Removes the file of this name.
    pub(super) fn remove(&self, name: &str) -> Result<(), StoreError> {
        unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir)
            .with_context(|| format!("cannot remove {}", escaped_path(&self.path.join(name))))
    }

    /// Returns the path of the lock file of `key`, for messages.
    pub(super) fn show(&self, key: &Key) -> String {
        escaped_path(&self.path.join(file_name(key)))
    }
}

/// Returns the path of the `named` directory, or else of the default one.
pub(super) fn path_of(named: Option<&Path>) -> Result<PathBuf, StoreError> {
    match named {
        // Without a slash or dot at the end, which would make open(2) follow a symbolic link.
        Some(path) => Ok(path.components().collect()),
        None => default_path(),
    }
}

/// Returns where the locks of this user are if no directory is named. This must not depend on the environment, or on
/// whether the directory can be created: unless cron jobs, shells and services use the same path, two runs hold one
/// lock.
pub(super) fn default_path() -> Result<PathBuf, StoreError> {
    let user = geteuid();
    let name = format!("lockrun-{user}");
    let (parent, name) = if user.is_root() { OF_ROOT } else { (OF_USERS, name.as_str()) };
    match symlink_metadata(parent) {
        Ok(_) => Ok(Path::new(parent).join(name)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(Path::new(LAST_RESORT).join(format!("lockrun-{user}")))
        }
        Err(error) => Err(error).with_context(|| format!("cannot look at {parent}, where the lock directory belongs")),
    }
}

/// Returns the error that the lock directory at `path` cannot be created.
pub(super) fn cannot_create(path: &Path, error: &io::Error) -> StoreError {
    let above = path.parent().unwrap_or(path);
    let remedy = match error.kind() {
        // A mistyped path, or the default one in a container without /tmp.
        ErrorKind::NotFound => format!(
            "; {} does not exist: check the path, or name another directory for all runs with --store file:/DIR",
            escaped_path(above)
        ),
        ErrorKind::PermissionDenied if above == Path::new(OF_USERS) => format!(
            "; this user may not write to {OF_USERS}: ask root to add the line \"d {} 0700 {}\" to \
             /etc/tmpfiles.d/lockrun.conf and to run systemd-tmpfiles --create lockrun.conf, or name a directory that \
             all runs can write to with --store file:/DIR",
            escaped_path(path),
            geteuid()
        ),
        _ => advice(error, above),
    };
    anyhow!("cannot create the lock directory {}: {error}{remedy}", escaped_path(path))
}

/// Returns advice to append to `error`, if that says that this process may not write to `directory`; otherwise nothing.
pub(super) fn advice(error: &io::Error, directory: &Path) -> String {
    match error.kind() {
        ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => format!(
            "; name a directory that all runs can write to with --store file:/DIR, or, in a systemd service, set ReadWritePaths={}",
            escaped_path(directory)
        ),
        _ => String::new(),
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the name of the file of `key`: letters, digits, `-`, `_` and dots (except a first one) stand for themselves,
/// every other byte is written as `%XX`. No two keys share a name, and no name leads out of the directory.
pub(super) fn file_name(key: &Key) -> String {
    let mut name = String::with_capacity(key.as_str().len());
    for (at, byte) in key.as_str().bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(byte.into()),
            b'.' if at > 0 => name.push('.'),
            _ => {
                let _ = write!(name, "%{byte:02X}");
            }
        }
    }
    if name.len() > NAME_MAX {
        // No other name contains `~`, so this cannot be the spelled-out name of another key.
        let hash = Uuid::new_v5(&Uuid::NAMESPACE_OID, key.as_str().as_bytes());
        name.truncate(NAME_MAX / 2);
        let _ = write!(name, "~{}", hash.simple());
    }
    name
}

/// Returns whether [`file_name`] can have returned this name. Any other name may be there to deceive the reader of a
/// message.
fn is_file_name(name: &str) -> bool {
    if let Some((start, hash)) = name.split_once('~') {
        let is_written = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '%');
        let is_hash = hash.len() == 32 && hash.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'));
        return start.len() == NAME_MAX / 2 && start.chars().all(is_written) && !start.starts_with('.') && is_hash;
    }
    key_of(name).is_some()
}

/// Returns the key whose file has this name; `None` if the name is none of [`file_name`]'s, or does not spell out the
/// key.
pub(super) fn key_of(name: &str) -> Option<Key> {
    let key = percent_decode_str(name).decode_utf8().ok()?;
    Key::new(key.as_ref().as_ref()).ok().filter(|key| file_name(key) == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn name(key: &str) -> String {
        file_name(&Key::new(key.as_ref()).expect("is a key"))
    }

    #[test]
    fn names_stay_in_the_directory() {
        assert_eq!(name("nightly-report"), "nightly-report");
        assert_eq!(name("../../etc/x"), "%2E.%2F..%2Fetc%2Fx");
        assert_eq!(name("."), "%2E");
        assert_eq!(name("a.b"), "a.b");
        assert_eq!(name("a b"), "a%20b");
    }

    #[test]
    fn no_two_keys_share_a_name() {
        let long = "ж".repeat(256);
        let longer = format!("{}x", "ж".repeat(255));
        let keys = ["a%2Fb", "a/b", "A", "a", "a~", "ключ", &long, &longer, &"x".repeat(200), &"x".repeat(201)];
        let names: HashSet<String> = keys.iter().map(|key| name(key)).collect();
        assert_eq!(names.len(), keys.len());
        assert!(names.iter().all(|name| name.len() <= 255 && !name.contains('/')));
        assert!(names.iter().all(|name| is_file_name(name)), "{names:?}");
    }

    #[test]
    fn a_name_spells_out_its_key() {
        for key in ["nightly-report", "../../etc/x", ".", "a b", "ключ"] {
            assert_eq!(key_of(&name(key)).as_ref().map(Key::as_str), Some(key));
        }
        assert_eq!(key_of(&name(&"x".repeat(201))), None);
    }

    #[test]
    fn no_other_name_is_a_locks() {
        let hash = "0".repeat(32);
        let long = |start: &str| format!("{start:a<100}~{hash}");
        assert!(is_file_name(&long("a")));
        let others = ["", ".a", "a b", "x -rf ~;reboot;#", "%zz", "%2f", "%41", "%00", "a~", "$(reboot)", "a'b"]
            .map(str::to_owned);
        for name in others.into_iter().chain([long(".a"), long("a b"), format!("a~{hash}"), "x".repeat(201)]) {
            assert!(!is_file_name(&name), "{name}");
        }
    }
}
