//! The directories and symbolic links that a path leads through.

use std::ffi::OsString;
use std::fs::{Metadata, read_link, symlink_metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;

/// Bits of a mode.
pub const STICKY: u32 = 0o1000;
pub const GROUP_WRITES: u32 = 0o020;
pub const OTHERS_WRITE: u32 = 0o002;

/// The most symbolic links that the kernel follows on one path.
pub const LINKS_MAX: u32 = 40;

/// A directory or a symbolic link on a path.
#[derive(Debug)]
pub struct Step {
    /// Its path, without symbolic links before the last name.
    pub path: PathBuf,
    /// Whether it is a symbolic link.
    pub is_link: bool,
    /// The uid of its owner.
    pub owner: u32,
    /// The gid of its group.
    pub group: u32,
    /// Its mode; meaningless for a symbolic link.
    pub mode: u32,
}

impl Step {
    fn new(path: &Path, metadata: &Metadata) -> Self {
        let (owner, group, mode) = (metadata.uid(), metadata.gid(), metadata.mode());
        Step { path: path.to_owned(), is_link: metadata.is_symlink(), owner, group, mode }
    }
}

/// Returns every directory and symbolic link on the absolute path `goal`, in the order in which the kernel resolves it;
/// the last step is the file or directory at the end of the path, whose metadata is also returned.
pub fn walk(goal: &Path) -> io::Result<(Vec<Step>, Metadata)> {
    let mut here = PathBuf::from("/");
    let mut end = symlink_metadata(&here)?;
    let mut steps = vec![Step::new(&here, &end)];
    let mut ahead = reversed(goal);
    let mut links = 0;
    while let Some(name) = ahead.pop() {
        if name == ".." {
            here.pop();
            continue;
        }
        let next = here.join(name);
        let metadata = symlink_metadata(&next)?;
        if metadata.is_symlink() {
            links += 1;
            if links > LINKS_MAX {
                return Err(Errno::ELOOP.into());
            }
            let target = read_link(&next)?;
            if target.is_absolute() {
                here = PathBuf::from("/");
            }
            ahead.extend(reversed(&target));
        } else {
            here.clone_from(&next);
        }
        steps.push(Step::new(&next, &metadata));
        end = metadata;
    }
    Ok((steps, end))
}

/// Returns the names in a path in reverse order.
pub fn reversed(path: &Path) -> Vec<OsString> {
    let names = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    names.rev().map(|part| part.as_os_str().to_owned()).collect()
}
