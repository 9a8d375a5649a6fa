//! The directory that lock files lie in, and their names there.
//!
//! Nothing that another user could have planted is trusted: the directory must be ours and writable by us alone, and it
//! is never reached through a symbolic link in its last place.

use std::fmt::Write as _;
use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use nix::dir::{Dir, Entry, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, fsync, geteuid, unlinkat};
use uuid::Uuid;

use crate::key::Key;
use crate::store::StoreError;

/// Where the default directory is made, the first that takes it. The environment has no say in this: the directory must
/// be the same from cron and from a shell.
const PARENTS: [&str; 2] = ["/run/lock", "/tmp"];

/// The longest file name that is a key written out. Longer ones, which a file system may not take, end in a hash.
const NAME_MAX: usize = 200;

/// Who may do what with a directory: the bits that must not be set in one that the user named, and in our own.
const OTHERS_WRITE: u32 = 0o022;
const OTHERS_AT_ALL: u32 = 0o077;

/// An open directory of lock files.
#[derive(Debug)]
pub(super) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

impl Directory {
    /// Opens `named`, or else the default directory, and creates it if it is missing. Refuses one that others could
    /// have planted or can write to.
    pub(super) fn open(named: Option<&Path>) -> Result<Self, StoreError> {
        if let Some(path) = named {
            // Without a slash or dot at its end, which would lead through a symbolic link.
            let path: &Path = &path.components().collect::<PathBuf>();
            return Self::open_or_create(path, OTHERS_WRITE)?
                .map_err(|error| anyhow!("cannot create the lock directory {}: {error}", path.display()));
        }
        let name = format!("lockrun-{}", geteuid());
        let mut failures = String::new();
        for parent in PARENTS {
            let path = Path::new(parent).join(&name);
            match Self::open_or_create(&path, OTHERS_AT_ALL)? {
                Ok(directory) => return Ok(directory),
                // Only where nothing can ever be made is the next place ours: a full disk, say, is no reason to lock elsewhere
                // than others do.
                Err(error) if !is_no_place(&error) => {
                    bail!("cannot create the lock directory {}: {error}", path.display())
                }
                Err(error) => {
                    let _ =
                        write!(failures, "{}{}: {error}", if failures.is_empty() { "" } else { ", " }, path.display());
                }
            }
        }
        bail!("cannot create a lock directory ({failures}); name one with --store file:/DIR")
    }

    /// Opens the directory at `path`, or creates it. The inner error is that it cannot be created, the outer one that
    /// it is there and must not be used.
    fn open_or_create(path: &Path, forbidden: u32) -> Result<io::Result<Self>, StoreError> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut created = false;
        let fd = loop {
            match open(path, flags, Mode::empty()) {
                Ok(fd) => break fd,
                Err(Errno::ENOENT) if !created => {
                    created = true;
                    match DirBuilder::new().mode(0o700).create(path) {
                        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Ok(Err(error)),
                        _ => {}
                    }
                }
                Err(Errno::ENOTDIR | Errno::ELOOP) => {
                    bail!("refuses the lock directory {}: it is a symbolic link or not a directory", path.display())
                }
                Err(errno) => return Ok(Err(errno.into())),
            }
        };
        if created {
            // The umask has had its say; the next run must be able to enter. By the open descriptor, which is what was made.
            let made = format!("/proc/self/fd/{}", fd.as_raw_fd());
            let _ = std::fs::set_permissions(made, Permissions::from_mode(0o700));
        }
        let stat = fstat(&fd).map_err(|errno| anyhow!("cannot look at {}: {}", path.display(), errno.desc()))?;
        if stat.st_uid != geteuid().as_raw() {
            bail!(
                "refuses the lock directory {}: it belongs to uid {}, who could take our locks away; \
                 remove it, or name another with --store file:/DIR",
                path.display(),
                stat.st_uid
            );
        }
        if stat.st_mode & forbidden != 0 {
            bail!(
                "refuses the lock directory {}: others can write to it or read it (mode {:03o}); chmod 700 it",
                path.display(),
                stat.st_mode & 0o777
            );
        }
        Ok(Ok(Directory { fd, path: path.to_owned() }))
    }

    /// Where it is, for messages.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The names of all plain files in it that may be a lock's. No lock's file has a name that begins with a dot.
    pub(super) fn names(&self) -> Result<Vec<String>, StoreError> {
        let fails = || format!("cannot list {}", self.path.display());
        // By the open descriptor, which is the directory that was checked.
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut opened = Dir::openat(&self.fd, ".", flags, Mode::empty()).with_context(fails)?;
        let mut names = Vec::new();
        for entry in opened.iter() {
            let entry = entry.with_context(fails)?;
            // What else lies there is none of ours. Nor is what has gone meanwhile.
            if self.is_file(&entry) {
                let name = entry.file_name().to_str().ok().filter(|name| !name.starts_with('.'));
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
            Err(errno) => Err(errno).with_context(|| format!("cannot bring {} to the disk", self.path.display())),
        }
    }

    /// Removes the file of this name.
    pub(super) fn remove(&self, name: &str) -> Result<(), StoreError> {
        unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir)
            .with_context(|| format!("cannot remove {}", self.path.join(name).display()))
    }

    /// The path of the lock file of `key`, for messages.
    pub(super) fn show(&self, key: &Key) -> String {
        self.path.join(file_name(key)).display().to_string()
    }
}

/// Whether this error says that a directory cannot be made at that place at all.
fn is_no_place(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES | Errno::EPERM | Errno::EROFS))
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
    }
}
