//! Which configuration files are trusted. They decide which programs run and where locks live, so only root and the
//! user that lockrun runs as may be able to write them. ssh has the same rule for its files. It also applies to the
//! path of a lock directory that several users share.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf, absolute};

use nix::sys::statfs::{FsType, fstatfs};
use nix::unistd::geteuid;

use super::ancestors::{self, GROUP_WRITES, OTHERS_WRITE, STICKY, Step};
use crate::text::escape::escaped_path;
use crate::text::shell::{path_word, word};

/// The standard streams and the directories of descriptors: lockrun's caller opened these files and is responsible for
/// their contents.
const STREAMS: [&str; 3] = ["/dev/stdin", "/dev/stdout", "/dev/stderr"];
const DESCRIPTORS: [&str; 2] = ["/dev/fd", "/proc/self/fd"];

/// The permission bits that let anyone but the owner use a file, and the one that lets its group read it.
const OTHERS: u32 = 0o077;
const GROUP_READS: u32 = 0o040;

/// The file system type of unnamed pipes: see statfs(2).
const PIPEFS: FsType = FsType(0x5049_5045);

/// Fails, with a reason that says what to do, if a user other than root and this one can write or replace the `file`
/// that was opened at `path`. `metadata` is that of the open file. The error is never `NotFound`.
pub fn check(path: &Path, file: &File, metadata: &Metadata) -> io::Result<()> {
    if is_from_caller(path, file, metadata) {
        return Ok(());
    }
    if let Some(why) = judge_file(path, metadata.uid(), metadata.mode(), geteuid().as_raw()) {
        return refuse(why);
    }
    let (steps, end) = walk(path).map_err(cannot_walk)?;
    judge_steps(&steps[..steps.len() - 1])?;
    // The checked path must lead to the file that was opened, not to another one.
    if (end.dev(), end.ino()) != (metadata.dev(), metadata.ino()) {
        return refuse(
            "another file has taken its place, or its path leads through /proc; name it by another path".into(),
        );
    }
    Ok(())
}

/// Fails, with a reason that says what to do, if a user other than root and this one can create or replace something at
/// `path`. Nothing need exist there.
pub fn check_above(path: &Path) -> io::Result<()> {
    for above in path.ancestors().skip(1) {
        match walk(above) {
            // The directory above decides who can create it.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            walked => return judge_steps(&walked.map_err(cannot_walk)?.0),
        }
    }
    Ok(())
}

/// Fails, with a reason that says what to do, if a user other than root and this one can replace the directory at
/// `path`, or create files in it. A missing directory is right.
pub fn check_directory(path: &Path) -> io::Result<()> {
    let steps = match walk(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        walked => walked.map_err(cannot_walk)?.0,
    };
    judge_steps(&steps)?;
    // Not even in a sticky one.
    let others_write = steps.last().filter(|step| step.mode & (GROUP_WRITES | OTHERS_WRITE) != 0);
    others_write.map_or(Ok(()), |step| refuse(format!("others can write to it; chmod go-w {}", path_word(&step.path))))
}

/// Returns the first directory or symbolic link above `path` that does not belong to root, or that others can write to:
/// they could redirect what root does at `path`. `None` if there is none. Nothing need exist at `path`.
pub fn first_not_roots(path: &Path) -> io::Result<Option<PathBuf>> {
    let is_roots = |step: &Step| step.owner == 0 && (step.is_link || step.mode & (GROUP_WRITES | OTHERS_WRITE) == 0);
    for above in path.ancestors().skip(1) {
        match walk(above) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            walked => return Ok(walked?.0.into_iter().find(|step| !is_roots(step)).map(|step| step.path)),
        }
    }
    Ok(None)
}

/// Returns whether `path` is inaccessible because `home` is another user's, as after a service has changed its user but
/// not HOME.
pub fn is_in_foreign_home(home: &Path, path: &Path) -> bool {
    let hidden = fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
    hidden && fs::metadata(home).map_or(true, |home| home.uid() != geteuid().as_raw())
}

fn walk(path: &Path) -> io::Result<(Vec<Step>, Metadata)> {
    absolute(path).and_then(|path| ancestors::walk(&path))
}

// Called by map_err.
#[allow(clippy::needless_pass_by_value)]
fn cannot_walk(error: io::Error) -> io::Error {
    io::Error::other(format!("cannot check the directories above it: {error}"))
}

/// Fails if this user cannot trust one of these steps.
fn judge_steps(steps: &[Step]) -> io::Result<()> {
    let us = geteuid().as_raw();
    steps.iter().find_map(|step| judge_step(step, us)).map_or(Ok(()), refuse)
}

fn refuse(why: String) -> io::Result<()> {
    Err(refusal(why))
}

/// Returns the error of a refusal, which [`is_refusal`] recognises.
pub fn refusal(why: String) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, why)
}

/// Returns whether lockrun's caller opened the file: its path names a descriptor, or it is an unnamed pipe, which has
/// no name by which another user could open it.
fn is_from_caller(path: &Path, file: &File, metadata: &Metadata) -> bool {
    let is_pipe = || fstatfs(file).is_ok_and(|system| system.filesystem_type() == PIPEFS);
    is_name_of_descriptor(path) || metadata.file_type().is_fifo() && is_pipe()
}

/// Returns whether a path names a descriptor of this process, as `/dev/stderr` and `/dev/fd/3` do.
pub fn is_name_of_descriptor(path: &Path) -> bool {
    let is_in = |directory: &&str| path.parent() == Some(Path::new(directory));
    STREAMS.iter().any(|stream| path == Path::new(stream)) || DESCRIPTORS.iter().any(is_in)
}

/// Fails if another user than root and this one owns a file.
pub fn judge_owner(owner: u32) -> io::Result<()> {
    belongs_to_another(owner, geteuid().as_raw()).map_or(Ok(()), refuse)
}

/// Fails if this user cannot trust this step.
pub fn judge(step: &Step) -> io::Result<()> {
    judge_steps(std::slice::from_ref(step))
}

/// Fails because the file at `path` has other names, in a directory to which other users can write.
pub fn refuse_other_names<T>(path: &Path) -> io::Result<T> {
    Err(refusal(format!(
        "{} has another name (a hard link), and other users can create such links in its directory; remove it, or use another path",
        escaped_path(path)
    )))
}

/// Returns whether an error is the refusal of this module, not one of the system.
pub fn is_refusal(error: &io::Error) -> bool {
    error.kind() == ErrorKind::PermissionDenied && error.raw_os_error().is_none()
}

/// How far the owner of a secret file may open it to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privacy {
    /// Not at all.
    Owner,
    /// The group may read it if root owns it, as for a key that several services use. libpq has the same rule.
    RootsGroup,
}

/// Fails, with a reason that says what to do, if other users can read or write the secret `file` that was opened at
/// `path`.
pub fn check_private(path: &Path, file: &File, metadata: &Metadata, privacy: Privacy) -> io::Result<()> {
    if is_from_caller(path, file, metadata) {
        return Ok(());
    }
    let (mode, may_share) = (metadata.mode() & 0o7777, privacy == Privacy::RootsGroup && metadata.uid() == 0);
    let others = if may_share { OTHERS & !GROUP_READS } else { OTHERS };
    if mode & others == 0 {
        return Ok(());
    }
    let right = if may_share { "0640" } else { "0600" };
    let mounted = match privacy {
        Privacy::Owner => "",
        Privacy::RootsGroup => {
            "; for a mounted secret set defaultMode: 0400 (Kubernetes) or mode: 0400 (Docker), or pass it as key=/dev/fd/3"
        }
    };
    refuse(format!("it is not for its owner alone (mode {mode:03o}); chmod {right} {}{mounted}", path_word(path)))
}

/// Returns what is wrong with a file's owner for the user `us`, if anything.
fn belongs_to_another(owner: u32, us: u32) -> Option<String> {
    (owner != 0 && owner != us).then(|| {
        format!(
            "it belongs to uid {owner}, and only files of root and of this user (uid {us}) are trusted; change its owner, or use another \
             file"
        )
    })
}

/// Returns what is wrong with the file itself for the user `us`, if anything.
fn judge_file(path: &Path, owner: u32, mode: u32, us: u32) -> Option<String> {
    if let Some(why) = belongs_to_another(owner, us) {
        return Some(why);
    }
    let others_write = mode & (GROUP_WRITES | OTHERS_WRITE) != 0;
    others_write.then(|| format!("others can write to it (mode {:03o}); chmod go-w {}", mode & 0o7777, path_word(path)))
}

/// Returns what is wrong with a directory or symbolic link on the path for the user `us`, if anything.
fn judge_step(step: &Step, us: u32) -> Option<String> {
    let Step { path, is_link, owner, mode, .. } = step;
    let path = escaped_path(path);
    if *owner != 0 && *owner != us {
        let kind = if *is_link { "symbolic link" } else { "directory" };
        return Some(format!(
            "the {kind} {path} on its path belongs to uid {owner}, who can replace it; change its owner, or use another path"
        ));
    }
    // In a sticky directory only the owners of an entry and of the directory can replace the entry, and the owner of
    // every step is checked.
    let others_write = !is_link && mode & (GROUP_WRITES | OTHERS_WRITE) != 0 && mode & STICKY == 0;
    others_write.then(|| {
        format!(
            "others can write to {path}, on its path (mode {:03o}), and replace it; chmod go-w {}",
            mode & 0o7777,
            word(&path)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_and_we_may_have_written_it() {
        let is_fine = |owner, mode| judge_file("/x".as_ref(), owner, mode, 1000).is_none();
        assert!(is_fine(0, 0o644) && is_fine(1000, 0o600) && is_fine(1000, 0o444));
        assert!(!is_fine(1001, 0o600) && !is_fine(1000, 0o620) && !is_fine(0, 0o602) && !is_fine(1000, 0o1666));
    }

    #[test]
    fn no_other_user_may_replace_it() {
        let is_fine = |is_link, owner, mode| {
            judge_step(&Step { path: "/x".into(), is_link, owner, group: 0, mode }, 1000).is_none()
        };
        assert!(is_fine(false, 0, 0o755) && is_fine(false, 1000, 0o700) && is_fine(false, 0, 0o1777));
        assert!(is_fine(true, 0, 0o777) && is_fine(true, 1000, 0o777));
        assert!(!is_fine(false, 1001, 0o755) && !is_fine(true, 1001, 0o777) && !is_fine(false, 1001, 0o1777));
        assert!(!is_fine(false, 0, 0o775) && !is_fine(false, 1000, 0o707));
    }
}
