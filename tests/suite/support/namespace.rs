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

/// A shell script that executes its arguments in a PID namespace of its own, where /proc stays that of the one outside. They are not
/// its first process, which has its own ways with signals.
#[track_caller]
pub(crate) fn with_pids_of_its_own() -> String {
    let namespaces = if Uid::effective().is_root() { "-pf" } else { "-rpf" };
    possible(&format!("exec unshare {namespaces} sh -c '\"$@\"; exit $?' sh \"$@\""), "have process ids of its own")
}

/// A shell script that executes its arguments as the first process of a PID namespace of its own, as a container does. It has a child, that
/// process, and ends as that does.
#[track_caller]
pub(crate) fn as_first_process() -> String {
    let namespaces = if Uid::effective().is_root() { "-pf" } else { "-rpf" };
    possible(&format!("exec unshare {namespaces} --mount-proc \"$@\""), "be the first process")
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
    possible(&format!("exec unshare {namespaces} sh -c '{inside}' sh \"$@\""), &format!("do `{setup}`"))
}

/// The script, if it works here; otherwise the test fails.
#[track_caller]
fn possible(script: &str, what: &str) -> String {
    let probe = Lockrun::bare().command(["sh", "-c", script, "sh", "true"]).alone();
    assert_eq!(
        probe.status,
        Some(0),
        "this test needs to {what} in a namespace of its own, which this machine does not let it: run it as root, or \
         allow users to have namespaces; {probe}"
    );
    script.to_owned()
}
