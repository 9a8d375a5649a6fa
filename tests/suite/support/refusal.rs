//! Calls that are rejected before they change anything.

use std::fs;

use tempfile::TempDir;

use super::fake::{Fake, Manner};
use super::lockrun::Lockrun;
use super::output::Output;

/// Asserts that the call was rejected with a message of lockrun's that contains `wanted`.
#[track_caller]
pub(crate) fn is_refused(output: Output, wanted: &str) {
    let output = output.exited(64).printed("").said(wanted);
    assert!(output.stderr().starts_with("lockrun: "), "{output}");
}

/// Asserts that the case is rejected, on a directory that does not exist and on a server that counts connections, and
/// touches neither.
#[track_caller]
pub(crate) fn touches_nothing(case: impl Fn(Lockrun) -> Output, wanted: &str) {
    touches_no_store(|url| case(Lockrun::at(url)), wanted);
}

/// Does the same for a case that places the store's URL itself, since not every call begins with it.
#[track_caller]
pub(crate) fn touches_no_store(case: impl Fn(&str) -> Output, wanted: &str) {
    let directory = TempDir::new().expect("a temporary directory");
    is_refused(case(&format!("file:{}/locks", directory.path().display())), wanted);
    let left = fs::read_dir(directory.path()).expect("our own directory").count();
    assert_eq!(left, 0, "something was created");
    let server = Fake::start(Manner::Silent);
    is_refused(case(&server.url()), wanted);
    assert_eq!(server.connections(), 0, "the store was asked");
}

/// Runs the call with a command that would print `ran`.
pub(crate) fn marked(call: Lockrun) -> Output {
    call.command(["echo", "ran"]).run()
}
