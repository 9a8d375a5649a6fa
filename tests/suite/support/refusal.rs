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
    touches_no_store(|url| case(Lockrun::at(url)), wanted);
}

/// The same for a case that is given the store's URL, since not every call begins with it.
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

/// A command whose run would be seen.
pub(crate) fn marked(call: Lockrun) -> Output {
    call.command(["echo", "ran"]).run()
}
