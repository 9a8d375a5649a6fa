//! Mounts and limits that only the processes of one call see.

use nix::unistd::Uid;

use super::lockrun::Lockrun;

/// Returns a shell script that runs `setup` in a mount namespace of its own and then executes its arguments. Fails the
/// test where the machine does not permit that.
#[track_caller]
pub(crate) fn with_mounts(setup: &str) -> String {
    entering(if Uid::effective().is_root() { "-m" } else { "-rm" }, setup)
}

/// Returns a shell script that runs `setup`, which changes a limit of the user's, in a user namespace of its own, and
/// then executes its arguments.
#[track_caller]
pub(crate) fn with_limits(setup: &str) -> String {
    entering("-Ur", setup)
}

/// Returns a shell script that executes its arguments in a PID namespace of its own, but with the /proc of the outer
/// namespace. They are not its first process, for which signals have special rules.
#[track_caller]
pub(crate) fn with_pids_of_its_own() -> String {
    let namespaces = if Uid::effective().is_root() { "-pf" } else { "-rpf" };
    possible(&format!("exec unshare {namespaces} sh -c '\"$@\"; exit $?' sh \"$@\""), "have process ids of its own")
}

/// Returns a shell script that executes its arguments as the first process of a PID namespace of its own, as a
/// container does. The script's only child is that process, and it ends as the child does.
#[track_caller]
pub(crate) fn as_first_process() -> String {
    let namespaces = if Uid::effective().is_root() { "-pf" } else { "-rpf" };
    possible(&format!("exec unshare {namespaces} --mount-proc \"$@\""), "be the first process")
}

/// Returns a shell script that executes its arguments in a time namespace whose boot clock is ahead by so many seconds.
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

/// Returns the script if it works on this machine; fails the test otherwise.
#[track_caller]
fn possible(script: &str, what: &str) -> String {
    let probe = Lockrun::bare().command(["sh", "-c", script, "sh", "true"]).alone();
    assert_eq!(
        probe.status,
        Some(0),
        "this test needs to {what} in a namespace of its own, which this machine does not let it: run it as root, or \
         allow users to have namespaces, and not in a chroot; {probe}"
    );
    script.to_owned()
}
