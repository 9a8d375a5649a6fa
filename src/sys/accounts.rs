//! Users, their home directories and groups, from /etc/passwd and /etc/group. Accounts that only a directory service
//! knows are not found: a static program cannot ask such a service, and a lock must not wait for one.

use std::fs;
use std::path::PathBuf;

use nix::unistd::{Gid, Uid};

/// The position of the number in a line of either file. The name comes first.
const NUMBER: usize = 2;

/// The position of the home directory in a line of /etc/passwd.
const HOME: usize = 5;

/// Returns the name of a user, if it is known.
pub fn user_name(uid: Uid) -> Option<String> {
    field("/etc/passwd", NUMBER, &uid.to_string(), 0)
}

/// Returns the home directory of a user, if it is known.
pub fn home_of(uid: Uid) -> Option<PathBuf> {
    field("/etc/passwd", NUMBER, &uid.to_string(), HOME).map(PathBuf::from)
}

/// Returns the name of a group, if it is known.
pub fn group_name(gid: Gid) -> Option<String> {
    field("/etc/group", NUMBER, &gid.to_string(), 0)
}

/// Returns the group that has this name, if it is known.
pub fn group_named(name: &str) -> Option<Gid> {
    field("/etc/group", 0, name, NUMBER)?.parse().ok().map(Gid::from_raw)
}

/// Returns field `wanted` of the first line in `file` whose field `known` is `value`.
fn field(file: &str, known: usize, value: &str, wanted: usize) -> Option<String> {
    let contents = fs::read(file).unwrap_or_default();
    contents
        .split(|byte| *byte == b'\n')
        .map(|line| line.split(|byte| *byte == b':').collect::<Vec<_>>())
        .find(|fields| fields.get(known) == Some(&value.as_bytes()))
        .and_then(|fields| Some(String::from_utf8_lossy(fields.get(wanted)?).into_owned()))
}
