//! Files in memory, so that tests do not wait for a disk.

use std::env;
use std::fs::File;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;
use tempfile::{TempDir, tempfile_in};

/// How much must be free there, in bytes: containers often have 64 MB in all, which a database fills.
const ENOUGH: u64 = 512 << 20;

/// Returns a temporary directory, in memory if the machine has a file system for that with enough room: on a busy disk,
/// a durable server, or a command that appends stamps to a file, may be blocked for longer than a lease.
pub(crate) fn directory() -> TempDir {
    TempDir::new_in(place()).expect("a temporary directory")
}

/// Returns a temporary file without a name, in memory likewise.
pub(crate) fn file() -> File {
    tempfile_in(place()).expect("a temporary file")
}

fn place() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let has_room = statvfs(memory).is_ok_and(|it| it.blocks_available() * it.fragment_size() >= ENOUGH);
    if has_room { memory.to_owned() } else { env::temp_dir() }
}
