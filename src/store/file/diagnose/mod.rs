//! What would make locks in a directory unsafe or slow.

mod ancestors;
mod filesystem;
mod records;
mod trial;

use std::fs::read_link;
use std::os::fd::{AsFd, AsRawFd};

use nix::sys::stat::fstat;

use super::directory::Directory;
use crate::store::StoreError;
use crate::store::diagnostic::Diagnostic;

/// Looks at the lock directory, which was `opened` as by a run, or could not be: tries a lock in it, and reads those that are there.
pub(super) fn diagnose(opened: Result<Directory, StoreError>) -> Vec<Diagnostic> {
    let directory = match opened {
        Ok(directory) => directory,
        Err(error) => return vec![Diagnostic::unusable(format!("{error:#}"), "")],
    };
    let mut diagnostics = vec![users(&directory)];
    diagnostics.extend(private(&directory));
    diagnostics.extend(ancestors::diagnose(directory.path()));
    diagnostics.extend(filesystem::diagnose(directory.as_fd(), directory.path()));
    diagnostics.extend(trial::diagnose(directory.as_fd(), directory.path()));
    diagnostics.extend(records::diagnose(&directory));
    diagnostics
}

/// Directories that a systemd service with `PrivateTmp=yes` has to itself.
const PRIVATE: [&str; 2] = ["/tmp", "/var/tmp"];

/// Whether the directory lies where some services see another one.
fn private(directory: &Directory) -> Option<Diagnostic> {
    // Wherever symbolic links led.
    let path = read_link(format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd())).ok()?;
    let above = PRIVATE.into_iter().find(|above| path.starts_with(above))?;
    Some(Diagnostic::warn(
        format!(
            "the lock directory {} lies in {above}, of which a systemd service with PrivateTmp=yes has its own",
            path.display()
        ),
        "such a service and a cron job would hold one lock at once; name a directory elsewhere for all with --store file:/DIR",
    ))
}

/// Who can use the directory. That it could be opened means that nobody else can write to it.
fn users(directory: &Directory) -> Diagnostic {
    let path = directory.path().display();
    if let Some(group) = directory.access().group() {
        return Diagnostic::ok(format!(
            "the lock directory {path} is shared by {group}, every member of which can hold, break and delete each lock there"
        ));
    }
    let mode =
        fstat(directory.as_fd()).map_or_else(|_| "unknown".into(), |stat| format!("{:03o}", stat.st_mode & 0o7777));
    Diagnostic::ok(format!("the lock directory {path} is ours alone to write (mode {mode})"))
}
