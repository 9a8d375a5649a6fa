//! The records of the locks that are there already.

use crate::report::diagnostic::Finding;
use crate::store::StoreError;
use crate::store::file::directory::Directory;
use crate::store::file::lock_file::LockFile;
use crate::store::file::unreadable::Unreadable;

/// Reads each record in `directory`.
pub(super) fn examine(directory: &Directory) -> Vec<Finding> {
    let names = match directory.names() {
        Ok(names) => names,
        Err(error) => return vec![judge(&error)],
    };
    let mut findings = Vec::new();
    let mut read = 0;
    for name in names {
        match LockFile::open_to_look(directory, &name).and_then(|file| file.map(|file| file.look()).transpose()) {
            Ok(record) => read += usize::from(record.is_some()),
            Err(error) => findings.push(judge(&error)),
        }
    }
    if findings.is_empty() {
        findings.push(Finding::ok(format!("the records of all locks there can be read ({read})")));
    }
    findings
}

/// What it means that a record cannot be read.
fn judge(error: &StoreError) -> Finding {
    match error.downcast_ref::<Unreadable>() {
        Some(file) if file.is_foreign() => Finding::warn(file.text(), file.advice()),
        Some(file) => Finding::fail(file.text(), file.advice()),
        None => Finding::warn(format!("{error:#}"), "what needs that file ends with status 69 meanwhile"),
    }
}
