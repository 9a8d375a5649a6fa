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

/// What is done once, a statement a line: the extension with which the tests count requests, and a database less. The
/// last statement prints the OID of `template0`, which names its directory.
const STATEMENTS: &str = "CREATE EXTENSION pg_stat_statements
UPDATE pg_database SET datistemplate = false WHERE datname = 'template1'
DROP DATABASE template1
SELECT oid FROM pg_database WHERE datname = 'template0'";

/// The two parts of the template: the data without the files of `template0`, and those files.
const DATA: &str = "data";
const TEMPLATE0: &str = "template0";

static TEMPLATE: LazyLock<PathBuf> = LazyLock::new(template);

/// Copies the data of an empty server to this path, which must not exist yet. No database can be created there before
/// [`add_template0`]: its files are two fifths of all.
pub(super) fn copy_to(data: &Path) {
    output_of(Command::new("cp").arg("-a").arg(TEMPLATE.join(DATA)).arg(data));
}

/// Adds the files of `template0` to the data of a server, which may run: no session uses them.
pub(super) fn add_template0(data: &Path) {
    let files = fs::read_dir(TEMPLATE.join(TEMPLATE0)).expect("our own directory");
    let files = files.map(|entry| entry.expect("our own directory").path());
    output_of(Command::new("cp").arg("-an").args(files).arg(data.join("base")));
}

/// Returns its path, and creates it if necessary. It is in Cargo's target directory, so that `cargo clean` removes it,
/// under a name that depends on how it is made.
fn template() -> PathBuf {
    let version = output_of(Command::new(find_server_program("postgres")).arg("--version"));
    let mut hasher = DefaultHasher::new();
    (INITDB, STATEMENTS, "pg_resetwal", TEMPLATE0, version, Uid::effective().as_raw()).hash(&mut hasher);
    let template = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("postgres-{:016x}", hasher.finish()));
    if !template.is_dir() {
        make(&template);
    }
    template
}

fn make(template: &Path) {
    let place = memory::directory();
    let data = place.path().join(DATA);
    output_of(unprivileged(&find_server_program("initdb"), place.path()).args(INITDB).arg("-D").arg(&data));
    // Most of the write-ahead log is kept only to be written over.
    output_of(unprivileged(&find_server_program("pg_resetwal"), place.path()).arg("-D").arg(&data));
    let statements = place.path().join("statements");
    fs::write(&statements, STATEMENTS).expect("a file of our own");
    let mut single = unprivileged(&find_server_program("postgres"), place.path());
    single.arg("--single").arg("-D").arg(&data).arg("postgres");
    let output = single.stdin(fs::File::open(&statements).expect("a file of our own")).output();
    let output = output.expect("it starts");
    // It goes on after an error.
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("ERROR"), "{said}");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let template0 = shown.split('"').nth(1).unwrap_or_else(|| panic!("no number in {shown}"));
    let (files, apart) = (data.join("base").join(template0), place.path().join(TEMPLATE0));
    fs::create_dir(&apart).and_then(|()| fs::rename(files, apart.join(template0))).expect("our own directory");
    // Another test may make it at the same time: the first complete copy is used.
    let copy = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory");
    let whole = copy.path().join("template");
    fs::create_dir(&whole).expect("our own directory");
    output_of(Command::new("cp").arg("-a").args([&data, &apart]).arg(&whole));
    let moved = fs::rename(whole, template);
    assert!(moved.is_ok() || template.is_dir(), "{}: {moved:?}", template.display());
}
