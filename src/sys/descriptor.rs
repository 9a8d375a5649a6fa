//! Descriptors that COMMAND inherits.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};

use nix::fcntl::{FcntlArg, fcntl};

/// The lowest number for a descriptor that COMMAND inherits, if it is available: a script's own `exec 3>file` must not
/// close one.
const LOWEST_PASSED_ON: RawFd = 50;

/// Returns a second descriptor of the same open file, with a high number if possible, that COMMAND will inherit. Fails
/// if the process has no descriptor left.
pub fn pass_on(fd: &impl AsFd) -> nix::Result<OwnedFd> {
    let duplicate = |lowest| fcntl(fd, FcntlArg::F_DUPFD(lowest));
    let high = duplicate(LOWEST_PASSED_ON).or_else(|_| duplicate(libc::STDERR_FILENO + 1))?;
    // SAFETY: the descriptor is new and owned by no other value.
    Ok(unsafe { OwnedFd::from_raw_fd(high) })
}
