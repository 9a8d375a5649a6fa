//! Files in which other programs of a database find its passwords.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

use crate::sys::{accounts, input, trust};
use crate::text::escape::escaped_path;

/// Returns the password in the file at `path`, which `entry` finds in its contents; `None` if there is no such file, no
/// password, or an empty one.
///
/// Call this only when the server asks for a password: otherwise no password file should be read, let alone rejected.
/// Other programs skip a file that others can read, with a warning; here that is an error, because the run would
/// otherwise fail later for want of a password.
pub(super) fn in_file(path: &Path, entry: impl Fn(&[u8]) -> Option<Vec<u8>>) -> Result<Option<String>, String> {
    let wrong = |why: &dyn Display| Err(format!("cannot use the password file {}: {why}", escaped_path(path)));
    let contents = match input::read_password_file(path) {
        Ok(read) => read,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        Err(error) => return wrong(&error),
    };
    let Some(password) = entry(&contents) else { return Ok(None) };
    match String::from_utf8(password) {
        Ok(password) => Ok(Some(password).filter(|password| !password.is_empty())),
        Err(_) => wrong(&"the password in it is not UTF-8"),
    }
}

/// Does the same with the file of this `name` in our home directory: the one that the variable `HOME` names, if it is
/// set.
pub(super) fn in_home(
    name: &str,
    home: Option<OsString>,
    entry: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> Result<Option<String>, String> {
    let home = home.map(PathBuf::from).or_else(|| accounts::home_of(geteuid()));
    let Some(home) = home.filter(|home| home.is_absolute()) else { return Ok(None) };
    let path = home.join(name);
    in_file(&path, entry).or_else(|why| if trust::is_in_foreign_home(&home, &path) { Ok(None) } else { Err(why) })
}
