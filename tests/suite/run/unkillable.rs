//! Processes that lockrun may not kill, such as those of sudo(8).

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::hand::{is_held, throughout};
use crate::support::holder::{is_free, write_script};
use crate::support::processes::{PATH, a_user_without_processes, find_program, is_alive, send};
use crate::support::user::User;
use crate::support::{LONG, Lockrun, Store, eventually};

/// A look-up of a name that takes longer than lockrun pauses between two attempts to kill.
const SLOW_GETENT: &str = "#!/bin/sh
sleep 1.5
echo '127.0.0.1       STREAM locks.test'
";

/// A directory with a copy of setpriv(1) that runs as root for every user, as sudo does, and the path of the copy.
/// getent(1) is slow there.
fn privileged() -> (TempDir, String) {
    let place = TempDir::new().expect("a temporary directory");
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).expect("our own");
    let program = place.path().join("privileged");
    let copied = Command::new("cp").arg(find_program("setpriv")).arg(&program).status().expect("cp(1) is there");
    assert!(copied.success(), "the program is copied");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("our own");
    let path = program.to_str().expect("a plain path").to_owned();
    write_script(place.path(), "getent", SLOW_GETENT);
    (place, path)
}

/// Lets a command that cannot be killed reach its time limit. `look` is called when lockrun has said so, and finds the
/// lock held.
#[track_caller]
fn keeps_its_lock(user: u32, url: &str, look: impl FnOnce()) {
    let (place, root) = privileged();
    let user = User::new(user, &[]);
    let options = [
        "--ttl",
        "9s",
        "--renew-every",
        "1s",
        "--store-timeout",
        "4s",
        "--max-runtime",
        "300ms",
        "--kill-after",
        "100ms",
    ];
    let script = "echo $$; echo ready; exec sleep 600";
    let command = [&root, "--reuid", "0", "--regid", "0", "--clear-groups", "sh", "-c", script];
    let call = Lockrun::at(url).key("k").args(options).command(command);
    let call = call.env("PATH", format!("{}:{PATH}", place.path().display()));
    let mut run = user.call(&call).spawn_alone();
    run.wait_for_line("ready");
    let command = run.stdout().lines().next().and_then(|pid| pid.parse().ok()).expect("a process id");
    let says_so = |said: &str| said.contains(&format!("cannot be killed (process {command}); the lock stays held"));
    // lockrun gives it 20 s to die.
    eventually(2 * LONG, "it is said", || says_so(&run.stderr()) || run.has_ended());
    assert!(says_so(&run.stderr()), "{}", run.stderr());
    look();
    assert!(!run.has_ended() && is_alive(command), "{}", run.stderr());
    send(command, Signal::SIGKILL);
    eventually(LONG, "the run has ended", || run.has_ended());
    run.wait().exited(124);
}

// "COMMAND is dead before the lock can pass": a command that cannot be killed when its time is up keeps the lock for as
// long as it lives, also if the server's name has to be looked up again meanwhile: lockrun does not kill that look-up.
#[test]
fn keeps_its_lease() {
    let store = Store::redis();
    let url = store.url().replacen("127.0.0.1", "locks.test", 1);
    keeps_its_lock(a_user_without_processes(), &url, || {
        store.server().hang_up();
        throughout(&store, 12, || assert!(is_held(&store, "k"), "it is renewed"));
    });
    assert!(is_free(&store, "k"));
}

#[test]
fn keeps_its_lock_on_files() {
    let user = a_user_without_processes();
    let directory = TempDir::new().expect("a temporary directory");
    chown(directory.path(), Some(user), Some(user)).expect("our own");
    let url = format!("file:{}", directory.path().display());
    keeps_its_lock(user, &url, || {
        let other = Lockrun::at(&url).key("k").command(["true"]);
        User::new(user, &[]).call(&other).alone().exited(75);
    });
}
