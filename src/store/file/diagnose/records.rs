//! The records of existing locks.

use crate::store::StoreError;
use crate::store::diagnostic::Diagnostic;
use crate::store::file::directory::Directory;
use crate::store::file::lock_file::LockFile;
use crate::store::file::unreadable::Unreadable;

/// Reads each record in `directory`, and reports everything else there that has a lock file's name.
pub(super) fn diagnose(directory: &Directory) -> Vec<Diagnostic> {
    let names = match directory.all_names() {
        Ok(names) => names,
        Err(error) => return vec![judge(&error)],
    };
    let mut diagnostics = Vec::new();
    let mut read = 0;
    for name in names {
        match LockFile::open_to_look(directory, &name)
            .and_then(|file| file.map(|file| file.look(|_, _| Ok(()))).transpose())
        {
            Ok(record) => read += usize::from(record.is_some()),
            Err(error) => diagnostics.push(judge(&error)),
        }
    }
    if diagnostics.is_empty() {
        diagnostics.push(Diagnostic::ok(format!("the records of all locks there can be read ({read})")));
    }
    diagnostics
}

/// Returns what it means that a record cannot be read.
fn judge(error: &StoreError) -> Diagnostic {
    match error.downcast_ref::<Unreadable>() {
        Some(file) if file.is_foreign() => Diagnostic::warn(file.text(), file.advice()),
        Some(file) => Diagnostic::fail(file.text(), file.advice()),
        None => Diagnostic::warn(format!("{error:#}"), "what needs that file ends with status 69 meanwhile"),
    }
}
