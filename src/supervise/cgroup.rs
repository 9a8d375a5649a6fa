//! A cgroup for COMMAND alone, where the system allows it: KILL then reaches all of COMMAND's processes at once, however fast it forks.
//!
//! lockrun creates it only below a delegated cgroup (version 2), which systemd marks with an extended attribute. Elsewhere it must not
//! change the cgroup tree, and searches /proc for processes instead.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::fs::{self, DirEntry, File};
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// The attributes that mark a cgroup as delegated: for a user's services, and for the system's.
const DELEGATED: [&CStr; 2] = [c"user.delegate", c"trusted.delegate"];

/// The cgroup that COMMAND is started in.
#[derive(Debug)]
pub(super) struct Cgroup {
    path: PathBuf,
    /// Its `cgroup.procs`, open until COMMAND has entered.
    procs: Option<File>,
}

/// The cgroup below which one for COMMAND may be created: lockrun's own, if that was delegated.
#[derive(Debug)]
pub(super) struct ParentCgroup {
    path: PathBuf,
    /// lockrun's own cgroup, as /proc shows it.
    shown: String,
}

impl ParentCgroup {
    /// Returns the parent cgroup, if there is one. Changes nothing.
    pub(super) fn find() -> Option<Self> {
        let shown = own_cgroup()?;
        let path = mount_of_cgroups()?.join(&shown);
        (is_delegated(&path) && path.join("cgroup.kill").exists()).then_some(ParentCgroup { path, shown })
    }

    /// Creates a cgroup in it, under a name that no other run has. Returns `None` if that fails, or if lockrun has been moved to another
    /// cgroup since: the limits on lockrun must apply to COMMAND.
    pub(super) fn create(&self) -> Option<Cgroup> {
        if own_cgroup().as_ref() != Some(&self.shown) {
            return None;
        }
        let path = self.path.join(format!("lockrun-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        let procs = File::options().write(true).open(path.join("cgroup.procs")).ok();
        if procs.is_none() {
            let _ = fs::remove_dir(&path);
            return None;
        }
        Some(Cgroup { path, procs })
    }
}

impl Cgroup {
    /// Returns the descriptor to which a process writes `0` to enter; `None` once it is closed.
    pub(super) fn entrance(&self) -> Option<RawFd> {
        self.procs.as_ref().map(File::as_raw_fd)
    }

    /// Closes the entrance: no other process can enter.
    pub(super) fn close_entrance(&mut self) {
        self.procs = None;
    }

    /// Kills every process in it.
    pub(super) fn kill(&self) {
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
    }

    /// Moves its remaining processes to the parent cgroup, and removes it.
    ///
    /// An exiting process cannot be moved, and until the kernel is done with it, which takes milliseconds, the cgroup cannot be removed.
    /// A cgroup that stays in use longer, or in which COMMAND has created others, is left in place.
    pub(super) fn dissolve(&self) {
        let Some(parent) = self.path.parent() else { return };
        for pause_ms in [1, 2, 4, 8, 16, 32, 64, 128] {
            for pid in fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default().lines() {
                let _ = fs::write(parent.join("cgroup.procs"), pid);
            }
            let is_in_use = fs::remove_dir(&self.path).is_err_and(|error| error.kind() == ErrorKind::ResourceBusy);
            if !is_in_use || self.has_others_below() {
                return;
            }
            thread::sleep(Duration::from_millis(pause_ms));
        }
    }

    fn has_others_below(&self) -> bool {
        let is_directory = |entry: DirEntry| entry.file_type().is_ok_and(|file_type| file_type.is_dir());
        fs::read_dir(&self.path).is_ok_and(|mut entries| entries.any(|entry| entry.is_ok_and(is_directory)))
    }
}

/// Returns the cgroup of this process, relative to the root.
fn own_cgroup() -> Option<String> {
    let cgroups = fs::read_to_string("/proc/self/cgroup").ok()?;
    cgroups.lines().find_map(|line| line.strip_prefix("0::/")).map(str::to_owned)
}

/// Returns the directory where the whole cgroup tree is mounted.
fn mount_of_cgroups() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(|line| mount_point(line)).map(PathBuf::from)
}

/// Returns the mount point in a line of mountinfo, if the whole cgroup tree is mounted there: see proc(5).
fn mount_point(line: &str) -> Option<&str> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut fields = mount.split(' ').skip(3);
    let (root, point) = (fields.next()?, fields.next()?);
    (file_system.starts_with("cgroup2 ") && root == "/").then_some(point)
}

fn is_delegated(cgroup: &Path) -> bool {
    let Ok(path) = CString::new(cgroup.as_os_str().as_bytes()) else { return false };
    DELEGATED.iter().any(|attribute| {
        let mut value = [0_u8; 8];
        // SAFETY: two terminated strings, and a buffer of the given length.
        let length =
            unsafe { libc::getxattr(path.as_ptr(), attribute.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
        length == 1 && value[0] == b'1'
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_point_is_found() {
        let line = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(mount_point(line), Some("/sys/fs/cgroup"));
        assert_eq!(mount_point("30 24 0:26 /a /mnt rw - cgroup2 cgroup2 rw"), None);
        assert_eq!(mount_point("31 24 0:27 / /proc rw - proc proc rw"), None);
    }
}
