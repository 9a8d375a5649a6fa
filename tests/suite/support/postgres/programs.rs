//! The programs of PostgreSQL, and of the pooler in front of it.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::unistd::{Uid, User};

use crate::support::birth::Birth;
use crate::support::processes::{self, find_program};

/// Returns a command that runs a server program in this directory, and ends with the test.
///
/// If the tests run as root, it runs as `nobody`, to whom the directory is given: neither server runs as root.
pub(super) fn unprivileged(program: &Path, directory: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", processes::PATH).env("LC_ALL", "C").current_dir(directory).stdin(Stdio::null());
    if let Some(nobody) = nobody() {
        give(directory);
        command.uid(nobody.uid.as_raw()).gid(nobody.gid.as_raw());
    }
    Birth { dies_with_us: true, limits: vec![files()], ..Birth::default() }.prepare(&mut command);
    command
}

/// Gives a file to the user who runs the servers.
pub(super) fn give(path: &Path) {
    if let Some(nobody) = nobody() {
        chown(path, Some(nobody.uid.as_raw()), Some(nobody.gid.as_raw())).expect("we are root");
    }
}

fn nobody() -> Option<User> {
    Uid::effective()
        .is_root()
        .then(|| User::from_name("nobody").expect("users can be looked up").expect("there is nobody"))
}

/// Returns the limit of open files that a pooler with thousands of clients needs.
fn files() -> (nix::sys::resource::Resource, u64, u64) {
    use nix::sys::resource::{Resource, getrlimit};
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("limits can be read");
    (Resource::RLIMIT_NOFILE, most.min(8192), most)
}

/// Runs a program, which must succeed. Returns what it prints.
#[track_caller]
pub(super) fn output_of(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the path of a program of the server. Debian keeps each version's programs in a directory of their own.
pub(super) fn find_server_program(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let found = versions.map(|version| version.path().join("bin").join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| find_program(name))
}
