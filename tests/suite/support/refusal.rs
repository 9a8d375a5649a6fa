//! Calls that are refused before anything is touched.

use std::fs;

use tempfile::TempDir;

use super::fake::{Fake, Manner};
use super::lockrun::Lockrun;
use super::output::Output;

/// It was refused, by its own words, and named what is wrong.
#[track_caller]
pub(crate) fn is_refused(output: Output, wanted: &str) {
    let output = output.exited(64).printed("").said(wanted);
    assert!(output.stderr().starts_with("lockrun: "), "{output}");
}

/// Runs the case on a directory that does not exist and on a server that counts its guests.
#[track_caller]
pub(crate) fn touches_nothing(case: impl Fn(Lockrun) -> Output, wanted: &str) {
    let directory = TempDir::new().expect("a temporary directory");
    let url = format!("file:{}/locks", directory.path().display());
    is_refused(case(Lockrun::at(&url).directory(directory.path())), wanted);
    let left = fs::read_dir(directory.path()).expect("our own directory").count();
    assert_eq!(left, 0, "something was created");
    let server = Fake::start(Manner::Silent);
    is_refused(case(Lockrun::at(&server.url())), wanted);
    assert_eq!(server.connections(), 0, "the store was asked");
}

/// A command whose run would be seen.
pub(crate) fn marked(call: Lockrun) -> Output {
    call.command(["echo", "ran"]).run()
}
