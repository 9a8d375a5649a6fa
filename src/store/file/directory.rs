//! The directory that lock files lie in, and their names there.
//!
//! Nothing that another user could have planted is trusted: [`super::access`] says who may use the directory, and it is never
//! reached through a symbolic link in its last place.

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

/// The parent and the name of root's default directory: only root can make anything there, so that no other user can keep root out,
/// nor one who is root in a user namespace alone.
const OF_ROOT: (&str, &str) = ("/run", "lockrun");

/// The parent of all other users' default directories.
const OF_USERS: &str = "/run/lock";

/// The same where the machine does not have that.
const LAST_RESORT: &str = "/tmp";

/// The longest file name that is a key written out. Longer ones, which a file system may not take, end in a hash.
const NAME_MAX: usize = 200;

/// An open directory of lock files.
#[derive(Debug)]
pub(super) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
    access: Access,
}

impl Directory {
    /// Opens `named`, or else the default directory. Returns `None` if it does not exist, but fails if it is a group's: that has to be
    /// there. Refuses one that others could have planted, or that others than `access` says can write to.
    pub(super) fn open(named: Option<&Path>, access: &Access) -> Result<Option<Self>, StoreError> {
        let path = path_of(named)?;
        access.check_path(&path)?;
        Ok(Self::reach(&path, access, access.group().is_some())?.ok())
    }

    /// The same, but creates it if it does not exist.
    pub(super) fn open_or_create(named: Option<&Path>, access: &Access) -> Result<Self, StoreError> {
        let path = path_of(named)?;
        access.check_path(&path)?;
        Self::reach(&path, access, true)?.map_err(|error| cannot_create(&path, &error))
    }

    /// Opens the directory at `path`, or creates it if it `may_create`. The inner error is that it does not exist or cannot be created, the
    /// outer one that it is there and cannot or must not be used.
    pub(super) fn reach(path: &Path, access: &Access, may_create: bool) -> Result<io::Result<Self>, StoreError> {
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
            // The umask may have removed bits that the next run needs. Set through the descriptor, which is the directory just created.
            let made = format!("/proc/self/fd/{}", fd.as_raw_fd());
            let _ = std::fs::set_permissions(made, Permissions::from_mode(0o700));
        }
        let stat = fstat(&fd).map_err(|errno| anyhow!("cannot look at {}: {}", escaped_path(path), errno.desc()))?;
        access.check_directory(&fd, path, &stat)?;
        Ok(Ok(Directory { fd, path: path.to_owned(), access: access.clone() }))
    }

    /// Where it is, for messages.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Who may use it.
    pub(super) fn access(&self) -> &Access {
        &self.access
    }

    /// The names of all plain files in it that may be a lock's.
    pub(super) fn names(&self) -> Result<Vec<String>, StoreError> {
        let fails = || format!("cannot list {}", escaped_path(&self.path));
        // By the open descriptor, which is the directory that was checked.
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut opened = Dir::openat(&self.fd, ".", flags, Mode::empty()).with_context(fails)?;
        let mut names = Vec::new();
        for entry in opened.iter() {
            let entry = entry.with_context(fails)?;
            // What else lies there is none of ours. Nor is what has gone meanwhile.
            if self.is_file(&entry) {
                let name = entry.file_name().to_str().ok().filter(|name| is_file_name(name));
                names.extend(name.map(str::to_owned));
            }
        }
        Ok(names)
    }

    /// Whether the entry is a plain file. Some file systems do not say so in the directory.
    fn is_file(&self, entry: &Entry) -> bool {
        let kind = || fstatat(&self.fd, entry.file_name(), AtFlags::AT_SYMLINK_NOFOLLOW).map(|stat| stat.st_mode);
        match entry.file_type() {
            Some(known) => known == Type::File,
            None => kind().is_ok_and(|mode| mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits()),
        }
    }

    /// Brings the names in it to the disk, where they outlast a power failure.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let synced = openat(&self.fd, ".", flags, Mode::empty()).and_then(fsync);
        match synced {
            // Some file systems have nothing to do there.
            Ok(()) | Err(Errno::EINVAL) => Ok(()),
            Err(errno) => Err(errno).with_context(|| format!("cannot bring {} to the disk", escaped_path(&self.path))),
        }
    }

    /// Removes the file of this name.
    pub(super) fn remove(&self, name: &str) -> Result<(), StoreError> {
        unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir)
            .with_context(|| format!("cannot remove {}", escaped_path(&self.path.join(name))))
    }

    /// The path of the lock file of `key`, for messages.
    pub(super) fn show(&self, key: &Key) -> String {
        escaped_path(&self.path.join(file_name(key)))
    }
}

/// Returns the path of the directory that is `named`, or else of the default one.
pub(super) fn path_of(named: Option<&Path>) -> Result<PathBuf, StoreError> {
    match named {
        // Without a slash or dot at its end, which would lead through a symbolic link.
        Some(path) => Ok(path.components().collect()),
        None => default_path(),
    }
}

/// Returns where the locks of this user are if no directory is named. The environment has no say in this, nor whether the directory
/// can be made: the path must be the same from cron, from a shell and from a service, or two runs would hold one lock.
fn default_path() -> Result<PathBuf, StoreError> {
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
        // A path that is mistyped, or the default one in a container that has no /tmp.
        ErrorKind::NotFound => format!(
            "; {} does not exist: check the path, or name another directory for all runs with --store file:/DIR",
            escaped_path(above)
        ),
        _ => advice(error, above),
    };
    anyhow!("cannot create the lock directory {}: {error}{remedy}", escaped_path(path))
}

/// Returns what to do about `error`, to put after it, if it is that `directory` is not for us to write.
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

/// The name of the file of `key`: letters, digits, `-`, `_` and dots that do not come first stand for themselves,
/// every other byte is written as `%XX`. No two keys share a name, and no name leaves the directory.
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
        // `~` is never written for a key, so this cannot be the name of another.
        let hash = Uuid::new_v5(&Uuid::NAMESPACE_OID, key.as_str().as_bytes());
        name.truncate(NAME_MAX / 2);
        let _ = write!(name, "~{}", hash.simple());
    }
    name
}

/// Returns whether [`file_name`] may have written this name. Any other may be there to deceive who reads it in a message.
fn is_file_name(name: &str) -> bool {
    if let Some((start, hash)) = name.split_once('~') {
        let is_written = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '%');
        let is_hash = hash.len() == 32 && hash.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'));
        return start.len() == NAME_MAX / 2 && start.chars().all(is_written) && !start.starts_with('.') && is_hash;
    }
    let key = percent_decode_str(name).decode_utf8().ok().and_then(|key| Key::new(key.as_ref().as_ref()).ok());
    key.is_some_and(|key| file_name(&key) == name)
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
