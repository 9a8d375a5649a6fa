//! Who may use a lock directory: one user, or the members of a group. Everything that follows from this for the
//! directory and its files is here.
//!
//! Everything in one user's directory is trusted. In a group's directory a member may have planted something, so a file
//! is used only if it looks like a lock file: a regular file of that group with one name. Its mode is never changed,
//! because a member may have moved another user's file there. All locks are the kernel's, so a run needs no right but
//! to open the file.

use std::ffi::CStr;
use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use anyhow::{Context, bail};
use nix::dir::Dir;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, umask};
use nix::unistd::{Uid, geteuid};

use super::group::Group;
use crate::store::StoreError;
use crate::sys::{accounts, acl, trust};
use crate::text::escape::escaped_path;
use crate::text::shell::{path_word, word};

/// The mode bits that must not be set on one user's directory: on one that the user named, and on the default one.
const OTHERS_WRITE: u32 = 0o022;
const OTHERS_AT_ALL: u32 = 0o077;

/// The mode of a group's directory: files created there belong to the group. It is not sticky, because in a sticky
/// directory the kernel may refuse to open another user's file with `O_CREAT`, even to root (fs.protected_regular).
const GROUP_MODE: u32 = 0o2770;

/// The mode bits that must be set on a group's lock file.
const GROUP_USES: u32 = 0o060;

/// The end of a message that says how something differs from a lock file: what that means, and what to do.
pub(super) const PLANTED: &str = ", so it may not be a lock's; make sure that nothing works under \
    the lock, find out who put it there, then remove it";

/// The sticky bit, set on lock files. systemd-tmpfiles(8) removes old files below /tmp and elsewhere, whether they are
/// locked or not, but keeps files that have it.
const STICKY: Mode = Mode::S_ISVTX;

/// Who may use a lock directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Its owner: the directory is that user's default one.
    Owner,
    /// Its owner: the user named the directory. Others may read it.
    OwnerOfNamed,
    /// Its owner and the members of this group.
    Group(Group),
}

impl Access {
    /// Returns the group that shares the directory, if one does.
    pub(super) fn group(&self) -> Option<&Group> {
        match self {
            Access::Group(group) => Some(group),
            Access::Owner | Access::OwnerOfNamed => None,
        }
    }

    /// For a group's directory, fails if this user is not a member, or if others could replace the directory at `path`.
    /// Does not look at the directory itself.
    pub(super) fn check_path(&self, path: &Path) -> Result<(), StoreError> {
        let Some(group) = self.group() else { return Ok(()) };
        if !group.includes_us().context("cannot find out the groups of this user")? {
            bail!(
                "cannot use the lock directory {}: uid {} is not a member of {group}; let root add the user (usermod -a -G {} USER, in \
                 force from the next login on)",
                escaped_path(path),
                geteuid(),
                word(&group.spelled())
            );
        }
        // Before other checks, whose messages may tell root to do something at that path.
        trust::check_above(path).or_else(|error| refuse(path, &error.to_string()))
    }

    /// Creates the missing directory at `path`, for its owner alone. If that fails, returns the inner error.
    ///
    /// Does not create a group's directory, and returns the outer error: a directory created by a member would belong
    /// to that member, and the others would refuse it; and a mistyped path must not become a second set of the same
    /// locks.
    pub(super) fn create_directory(&self, path: &Path) -> Result<io::Result<()>, StoreError> {
        match self.group() {
            None => Ok(DirBuilder::new().mode(0o700).create(path)),
            Some(group) => {
                let shown = escaped_path(path);
                let cannot_check = || format!("cannot check the directories above the lock directory {shown}");
                if let Some(step) = trust::first_not_roots(path).with_context(cannot_check)? {
                    bail!(
                        "the lock directory {shown} does not exist, and others than root can write to {}, on its path; let root create one \
                         elsewhere, and name that for all runs",
                        escaped_path(&step)
                    );
                }
                bail!("the lock directory {shown} does not exist; let root create it: {}", installing(group, path))
            }
        }
    }

    /// Fails if users who should not can use the open `directory` at `path`, which has this `stat`.
    pub(super) fn check_directory(&self, directory: &OwnedFd, path: &Path, stat: &FileStat) -> Result<(), StoreError> {
        let forbidden = match self {
            Access::Owner => OTHERS_AT_ALL,
            Access::OwnerOfNamed => OTHERS_WRITE,
            Access::Group(group) => return check_shared(group, directory, path, stat),
        };
        let path = escaped_path(path);
        if stat.st_mode & 0o7777 == GROUP_MODE {
            let group = Group::numbered(stat.st_gid);
            bail!(
                "refuses the lock directory {path}: {group} shares it; to use its locks, add ?group={} to the store's URL",
                group.spelled()
            );
        }
        // A directory for all users, such as /tmp: its mode is right, so do not advise changing it.
        if stat.st_mode & forbidden != 0 && stat.st_mode & STICKY.bits() != 0 {
            bail!(
                "refuses the lock directory {path}: others can write to it (mode {:04o}); name one below it that is yours alone, such \
                 as file:{path}/locks",
                stat.st_mode & 0o7777
            );
        }
        if stat.st_uid != geteuid().as_raw() {
            let name = accounts::user_name(Uid::from_raw(stat.st_uid));
            let owner = name.map_or_else(String::new, |name| format!("{name}, ")) + &format!("uid {}", stat.st_uid);
            // The default directory is named after this user, so another one has no business there.
            if *self == Access::Owner {
                bail!(
                    "refuses the lock directory {path}: it belongs to {owner}, who could delete lock files; as root, look \
                     into it, then remove it, or name another for all runs with --store file:/DIR"
                );
            }
            bail!(
                "refuses the lock directory {path}: it belongs to {owner}, who could delete lock files; to see or use the \
                 locks there, run lockrun as that user, and for locks of your own name another directory with --store file:/DIR"
            );
        }
        if stat.st_mode & forbidden != 0 {
            bail!(
                "refuses the lock directory {path}: others can write to it or read it (mode {:03o}); chmod 700 it",
                stat.st_mode & 0o777
            );
        }
        Ok(())
    }

    /// Opens a lock file with `open`, which creates the file with the given mode if it is missing.
    pub(super) fn open_or_create<T>(&self, open: impl FnOnce(Mode) -> T) -> T {
        match self {
            Access::Owner | Access::OwnerOfNamed => open(self.file_mode()),
            // Created with its final mode: otherwise another member could find the file before its mode is set.
            Access::Group(_) => {
                let mask = umask(Mode::empty());
                let opened = open(self.file_mode());
                umask(mask);
                opened
            }
        }
    }

    fn file_mode(&self) -> Mode {
        let owner = STICKY | Mode::S_IRUSR | Mode::S_IWUSR;
        match self {
            Access::Owner | Access::OwnerOfNamed => owner,
            Access::Group(_) => owner | Mode::S_IRGRP | Mode::S_IWGRP,
        }
    }

    /// Returns the `stat` of a file; fails if the file may not be a lock file. The error says why and what to do; it is
    /// to follow the file's path.
    pub(super) fn check_file(&self, stat: nix::Result<FileStat>) -> Result<FileStat, String> {
        let stat = stat.map_err(|errno| errno.desc().to_owned())?;
        let why = match SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) {
            SFlag::S_IFREG => self.group().and_then(|group| not_shared(group, &stat)),
            SFlag::S_IFDIR => Some("it is a directory".to_owned()),
            _ => Some("it is not a regular file".to_owned()),
        };
        why.map_or(Ok(stat), |why| Err(format!("{why}{PLANTED}")))
    }

    /// Returns what to do with the lock file at `path` if its record is useless, once nothing works under the lock. The
    /// text is to follow a comma or "then".
    pub(super) fn remedy(&self, path: &str) -> String {
        match self {
            // Emptied, not removed: other runs may have this file open, and their locks on it.
            Access::Owner | Access::OwnerOfNamed => format!("empty the file: truncate -s 0 {}", word(path)),
            // Removed, not emptied: truncate, run by root, would follow a link that a member has put there meanwhile.
            Access::Group(_) => format!("remove the file: rm {}", word(path)),
        }
    }

    /// Restores the mode of a lock file in one user's directory, if a umask or a chmod has changed it.
    pub(super) fn restore_mode(&self, file: &OwnedFd, stat: &FileStat) {
        let mode = self.file_mode();
        if self.group().is_none() && stat.st_mode & 0o7777 != mode.bits() {
            let _ = fchmod(file, mode);
        }
    }
}

/// Returns how a regular file in the group's directory differs from a lock file, if it does.
fn not_shared(group: &Group, stat: &FileStat) -> Option<String> {
    // A file that has just been removed has 0 names, which is harmless.
    if stat.st_nlink > 1 {
        Some(format!("it has {} names (hard links)", stat.st_nlink))
    } else if stat.st_gid != group.gid() {
        Some(format!("it belongs to {}, not to {group}", Group::numbered(stat.st_gid)))
    } else if stat.st_mode & GROUP_USES != GROUP_USES {
        Some(format!("its mode is {:04o}, which does not let {group} read and write it", stat.st_mode & 0o7777))
    } else {
        None
    }
}

/// Returns the command that creates a directory for the group.
fn installing(group: &Group, path: &Path) -> String {
    format!("install -d -o root -g {} -m {GROUP_MODE:o} {}", word(&group.spelled()), path_word(path))
}

/// Returns the end of a message: the commands that make root's directory at `path` fit for the group. Returns nothing
/// if root should not run them, because the directory is not empty, is meant for all users, or could be replaced by
/// others.
fn fitting(group: &Group, directory: &OwnedFd, path: &Path, stat: &FileStat) -> String {
    let is_sticky = stat.st_mode & Mode::S_ISVTX.bits() != 0;
    let is_roots = || stat.st_uid == 0 && trust::first_not_roots(path).is_ok_and(|step| step.is_none());
    if is_sticky || !is_roots() || !is_empty(directory) {
        return String::new();
    }
    let (group, path) = (word(&group.spelled()), path_word(path));
    format!("; if it is meant for that, let root run: chgrp {group} {path} && chmod {GROUP_MODE:o} {path}")
}

/// Returns whether the open directory is empty; `false` if it cannot be read.
fn is_empty(directory: &OwnedFd) -> bool {
    let opened = Dir::openat(directory, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty());
    let is_other = |name: &CStr| name != c"." && name != c"..";
    opened.is_ok_and(|mut opened| opened.iter().all(|entry| entry.is_ok_and(|entry| !is_other(entry.file_name()))))
}

/// Fails if users other than the members of `group` can use the open `directory`, or if its owner is neither root nor
/// this user.
fn check_shared(group: &Group, directory: &OwnedFd, path: &Path, stat: &FileStat) -> Result<(), StoreError> {
    let us = geteuid();
    let mode = stat.st_mode & 0o7777;
    if stat.st_uid != 0 && stat.st_uid != us.as_raw() {
        let owner = format!("it belongs to uid {}, not to root (nor to this user, uid {us})", stat.st_uid);
        return refuse(
            path,
            &format!(
                "{owner}; have it removed, or name another for all runs with --store file:/DIR?group={}",
                group.spelled()
            ),
        );
    }
    let unfit = |why: &str| refuse(path, &format!("{why}{}", fitting(group, directory, path, stat)));
    if stat.st_gid != group.gid() {
        return unfit(&format!("it belongs to {}, not to {group}", Group::numbered(stat.st_gid)));
    }
    if mode != GROUP_MODE {
        return unfit(&format!("its mode is {mode:04o}; a group's directory has {GROUP_MODE:o}"));
    }
    let readable = openat(directory, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty());
    let has_list = readable.and_then(|directory| acl::has_any(&directory));
    if has_list.with_context(|| format!("cannot look at {}", escaped_path(path)))? {
        let list = "it has an access control list, which may let others in; remove that: setfacl -b";
        return refuse(path, &format!("{list} {}", path_word(path)));
    }
    Ok(())
}

fn refuse(path: &Path, why: &str) -> Result<(), StoreError> {
    bail!("refuses the lock directory {}: {why}", escaped_path(path))
}
