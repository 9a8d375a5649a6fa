//! Mounts and limits that only the processes of one call see.

use nix::unistd::Uid;

use super::lockrun::Lockrun;

/// A shell script that mounts something by `setup`, for itself alone, and then executes its arguments. Fails the test where the
/// machine does not let us mount.
#[track_caller]
pub(crate) fn with_mounts(setup: &str) -> String {
    entering(if Uid::effective().is_root() { "-m" } else { "-rm" }, setup)
}

/// The same where `setup` changes a limit of the user's, for itself alone.
#[track_caller]
pub(crate) fn with_limits(setup: &str) -> String {
    entering("-Ur", setup)
}

/// A shell script that executes its arguments where the clock that counts from the start of the machine is ahead by so many seconds.
#[track_caller]
pub(crate) fn with_clock_ahead(seconds: u32) -> String {
    let root = if Uid::effective().is_root() { "" } else { "-Ur " };
    entering(&format!("{root}-T --boottime {seconds} --fork"), "true")
}

#[track_caller]
fn entering(namespaces: &str, setup: &str) -> String {
    let inside = format!("{setup} && exec \"$@\"").replace('\'', "'\\''");
    let script = format!("exec unshare {namespaces} sh -c '{inside}' sh \"$@\"");
    let probe = Lockrun::bare().command(["sh", "-c", &script, "sh", "true"]).alone();
    assert_eq!(
        probe.status,
        Some(0),
        "this test needs to do `{setup}` in a namespace of its own, which this machine does not let it: run it as root, or \
         allow users to have namespaces; {probe}"
    );
    script
}
