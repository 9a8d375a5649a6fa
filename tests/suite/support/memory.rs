//! Files that no disk has to be waited for.

use std::path::Path;

use nix::sys::statvfs::statvfs;
use tempfile::TempDir;

/// What has to be free there, in bytes: containers often have 64 MB in all, which a database fills.
const ENOUGH: u64 = 512 << 20;

/// A temporary directory in memory, where the machine has a file system for that, with room in it: on a disk that others keep busy, a server that
/// writes down everything, or a command that stamps its life into a file, may stand still for longer than a lease.
pub(crate) fn directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let has_room = statvfs(memory).is_ok_and(|it| it.blocks_available() * it.fragment_size() >= ENOUGH);
    let directory = if has_room { TempDir::new_in(memory) } else { TempDir::new() };
    directory.expect("a temporary directory")
}
