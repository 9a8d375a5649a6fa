//! Opens a file to append to, so that no second user can choose which file that is: root's run must not write to a file
//! to which another user has planted a link, nor create one where they want it.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf, absolute};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};

use super::ancestors::{GROUP_WRITES, LINKS_MAX, OTHERS_WRITE, Step, reversed};
use super::trust;
use crate::text::escape::escaped_path;

/// Neither a FIFO without a reader nor a terminal blocks, and no other program inherits the file.
const HOW: OFlag =
    OFlag::O_WRONLY.union(OFlag::O_APPEND).union(OFlag::O_NONBLOCK).union(OFlag::O_NOCTTY).union(OFlag::O_CLOEXEC);

/// How a directory on the way, or what is in it, is looked at before it is opened.
const LOOK: OFlag = OFlag::O_PATH.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// The number of the inode of the root of each /proc. Its own links, such as /proc/self, lead where their text says.
const PROC_ROOT: u64 = 1;

/// Opens the file at `path`, which is created, for its owner alone, if it does not exist. Does not wait for the reader
/// of a FIFO.
///
/// Fails as [`trust::is_refusal`] recognises if a second user could have chosen the file:
/// - Each directory and symbolic link on the way must belong to root or to this user, and a directory that everybody
///   can write to must be sticky. A group may write to a directory, as to /var/log on some systems.
/// - In a directory that others (a group or everybody) can write to, no symbolic link is followed, and a file or FIFO
///   at the end must belong to root or to this user and have no other name. Its owner alone does not say who put it
///   there: hard links and renames keep the owner. A file or FIFO in a directory that is not shared may belong to any
///   user, as a log that belongs to a service: a user who can create one there is trusted.
/// - No link of /proc to what a process uses, such as `/proc/self/cwd`, may lead on: its text names another place than
///   the link leads to.
///
/// Each step is checked by the descriptor by which the next one is opened. Others can still exchange files and
/// directories of root's or of this user's for each other if they can write to both of the directories that these are
/// in. What the caller has opened, such as `/dev/stderr`, may be anything.
pub fn open_to_append(path: &Path) -> io::Result<File> {
    if trust::is_name_of_descriptor(path) {
        let flags = (HOW - OFlag::O_WRONLY - OFlag::O_APPEND).bits();
        return OpenOptions::new().append(true).custom_flags(flags).open(path);
    }
    let mut directory = Directory::root()?;
    let mut ahead = reversed(&absolute(path)?);
    // Each turn that leads no further counts, so that nobody can keep this going.
    let mut turns = 0;
    while let Some(name) = ahead.pop() {
        let next = directory.path.join(&name);
        let is_last = ahead.is_empty();
        let found = match directory.look(&name, is_last) {
            Err(Errno::ENOENT) if is_last => None,
            found => Some(found?),
        };
        let stat = found.as_ref().map(fstat).transpose()?;
        let kind = stat.map(|stat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT);
        match (found, stat, kind) {
            (Some(link), Some(stat), Some(SFlag::S_IFLNK)) => {
                judge(&next, &stat, true)?;
                if directory.is_shared {
                    return refuse(format!(
                        "{} is a symbolic link in a directory that others can write to; name the file itself",
                        escaped_path(&next)
                    ));
                }
                if directory.has_magic_links()? {
                    if is_last {
                        // A descriptor of a process of ours or of root's, as behind a link to /dev/stderr.
                        return Ok(openat(&directory.fd, &*name, HOW, Mode::empty())?.into());
                    }
                    return refuse(format!("its path leads through {}; name it by another path", escaped_path(&next)));
                }
                let target = PathBuf::from(readlinkat(&link, "")?);
                if target.is_absolute() {
                    directory = Directory::root()?;
                }
                ahead.extend(reversed(&target));
                turns += 1;
            }
            (found, stat, _) if is_last => {
                if let Some(file) = directory.open(&name, stat.as_ref(), found)? {
                    return Ok(file);
                }
                ahead.push(name);
                turns += 1;
            }
            (Some(entered), Some(stat), _) => directory = directory.entered(&next, &name, entered, &stat)?,
            _ => return Err(Errno::ENOENT.into()),
        }
        if turns > LINKS_MAX {
            return Err(Errno::ELOOP.into());
        }
    }
    Err(Errno::EISDIR.into())
}

/// A directory on the way.
struct Directory {
    path: PathBuf,
    fd: OwnedFd,
    /// Whether other users can create entries.
    is_shared: bool,
}

impl Directory {
    fn root() -> io::Result<Self> {
        let fd = open("/", LOOK | OFlag::O_DIRECTORY, Mode::empty())?;
        let stat = fstat(&fd)?;
        Self::checked(PathBuf::from("/"), fd, &stat)
    }

    fn checked(path: PathBuf, fd: OwnedFd, stat: &FileStat) -> io::Result<Self> {
        judge(&path, stat, false)?;
        Ok(Directory { path, fd, is_shared: stat.st_mode & (GROUP_WRITES | OTHERS_WRITE) != 0 })
    }

    /// Opens what has this name here, without following a link. The kernel mounts what autofs has there only if a
    /// directory is asked for.
    fn look(&self, name: &OsStr, is_last: bool) -> nix::Result<OwnedFd> {
        let look = |how| openat(&self.fd, name, how, Mode::empty());
        match if is_last { Err(Errno::ENOTDIR) } else { look(LOOK | OFlag::O_DIRECTORY) } {
            Err(Errno::ENOTDIR) => look(LOOK),
            found => found,
        }
    }

    /// Returns whether links in this directory may lead elsewhere than their text says, as those of /proc below its
    /// root.
    fn has_magic_links(&self) -> io::Result<bool> {
        Ok(fstatfs(&self.fd)?.filesystem_type() == PROC_SUPER_MAGIC && fstat(&self.fd)?.st_ino != PROC_ROOT)
    }

    /// Returns the directory `name` in this one, at `path`.
    fn entered(self, path: &Path, name: &OsStr, directory: OwnedFd, stat: &FileStat) -> io::Result<Self> {
        let path = if name == ".." { self.path.parent().unwrap_or(&self.path).to_owned() } else { path.to_owned() };
        Self::checked(path, directory, stat)
    }

    /// Opens the file `name` in this directory, which has been `found` there with this `stat`, or creates it. Returns
    /// `None` if it is another one by now.
    fn open(&self, name: &OsStr, stat: Option<&FileStat>, found: Option<OwnedFd>) -> io::Result<Option<File>> {
        let path = self.path.join(name);
        let Some(stat) = stat else {
            let created =
                openat(&self.fd, name, HOW | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW, owners_alone());
            return match created {
                Err(Errno::EEXIST) => Ok(None),
                created => Ok(Some(created?.into())),
            };
        };
        let is_file =
            matches!(SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT, SFlag::S_IFREG | SFlag::S_IFIFO);
        if is_file && self.is_shared {
            trust::judge_owner(stat.st_uid).or_else(|why| refuse(format!("{why}; {WAY_OUT}")))?;
        }
        let opened = match openat(&self.fd, name, HOW | OFlag::O_NOFOLLOW, Mode::empty()) {
            Err(Errno::ENOENT | Errno::ELOOP) => return Ok(None),
            opened => opened?,
        };
        let opened_stat = fstat(opened.as_fd())?;
        // Held open until here: its number cannot have been used again.
        drop(found);
        if (opened_stat.st_dev, opened_stat.st_ino) != (stat.st_dev, stat.st_ino) {
            return Ok(None);
        }
        if is_file && self.is_shared && opened_stat.st_nlink > 1 {
            return trust::refuse_other_names(&path);
        }
        Ok(Some(opened.into()))
    }
}

/// Returns the mode of a new file.
fn owners_alone() -> Mode {
    Mode::S_IRUSR | Mode::S_IWUSR
}

/// Fails if a second user could replace this directory or symbolic link, or entries of the directory that are not their
/// own.
fn judge(path: &Path, stat: &FileStat, is_link: bool) -> io::Result<()> {
    // A group may write to a directory that is not everybody's.
    let is_everybodys = !is_link && stat.st_mode & OTHERS_WRITE != 0;
    let mode = if is_everybodys { stat.st_mode } else { stat.st_mode & !GROUP_WRITES };
    let judged = trust::judge(&Step { path: path.to_owned(), is_link, owner: stat.st_uid, group: stat.st_gid, mode });
    if is_everybodys { judged.or_else(|why| refuse(format!("{why}; {WAY_OUT}"))) } else { judged }
}

/// What to do where the directory of a file must stay as it is, and the caller trusts it.
const WAY_OUT: &str = "or open the file for lockrun, for example with --events /dev/fd/3 3>>FILE";

fn refuse<T>(why: String) -> io::Result<T> {
    Err(trust::refusal(why))
}
