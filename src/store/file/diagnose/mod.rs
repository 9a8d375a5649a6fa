//! What would make locks in a directory unsafe or slow.

mod ancestors;
mod filesystem;
mod records;
mod trial;

use std::os::fd::AsFd;
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
    findings.extend(ancestors::examine(directory.path()));
    findings.extend(filesystem::examine(directory.as_fd(), directory.path()));
    findings.extend(trial::examine(directory.as_fd(), directory.path()));
    findings.extend(records::examine(&directory));
    findings
}

/// That it could be opened means that it is a directory, ours, and writable by nobody else.
fn ours(directory: &Directory) -> Finding {
    let mode =
        fstat(directory.as_fd()).map_or_else(|_| "unknown".into(), |stat| format!("{:03o}", stat.st_mode & 0o7777));
    Finding::ok(format!("the lock directory {} is ours alone to write (mode {mode})", directory.path().display()))
}
