//! Access control lists, which may grant more or less than the mode shows: see acl(5).

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::null_mut;

use nix::errno::Errno;

/// The lists of a directory: for itself, and for what is created in it.
const LISTS: [&CStr; 2] = [c"system.posix_acl_access", c"system.posix_acl_default"];

/// Returns whether an open directory has an access control list, for itself or for what is created in it.
pub fn has_any(directory: &impl AsFd) -> nix::Result<bool> {
    for list in LISTS {
        // SAFETY: the name is a C string; with a size of 0 nothing is written to the buffer.
        let size = unsafe { libc::fgetxattr(directory.as_fd().as_raw_fd(), list.as_ptr(), null_mut(), 0) };
        match Errno::result(size) {
            Ok(_) => return Ok(true),
            // The directory has no such list, or its file system supports none.
            Err(Errno::ENODATA | Errno::EOPNOTSUPP) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(false)
}
