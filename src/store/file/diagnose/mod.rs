//! What would make locks in a directory unsafe or slow.

mod ancestors;
mod filesystem;
mod records;
mod trial;

use std::fs::read_link;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use nix::sys::stat::fstat;

use super::directory::Directory;
use crate::report::diagnostic::Finding;

/// Looks at the lock directory that is `named`, or at the default one: makes it if it is missing, as a run would, and tries a
/// lock in it, and reads those that are there.
pub(super) fn examine(named: Option<&Path>) -> Vec<Finding> {
    let directory = match Directory::open(named) {
        Ok(directory) => directory,
        Err(error) => return vec![Finding::unusable(format!("{error:#}"), "")],
    };
    let mut findings = vec![ours(&directory)];
    findings.extend(private(&directory));
    findings.extend(ancestors::examine(directory.path()));
    findings.extend(filesystem::examine(directory.as_fd(), directory.path()));
    findings.extend(trial::examine(directory.as_fd(), directory.path()));
    findings.extend(records::examine(&directory));
    findings
}

/// Directories that a systemd service with `PrivateTmp=yes` has to itself.
const PRIVATE: [&str; 2] = ["/tmp", "/var/tmp"];

/// Whether the directory lies where some services see another one.
fn private(directory: &Directory) -> Option<Finding> {
    // Wherever symbolic links led.
    let path = read_link(format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd())).ok()?;
    let above = PRIVATE.into_iter().find(|above| path.starts_with(above))?;
    Some(Finding::warn(
        format!(
            "the lock directory {} lies in {above}, of which a systemd service with PrivateTmp=yes has its own",
            path.display()
        ),
        "such a service and a cron job would hold one lock at once; name a directory elsewhere for all with --store file:/DIR",
    ))
}

/// That it could be opened means that it is a directory, ours, and writable by nobody else.
fn ours(directory: &Directory) -> Finding {
    let mode =
        fstat(directory.as_fd()).map_or_else(|_| "unknown".into(), |stat| format!("{:03o}", stat.st_mode & 0o7777));
    Finding::ok(format!("the lock directory {} is ours alone to write (mode {mode})", directory.path().display()))
}
