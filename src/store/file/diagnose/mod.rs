//! Checks for what would make locks in a directory unsafe or slow.

mod ancestors;
mod filesystem;
mod trial;

use std::fs::{read_link, remove_dir};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::access::Access;
use super::directory::{Directory, cannot_create, path_of};
use super::lock_file::LockFile;
use super::unreadable::Unreadable;
use crate::store::StoreError;
use crate::store::diagnostic::Diagnostic;
use crate::sys::blocked_signals::with_signals_blocked;

/// Checks the `named` lock directory, or the default one, tries locks in it, and reads the existing records. If the
/// directory does not exist, checks an empty one created beside it.
pub(super) fn diagnose(named: Option<&Path>, access: &Access) -> Vec<Diagnostic> {
    match Directory::open(named, access) {
        Ok(Some(directory)) => look_at(&directory, users(&directory)),
        Ok(None) => with_signals_blocked(|| missing(named, access)).unwrap_or_else(|error| vec![unusable(&error)]),
        Err(error) => vec![unusable(&error)],
    }
}

/// Checks an empty directory beside the missing one, which the first run will create.
fn missing(named: Option<&Path>, access: &Access) -> Result<Vec<Diagnostic>, StoreError> {
    let path = path_of(named)?;
    let stand_in = StandIn::beside(&path);
    let directory = Directory::open_at(&stand_in.0, access, true)?.map_err(|error| cannot_create(&path, &error))?;
    let found = Diagnostic::note(
        format!("the lock directory {} does not exist; an empty one beside it was looked at instead", path.display()),
        "the first run creates it; if there should be locks in it, check the store's URL",
    );
    let mut diagnostics = look_at(&directory, found);
    for Diagnostic { text, .. } in &mut diagnostics {
        *text = text.replace(&stand_in.0.display().to_string(), &path.display().to_string());
    }
    Ok(diagnostics)
}

fn unusable(error: &StoreError) -> Diagnostic {
    Diagnostic::unusable(format!("{error:#}"), "")
}

/// The path of an empty directory in place of one that does not exist. Dropping this removes the directory.
struct StandIn(PathBuf);

impl StandIn {
    fn beside(path: &Path) -> Self {
        StandIn(path.with_file_name(format!(".lockrun-doctor-{}", Uuid::new_v4())))
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        let _ = remove_dir(&self.0);
    }
}

/// Checks the open `directory`. `found` is the first diagnostic.
fn look_at(directory: &Directory, found: Diagnostic) -> Vec<Diagnostic> {
    let mut diagnostics = vec![found];
    diagnostics.extend(private(directory));
    diagnostics.extend(ancestors::diagnose(directory.path()));
    diagnostics.extend(filesystem::diagnose(directory.as_fd(), directory.path()));
    diagnostics.extend(with_signals_blocked(|| trial::diagnose(directory.as_fd(), directory.path())));
    diagnostics.extend(read_records(directory));
    diagnostics
}

/// Directories of which a systemd service with `PrivateTmp=yes` has its own instance.
const PRIVATE: [&str; 2] = ["/tmp", "/var/tmp"];

/// Returns a warning if some services see another directory at this path.
fn private(directory: &Directory) -> Option<Diagnostic> {
    // The real path, after all symbolic links.
    let path = read_link(format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd())).ok()?;
    let above = PRIVATE.into_iter().find(|above| path.starts_with(above))?;
    Some(Diagnostic::warn(
        format!(
            "the lock directory {} lies in {above}, of which a systemd service with PrivateTmp=yes has its own",
            path.display()
        ),
        "such a service and a cron job would hold one lock at once; name a directory elsewhere for all with --store file:/DIR",
    ))
}

/// Returns who can use the directory. As it was opened, it is known that no other user can write to it.
fn users(directory: &Directory) -> Diagnostic {
    let path = directory.path().display();
    Diagnostic::ok(match directory.access().group() {
        Some(group) => format!(
            "the lock directory {path} is shared by {group}, every member of which can hold, break and delete each \
             lock there"
        ),
        None => format!("only this user can write to the lock directory {path}"),
    })
}

/// Reads each record in `directory`, and reports everything else there that has a lock file's name.
fn read_records(directory: &Directory) -> Vec<Diagnostic> {
    let names = match directory.all_names() {
        Ok(names) => names,
        Err(error) => return vec![judge_unreadable(&error)],
    };
    let mut diagnostics = Vec::new();
    let mut read = 0;
    for name in names {
        let file = LockFile::open_to_look(directory, &name);
        match file.and_then(|file| file.map(|file| file.look(|_, _| Ok(()))).transpose()) {
            Ok(record) => read += usize::from(record.is_some()),
            Err(error) => diagnostics.push(judge_unreadable(&error)),
        }
    }
    if diagnostics.is_empty() {
        diagnostics.push(Diagnostic::ok(format!("the records of all locks there can be read ({read})")));
    }
    diagnostics
}

/// Returns what it means that a record cannot be read.
fn judge_unreadable(error: &StoreError) -> Diagnostic {
    match error.downcast_ref::<Unreadable>() {
        Some(file) if file.is_foreign() => Diagnostic::warn(file.text(), file.advice()),
        Some(file) => Diagnostic::fail(file.text(), file.advice()),
        None => Diagnostic::warn(format!("{error:#}"), "what needs that file ends with status 69 meanwhile"),
    }
}
