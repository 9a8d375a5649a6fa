//! Files that no disk has to be waited for.

use std::path::Path;

use tempfile::TempDir;

/// A temporary directory in memory, where the machine has a file system for that: on a disk that others keep busy, a server that
/// writes down everything, or a command that stamps its life into a file, may stand still for longer than a lease.
pub(crate) fn directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let directory = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
    directory.expect("a temporary directory")
}
