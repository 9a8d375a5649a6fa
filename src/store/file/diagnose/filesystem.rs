//! The file system of the lock directory.

use std::os::fd::BorrowedFd;
use std::path::Path;

use nix::sys::statfs::fstatfs;
use nix::sys::statvfs::{FsFlags, fstatvfs};

use crate::store::diagnostic::Diagnostic;

/// The kinds of file systems whose locks may not be those of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Network,
    Fuse,
    Overlay,
}

/// File systems by the number that statfs(2) returns. Any other counts as local.
const KNOWN: [(u32, &str, Kind); 16] = [
    (0x0000_6969, "NFS", Kind::Network),
    (0xff53_4d42, "CIFS", Kind::Network),
    (0xfe53_4d42, "SMB", Kind::Network),
    (0x0000_517b, "SMB", Kind::Network),
    (0x0102_1997, "9p", Kind::Network),
    (0x5346_414f, "AFS", Kind::Network),
    (0x6b41_4653, "AFS", Kind::Network),
    (0x7375_7245, "Coda", Kind::Network),
    (0x00c3_6400, "Ceph", Kind::Network),
    (0x0bd0_0bd0, "Lustre", Kind::Network),
    (0x4750_4653, "GPFS", Kind::Network),
    (0x7461_636f, "OCFS2", Kind::Network),
    (0x0116_1970, "GFS2", Kind::Network),
    (0x786f_4256, "vboxsf", Kind::Network),
    (0x6573_5546, "FUSE", Kind::Fuse),
    (0x794c_7630, "overlay", Kind::Overlay),
];

/// With less room than this, it may soon be impossible to write a lock file.
const BYTES_MIN: u64 = 1 << 20;
const FILES_MIN: u64 = 100;

/// Checks the file system of the open `directory`, which is at `path`.
pub(super) fn diagnose(directory: BorrowedFd<'_>, path: &Path) -> Vec<Diagnostic> {
    let path = path.display().to_string();
    let mut diagnostics = Vec::new();
    match fstatfs(directory) {
        // The number has 32 bits; the type that holds it differs between machines.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        Ok(stat) => diagnostics.push(judge_kind(&path, stat.filesystem_type().0 as u32)),
        Err(errno) => diagnostics.push(Diagnostic::note(
            format!("cannot find out what file system {path} is on: {}", errno.desc()),
            "see with stat -f that it is none of the network",
        )),
    }
    if let Ok(stat) = fstatvfs(directory) {
        // The fields have fewer bits on some machines.
        #[allow(clippy::useless_conversion)]
        let (bytes, files_left) =
            (u64::from(stat.blocks_available()) * u64::from(stat.fragment_size()), u64::from(stat.files_available()));
        // Some file systems do not limit the number of files, and report 0.
        let files = (stat.files() > 0).then_some(files_left);
        diagnostics.push(judge_room(&path, stat.flags().contains(FsFlags::ST_RDONLY), bytes, files));
    }
    diagnostics
}

fn judge_kind(path: &str, number: u32) -> Diagnostic {
    let Some((_, name, kind)) = KNOWN.iter().find(|(known, ..)| *known == number) else {
        return Diagnostic::ok(format!(
            "{path} is on a file system of type {number:#x}, which is not known to be a network's"
        ));
    };
    let text = format!("{path} is on a file system {name}");
    match kind {
        Kind::Network => Diagnostic::fail(
            text,
            "a network file system may lose a lock while it is held, or not tell other machines of it; \
             use a directory of this machine, or a Redis or PostgreSQL for several",
        ),
        Kind::Fuse => Diagnostic::warn(
            text,
            "whether its locks can be relied on depends on the program behind it; use a directory of this machine",
        ),
        Kind::Overlay => Diagnostic::warn(
            text,
            "in a container it is the container's own: what runs outside, or in another, does not see its locks; \
             mount a directory that all of them share",
        ),
    }
}

fn judge_room(path: &str, read_only: bool, bytes: u64, files: Option<u64>) -> Diagnostic {
    let left = match files {
        Some(files) => format!("{} MiB and {files} files", bytes >> 20),
        None => format!("{} MiB", bytes >> 20),
    };
    let what = "without room for its file a lock cannot be acquired (status 69); make room";
    if read_only {
        Diagnostic::unusable(
            format!("{path} is on a file system that is mounted read-only"),
            "name another with --store file:/DIR",
        )
    } else if bytes == 0 || files == Some(0) {
        Diagnostic::unusable(format!("the file system of {path} is full ({left} left)"), what)
    } else if bytes < BYTES_MIN || files.is_some_and(|files| files < FILES_MIN) {
        Diagnostic::warn(format!("the file system of {path} is nearly full ({left} left)"), what)
    } else {
        Diagnostic::ok(format!("the file system has room ({left} left)"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::diagnostic::Level;

    #[test]
    fn what_lies_elsewhere_is_found() {
        let level = |number| judge_kind("/x", number).level;
        assert_eq!(level(0xef53), Level::Ok);
        assert_eq!(level(0x1234_5678), Level::Ok);
        for network in [0x6969, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997] {
            assert_eq!(level(network), Level::Fail, "{network:#x}");
        }
        assert_eq!(level(0x6573_5546), Level::Warn);
        assert_eq!(level(0x794c_7630), Level::Warn);
    }

    #[test]
    fn room_is_judged() {
        let level = |read_only, bytes, files| judge_room("/x", read_only, bytes, files).level;
        assert_eq!(level(false, 1 << 30, Some(1_000_000)), Level::Ok);
        assert_eq!(level(false, 1 << 30, None), Level::Ok);
        assert_eq!(level(true, 1 << 30, None), Level::Unusable);
        assert_eq!(level(false, 0, None), Level::Unusable);
        assert_eq!(level(false, 1 << 30, Some(0)), Level::Unusable);
        assert_eq!(level(false, 4096, None), Level::Warn);
        assert_eq!(level(false, 1 << 30, Some(5)), Level::Warn);
    }
}
