//! The data of an empty PostgreSQL server, created once for all tests: a copy takes a twentieth of the time.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use nix::unistd::Uid;
use tempfile::TempDir;

use super::programs::{find_server_program, output_of};
use crate::support::memory;
use crate::support::server::unprivileged;

/// The options of initdb. The data is small, since each test has a copy.
const INITDB: [&str; 9] = ["-N", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--wal-segsize=1"];

/// What is done once, a statement a line: the extension with which the tests count requests, and a database less to
/// copy, since `template0` serves as well.
const STATEMENTS: &str = "CREATE EXTENSION pg_stat_statements
UPDATE pg_database SET datistemplate = false WHERE datname = 'template1'
DROP DATABASE template1";

/// Copies the data of an empty server to this path, which must not exist yet.
pub(super) fn copy_to(data: &Path) {
    static TEMPLATE: LazyLock<PathBuf> = LazyLock::new(template);
    output_of(Command::new("cp").arg("-a").arg(&*TEMPLATE).arg(data));
}

/// Returns its path, and creates it if necessary. It is in Cargo's target directory, so that `cargo clean` removes it,
/// under a name that depends on how it is made.
fn template() -> PathBuf {
    let version = output_of(Command::new(find_server_program("postgres")).arg("--version"));
    let mut hasher = DefaultHasher::new();
    (INITDB, STATEMENTS, "pg_resetwal", version, Uid::effective().as_raw()).hash(&mut hasher);
    let template = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("postgres-{:016x}", hasher.finish()));
    if !template.is_dir() {
        make(&template);
    }
    template
}

fn make(template: &Path) {
    let place = memory::directory();
    let data = place.path().join("data");
    output_of(unprivileged(&find_server_program("initdb"), place.path()).args(INITDB).arg("-D").arg(&data));
    // Most of the write-ahead log is kept only to be written over.
    output_of(unprivileged(&find_server_program("pg_resetwal"), place.path()).arg("-D").arg(&data));
    let statements = place.path().join("statements");
    fs::write(&statements, STATEMENTS).expect("a file of our own");
    let mut single = unprivileged(&find_server_program("postgres"), place.path());
    single.arg("--single").arg("-D").arg(&data).arg("postgres");
    let output = single.stdin(fs::File::open(&statements).expect("a file of our own")).output();
    // It goes on after an error.
    let said = String::from_utf8_lossy(&output.expect("it starts").stderr).into_owned();
    assert!(!said.contains("ERROR"), "{said}");
    // Another test may make it at the same time: the first complete copy is used.
    let copy = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory");
    output_of(Command::new("cp").arg("-a").arg(&data).arg(copy.path()));
    let moved = fs::rename(copy.path().join("data"), template);
    assert!(moved.is_ok() || template.is_dir(), "{}: {moved:?}", template.display());
}
