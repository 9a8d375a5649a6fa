//! The programs of PostgreSQL, and of the pooler in front of it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::support::processes::find_program;

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
